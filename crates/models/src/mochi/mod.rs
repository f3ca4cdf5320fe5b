//! Mochi: tokens of a film and of a prompt, each with weights of their own width, look at each other.

mod config;
mod detect;
mod model;

pub use config::{MochiConfig, flattened};
pub use detect::{LORA, Mochi};
pub use model::MochiNetwork;
