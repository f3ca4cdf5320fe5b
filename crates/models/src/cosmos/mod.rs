//! Cosmos and Cosmos-Predict2, whose transformer Anima has too: tokens of a film that look at each other and at a prompt, and
//! are told the noise level by matrices of low rank.

mod config;
mod detect;
mod film;
mod model;
pub(crate) mod names;

pub use config::CosmosConfig;
pub use detect::Cosmos;
pub use film::CosmosNetwork;
pub use model::{BlockLayer, CosmosDit, InputChange};
pub use names::{DIFFUSERS, FIRST};
