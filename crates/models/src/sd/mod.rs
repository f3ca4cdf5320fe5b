//! Stable Diffusion 1, 2 and XL: the UNet, what steers it, its text encoders, and how its files are recognised.

pub mod control;
mod detect;
pub mod gligen;
mod model;
pub(crate) mod names;
pub mod photomaker;
pub mod style;
pub mod text;
pub mod unclip;
pub mod unet;

pub use detect::{Sd, UNITS};
pub use model::{SdConfig, SdModel, Variant, VectorKind};
