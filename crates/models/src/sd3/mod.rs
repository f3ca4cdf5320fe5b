//! Stable Diffusion 3 and 3.5: a transformer in which picture and prompt have weights of their own and one attention
//! (Esser et al. 2024, "MMDiT").

mod blocks;
mod config;
pub mod control;
mod detect;
mod model;
pub(crate) mod names;

pub use config::Sd3Config;
pub use detect::Sd3;
pub use model::Mmdit;
