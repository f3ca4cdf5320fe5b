//! MODEL: a network with the way it is sampled and what nodes patched onto it.

use std::sync::Arc;

use fresco_graph::{FromValue, Opaque, Value, wrong_kind};
use fresco_models::blocks::{Downscale, FreeU};
use fresco_models::guidance::{CfgRule, DifferentialDiffusion, PostCfg, PreCfg};
use fresco_models::{LatentFormat, ModelSampling};
use fresco_tensor::{Result, Tensor};

/// What nodes ask of a loaded network.
pub trait BaseModel: Send + Sync {
    /// A name for logs and error reports.
    fn name(&self) -> String;

    /// From the latents of nodes to those the network works on.
    fn process_latent_in(&self, latent: &Tensor) -> Result<Tensor>;

    /// And back.
    fn process_latent_out(&self, latent: &Tensor) -> Result<Tensor>;

    /// Channels of the first level of a UNet; none for other networks.
    fn model_channels(&self) -> Option<usize> {
        None
    }

    /// Channels the network takes, where it says so.
    fn in_channels(&self) -> Option<usize> {
        None
    }

    /// Main memory that goes away with the network.
    fn bytes(&self) -> u64 {
        0
    }
}

/// What nodes changed about a model's sampling, in the order they did.
#[derive(Clone, Default)]
pub struct Patches {
    pub pre_cfg: Vec<Arc<dyn PreCfg>>,
    /// In place of plain guidance; the last node's counts.
    pub cfg_rule: Option<Arc<dyn CfgRule>>,
    pub post_cfg: Vec<Arc<dyn PostCfg>>,
    pub denoise_mask: Option<DifferentialDiffusion>,
    pub free_u: Vec<FreeU>,
    pub downscale: Vec<Downscale>,
}

/// MODEL. Clones share the network; a patch node changes its own clone only.
#[derive(Clone)]
pub struct Model {
    pub base: Arc<dyn BaseModel>,
    pub sampling: Arc<ModelSampling>,
    /// In place of the network's own.
    pub latent_format: Option<LatentFormat>,
    pub patches: Patches,
}

impl Model {
    pub fn new(base: Arc<dyn BaseModel>, sampling: ModelSampling) -> Self {
        Self {
            base,
            sampling: Arc::new(sampling),
            latent_format: None,
            patches: Patches::default(),
        }
    }

    /// The same model sampled in another way.
    #[must_use]
    pub fn with_sampling(mut self, sampling: ModelSampling) -> Self {
        self.sampling = Arc::new(sampling);
        self
    }

    /// The same model with other latents.
    #[must_use]
    pub fn with_latent_format(mut self, format: LatentFormat) -> Self {
        self.latent_format = Some(format);
        self
    }

    /// From the latents of nodes to those the network works on.
    pub fn process_latent_in(&self, latent: &Tensor) -> Result<Tensor> {
        match &self.latent_format {
            Some(format) => format.process_in(latent),
            None => self.base.process_latent_in(latent),
        }
    }

    /// And back.
    pub fn process_latent_out(&self, latent: &Tensor) -> Result<Tensor> {
        match &self.latent_format {
            Some(format) => format.process_out(latent),
            None => self.base.process_latent_out(latent),
        }
    }
}

impl Opaque for Model {
    fn describe(&self) -> String {
        format!("model {}", self.base.name())
    }

    fn bytes(&self) -> u64 {
        self.base.bytes()
    }
}

impl FromValue for Model {
    const IO: &'static str = "MODEL";
    fn from_value(value: Value) -> std::result::Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<Model> for Value {
    fn from(v: Model) -> Self {
        Self::object(v)
    }
}
