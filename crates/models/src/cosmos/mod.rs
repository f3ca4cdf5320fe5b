//! The transformer of Cosmos-Predict2, which Anima has too: tokens of a video that look at each other and at a prompt, and
//! are told the noise level by matrices of low rank.

mod config;
mod model;

pub use config::{CosmosConfig, DIFFUSERS};
pub use model::CosmosDit;
