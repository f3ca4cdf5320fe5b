//! AuraFlow: blocks in which prompt and picture have weights of their own, then blocks with one set of weights for all tokens.

mod blocks;
mod config;
mod detect;
pub(crate) mod lora;
mod model;

pub use config::AuraFlowConfig;
pub use detect::AuraFlow;
pub use model::AuraFlowNetwork;
