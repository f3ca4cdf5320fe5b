//! The mathematics of diffusion models: what a noise level means to a model, and in which levels to go from noise to
//! picture. Pure: tensors in, tensors out.
//!
//! ```
//! use fresco_models::{ModelSampling, Prediction, Scheduler};
//! let sampling = ModelSampling::discrete(Prediction::Eps, false);
//! let sigmas = Scheduler::Karras.sigmas(&sampling, 20)?;
//! assert_eq!(sigmas.len(), 21);
//! # Ok::<(), fresco_models::ScheduleError>(())
//! ```

pub mod anima;
pub mod brownian;
pub mod control;
pub mod cosmos;
pub mod denoise;
pub mod detect;
pub mod epilogue;
mod error;
pub mod flux;
pub mod flux3;
mod fourier;
pub mod hidream;
pub mod hunyuan;
pub mod kandinsky;
pub mod krea2;
pub mod latent_format;
pub mod lora;
pub mod lumina;
pub mod model_patch;
pub mod model_sampling;
pub mod network;
pub mod omnigen2;
pub mod patch;
pub mod preview;
pub mod qwen_image;
pub mod qwen_image21;
mod rounding;
pub mod samplers;
pub mod schedules;
pub mod sd;
pub mod sd3;
mod spread;
pub mod store;
pub mod style;
mod tables;
pub mod taesd;
pub mod text;
pub mod transformer;
pub mod upscale;
pub mod vae;
pub mod vision;

pub use denoise::{BaseModel, Diffusion, DiffusionNetwork, guidance};
pub use detect::{Checkpoint, Family, detect_checkpoint, nan_keys};
pub use error::ModelError;
pub use latent_format::LatentFormat;
pub use model_sampling::{ModelSampling, Prediction, Spacing};
pub use network::{Lazy, Network};
pub use patch::{LoraStorage, MergeDtype, OftStrength, PatchMode, PatchOptions, PatchSet};
pub use schedules::{ScheduleError, Scheduler};
pub use store::{Origin, UnitInfo, UnitOrder, Walk, WeightPatches, WeightStore};
