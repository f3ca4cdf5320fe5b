//! Cosmos and Cosmos-Predict2, whose transformer Anima has too: tokens of a film that look at each other and at a prompt, and
//! are told the noise level by matrices of low rank.

mod config;
mod detect;
mod film;
pub(crate) mod lora;
mod model;

pub use config::{CosmosConfig, DIFFUSERS, FIRST};
pub use detect::Cosmos;
pub use film::CosmosNetwork;
pub use model::{BlockLayer, CosmosDit, InputChange};
