//! Autoencoders of videos whose norms look at one pixel at a time, that move pixels into channels to become smaller, and
//! that may be told how much noise is left in what they decode.

mod blocks;
mod config;
mod model;

pub use config::PixelNormConfig;
pub(super) use config::{diffusers, is_foreign, is_named};
pub use model::PixelNormVae;
