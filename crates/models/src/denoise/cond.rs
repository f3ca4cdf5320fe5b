//! One entry of a conditioning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::Tensor;

use super::call::{CallConds, CondValue, ModelConds, Predict};
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

/// What every step of a run would make anew of the inputs of a condition: for its batch, and joined with those that share its pass. A network that is given the
/// same objects in every step need not compare them. A clone keeps nothing.
#[derive(Default)]
pub struct KeptInputs(Mutex<Inputs>);

impl Clone for KeptInputs {
    fn clone(&self) -> Self {
        Self::default()
    }
}

#[derive(Default)]
struct Inputs {
    fitted: Option<Fitted>,
    /// Of these conditions.
    joined: Option<(Vec<Arc<ModelConds>>, CallConds)>,
}

struct Fitted {
    from: ModelConds,
    count: usize,
    region: Option<Region>,
    made: Arc<ModelConds>,
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
    /// What steps keep.
    pub kept: KeptInputs,
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
            kept: KeptInputs::default(),
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

    /// What the network gets for a batch of `count`, cut to a region.
    pub(super) fn fitted(&self, count: usize, region: Option<&Region>) -> Result<Arc<ModelConds>> {
        let mut kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = |from: &ModelConds| {
            from.len() == self.model_conds.len()
                && from
                    .iter()
                    .zip(&self.model_conds)
                    .all(|(a, b)| a.0 == b.0 && a.1.is_shared_with(b.1))
        };
        if let Some(old) = &kept.fitted
            && (old.count, old.region.as_ref()) == (count, region)
            && shared(&old.from)
        {
            return Ok(Arc::clone(&old.made));
        }
        let mut made = ModelConds::new();
        for (name, value) in &self.model_conds {
            made.insert(name, value.fitted(count, region)?);
        }
        let made = Arc::new(made);
        kept.fitted = Some(Fitted {
            from: self.model_conds.clone(),
            count,
            region: region.cloned(),
            made: Arc::clone(&made),
        });
        Ok(made)
    }

    /// The inputs of several conditions, of which it is the first, as those of one pass.
    pub(super) fn joined(&self, all: Vec<Arc<ModelConds>>) -> Result<CallConds> {
        let mut kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |old: &[Arc<ModelConds>]| {
            old.len() == all.len() && old.iter().zip(&all).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some((old, conds)) = &kept.joined
            && same(old)
        {
            return Ok(conds.clone());
        }
        // What was kept goes before the new one comes.
        kept.joined = None;
        let mut conds = CallConds::default();
        for name in all.first().into_iter().flat_map(|first| first.keys()) {
            let values: Vec<&CondValue> = all.iter().filter_map(|p| p.get(name)).collect();
            conds.0.insert(name, CondValue::joined(&values)?);
        }
        kept.joined = Some((all, conds.clone()));
        Ok(conds)
    }

    pub(super) fn is_active(&self, sigma: f32) -> bool {
        !(self.start.is_some_and(|s| sigma > s) || self.end.is_some_and(|s| sigma < s))
    }
}

/// The conditionings of a run by name: `positive`, `negative`, and what else a guider knows.
pub type Lists = Vec<(Arc<str>, Vec<Cond>)>;
