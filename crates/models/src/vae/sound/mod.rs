//! Autoencoders of sound.

mod mel;
mod mel_blocks;
mod oobleck;
mod vocoder;

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, TileAxis, WeightFile, tiled};

use super::autoencoder::{Autoencoder, AutoencoderConfig, Subject, VaeFacts};
use super::images::Vae;
use super::kl::Check;
use super::memory::VaeMemory;
use crate::error::{ModelError, Result};
use crate::sound::unnormed;
use crate::store::{Layout, UnitOrder, WeightStore};

pub use mel::{MelVae, MelVaeConfig};
pub use oobleck::{Oobleck, OobleckConfig};

/// The shape of an autoencoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SoundVaeConfig {
    Oobleck(OobleckConfig),
    Mel(MelVaeConfig),
}

/// Keys that tell the two.
const OOBLECK: &str = "decoder.layers.1.layers.0.beta";
const MEL: &str = "vocoder.backbone.channel_layers.0.0.bias";
const WHAT: &str = "the autoencoder of sound";

static UNITS: UnitOrder = UnitOrder {
    parts: &["encoder", "decoder", "dcae", "vocoder"],
    blocks: &[],
    values: &["alpha", "beta", "gamma", "shift"],
};

/// Whether these names, after a prefix, are those of an autoencoder of sound.
pub fn is_named(names: &[&str]) -> bool {
    names.iter().any(|name| [OOBLECK, MEL].contains(name))
}

/// The weights under the names that layers look for.
pub fn store(file: &Arc<dyn WeightFile>, prefix: &str, device: Device) -> Arc<WeightStore> {
    let names = file.names();
    let inside: Vec<&str> = names
        .iter()
        .filter_map(|n| n.strip_prefix(prefix))
        .collect();
    let grows = |layer: &str| {
        let parts: Vec<&str> = layer.split('.').collect();
        matches!(
            parts.as_slice(),
            ["vocoder", "head", "ups", _] | ["decoder", "layers", _, "layers", "1"]
        )
    };
    let keys = unnormed(inside, prefix, grows);
    WeightStore::mapped(Arc::clone(file), keys, device).with_units(&UNITS)
}

impl SoundVaeConfig {
    pub fn is_in(store: &WeightStore) -> bool {
        store.has(OOBLECK) || store.has(MEL)
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        if store.has(MEL) {
            return Ok(Self::Mel(MelVaeConfig::detect(store)?));
        }
        Ok(Self::Oobleck(OobleckConfig::detect(store)?))
    }

    /// The network over its weights.
    pub fn open(&self, store: &WeightStore) -> Result<SoundVae> {
        Ok(match self {
            Self::Oobleck(config) => SoundVae::Oobleck(
                store.build(WHAT, |weights| Oobleck::new(weights, config))?,
                config.clone(),
            ),
            Self::Mel(config) => SoundVae::Mel(
                store.build(WHAT, |weights| MelVae::new(weights, config))?,
                config.clone(),
            ),
        })
    }

    pub fn latent_channels(&self) -> usize {
        match self {
            Self::Oobleck(config) => config.latent,
            Self::Mel(config) => config.latent,
        }
    }

    /// Samples of one latent frame.
    pub fn ratio(&self) -> usize {
        match self {
            Self::Oobleck(config) => config.ratio(),
            Self::Mel(config) => config.ratio(),
        }
    }

    /// Samples a second.
    pub fn rate(&self) -> u32 {
        match self {
            Self::Oobleck(config) => config.rate(),
            Self::Mel(_) => mel::RATE,
        }
    }

    pub fn sound_channels(&self) -> usize {
        match self {
            Self::Oobleck(config) => config.sound,
            Self::Mel(config) => config.sound,
        }
    }
}

impl AutoencoderConfig for SoundVaeConfig {
    fn facts(&self) -> VaeFacts {
        VaeFacts {
            subject: Subject::Sound { rate: self.rate() },
            memory: VaeMemory::Sound,
            ..VaeFacts::pictures(self.latent_channels(), self.ratio())
        }
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        match self {
            Self::Oobleck(config) => {
                Layout::of(|weights| Oobleck::new(weights, config))?.verify(store, WHAT)
            }
            Self::Mel(config) => {
                Layout::of(|weights| MelVae::new(weights, config))?.verify(store, WHAT)
            }
        }
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(self.open(store)?.into())
    }
}

/// An autoencoder of sound, of any kind.
pub enum SoundVae {
    Oobleck(Oobleck, OobleckConfig),
    Mel(MelVae, MelVaeConfig),
}

impl SoundVae {
    pub fn config(&self) -> SoundVaeConfig {
        match self {
            Self::Oobleck(_, config) => SoundVaeConfig::Oobleck(config.clone()),
            Self::Mel(_, config) => SoundVaeConfig::Mel(config.clone()),
        }
    }

    /// The latent of a sound (b, channels, samples) with the network's rate: (b, c, frames), or (b, c, rows, frames).
    pub fn encode(&self, sound: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [b, channels, samples] = sound.dims3()?;
        let config = self.config();
        let wanted = config.sound_channels();
        if b == 0 || samples == 0 || channels == 0 {
            let reason = "there is no sound to encode";
            return Err(ModelError::invalid("VAE encode", reason));
        }
        let sound = match channels {
            n if n == wanted => sound.clone(),
            // One channel is heard on all sides.
            1 => sound.repeat(&[1, wanted, 1])?,
            n if n > wanted => sound.narrow(1, 0, wanted)?,
            n => {
                let reason = format!("this VAE takes sound of {wanted} channels, not {n}");
                return Err(ModelError::invalid("VAE encode", reason));
            }
        };
        match self {
            Self::Oobleck(net, _) => net.encode(&sound, check),
            Self::Mel(net, _) => net.encode(&sound, check),
        }
    }

    /// The sound (b, channels, samples) of a latent.
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        match self {
            Self::Oobleck(net, _) => net.decode(self.fitting(latent, 3)?, check),
            Self::Mel(net, _) => net.decode(self.fitting(latent, 4)?, check),
        }
    }

    fn fitting<'a>(&self, latent: &'a Tensor, rank: usize) -> Result<&'a Tensor> {
        let channels = self.config().latent_channels();
        if latent.rank() == rank && latent.shape()[1] == channels && !latent.is_empty() {
            return Ok(latent);
        }
        let reason = format!(
            "this VAE takes latents of sound of {channels} channels and {rank} dimensions, got shape {:?}",
            latent.shape()
        );
        Err(ModelError::invalid("VAE decode", reason))
    }

    /// The same in tiles of so many frames that overlap.
    pub fn decode_tiled(
        &self,
        latent: &Tensor,
        (tile, overlap): (usize, usize),
        check: Check<'_>,
    ) -> Result<Tensor> {
        let shape = latent.shape().to_vec();
        let frames = shape.last().copied().unwrap_or(0);
        if frames <= tile {
            return self.decode(latent, check);
        }
        let ratio = self.config().ratio() as f64;
        let grown = |n: f64| n * ratio;
        let axis = TileAxis {
            tile: tile.max(1),
            overlap: overlap.min(tile / 2),
            size: &grown,
            position: &grown,
        };
        let flat = [shape[0], shape[1..shape.len() - 1].iter().product(), frames];
        let flat = latent.reshape(flat)?;
        tiled(&flat, &[axis], |part| {
            let mut whole = shape.clone();
            let last = whole.len() - 1;
            (whole[0], whole[last]) = (part.dim(0)?, part.dim(2)?);
            self.decode(&part.reshape(whole)?, check)
        })
    }
}

impl Autoencoder for SoundVae {
    fn facts(&self) -> VaeFacts {
        self.config().facts()
    }

    fn sound(&self) -> Option<&SoundVae> {
        Some(self)
    }
}
