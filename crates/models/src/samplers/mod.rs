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
mod denoiser;
mod dispatch;
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

pub use denoiser::{Denoiser, Result, SampleArgs, SampleError, SampleStep};
pub use dispatch::sample;
pub use ksampler::{ksampler_sigmas, step_window};
pub use names::SamplerName;
pub use options::{NoiseInterval, NoiseScaler, SamplerOptions, SdeSolver, SeedsSolver};
