//! The UNet of Stable Diffusion 1, 2 and XL (Rombach et al. 2022, Podell et al. 2023).

mod config;
mod context;
pub mod hooks;
mod layers;
mod model;
mod trunk;

pub use config::{First, Heads, Middle, Stage, UNetConfig};
pub(crate) use context::Cache;
pub use hooks::{
    AttnInput, AttnOutput, AttnReplace, BlockInfo, BlockKey, CallInfo, Check, ControlFeatures,
    Embedding, InputBlock, OutputBlock, Part, UNetHooks,
};
pub(crate) use layers::{GROUPS, Pass, plus};
pub use model::UNet;
pub(crate) use trunk::Trunk;
pub use trunk::sinusoid;
