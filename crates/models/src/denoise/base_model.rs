//! A diffusion network as everything but its own family sees it.

use std::sync::Arc;

use fresco_tensor::{Result, Tensor};

use super::call::{Call, CondValue, ModelConds};
use super::conds::names;
use super::hook_points::HookPoints;
use super::parts::BesideLatent;
use super::prepare::EncodeArgs;
use crate::error::ModelError;
use crate::latent_format::LatentFormat;
use crate::model_sampling::ModelSampling;
use crate::network::Network;
use crate::store::WeightStore;

/// What sampling, nodes and the memory room ask of a loaded network. Families implement
/// [`DiffusionNetwork`](super::DiffusionNetwork), which brings this.
pub trait BaseModel: Send + Sync {
    /// A name for logs and error reports.
    fn name(&self) -> String;

    /// From the latents of nodes to those the network works on.
    fn process_latent_in(&self, latent: &Tensor) -> Result<Tensor>;

    /// From the network's latents to those of nodes.
    fn process_latent_out(&self, latent: &Tensor) -> Result<Tensor>;

    /// How its latents are stored and shown, where that is known.
    fn latent_format(&self) -> Option<LatentFormat> {
        None
    }

    /// Channels of the latents it makes.
    fn latent_channels(&self) -> usize {
        4
    }

    /// Dimensions of its latents after batch and channels: 2 for pictures, 3 for videos.
    fn latent_dimensions(&self) -> usize {
        2
    }

    /// Channels of the first level of networks that have levels.
    fn model_channels(&self) -> Option<usize> {
        None
    }

    /// Channels the network takes, where it says so.
    fn in_channels(&self) -> Option<usize> {
        None
    }

    /// What the standard header of weight files calls the architecture, for those that have a name there.
    fn architecture(&self) -> Option<&'static str> {
        None
    }

    /// Where it can be acted on.
    fn hook_points(&self) -> HookPoints {
        HookPoints::NONE
    }

    /// Main memory that goes away with the network.
    fn bytes(&self) -> u64 {
        0
    }

    /// One pass: the clean latents of a batch.
    fn apply(&self, _sampling: &ModelSampling, _call: &Call<'_>) -> Result<Tensor, ModelError> {
        Err(ModelError::unsupported(
            self.name(),
            "this model cannot be sampled",
        ))
    }

    /// What of a condition goes into the network.
    fn extra_conds(&self, args: &EncodeArgs<'_>) -> Result<ModelConds, ModelError> {
        Ok(prompt_conds(args))
    }

    /// Bytes that a pass over a batch of latents of this shape takes.
    fn pass_bytes(&self, _shape: &[usize]) -> u64 {
        0
    }

    /// Whether the known part of a latent that is sampled in part goes in as it is, without the noise of the step.
    fn sees_known_clean(&self) -> bool {
        false
    }

    /// What that part is then multiplied with.
    fn known_scale(&self, _sigma: f32) -> f32 {
        1.0
    }

    /// The second latent that it samples together with the first, if there is one.
    fn beside_latent(&self) -> Option<BesideLatent> {
        None
    }

    /// The weights without any patch, where the network keeps them by key.
    fn store(&self) -> Option<&Arc<WeightStore>> {
        None
    }

    /// The network as the memory room sees it, for those whose weights it moves.
    fn as_network(self: Arc<Self>) -> Option<Arc<dyn Network>> {
        None
    }

    /// The same network over other weights. It must be cheap: layers are shared through the store.
    fn with_store(&self, _store: Arc<WeightStore>) -> Result<Arc<dyn BaseModel>, ModelError> {
        Err(ModelError::unsupported(
            self.name(),
            "the weights of this model cannot be changed",
        ))
    }
}

/// The prompt's tokens and nothing else.
pub(super) fn prompt_conds(args: &EncodeArgs<'_>) -> ModelConds {
    let mut conds = ModelConds::new();
    if let Some(tokens) = &args.cond.tokens {
        conds.insert(names::PROMPT, CondValue::CrossAttn(tokens.clone()));
    }
    conds
}
