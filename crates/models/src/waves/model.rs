//! Autoencoders of sound, whichever family they are of.

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::vae::Check;

/// What must be known of an autoencoder of sound before it is built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoundFacts {
    /// For people: "LTX-2".
    pub kind: &'static str,
    /// Samples of a second that go in and that come out.
    pub rate_in: u32,
    pub rate_out: u32,
    /// Latent frames of a second.
    pub latent_rate: f64,
    /// Channels of a latent, and what its second dimension is if that is not time.
    pub channels: usize,
    pub rows: SoundRows,
}

/// What a latent has beside channels and frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundRows {
    /// Bands of each frame: (b, channels, frames, bands).
    Bands(usize),
    /// Ears before frames: (b, channels, ears, frames).
    Ears(usize),
}

impl SoundFacts {
    /// The shape of a latent with so many frames.
    pub fn latent_shape(&self, batch: usize, frames: usize) -> [usize; 4] {
        match self.rows {
            SoundRows::Bands(bands) => [batch, self.channels, frames, bands],
            SoundRows::Ears(ears) => [batch, self.channels, ears, frames],
        }
    }
}

/// A network between waves and latents.
pub trait SoundNetwork: Send + Sync {
    /// The latent of waves (b, channels, samples) at [`SoundFacts::rate_in`].
    fn encode(&self, wave: &Tensor, check: Check<'_>) -> Result<Tensor>;

    /// Waves (b, channels, samples) of a latent, at [`SoundFacts::rate_out`].
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor>;
}

type BuildSound = dyn Fn(&WeightStore) -> Result<Box<dyn SoundNetwork>> + Send + Sync;

/// The weights of an autoencoder of sound, and how to make one of them.
#[derive(Clone)]
pub struct SoundStore {
    pub store: Arc<WeightStore>,
    pub facts: SoundFacts,
    build: Arc<BuildSound>,
}

/// Recognises an autoencoder of sound in a file.
pub type FindSound = fn(&Arc<dyn WeightFile>, &[String]) -> Result<Option<SoundStore>>;

impl SoundStore {
    pub fn new(
        store: Arc<WeightStore>,
        facts: SoundFacts,
        build: impl Fn(&WeightStore) -> Result<Box<dyn SoundNetwork>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            store,
            facts,
            build: Arc::new(build),
        }
    }

    /// What is in a file; none if it has no sound.
    pub fn maybe(file: &Arc<dyn WeightFile>) -> Result<Option<Self>> {
        let names = file.names();
        for find in crate::detect::SOUND_MODELS {
            if let Some(found) = find(file, &names)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The same, with an error if it has none.
    pub fn find(file: &Arc<dyn WeightFile>) -> Result<Self> {
        Self::maybe(file)?.ok_or_else(|| {
            let reason = "it has no audio VAE that is known";
            ModelError::unsupported(file.path().display().to_string(), reason)
        })
    }

    /// The same for networks that compute on another device.
    #[must_use]
    pub fn on(&self, device: Device) -> Self {
        Self {
            store: self.store.on(device),
            ..self.clone()
        }
    }

    pub fn build(&self) -> Result<Box<dyn SoundNetwork>> {
        (self.build)(&self.store)
    }
}
