//! HunyuanDiT 1.1 and 1.2: a transformer with connections from its first blocks to its last ones, which reads a prompt with
//! BERT and with a multilingual T5.

mod blocks;
mod config;
mod detect;
mod model;
mod text;

pub use config::HunyuanDitConfig;
pub use detect::{HunyuanDit, LORA};
pub use model::HunyuanDitNetwork;
