//! The UNet of Stable Diffusion 1, 2 and XL (Rombach et al. 2022, Podell et al. 2023).

pub mod hooks;

pub use hooks::{
    AttnInput, AttnOutput, AttnReplace, BlockInfo, BlockKey, CallInfo, Check, ControlFeatures,
    Embedding, InputBlock, OutputBlock, Part, UNetHooks,
};
