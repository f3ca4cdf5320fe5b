//! Which autoencoder a file has.

use super::causal::{CausalConfig, CausalVae};
use super::images::Vae;
use super::kl::{KlConfig, KlVae};
use crate::error::Result;
use crate::store::WeightStore;

/// The shape of an autoencoder of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VaeConfig {
    Kl(KlConfig),
    Causal(CausalConfig),
}

impl VaeConfig {
    /// From a store under the names of the original; [`super::names::store`] makes one from any file.
    pub fn detect(store: &WeightStore) -> Result<Self> {
        if CausalConfig::is_in(store) {
            return Ok(Self::Causal(CausalConfig::detect(store)?));
        }
        Ok(Self::Kl(KlConfig::detect(store)?))
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(&self, store: &WeightStore) -> Result<()> {
        match self {
            Self::Kl(config) => config.verify(store),
            Self::Causal(config) => config.verify(store),
        }
    }

    /// The network over its weights.
    pub fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(match self {
            Self::Kl(_) => Vae::Kl(Box::new(KlVae::new(store)?)),
            Self::Causal(_) => Vae::Causal(Box::new(CausalVae::new(store)?)),
        })
    }

    pub fn latent_channels(&self) -> usize {
        match self {
            Self::Kl(config) => config.latent_channels(),
            Self::Causal(config) => config.latent_channels(),
        }
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        match self {
            Self::Kl(config) => config.ratio(),
            Self::Causal(config) => config.ratio(),
        }
    }

    /// Frames for one latent frame after the first; none for pictures.
    pub fn temporal_ratio(&self) -> Option<usize> {
        match self {
            Self::Kl(_) => None,
            Self::Causal(config) => config.temporal_ratio(),
        }
    }

    /// Channels of a picture that it looks at.
    pub fn picture_channels(&self) -> usize {
        match self {
            Self::Kl(_) => 3,
            Self::Causal(config) => config.picture_channels(),
        }
    }
}
