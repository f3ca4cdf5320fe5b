//! HunyuanDiT 1.1 and 1.2: a transformer with connections from its first blocks to its last ones, which reads a prompt with
//! BERT and with a multilingual T5.

mod blocks;
mod config;
mod detect;
pub(crate) mod lora;
mod model;
mod text;

pub use config::HunyuanDitConfig;
pub use detect::HunyuanDit;
pub use model::HunyuanDitNetwork;
