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

pub mod ace_step;
pub mod anima;
pub mod audio_encoder;
pub mod aura_flow;
pub mod brownian;
pub mod cascade;
pub mod control;
pub mod cosmos;
pub mod denoise;
mod depthwise;
pub mod detect;
pub mod epilogue;
mod error;
pub mod flux;
pub mod flux3;
mod fourier;
pub mod hidream;
pub mod hunyuan;
pub mod hunyuan3d;
pub mod hunyuan_dit;
pub mod kandinsky;
pub mod krea2;
pub mod latent_format;
pub mod latent_upscale;
pub mod lora;
pub mod ltx2;
pub mod ltxv;
pub mod lumina;
pub mod minimax;
pub mod mochi;
pub mod model_patch;
pub mod model_sampling;
pub mod name_table;
pub mod network;
pub mod omnigen2;
pub mod patch;
pub mod pixart;
pub mod preview;
pub mod qwen_image;
pub mod qwen_image21;
mod rounding;
pub mod samplers;
pub mod schedules;
pub mod sd;
pub mod sd3;
pub mod sound;
mod spread;
pub mod stable_audio;
pub mod store;
pub mod style;
mod tables;
pub mod taehv;
pub mod taesd;
pub mod text;
pub mod transformer;
pub mod upscale;
pub mod vae;
pub mod vision;
pub mod wan;
pub mod waves;

pub use denoise::{BaseModel, Diffusion, DiffusionNetwork, guidance};
pub use detect::{Checkpoint, Family, detect_checkpoint, nan_keys};
pub use error::ModelError;
pub use latent_format::LatentFormat;
pub use model_sampling::{ModelSampling, Prediction, Spacing};
pub use network::{Lazy, Network};
pub use patch::{LoraStorage, MergeDtype, OftStrength, PatchMode, PatchOptions, PatchSet};
pub use schedules::{ScheduleError, Scheduler};
pub use store::{Origin, UnitInfo, UnitOrder, Walk, WeightPatches, WeightStore};
