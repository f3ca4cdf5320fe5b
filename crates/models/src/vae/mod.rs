//! Autoencoders: what nodes call a VAE.

mod autoencoder;
pub mod causal;
mod cells;
mod config;
mod film;
mod images;
pub mod kl;
mod memory;
pub mod names;
pub mod pieces;
mod pixel_norm;
mod quantised;
mod replicated;
pub mod shape;
mod shuffle;
pub mod sound;
mod squares;
mod stacked;
mod time_mix;
mod wavelet;

pub use autoencoder::{
    Autoencoder, AutoencoderConfig, FrameOrder, PixelRange, Side, Subject, Tiling, VaeFacts,
};
pub use causal::{CausalConfig, CausalVae};
pub use config::VaeConfig;
pub(crate) use film::each_film;
pub use images::{Tiles, TimeTiles, Vae};
pub use kl::{Check, KlConfig, KlVae};
pub use memory::VaeMemory;
pub use pieces::{PieceConfig, PieceVae};
pub use pixel_norm::{PixelNormConfig, PixelNormVae};
pub use quantised::{QuantisedConfig, QuantisedVae};
pub(crate) use replicated::{Carry, Norm, Replicated, Residual};
pub use replicated::{ReplicatedConfig, ReplicatedVae};
pub use shape::{ShapeVae, ShapeVaeConfig};
pub use sound::{SoundVae, SoundVaeConfig};
pub use stacked::{StackedConfig, StackedVae};
pub(crate) use time_mix::{over_all, over_time};
pub use wavelet::{WaveletConfig, WaveletVae};
