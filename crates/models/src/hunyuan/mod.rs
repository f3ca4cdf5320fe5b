//! HunyuanImage and Hunyuan Video: picture and prompt with weights of their own, then both with the same; the prompt passes a few blocks that
//! see the noise level first.

mod blocks;
mod config;
mod detect;
mod model;
pub(crate) mod names;
mod refiner;
pub(crate) mod upsampler;
mod video;
mod video_conditions;

pub use config::HunyuanConfig;
pub use detect::Hunyuan;
pub use model::HunyuanNetwork;
pub use upsampler::{Upsampler, UpsamplerConfig};
pub use video::{HunyuanVideoConfig, HunyuanVideoNetwork};
