//! HiDream: blocks whose rows choose among experts, and prompts that come as the states of many layers of an encoder.

mod blocks;
mod config;
mod detect;
mod experts;
pub(crate) mod lora;
mod model;

pub use config::HiDreamConfig;
pub use detect::HiDream;
pub use model::HiDreamNetwork;
