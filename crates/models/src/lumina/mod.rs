//! Lumina 2, Z-Image and NewBie: one transformer over a prompt's and a picture's tokens, and the control nets of Z-Image.
//!
//! A prompt and a picture pass a few blocks by themselves before they are joined. Blocks are told the noise level as
//! scales and gates.

mod blocks;
mod config;
pub mod control;
mod detect;
mod model;
pub(crate) mod names;

pub use config::{LuminaConfig, Modulation};
pub use detect::Lumina;
pub use model::NextDit;
