//! Networks that steer a diffusion model with a picture. Which ones there are is said in
//! [`CONTROL_NETS`](crate::detect::CONTROL_NETS).

use std::fmt;
use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use crate::denoise::CallConds;
use crate::denoise::hooks::ControlFeatures;
use crate::error::Result;
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

/// The weights of a control file, with what kind of network they make.
#[derive(Clone)]
pub struct ControlStore {
    pub store: Arc<WeightStore>,
    pub build: BuildControl,
    /// Whether the mask of an inpainting goes into the network as a further channel of the hint's latent.
    pub wants_mask: bool,
}

impl ControlStore {
    pub fn new(store: Arc<WeightStore>, build: BuildControl) -> Self {
        Self {
            store,
            build,
            wants_mask: false,
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
