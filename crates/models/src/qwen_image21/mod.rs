//! Qwen-Image 2.1: one sequence of prompt, reference pictures and the picture that is made.

mod blocks;
mod cache;
mod config;
mod detect;
mod encode;
mod model;
mod sequence;

pub use cache::PrefixCache;
pub use config::Qwen21Config;
pub use detect::{LORA, QwenImage21, UNITS, runs_with_cache};
pub use encode::SLOTS;
pub use model::{Inputs, Qwen21Network};
