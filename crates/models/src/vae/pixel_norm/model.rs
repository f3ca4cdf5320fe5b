//! The network.

use std::sync::Arc;

use fresco_tensor::nn::{Act, RmsNorm, Value, activate};
use fresco_tensor::{Device, Generator, Tensor};

use super::blocks::{Beyond, Block, Convolution, DecoderTraits, LastLevel, PassInputs};
use super::config::{DEVIATIONS, HalfConfig, MEANS, PixelNormConfig};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::vae::autoencoder::{Autoencoder, AutoencoderConfig, Side, VaeFacts};
use crate::vae::kl::Check;
use crate::vae::squares::{patched, unpatched};

/// The network in messages.
pub(super) const WHAT: &str = "the autoencoder";

const EPS: f32 = 1e-8;
/// How much noise decoders that are told so are made for, and how much is put in.
const LEVEL: f32 = 0.05;
const NOISE: f32 = 0.025;

struct Half {
    conv_in: Convolution,
    blocks: Vec<Block>,
    norm: RmsNorm,
    last: Option<LastLevel>,
    conv_out: Convolution,
}

impl Half {
    fn new(
        weights: &Walk<'_>,
        config: &HalfConfig,
        side: Side,
        traits: DecoderTraits,
    ) -> Result<Self> {
        let ((input, out), (last, values)) = (config.first, config.last);
        let list = weights.at(side.pick("down_blocks", "up_blocks"));
        let blocks = config.blocks.iter().enumerate();
        let blocks =
            blocks.map(|(number, block)| Block::new(&list.at(number), *block, side, traits));
        Ok(Self {
            conv_in: Convolution::new(weights, "conv_in.conv", out, input)?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: RmsNorm::new(None, EPS)?,
            last: traits
                .told
                .then(|| LastLevel::new(weights, last))
                .transpose()?,
            conv_out: Convolution::new(weights, "conv_out.conv", values, last)?,
        })
    }

    fn forward(&self, x: &Tensor, told: &mut PassInputs<'_>, check: Check<'_>) -> Result<Tensor> {
        let mut x = self.conv_in.forward(x, told.beyond)?;
        for block in &self.blocks {
            x = block.forward(x, told, check)?;
        }
        let mut x = self.norm.forward(&x)?;
        if let (Some(last), Some(level)) = (&self.last, told.level) {
            x = last.forward(x, level)?;
        }
        self.conv_out.forward(&activate(x, Act::Silu), told.beyond)
    }
}

/// An autoencoder of films with pixel norms.
pub struct PixelNormVae {
    config: PixelNormConfig,
    device: Device,
    encoder: Option<Half>,
    decoder: Half,
    /// By what the level that a decoder is told is multiplied.
    multiplier: Option<Arc<Value>>,
    /// Means and deviations of the latent's channels.
    measured: Option<[Arc<Value>; 2]>,
}

impl PixelNormVae {
    pub fn new(store: &WeightStore) -> Result<Self> {
        Self::with(store, &PixelNormConfig::detect(store)?)
    }

    pub fn with(store: &WeightStore, config: &PixelNormConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, config))
    }

    pub(super) fn walk(weights: &Walk<'_>, config: &PixelNormConfig) -> Result<Self> {
        let encoder = config.encoder.as_ref().map(|half| {
            let weights = weights.at("encoder");
            Half::new(&weights, half, Side::Encoder, DecoderTraits::default())
        });
        let traits = DecoderTraits {
            told: config.told,
            noisy: config.noisy,
            repeated: config.repeated,
        };
        let inner = weights.at("decoder");
        let decoder = Half::new(&inner, &config.decoder, Side::Decoder, traits)?;
        let channels = [config.latent_channels()];
        let multiplier = || weights.value("decoder.timestep_scale_multiplier", &[]);
        let measured = || -> Result<[Arc<Value>; 2]> {
            Ok([
                weights.value(MEANS, &channels)?,
                weights.value(DEVIATIONS, &channels)?,
            ])
        };
        Ok(Self {
            encoder: encoder.transpose()?,
            decoder,
            multiplier: config.told.then(multiplier).transpose()?,
            measured: config.measured.then(measured).transpose()?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &PixelNormConfig {
        &self.config
    }

    /// What the decoder makes of latents as they are, with noise in its layers or without.
    pub fn decode_plain(
        &self,
        latent: &Tensor,
        random: Option<Generator>,
        check: Check<'_>,
    ) -> Result<Tensor> {
        let mut random = random;
        let level = match &self.multiplier {
            Some(multiplier) => Some(multiplier.at(&Device::cpu())?.data()[0] * LEVEL),
            None => None,
        };
        items("VAE decode", latent, |video| {
            let mut told = PassInputs {
                beyond: Beyond::Both {
                    mirrored: self.config.mirrored,
                },
                level,
                random: random.as_mut(),
            };
            let video = video.to(&self.device)?;
            let made = self.decoder.forward(&video, &mut told, check)?;
            unpatched(made, self.config.patch)
        })
    }

    /// Means and deviations as (1, c, 1, 1, 1) in main memory.
    fn measures(&self) -> Result<Option<[Tensor; 2]>> {
        let Some(both) = &self.measured else {
            return Ok(None);
        };
        let line = |value: &Value| -> Result<Tensor> {
            let value = value.at(&Device::cpu())?;
            Ok(value.reshape([1, value.len(), 1, 1, 1])?)
        };
        Ok(Some([line(&both[0])?, line(&both[1])?]))
    }
}

impl Autoencoder for PixelNormVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// The mean latent (b, c, t, h, w) of videos (b, 3, frames, h, w) in -1..1. Frames at the end that fill no latent frame
    /// are left out.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let Some(encoder) = &self.encoder else {
            let reason = "the file has a decoder only";
            return Err(ModelError::invalid("VAE encode", reason));
        };
        let span = self.config.temporal_ratio().max(1);
        let latent = items("VAE encode", pixels, |video| {
            let frames = video.dim(0)?;
            let whole = (frames - 1) / span * span + 1;
            let video = video.narrow(0, 0, whole)?.to(&self.device)?;
            let mut told = PassInputs {
                beyond: Beyond::Causal,
                level: None,
                random: None,
            };
            let made = encoder.forward(&patched(video, self.config.patch)?, &mut told, check)?;
            // The last channel says how sure it is of all of them.
            let channels = made.dim(3)? - 1;
            Ok(made.narrow(3, 0, channels)?)
        })?;
        let Some([means, deviations]) = self.measures()? else {
            return Ok(latent);
        };
        Ok(latent.sub(&means)?.div(&deviations)?)
    }

    /// Videos (b, 3, frames, h, w), about -1..1, of latents (b, c, t, h, w). Decoders that are told how much noise is left
    /// get that much put in, always the same.
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut random = Generator::new(0);
        let mut latent = latent.clone();
        if self.config.told {
            let noise = random.randn(latent.shape())?.mul_scalar(NOISE);
            latent = latent.mul_scalar(1.0 - NOISE).add(&noise)?;
        }
        if let Some([means, deviations]) = self.measures()? {
            latent = latent.mul(&deviations)?.add(&means)?;
        }
        self.decode_plain(&latent, Some(random), check)
    }
}

/// Runs a network on each item of (b, c, t, h, w), as frames (t, h, w, c), and joins what it makes.
fn items(
    what: &'static str,
    x: &Tensor,
    mut f: impl FnMut(Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if x.rank() != 5 || x.is_empty() {
        let reason = format!("shape {:?} is not a batch of videos", x.shape());
        return Err(ModelError::invalid(what, reason));
    }
    let mut made = Vec::new();
    for item in 0..x.dim(0)? {
        let video = x.select(0, item)?.permute(&[1, 2, 3, 0])?;
        let out = f(video)?.to(&Device::cpu())?;
        made.push(out.permute(&[3, 0, 1, 2])?.unsqueeze(0)?);
    }
    Ok(Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?)
}
