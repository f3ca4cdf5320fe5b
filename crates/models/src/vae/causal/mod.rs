//! The autoencoder of videos in which no frame sees a later one (Wan et al. 2025); Qwen-Image uses it for single pictures.
//!
//! A first frame stands for itself, each further latent frame for four. So videos are worked on in pieces: the first frame,
//! then four at a time, with what convolutions still have to see of the frames before. A picture is a first frame.
//!
//! In a later form (Wan 2.2, Qwen-Image 2.1) each level of blocks has a way around it.

mod blocks;
mod config;
mod model;
mod names;
mod stream;

pub use config::{CausalConfig, CausalHalf, CausalLevel, CausalStep};
pub use model::CausalVae;
pub(super) use names::{diffusers, is_foreign};
