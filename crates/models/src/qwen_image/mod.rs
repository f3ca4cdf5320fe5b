//! Qwen-Image (Wu et al. 2025) and what follows from it: Edit, Edit Plus, Layered; what steers it, and how its files are
//! recognised.

mod blocks;
mod config;
pub mod control;
mod detect;
mod encode;
pub mod fun_control;
mod model;
pub mod patch;
mod tokens;

pub use blocks::Trunk;
pub use config::{QwenConfig, ReferenceMethod};
pub use detect::{LORA, QwenImage, UNITS};
pub use model::{Inputs, QwenNetwork};
