//! Networks that steer a diffusion model with a picture. Which ones there are is said in
//! [`CONTROL_NETS`](crate::detect::CONTROL_NETS).

use std::fmt;
use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use crate::conds;
use crate::denoise::hooks::ControlFeatures;
use crate::denoise::{CallConds, names};
use crate::error::{ModelError, Result};
use crate::latent_format::LatentFormat;
use crate::store::WeightStore;

/// What a network made of a hint, once for a run and in main memory.
#[derive(Clone, Debug)]
pub enum SeenHint {
    /// Goes into every pass.
    Map(Tensor),
    /// The result of all passes.
    Features(ControlFeatures),
}

impl SeenHint {
    /// Every tensor of it changed.
    pub fn map(self, change: impl Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(match self {
            Self::Map(map) => Self::Map(change(map)?),
            Self::Features(features) => Self::Features(features.map(change)?),
        })
    }
}

conds! {
    /// What steering networks look at of what the steered one is told.
    pub struct ControlConds<'a> {
        own_prompt: Option<&'a Tensor> = names::CONTROL_PROMPT,
        prompt: Option<&'a Tensor> = names::PROMPT,
        pooled: Option<&'a Tensor> = names::POOLED,
    }
}

impl<'a> ControlConds<'a> {
    /// The prompt that a control net sees: one of its own, or else the model's.
    pub fn steering_prompt(&self) -> Result<&'a Tensor> {
        let found = self.own_prompt.or(self.prompt);
        found.ok_or_else(|| ModelError::invalid("control net", "there is no prompt"))
    }
}

/// The inputs of one pass.
pub struct ControlInput<'a> {
    /// The latent as the network that is steered gets it.
    pub x: &'a Tensor,
    pub seen: &'a SeenHint,
    /// What kinds of hint it is, for networks that know several.
    pub types: &'a [usize],
    /// The weights of the network that is steered, for those that share some of them.
    pub steered: Option<&'a Arc<WeightStore>>,
    /// What the network is told of the noise level, for each item.
    pub timesteps: &'a [f32],
    pub conds: &'a CallConds,
}

/// A network that steers.
pub trait ControlNetwork: Send + Sync {
    /// Width and height of the hint for a latent of `columns` by `rows` cells.
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize);

    /// Channels of a hint that it looks at.
    fn hint_channels(&self) -> usize;

    /// The format of the latents that it sees in place of pictures; none if it sees pictures.
    fn latent(&self) -> Option<LatentFormat> {
        None
    }

    /// A picture (b, c, h, w) as it wants it, before it becomes a latent.
    fn prepare(&self, hint: Tensor) -> Result<Tensor> {
        Ok(hint)
    }

    /// What it makes of a hint (b, c, h, w) in 0..1, or of its latent. `types` are the kinds it is said to be.
    fn see(&self, hint: &Tensor, types: &[usize]) -> Result<SeenHint>;

    /// What to add to the steered network.
    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures>;

    /// Gives back what a run left on the device.
    fn rest(&self) {}
}

/// Recognises a kind of control network in a file by its names; none if it holds something else.
pub type FindControl = fn(&Arc<dyn WeightFile>, &[String], &Device) -> Result<Option<ControlStore>>;

/// Builds a network from its weights.
pub type BuildControl = fn(&WeightStore) -> Result<Box<dyn ControlNetwork>>;

/// The networks that a kind of control net steers, told by their weights.
#[derive(Clone, Copy)]
pub struct Steers {
    /// In words: "Flux.1 and Chroma".
    pub models: &'static str,
    /// A weight that such a network has, and others have not.
    pub key: &'static str,
    /// Pairs of a weight of the control net and one of the network whose columns agree.
    pub columns: &'static [(&'static str, &'static str)],
}

impl Steers {
    /// Why a control net cannot steer a network; none if nothing speaks against it.
    fn refusal(&self, own: &WeightStore, steered: &WeightStore) -> Option<String> {
        let models = self.models;
        let choose =
            "choose a control net that was made for the model, or the model that it was made for";
        if !steered.has(self.key) {
            return Some(format!(
                "this is a control net for {models}, and {} is a model of another family: {choose}",
                steered.file()
            ));
        }
        let width = |store: &WeightStore, end: &str| {
            let exact = store.shape(end);
            let found = exact.or_else(|| {
                let keys = store.keys();
                let key = keys.into_iter().find(|key| key.ends_with(end))?;
                store.shape(key)
            });
            found.and_then(|shape| shape.get(1).copied())
        };
        self.columns.iter().find_map(|(mine, theirs)| {
            let (mine, theirs) = (width(own, mine)?, width(steered, theirs)?);
            (mine != theirs).then(|| {
                format!(
                    "this is a control net for {models} of another size than {}: its layers take {mine} values where \
                     those of the model take {theirs}; {choose}",
                    steered.file()
                )
            })
        })
    }
}

/// The weights of a control file, with what kind of network they make.
#[derive(Clone)]
pub struct ControlStore {
    pub store: Arc<WeightStore>,
    pub build: BuildControl,
    pub steers: Steers,
    /// Whether the mask of an inpainting goes into the network as a further channel of the hint's latent.
    pub wants_mask: bool,
}

impl ControlStore {
    pub fn new(store: Arc<WeightStore>, build: BuildControl, steers: Steers) -> Self {
        Self {
            store,
            build,
            steers,
            wants_mask: false,
        }
    }

    /// Whether it can steer the network of these weights. The error names both files.
    pub fn check(&self, steered: &WeightStore) -> Result<()> {
        match self.steers.refusal(&self.store, steered) {
            Some(reason) => Err(ModelError::unsupported(self.store.file(), reason)),
            None => Ok(()),
        }
    }

    /// The same weights, computed with on another device.
    #[must_use]
    pub fn on(&self, device: Device) -> Self {
        Self {
            store: self.store.on(device),
            ..self.clone()
        }
    }

    pub fn build(&self) -> Result<Box<dyn ControlNetwork>> {
        (self.build)(&self.store)
    }
}

impl fmt::Debug for ControlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
