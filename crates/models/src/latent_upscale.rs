//! Networks that make latents larger, in files of their own.

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use crate::detect::{LATENT_UPSCALERS, something_else};
use crate::error::{ModelError, Result};
use crate::store::{Layout, UnitOrder, Walk, WeightStore};
use crate::vae::Check;

/// One of them, with its weights.
pub trait LatentUpscaler: Send + Sync {
    /// A latent (b, c, ..) as nodes have it, to another.
    fn upscale(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor>;
}

/// The shape of one of them.
pub trait UpscalerConfig: Send + Sync {
    /// Channels of the latents that it takes.
    fn channels(&self) -> usize;

    /// Bytes that it holds at its fullest for a latent of this shape, roughly.
    fn pass_bytes(&self, shape: &[usize]) -> u64 {
        let values: u64 = shape.iter().map(|n| *n as u64).product();
        values.saturating_mul(HELD * size_of::<f32>() as u64)
    }

    fn build(&self, weights: &Walk<'_>) -> Result<Arc<dyn LatentUpscaler>>;
}

/// Values that a network holds for one of a latent.
const HELD: u64 = 256;

/// The network in messages.
const WHAT: &str = "the network for larger latents";

/// What a file holds.
#[derive(Clone)]
pub struct UpscalerStore {
    pub store: Arc<WeightStore>,
    pub config: Arc<dyn UpscalerConfig>,
}

/// Finds one of a kind in a file; none if it has another.
pub type FindLatentUpscaler = fn(&Arc<dyn WeightFile>, &Device) -> Result<Option<UpscalerStore>>;

/// In the order of their names.
pub static UNITS: UnitOrder = UnitOrder {
    parts: &[],
    blocks: &[],
    values: &["gamma"],
};

impl UpscalerStore {
    /// What is in a file. What is wrong with its keys and shapes is said now.
    pub fn find(file: &Arc<dyn WeightFile>, device: &Device) -> Result<Self> {
        for find in LATENT_UPSCALERS {
            if let Some(found) = find(file, device)? {
                let layout = Layout::of(|weights| found.config.build(weights))?;
                layout.verify(&found.store, WHAT)?;
                return Ok(found);
            }
        }
        let reason = something_else(file, "a model that makes latents larger");
        let file = file.path().display().to_string();
        Err(ModelError::unsupported(file, reason))
    }

    /// The network over these weights, or the same ones elsewhere.
    pub fn build(&self, store: &WeightStore) -> Result<Arc<dyn LatentUpscaler>> {
        store.build(WHAT, |weights| self.config.build(weights))
    }
}
