//! Autoencoders of films that have nothing in common but what goes in and comes out.

use fresco_tensor::{Device, Tensor};

use super::kl::Check;
use super::replicated::{ReplicatedConfig, ReplicatedVae};
use super::stacked::{StackedConfig, StackedVae};
use super::wavelet::{WaveletConfig, WaveletVae};
use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::taehv::{Taehv, TaehvConfig};

/// The shape of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilmConfig {
    Replicated(ReplicatedConfig),
    Wavelet(WaveletConfig),
    Stacked(StackedConfig),
    /// The small approximation.
    Small(TaehvConfig),
}

/// One of them with its weights.
pub enum FilmVae {
    Replicated(ReplicatedVae),
    Wavelet(WaveletVae),
    Stacked(StackedVae),
    Small(Taehv),
}

impl FilmConfig {
    /// The one whose weights these are; none if they are of none.
    pub fn detect(store: &WeightStore) -> Result<Option<Self>> {
        Ok(Some(if WaveletConfig::is_in(store) {
            Self::Wavelet(WaveletConfig::detect(store)?)
        } else if StackedConfig::is_in(store) {
            Self::Stacked(StackedConfig::detect(store)?)
        } else if ReplicatedConfig::is_in(store) {
            Self::Replicated(ReplicatedConfig::detect(store)?)
        } else if TaehvConfig::is_in(store) {
            Self::Small(TaehvConfig::detect(store)?)
        } else {
            return Ok(None);
        }))
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(&self, store: &WeightStore) -> Result<()> {
        match self {
            Self::Replicated(config) => config.verify(store),
            Self::Wavelet(config) => config.verify(store),
            Self::Stacked(config) => config.verify(store),
            Self::Small(config) => config.verify(store),
        }
    }

    pub fn build(&self, store: &WeightStore) -> Result<FilmVae> {
        Ok(match self {
            Self::Replicated(config) => FilmVae::Replicated(ReplicatedVae::new(store, config)?),
            Self::Wavelet(config) => FilmVae::Wavelet(WaveletVae::new(store, config)?),
            Self::Stacked(config) => FilmVae::Stacked(StackedVae::new(store, config)?),
            Self::Small(config) => FilmVae::Small(Taehv::new(store, config)?),
        })
    }

    pub fn latent_channels(&self) -> usize {
        match self {
            Self::Replicated(config) => config.latent_channels(),
            Self::Wavelet(config) => config.latent_channels(),
            Self::Stacked(config) => config.latent_channels(),
            Self::Small(config) => config.latent_channels(),
        }
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        match self {
            Self::Replicated(config) => config.ratio(),
            Self::Wavelet(config) => config.ratio(),
            Self::Stacked(config) => config.ratio(),
            Self::Small(config) => config.ratio(),
        }
    }

    /// Frames for one latent frame after the first.
    pub fn temporal_ratio(&self) -> usize {
        match self {
            Self::Replicated(config) => config.temporal_ratio(),
            Self::Wavelet(config) => config.temporal_ratio(),
            Self::Stacked(config) => config.temporal_ratio(),
            Self::Small(config) => config.temporal_ratio(),
        }
    }
}

impl FilmVae {
    pub fn config(&self) -> FilmConfig {
        match self {
            Self::Replicated(net) => FilmConfig::Replicated(net.config().clone()),
            Self::Wavelet(net) => FilmConfig::Wavelet(net.config().clone()),
            Self::Stacked(net) => FilmConfig::Stacked(net.config().clone()),
            Self::Small(net) => FilmConfig::Small(net.config().clone()),
        }
    }

    /// The mean latent (b, c, t, h, w) of films (b, 3, frames, h, w) in -1..1.
    pub fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        match self {
            Self::Replicated(net) => net.encode(pixels, check),
            Self::Wavelet(net) => net.encode(pixels, check),
            Self::Stacked(net) => net.encode(pixels, check),
            Self::Small(net) => net.encode(pixels, check),
        }
    }

    /// Films (b, 3, frames, h, w), about -1..1, of latents (b, c, t, h, w).
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        match self {
            Self::Replicated(net) => net.decode(latent, check),
            Self::Wavelet(net) => net.decode(latent, check),
            Self::Stacked(net) => net.decode(latent, check),
            Self::Small(net) => net.decode(latent, check),
        }
    }
}

/// Runs a network on each item of (b, c, t, h, w), as frames (t, h, w, c) in main memory, and joins what it makes.
pub(crate) fn each_film(
    what: &'static str,
    x: &Tensor,
    mut f: impl FnMut(Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if x.rank() != 5 || x.is_empty() {
        let reason = format!("shape {:?} is no batch of films", x.shape());
        return Err(ModelError::invalid(what, reason));
    }
    let mut made = Vec::new();
    for item in 0..x.dim(0)? {
        let film = x.select(0, item)?.permute(&[1, 2, 3, 0])?;
        let out = f(film)?.to(&Device::cpu())?;
        made.push(out.permute(&[3, 0, 1, 2])?.unsqueeze(0)?);
    }
    if made.len() == 1 {
        return Ok(made.remove(0));
    }
    Ok(Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?)
}
