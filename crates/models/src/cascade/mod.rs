//! Stable Cascade (Pernias et al. 2023): stage C makes a small latent of a prompt, stage B a larger one of that, and stage A,
//! which is an autoencoder, a picture of it.

mod blocks;
mod config;
mod detect;
mod model;

pub use config::{CascadeConfig, CascadeLevel, CascadeStage, Part};
pub use detect::{Cascade, FIRST_RELEASE, LORA};
pub use model::CascadeNetwork;
