//! Flux 1 and 2, and the models that share their blocks: Chroma, Ovis-Image.

mod approximator;
mod blocks;
mod conditions;
mod config;
pub mod control;
mod detect;
pub(crate) mod lora;
mod model;
pub(crate) mod names;
mod positions;
mod radiance;
pub mod redux;
pub mod schedule;
pub mod style_tokens;
mod trunk;

pub use config::{FluxConfig, FluxKind, MlpKind, ModulationKind, PixelConfig};
pub use detect::{Flux, UNITS};
pub use model::FluxNetwork;
