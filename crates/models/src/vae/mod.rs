//! Autoencoders: what nodes call a VAE.

pub mod causal;
mod config;
mod images;
pub mod kl;
pub mod names;
mod shuffle;

pub use causal::{CausalConfig, CausalVae};
pub use config::VaeConfig;
pub use images::{Tiles, TimeTiles, Vae};
pub use kl::{Check, KlConfig, KlVae};
