//! Which autoencoder a file has.

use std::sync::Arc;

use fresco_tensor::WeightFile;

use super::causal::{CausalConfig, CausalVae};
use super::film::FilmConfig;
use super::images::Vae;
use super::kl::{KlConfig, KlVae};
use super::pieces::{PieceConfig, PieceVae};
use super::pixel_norm::{PixelNormConfig, PixelNormVae};
use super::quantised::{QuantisedConfig, QuantisedVae};
use super::shape::ShapeVaeConfig;
use super::sound::SoundVaeConfig;
use crate::detect::{something_else, what_it_is};
use crate::error::{ModelError, Result};
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
        Self::known(store)?.map_or_else(|| Ok(Self::Kl(KlConfig::detect(store)?)), Ok)
    }

    /// The same for the autoencoder of a file. Says what the file holds where that is none.
    pub fn detect_in(file: &Arc<dyn WeightFile>, store: &WeightStore) -> Result<Self> {
        if let Some(found) = Self::known(store)? {
            return Ok(found);
        }
        if KlConfig::is_in(store) {
            return Ok(Self::Kl(KlConfig::detect(store)?));
        }
        let reason = match what_it_is(&file.names()) {
            Some("a VAE") => "no VAE is known with its tensors".to_owned(),
            _ => something_else(file, "a VAE"),
        };
        Err(ModelError::unsupported(store.file(), reason))
    }

    /// Any kind but the usual one of pictures.
    fn known(store: &WeightStore) -> Result<Option<Self>> {
        Ok(Some(if CausalConfig::is_in(store) {
            Self::Causal(CausalConfig::detect(store)?)
        } else if PixelNormConfig::is_in(store) {
            Self::PixelNorm(PixelNormConfig::detect(store)?)
        } else if PieceConfig::is_in(store) {
            Self::Pieces(PieceConfig::detect(store)?)
        } else if QuantisedConfig::is_in(store) {
            Self::Quantised(QuantisedConfig::detect(store)?)
        } else if let Some(config) = FilmConfig::detect(store)? {
            Self::Film(config)
        } else if SoundVaeConfig::is_in(store) {
            Self::Sound(SoundVaeConfig::detect(store)?)
        } else if ShapeVaeConfig::is_in(store) {
            Self::Shape(ShapeVaeConfig::detect(store)?)
        } else {
            return Ok(None);
        }))
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
