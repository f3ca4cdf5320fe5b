//! What an autoencoder is to everything else: its facts, its network, and how it is told by a file's weights.

use std::any::Any;
use std::fmt;

use fresco_tensor::Tensor;

use super::images::Vae;
use super::kl::Check;
use super::memory::VaeMemory;
use super::shape::ShapeVae;
use super::sound::SoundVae;
use crate::error::{ModelError, Result};
use crate::store::WeightStore;

/// The half of an autoencoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Encoder,
    Decoder,
}

impl Side {
    /// What this half has of two.
    pub fn pick<T>(self, encoder: T, decoder: T) -> T {
        match self {
            Self::Encoder => encoder,
            Self::Decoder => decoder,
        }
    }
}

/// What an autoencoder makes latents of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Pictures(PixelRange),
    /// Sound with so many samples a second.
    Sound {
        rate: u32,
    },
    Solids,
}

/// The values of pixels as a network has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelRange {
    /// From -1 to 1.
    Signed,
    /// From 0 to 1.
    Unit,
}

/// How a network makes the frames of a film.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOrder {
    AllAtOnce,
    /// A piece after the other, of which none is kept.
    OneByOne,
}

/// Who cuts large inputs into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// The caller, whose tiles are blended.
    ByCaller,
    /// The network, in its own way.
    ByNetwork,
}

/// What the general path must know of an autoencoder before it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaeFacts {
    pub subject: Subject,
    pub latent_channels: usize,
    /// Pixels along a side for one latent cell; samples of sound for one latent frame; one for solids.
    pub ratio: usize,
    /// Frames for one latent frame after the first; none for pictures.
    pub temporal_ratio: Option<usize>,
    /// Channels of a picture that it looks at.
    pub picture_channels: usize,
    pub frames: FrameOrder,
    pub tiling: Tiling,
    pub memory: VaeMemory,
}

impl VaeFacts {
    /// Of pictures in -1..1 with three channels.
    pub fn pictures(latent_channels: usize, ratio: usize) -> Self {
        Self {
            subject: Subject::Pictures(PixelRange::Signed),
            latent_channels,
            ratio,
            temporal_ratio: None,
            picture_channels: 3,
            frames: FrameOrder::AllAtOnce,
            tiling: Tiling::ByCaller,
            memory: VaeMemory::of_cells(None, ratio),
        }
    }

    /// Of films, with so many frames for one latent frame after the first.
    pub fn film(latent_channels: usize, ratio: usize, temporal_ratio: usize) -> Self {
        Self {
            temporal_ratio: Some(temporal_ratio),
            memory: VaeMemory::of_cells(Some(temporal_ratio), ratio),
            ..Self::pictures(latent_channels, ratio)
        }
    }

    /// The same with needs of its own.
    #[must_use]
    pub fn with_memory(self, memory: VaeMemory) -> Self {
        Self { memory, ..self }
    }

    /// Samples a second, of those that make sound.
    pub fn sound_rate(&self) -> Option<u32> {
        match self.subject {
            Subject::Sound { rate } => Some(rate),
            Subject::Pictures(_) | Subject::Solids => None,
        }
    }

    /// How pixels go in and come out. Says why an autoencoder of something else gives and takes no pictures.
    pub(super) fn pixels(&self, what: &'static str) -> Result<PixelRange> {
        let (made, node) = match self.subject {
            Subject::Pictures(range) => return Ok(range),
            Subject::Sound { .. } => ("sound", "VAEDecodeAudio and VAEEncodeAudio"),
            Subject::Solids => ("solids", "the node that makes voxels of latents"),
        };
        let reason = format!("this VAE makes {made} and no pictures: use {node}");
        Err(ModelError::invalid(what, reason))
    }
}

/// The network of an autoencoder.
pub trait Autoencoder: Send + Sync + 'static {
    fn facts(&self) -> VaeFacts;

    /// The mean latent (b, c, h, w) of pictures (b, c, h, w), or (b, c, t, h, w) of films (b, c, frames, h, w).
    fn encode(&self, _pixels: &Tensor, _check: Check<'_>) -> Result<Tensor> {
        Err(no_pictures(self.facts(), "VAE encode"))
    }

    /// Pictures or films of latents, about in the range that goes in.
    fn decode(&self, _latent: &Tensor, _check: Check<'_>) -> Result<Tensor> {
        Err(no_pictures(self.facts(), "VAE decode"))
    }

    /// As [`Self::decode`] of latents (b, c, t, h, w), but frames (n, h, w, c) are handed out as soon as they are made.
    fn decode_each(
        &self,
        latent: &Tensor,
        check: Check<'_>,
        sink: &mut dyn FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        let made = self.decode(latent, check)?;
        sink(match *made.shape() {
            [b, c, t, h, w] => made.permute(&[0, 2, 3, 4, 1])?.reshape([b * t, h, w, c])?,
            _ => made.nchw_to_nhwc()?,
        })
    }

    /// What it does with sound.
    fn sound(&self) -> Option<&SoundVae> {
        None
    }

    /// What it does with solids.
    fn solids(&self) -> Option<&ShapeVae> {
        None
    }
}

fn no_pictures(facts: VaeFacts, what: &'static str) -> ModelError {
    match facts.pixels(what) {
        Err(error) => error,
        Ok(_) => ModelError::invalid(what, "this VAE goes the other way only"),
    }
}

/// The shape of an autoencoder, as it is read from keys and shapes.
pub trait AutoencoderConfig: Any + fmt::Debug + Send + Sync {
    fn facts(&self) -> VaeFacts;

    /// Whether a store has every weight in its shape.
    fn verify(&self, store: &WeightStore) -> Result<()>;

    /// The network over its weights.
    fn build(&self, store: &WeightStore) -> Result<Vae>;
}
