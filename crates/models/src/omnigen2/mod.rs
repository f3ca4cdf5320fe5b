//! OmniGen 2: prompt, reference pictures and picture each pass blocks of their own before they are joined.

mod blocks;
mod config;
mod detect;
mod model;

pub use config::OmniGenConfig;
pub use detect::{LORA, OmniGen2};
pub use model::OmniGenNetwork;
