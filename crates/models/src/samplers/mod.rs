//! The samplers: ways from noise to a clean latent through a falling list of noise levels.
//!
//! A sampler sees a [`Denoiser`] only, so every one of them works with every family of models, and the arithmetic is f32
//! as in the reference, because pictures are compared with it.
//!
//! ```
//! use fresco_models::samplers::{self, Denoiser, SampleArgs, SampleError, SamplerName, SamplerOptions};
//! use fresco_models::{ModelSampling, Prediction, Scheduler};
//! use fresco_tensor::{Generator, Tensor};
//!
//! /// Believes that every picture is grey.
//! struct Grey;
//! impl Denoiser for Grey {
//!     fn denoise(&mut self, x: &Tensor, _sigma: f32) -> Result<Tensor, SampleError> {
//!         Ok(x.map(|_| 0.5))
//!     }
//! }
//!
//! let sampling = ModelSampling::discrete(Prediction::Eps, false);
//! let mut sigmas = Scheduler::Karras.sigmas(&sampling, 8)?;
//! let mut global = Generator::new(1);
//! let noise = global.randn(&[1, 4, 8, 8])?.mul_scalar(sigmas[0]);
//! let args = SampleArgs {
//!     sampling: &sampling,
//!     seed: 1,
//!     options: &SamplerOptions::default(),
//!     on_step: &mut |_| Ok(()),
//!     global: &mut global,
//! };
//! let picture = samplers::sample(SamplerName::Dpmpp2m, &mut Grey, noise, &mut sigmas, args)?;
//! assert!(picture.data().iter().all(|v| (v - 0.5).abs() < 1e-3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arithmetic;
mod dpm;
mod dpmpp;
mod dpmpp_sde;
mod er_sde;
mod euler;
mod history;
mod ksampler;
mod lcm;
mod names;
mod options;
mod res;
mod run;
mod sa_solver;
mod seeds;
mod uni_pc;

use fresco_tensor::{Generator, Tensor, TensorError};

use crate::ModelSampling;
pub use ksampler::{ksampler_sigmas, step_window};
pub use names::SamplerName;
pub use options::{NoiseInterval, NoiseScaler, SamplerOptions, SdeSolver, SeedsSolver};
use run::Run;

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
    /// [`SamplerName::needs_uncond`] holds; zeros where there is no negative prompt at all.
    fn uncond(&self) -> Option<&Tensor> {
        None
    }
}

/// Where sampling stands, after the first model call of a step.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
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
    pub on_step: &'a mut dyn FnMut(Step<'_>) -> Result<()>,
    /// The generator that drew the initial noise, after that draw: a few samplers go on with it.
    pub global: &'a mut Generator,
}

/// Samples `x`, a latent with noise of level `sigmas[0]` on it, down to the last level.
///
/// With fewer than two levels there is nothing to do and `x` comes back. `uni_pc` changes a last level of zero, and the
/// caller must use the changed one for what follows.
pub fn sample<'a>(
    name: SamplerName,
    model: &'a mut dyn Denoiser,
    x: Tensor,
    sigmas: &mut [f32],
    args: SampleArgs<'a>,
) -> Result<Tensor> {
    if sigmas.len() < 2 {
        return Ok(x);
    }
    if let Some(index) = sigmas.iter().position(|s| !s.is_finite()) {
        return Err(SampleError::Sigma {
            index,
            sigma: sigmas[index],
        });
    }
    if let SamplerName::UniPc | SamplerName::UniPcBh2 = name {
        uni_pc::keep_off_zero(sigmas);
    }
    let run = &mut Run::new(name, model, args, x.shape(), sigmas);
    let sigmas = &*sigmas;
    match name {
        SamplerName::Euler | SamplerName::Ddim => euler::euler(run, x, sigmas),
        SamplerName::EulerPp => euler::euler_pp(run, x, sigmas),
        SamplerName::EulerAncestral => euler::euler_ancestral(run, x, sigmas),
        SamplerName::EulerCfgPp => euler::euler_ancestral_cfg_pp(run, x, sigmas, 0.0),
        SamplerName::EulerAncestralCfgPp => {
            let eta = run.eta(1.0);
            euler::euler_ancestral_cfg_pp(run, x, sigmas, eta)
        }
        SamplerName::Heun => euler::heun(run, x, sigmas),
        SamplerName::Heunpp2 => euler::heunpp2(run, x, sigmas),
        SamplerName::Dpm2 => dpm::dpm_2(run, x, sigmas),
        SamplerName::Dpm2Ancestral => dpm::dpm_2_ancestral(run, x, sigmas),
        SamplerName::DpmFast => dpm::dpm_fast(run, x, sigmas),
        SamplerName::DpmAdaptive => dpm::dpm_adaptive(run, x, sigmas),
        SamplerName::Lms => history::lms(run, x, sigmas),
        SamplerName::Ipndm => history::ipndm(run, x, sigmas),
        SamplerName::IpndmV => history::ipndm_v(run, x, sigmas),
        SamplerName::Deis => history::deis(run, x, sigmas),
        SamplerName::Dpmpp2sAncestral => dpmpp::dpmpp_2s_ancestral(run, x, sigmas),
        SamplerName::Dpmpp2sAncestralCfgPp => dpmpp::dpmpp_2s_ancestral_cfg_pp(run, x, sigmas),
        SamplerName::Dpmpp2m => dpmpp::dpmpp_2m(run, x, sigmas),
        SamplerName::Dpmpp2mCfgPp => dpmpp::dpmpp_2m_cfg_pp(run, x, sigmas),
        SamplerName::DpmppSde | SamplerName::DpmppSdeGpu => dpmpp_sde::dpmpp_sde(run, x, sigmas),
        SamplerName::Dpmpp2mSde | SamplerName::Dpmpp2mSdeGpu => {
            let solver = run.options.sde_solver;
            dpmpp_sde::dpmpp_2m_sde(run, x, sigmas, solver)
        }
        SamplerName::Dpmpp2mSdeHeun | SamplerName::Dpmpp2mSdeHeunGpu => {
            dpmpp_sde::dpmpp_2m_sde(run, x, sigmas, SdeSolver::Heun)
        }
        SamplerName::Dpmpp3mSde | SamplerName::Dpmpp3mSdeGpu => {
            dpmpp_sde::dpmpp_3m_sde(run, x, sigmas)
        }
        SamplerName::Ddpm => euler::ddpm(run, x, sigmas),
        SamplerName::Lcm => lcm::lcm(run, x, sigmas),
        SamplerName::LcmUpscale => lcm::lcm_upscale(run, x, sigmas),
        SamplerName::ResMultistep => res::res_multistep(run, x, sigmas, 0.0, false),
        SamplerName::ResMultistepCfgPp => res::res_multistep(run, x, sigmas, 0.0, true),
        SamplerName::ResMultistepAncestral => {
            let eta = run.eta(1.0);
            res::res_multistep(run, x, sigmas, eta, false)
        }
        SamplerName::ResMultistepAncestralCfgPp => {
            let eta = run.eta(1.0);
            res::res_multistep(run, x, sigmas, eta, true)
        }
        SamplerName::GradientEstimation => res::gradient_estimation(run, x, sigmas, false),
        SamplerName::GradientEstimationCfgPp => res::gradient_estimation(run, x, sigmas, true),
        SamplerName::ErSde => er_sde::er_sde(run, x, sigmas),
        SamplerName::Seeds2 => seeds::seeds_2(run, x, sigmas),
        SamplerName::ExpHeun2X0 => seeds::exp_heun_2_x0(run, x, sigmas, false),
        SamplerName::ExpHeun2X0Sde => seeds::exp_heun_2_x0(run, x, sigmas, true),
        SamplerName::Seeds3 => seeds::seeds_3(run, x, sigmas),
        SamplerName::SaSolver => {
            let twice = run.options.use_pece;
            sa_solver::sa_solver(run, x, sigmas, twice)
        }
        SamplerName::SaSolverPece => sa_solver::sa_solver(run, x, sigmas, true),
        SamplerName::UniPc => uni_pc::uni_pc(run, x, sigmas, uni_pc::Variant::Bh1),
        SamplerName::UniPcBh2 => uni_pc::uni_pc(run, x, sigmas, uni_pc::Variant::Bh2),
    }
}
