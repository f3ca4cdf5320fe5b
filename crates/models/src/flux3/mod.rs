//! FLUX.3 klein: picture, reference pictures and prompt each pass some blocks by themselves, then all of them together.

mod blocks;
mod config;
mod detect;
mod model;
pub(crate) mod names;

pub use config::Flux3Config;
pub use detect::Flux3;
pub use model::Flux3Network;
