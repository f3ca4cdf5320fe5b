//! Networks that listen: sound in, features of each moment out.

mod wav2vec2;
mod whisper;

use std::sync::Arc;

use fresco_tensor::{Axes, Device, Tensor, WeightFile};

use crate::error::{ModelError, Result};
use crate::store::{Layout, WeightStore};

pub use wav2vec2::{Wav2Vec2, Wav2Vec2Config};
pub use whisper::{Whisper, WhisperConfig};

/// Samples a second that all of them take.
pub const RATE: u32 = 16_000;

/// What a network makes of a sound.
#[derive(Clone, Debug)]
pub struct AudioFeatures {
    /// (b, moments, width).
    pub last: Tensor,
    /// What goes into each layer, and the last.
    pub states: Vec<Tensor>,
}

/// The shape of a network, read from its weights.
#[derive(Clone, Debug, PartialEq)]
pub enum AudioEncoderConfig {
    Wav2Vec2(Wav2Vec2Config),
    Whisper(WhisperConfig),
}

/// The weights of an encoder in a file, under the names that it has here.
pub fn store(file: &Arc<dyn WeightFile>, device: Device) -> Arc<WeightStore> {
    if whisper::is_in(file) {
        return whisper::store(file, device);
    }
    wav2vec2::store(file, device)
}

impl AudioEncoderConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        if store.has("encoder.embed_positions.weight") {
            return Ok(Self::Whisper(WhisperConfig::detect(store)?));
        }
        if store.has("encoder.layer_norm.bias") && store.has("feature_projection.layer_norm.bias") {
            return Ok(Self::Wav2Vec2(Wav2Vec2Config::detect(store)?));
        }
        Err(ModelError::unsupported(
            store.file(),
            "this is not an audio encoder of a known kind: wav2vec2 and Whisper are known",
        ))
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(&self, store: &WeightStore) -> Result<()> {
        match self {
            Self::Wav2Vec2(config) => {
                Layout::of(|weights| Wav2Vec2::new(weights, config))?.verify(store, WHAT)
            }
            Self::Whisper(config) => {
                Layout::of(|weights| Whisper::new(weights, config))?.verify(store, WHAT)
            }
        }
    }

    /// The network over its weights.
    pub fn build(&self, store: &WeightStore) -> Result<AudioEncoder> {
        Ok(match self {
            Self::Wav2Vec2(config) => {
                AudioEncoder::Wav2Vec2(store.build(WHAT, |weights| Wav2Vec2::new(weights, config))?)
            }
            Self::Whisper(config) => {
                AudioEncoder::Whisper(store.build(WHAT, |weights| Whisper::new(weights, config))?)
            }
        })
    }
}

const WHAT: &str = "the audio encoder";

/// A network of any kind.
pub enum AudioEncoder {
    Wav2Vec2(Wav2Vec2),
    Whisper(Whisper),
}

impl AudioEncoder {
    /// What it hears in sound (b, channels, samples) of [`RATE`] samples a second.
    pub fn encode(&self, sound: &Tensor, check: &dyn Fn() -> Result<()>) -> Result<AudioFeatures> {
        match self {
            Self::Wav2Vec2(net) => net.encode(sound, check),
            Self::Whisper(net) => net.encode(sound, check),
        }
    }
}

/// The mean of the channels: (b, samples).
fn mono(sound: &Tensor) -> Result<Tensor> {
    let [b, channels, samples] = sound.dims3()?;
    if b == 0 || channels == 0 || samples == 0 {
        return Err(ModelError::invalid("sound", "there is nothing to hear"));
    }
    Ok(sound.mean(&[1], Axes::Drop)?)
}
