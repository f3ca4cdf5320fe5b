//! Version 1.5: latents of 25 frames a second, tags, lyrics and a voice as tokens beside them.

mod condition;
mod config;
mod layers;
mod model;

pub use config::Ace15Config;
pub use model::Ace15Network;
