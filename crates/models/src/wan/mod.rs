//! Wan 2.1 and 2.2: tokens of a video look at each other and at a prompt. Kinds differ in what goes in beside the noise:
//! given frames, pictures seen by a vision network, control videos, a camera's path, sound, poses and a face.

mod blocks;
mod causal_heads;
mod conditions;
mod config;
mod detect;
mod face;
mod model;
pub(crate) mod names;
mod sound;
mod speech;
pub mod talk;

pub use causal_heads::HeadsConfig;
pub use config::{CameraConfig, VaceConfig, VisionConfig, WanConfig, flattened};
pub use detect::Wan;
pub use face::FaceConfig;
pub use model::WanNetwork;
pub use sound::SoundConfig;
pub use speech::SpeechConfig;
