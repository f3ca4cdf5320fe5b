//! What a sampler sees of the rest: a model that denoises, what it is given, who is told about steps, what can go wrong.

use fresco_tensor::{Generator, Tensor, TensorError};

use super::options::SamplerOptions;
use crate::model_sampling::ModelSampling;

/// Why sampling ended without a latent.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The user asked to stop.
    #[error("sampling was cancelled")]
    Cancelled,
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("the model was given a latent of shape {given:?} and answered with shape {got:?}")]
    Shape { given: Vec<usize>, got: Vec<usize> },
    #[error("noise level {index} is {sigma}, which is not a number to sample at")]
    Sigma { index: usize, sigma: f32 },
    #[error("{sampler}: {reason}")]
    Unfit {
        sampler: &'static str,
        reason: String,
    },
    /// CFG++ samplers need the prediction without the prompt, and the guider gave none.
    #[error("this sampler needs a prediction without the prompt, which this guider does not make")]
    NoUncond,
    #[error("the noise levels {from} and {to} are too far apart for Brownian noise")]
    BrownianRange { from: f32, to: f32 },
    #[error(transparent)]
    Model(Box<dyn std::error::Error + Send + Sync>),
}

impl SampleError {
    /// Wraps what went wrong inside a network.
    pub fn model(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Model(error.into())
    }
}

pub type Result<T, E = SampleError> = std::result::Result<T, E>;

/// A model as samplers see it: guidance, inpainting and parametrisation are inside.
pub trait Denoiser {
    /// The clean latent that the model sees in `x` at a noise level. Has the shape of `x`.
    fn denoise(&mut self, x: &Tensor, sigma: f32) -> Result<Tensor>;

    /// The prediction without the prompt of the last [`Self::denoise`]. Asked for only by samplers for which
    /// [`SamplerName::needs_uncond`](super::SamplerName::needs_uncond) holds; zeros where there is no negative prompt at all.
    fn uncond(&self) -> Option<&Tensor> {
        None
    }
}

/// Where sampling stands, after the first model call of a step.
#[derive(Clone, Copy, Debug)]
pub struct SampleStep<'a> {
    pub index: usize,
    /// Steps in all. Samplers that choose their steps themselves may do more or fewer.
    pub total: usize,
    pub sigma: f32,
    pub x: &'a Tensor,
    /// The clean latent as the model sees it now.
    pub denoised: &'a Tensor,
}

/// What a sampler is given besides the model and the latent.
pub struct SampleArgs<'a> {
    pub sampling: &'a ModelSampling,
    /// Of the noise that samplers add themselves.
    pub seed: u64,
    pub options: &'a SamplerOptions,
    /// Called once a step; an error ends sampling with that error.
    pub on_step: &'a mut dyn FnMut(SampleStep<'_>) -> Result<()>,
    /// The generator that drew the initial noise, after that draw: a few samplers go on with it.
    pub global: &'a mut Generator,
}
