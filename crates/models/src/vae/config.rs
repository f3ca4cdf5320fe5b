//! Which autoencoder a file has.

use super::causal::{CausalConfig, CausalVae};
use super::film::FilmConfig;
use super::images::Vae;
use super::kl::{KlConfig, KlVae};
use super::pieces::{PieceConfig, PieceVae};
use super::pixel_norm::{PixelNormConfig, PixelNormVae};
use super::quantised::{QuantisedConfig, QuantisedVae};
use super::shape::ShapeVaeConfig;
use super::sound::SoundVaeConfig;
use crate::error::Result;
use crate::store::WeightStore;

/// The shape of an autoencoder of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VaeConfig {
    Kl(KlConfig),
    Causal(CausalConfig),
    PixelNorm(PixelNormConfig),
    Quantised(QuantisedConfig),
    Film(FilmConfig),
    /// Of sound.
    Sound(SoundVaeConfig),
    /// Of solids.
    Shape(ShapeVaeConfig),
    Pieces(PieceConfig),
}

impl VaeConfig {
    /// From a store under the names of the original; [`super::names::store`] makes one from any file.
    pub fn detect(store: &WeightStore) -> Result<Self> {
        if CausalConfig::is_in(store) {
            return Ok(Self::Causal(CausalConfig::detect(store)?));
        }
        if PixelNormConfig::is_in(store) {
            return Ok(Self::PixelNorm(PixelNormConfig::detect(store)?));
        }
        if PieceConfig::is_in(store) {
            return Ok(Self::Pieces(PieceConfig::detect(store)?));
        }
        if QuantisedConfig::is_in(store) {
            return Ok(Self::Quantised(QuantisedConfig::detect(store)?));
        }
        if let Some(config) = FilmConfig::detect(store)? {
            return Ok(Self::Film(config));
        }
        if SoundVaeConfig::is_in(store) {
            return Ok(Self::Sound(SoundVaeConfig::detect(store)?));
        }
        if ShapeVaeConfig::is_in(store) {
            return Ok(Self::Shape(ShapeVaeConfig::detect(store)?));
        }
        Ok(Self::Kl(KlConfig::detect(store)?))
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(&self, store: &WeightStore) -> Result<()> {
        match self {
            Self::Kl(config) => config.verify(store),
            Self::Causal(config) => config.verify(store),
            Self::PixelNorm(config) => config.verify(store),
            Self::Quantised(config) => config.verify(store),
            Self::Film(config) => config.verify(store),
            Self::Sound(config) => config.verify(store),
            Self::Shape(config) => config.verify(store),
            Self::Pieces(config) => config.verify(store),
        }
    }

    /// The network over its weights.
    pub fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(match self {
            Self::Kl(_) => Vae::Kl(Box::new(KlVae::new(store)?)),
            Self::Causal(_) => Vae::Causal(Box::new(CausalVae::new(store)?)),
            Self::PixelNorm(_) => Vae::PixelNorm(Box::new(PixelNormVae::new(store)?)),
            Self::Quantised(_) => Vae::Quantised(Box::new(QuantisedVae::new(store)?)),
            Self::Film(config) => Vae::Film(Box::new(config.build(store)?)),
            Self::Sound(config) => Vae::Sound(Box::new(config.build(store)?)),
            Self::Shape(config) => Vae::Shape(Box::new(config.build(store)?)),
            Self::Pieces(config) => Vae::Pieces(Box::new(PieceVae::with(store, config)?)),
        })
    }

    pub fn latent_channels(&self) -> usize {
        match self {
            Self::Kl(config) => config.latent_channels(),
            Self::Causal(config) => config.latent_channels(),
            Self::PixelNorm(config) => config.latent_channels(),
            Self::Quantised(config) => config.latent_channels(),
            Self::Film(config) => config.latent_channels(),
            Self::Sound(config) => config.latent_channels(),
            Self::Shape(config) => config.latent,
            Self::Pieces(config) => config.latent,
        }
    }

    /// Pixels along a side for one latent cell; samples of sound; one for solids.
    pub fn ratio(&self) -> usize {
        match self {
            Self::Kl(config) => config.ratio(),
            Self::Causal(config) => config.ratio(),
            Self::PixelNorm(config) => config.ratio(),
            Self::Quantised(config) => config.ratio(),
            Self::Film(config) => config.ratio(),
            Self::Sound(config) => config.ratio(),
            Self::Shape(_) => 1,
            Self::Pieces(config) => config.patch,
        }
    }

    /// Frames for one latent frame after the first; none for pictures.
    pub fn temporal_ratio(&self) -> Option<usize> {
        match self {
            Self::Kl(_) | Self::Quantised(_) | Self::Sound(_) | Self::Shape(_) => None,
            Self::Causal(config) => config.temporal_ratio(),
            Self::PixelNorm(config) => Some(config.temporal_ratio()),
            Self::Film(config) => Some(config.temporal_ratio()),
            Self::Pieces(_) => Some(4),
        }
    }

    /// Channels of a picture that it looks at.
    pub fn picture_channels(&self) -> usize {
        match self {
            Self::Kl(_)
            | Self::PixelNorm(_)
            | Self::Quantised(_)
            | Self::Film(_)
            | Self::Pieces(_)
            | Self::Sound(_)
            | Self::Shape(_) => 3,
            Self::Causal(config) => config.picture_channels(),
        }
    }
}
