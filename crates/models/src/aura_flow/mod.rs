//! AuraFlow: blocks in which prompt and picture have weights of their own, then blocks with one set of weights for all tokens.

mod blocks;
mod config;
mod detect;
mod model;
pub(crate) mod names;

pub use config::AuraFlowConfig;
pub use detect::AuraFlow;
pub use model::AuraFlowNetwork;
