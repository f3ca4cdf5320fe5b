//! Autoencoders: what nodes call a VAE.

mod images;
pub mod kl;
pub mod names;

pub use images::{Tiles, Vae};
pub use kl::{Check, KlConfig, KlVae};
