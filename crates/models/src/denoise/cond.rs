//! One entry of a conditioning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fresco_tensor::Tensor;

use super::call::{CallConds, ModelConds, Predict};
use super::hooks::{ControlFeatures, Hooks};
use super::region::{Area, Region};
use crate::error::Result;

/// What a control net makes of a batch. Two conditions share a pass only with the same object.
pub trait ControlSource: Send + Sync {
    fn features(
        &self,
        x: &Tensor,
        sigma: f32,
        conds: &CallConds,
        chunks: usize,
    ) -> Result<Option<ControlFeatures>>;
}

/// Adds to what acts inside the network while a condition is predicted. Two conditions share a pass only with the same object.
pub trait CondHooks: Send + Sync {
    /// `x` is the latent of the pass, (b, c, ...).
    fn add(&self, x: &Tensor, hooks: &mut Hooks) -> Result<()>;
}

/// What a vision network saw, and how much it counts.
#[derive(Clone, Debug)]
pub struct SeenPicture {
    /// A vector for each picture, (b, c).
    pub embeds: Tensor,
    pub strength: f64,
    /// How much noise is put on it, from 0 to 1.
    pub noise: f64,
}

/// One entry of a conditioning.
#[derive(Clone)]
pub struct Cond {
    /// (b, n, c).
    pub tokens: Option<Tensor>,
    pub pooled: Option<Tensor>,
    pub area: Option<Area>,
    pub strength: f64,
    /// (b, h, w).
    pub mask: Option<Tensor>,
    pub mask_strength: f64,
    /// The area is the box around the mask.
    pub area_of_mask: bool,
    /// Part of the sampling after which the condition counts.
    pub start_percent: Option<f64>,
    pub end_percent: Option<f64>,
    /// The same for text that was encoded for a part of the sampling.
    pub text_percent: Option<(f64, f64)>,
    pub control: Option<Arc<dyn ControlSource>>,
    /// The control net acts on the negative prompt too.
    pub control_to_uncond: bool,
    /// Fills what other conditions leave.
    pub is_default: bool,
    /// `positive`, `negative`, ... in place of the name of the list.
    pub prompt_type: Option<Arc<str>>,
    /// Further tensors and numbers by name, for models that know them.
    pub tensors: BTreeMap<Arc<str>, Tensor>,
    pub numbers: BTreeMap<Arc<str>, f64>,
    /// Lists of tensors, and words.
    pub lists: BTreeMap<Arc<str>, Vec<Tensor>>,
    pub words: BTreeMap<Arc<str>, Arc<str>>,
    /// What a node has switched off by setting it to nothing.
    pub nulls: BTreeSet<Arc<str>>,
    /// What vision networks saw.
    pub seen: Vec<SeenPicture>,
    /// The seed of the run, for models that draw noise for a condition.
    pub seed: u64,
    /// What acts inside the network for this condition.
    pub hooks: Option<Arc<dyn CondHooks>>,
    /// Noise levels between which the condition counts; set by preparation.
    pub start: Option<f32>,
    pub end: Option<f32>,
    /// What the network gets; set by preparation.
    pub model_conds: ModelConds,
    /// The network that predicts for this condition, in place of the one that is sampled: the same with other weights.
    pub network: Option<Arc<dyn Predict + Send + Sync>>,
}

impl Default for Cond {
    fn default() -> Self {
        Self {
            tokens: None,
            pooled: None,
            area: None,
            strength: 1.0,
            mask: None,
            mask_strength: 1.0,
            area_of_mask: false,
            start_percent: None,
            end_percent: None,
            text_percent: None,
            control: None,
            control_to_uncond: false,
            is_default: false,
            prompt_type: None,
            tensors: BTreeMap::new(),
            numbers: BTreeMap::new(),
            lists: BTreeMap::new(),
            words: BTreeMap::new(),
            nulls: BTreeSet::new(),
            seen: Vec::new(),
            seed: 0,
            hooks: None,
            start: None,
            end: None,
            model_conds: ModelConds::new(),
            network: None,
        }
    }
}

impl Cond {
    /// A plain prompt.
    pub fn new(tokens: Tensor) -> Self {
        Self {
            tokens: Some(tokens),
            ..Self::default()
        }
    }

    /// The box after preparation.
    pub(super) fn region(&self) -> Option<&Region> {
        match &self.area {
            Some(Area::Cells(region)) => Some(region),
            _ => None,
        }
    }

    pub(super) fn is_active(&self, sigma: f32) -> bool {
        !(self.start.is_some_and(|s| sigma > s) || self.end.is_some_and(|s| sigma < s))
    }
}

/// The conditionings of a run by name: `positive`, `negative`, and what else a guider knows.
pub type Lists = Vec<(Arc<str>, Vec<Cond>)>;
