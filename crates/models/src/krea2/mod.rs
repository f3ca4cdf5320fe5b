//! Krea 2: one transformer over a prompt's and a picture's tokens. A prompt comes as the states of several layers of its
//! encoder, which are joined by a small transformer first.

mod blocks;
mod config;
mod detect;
mod model;
pub(crate) mod names;

pub use config::{AttentionConfig, KreaConfig};
pub use detect::Krea;
pub use model::KreaNetwork;
