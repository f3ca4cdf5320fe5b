//! The UNet of Stable Diffusion 1, 2 and XL (Rombach et al. 2022, Podell et al. 2023).

pub mod blocks;
mod config;
mod context;
mod layers;
mod levels;
mod model;
mod time;
mod trunk;

pub use config::{First, Heads, Middle, Stage, UNetConfig};
pub(crate) use context::Cache;
pub(crate) use layers::Pass;
pub use model::UNet;
pub(crate) use model::WHAT;
pub(crate) use trunk::Trunk;
