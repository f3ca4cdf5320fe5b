//! Autoencoders of videos that work on one piece after another: convolutions make pieces smaller, a transformer makes pictures
//! of them again.

mod config;
mod decoder;
mod encoder;
mod model;

pub use config::{LevelConfig, PieceConfig};
pub use model::PieceVae;
