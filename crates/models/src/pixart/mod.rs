//! PixArt (Chen et al. 2023): a transformer over the tokens of a picture that looks at the prompt in every block. Alpha is
//! told the size of its picture, Sigma is not.

mod config;
mod detect;
mod model;
pub(crate) mod names;

pub use config::PixArtConfig;
pub use detect::PixArt;
pub use model::PixArtNetwork;
