//! HiDream: blocks whose rows choose among experts, and prompts that come as the states of many layers of an encoder.

mod blocks;
mod config;
mod detect;
mod experts;
mod model;

pub use config::HiDreamConfig;
pub use detect::{HiDream, LORA};
pub use model::HiDreamNetwork;
