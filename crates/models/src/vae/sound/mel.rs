//! An autoencoder of spectrograms, which are pictures of bands over time, and what makes sound of them.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, activate};
use fresco_tensor::{Device, Tensor};

use super::super::kl::Check;
use super::mel_blocks::{Block, Down, Norm, Up, group_means};
use super::vocoder::Vocoder;
use crate::error::Result;
use crate::sound::{Mel, MelBands, reflected, spectrogram};
use crate::store::{Walk, WeightStore};
use crate::transformer::Shapes;

pub(super) const RATE: u32 = 44_100;
const WINDOW: usize = 2048;
const HOP: usize = 512;
/// Between what logarithms of bands lie.
const LOWEST: f32 = -11.0;
const HIGHEST: f32 = 3.0;
/// Mean and scale of latents.
const SHIFT: f32 = -1.9091;
const SCALE: f32 = 0.1786;

/// The kind of a level's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    Plain,
    Vit { head: usize, inner: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    pub channels: usize,
    pub blocks: usize,
    pub kind: BlockKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocoderConfig {
    pub bands: usize,
    pub dims: Vec<usize>,
    pub depths: Vec<usize>,
    pub band_length: usize,
    pub depth_length: usize,
    /// How much wider a block is inside.
    pub expand: usize,
    /// Channels before the first growth, kernels of each, and of the blocks after each.
    pub initial: usize,
    pub ups: Vec<usize>,
    pub lengths: Vec<usize>,
    pub end_length: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MelVaeConfig {
    pub sound: usize,
    pub latent: usize,
    /// From the finest on.
    pub encoder: Vec<Level>,
    pub decoder: Vec<Level>,
    pub vocoder: VocoderConfig,
}

impl MelVaeConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let kernel = |key: &str| match store.shape(key) {
            Some(shape) if shape.len() >= 2 => Ok(shape.to_vec()),
            other => Err(shapes.unsupported(format!("{key} has shape {other:?}"))),
        };
        let levels = |half: &str, list: &str, resized: usize| -> Result<Vec<Level>> {
            let name = format!("dcae.{half}.{list}");
            let count = shapes.count(&name);
            let level = |i: usize| -> Result<Level> {
                let items = shapes.count(&format!("{name}.{i}"));
                // All but the coarsest level have a change of size before or after their blocks.
                let blocks = items.saturating_sub(usize::from(i + 1 < count));
                let first = if i + 1 < count { resized } else { 0 };
                let at = format!("{name}.{i}.{first}");
                let plain = format!("{at}.conv1.weight");
                if store.has(&plain) {
                    return Ok(Level {
                        channels: kernel(&plain)?[0],
                        blocks,
                        kind: BlockKind::Plain,
                    });
                }
                let mix = kernel(&format!("{at}.attn.to_qkv_multiscale.0.proj_out.weight"))?;
                let inner = kernel(&format!("{at}.conv_out.conv_point.weight"))?[1];
                Ok(Level {
                    channels: kernel(&format!("{at}.attn.to_q.weight"))?[0],
                    blocks,
                    kind: BlockKind::Vit {
                        head: mix[1],
                        inner,
                    },
                })
            };
            (0..count).map(level).collect()
        };
        let encoder = levels("encoder", "down_blocks", 0)?;
        let decoder = levels("decoder", "up_blocks", 1)?;
        if encoder.is_empty() || decoder.len() != encoder.len() {
            return Err(shapes.unsupported("the autoencoder of sound has no levels"));
        }
        Ok(Self {
            sound: kernel("dcae.encoder.conv_in.weight")?[1],
            latent: kernel("dcae.encoder.conv_out.weight")?[0],
            encoder,
            decoder,
            vocoder: VocoderConfig::detect(shapes)?,
        })
    }

    /// Samples of a latent frame.
    pub fn ratio(&self) -> usize {
        HOP << (self.decoder.len() - 1)
    }
}

impl VocoderConfig {
    fn detect(shapes: Shapes<'_>) -> Result<Self> {
        let kernel = |key: String| match shapes.0.shape(&key) {
            Some(&[a, b, c]) if a > 0 && b > 0 && c > 0 => Ok([a, b, c]),
            other => Err(shapes.unsupported(format!("{key} has shape {other:?}"))),
        };
        let (backbone, head) = ("vocoder.backbone", "vocoder.head");
        let [_, bands, band_length] = kernel(format!("{backbone}.channel_layers.0.0.weight"))?;
        let stages = shapes.count(&format!("{backbone}.stages"));
        let width = |i: usize| shapes.vector(&format!("{backbone}.stages.{i}.0.gamma"));
        let dims: Vec<usize> = (0..stages).map(width).collect::<Result<_>>()?;
        let depths = (0..stages)
            .map(|i| shapes.count(&format!("{backbone}.stages.{i}")))
            .collect();
        let (wide, narrow) = shapes.matrix(&format!("{backbone}.stages.0.0.pwconv1.weight"))?;
        let [_, _, depth_length] = kernel(format!("{backbone}.stages.0.0.dwconv.weight"))?;
        let [initial, _, end_length] = kernel(format!("{head}.conv_pre.weight"))?;
        let count = shapes.count(&format!("{head}.ups"));
        let mut channels = initial;
        let mut ups = Vec::new();
        for i in 0..count {
            let (rows, _) = shapes.matrix(&format!("{head}.ups.{i}.turned.weight"))?;
            let out = channels / 2;
            if out == 0 || !rows.is_multiple_of(out) || rows / out < 2 {
                return Err(shapes.unsupported(format!("{head}.ups.{i} has {rows} rows")));
            }
            ups.push(rows / out);
            channels = out;
        }
        let blocks = shapes.count(&format!("{head}.resblocks")) / count.max(1);
        let length = |i: usize| -> Result<usize> {
            Ok(kernel(format!("{head}.resblocks.{i}.convs1.0.weight"))?[2])
        };
        Ok(Self {
            bands,
            dims,
            depths,
            band_length,
            depth_length,
            expand: wide / narrow,
            initial,
            ups,
            lengths: (0..blocks).map(length).collect::<Result<_>>()?,
            end_length,
        })
    }
}

/// A level of the encoder or the decoder.
struct Stage<T> {
    blocks: Vec<Block>,
    resize: Option<T>,
}

pub struct MelVae {
    device: Device,
    encoder_in: Arc<Conv2d>,
    downs: Vec<Stage<Down>>,
    encoder_out: Arc<Conv2d>,
    decoder_in: Arc<Conv2d>,
    /// From the coarsest on.
    ups: Vec<Stage<Up>>,
    norm: Norm,
    decoder_out: Arc<Conv2d>,
    vocoder: Vocoder,
    bands: MelBands,
    latent: usize,
    top: usize,
    ratio: usize,
}

impl MelVae {
    pub(super) fn new(weights: &Walk<'_>, config: &MelVaeConfig) -> Result<Self> {
        let (encoder, decoder) = (weights.at("dcae.encoder"), weights.at("dcae.decoder"));
        let blocks = |at: &Walk<'_>, level: &Level, first: usize| -> Result<Vec<Block>> {
            (first..first + level.blocks)
                .map(|i| Block::new(&at.at(i), level.channels, level.kind))
                .collect()
        };
        let mut downs = Vec::new();
        for (i, level) in config.encoder.iter().enumerate() {
            let at = encoder.at("down_blocks").at(i);
            let next = config.encoder.get(i + 1);
            downs.push(Stage {
                blocks: blocks(&at, level, 0)?,
                resize: next
                    .map(|next| Down::new(&at.at(level.blocks), level.channels, next.channels))
                    .transpose()?,
            });
        }
        let mut ups = Vec::new();
        for (i, level) in config.decoder.iter().enumerate() {
            let at = decoder.at("up_blocks").at(i);
            let coarser = config.decoder.get(i + 1);
            ups.push(Stage {
                blocks: blocks(&at, level, usize::from(coarser.is_some()))?,
                resize: coarser
                    .map(|coarser| Up::new(&at.at(0), coarser.channels, level.channels))
                    .transpose()?,
            });
        }
        ups.reverse();
        let ends = |levels: &[Level]| {
            let channels = |level: Option<&Level>| level.map_or(0, |level| level.channels);
            (channels(levels.first()), channels(levels.last()))
        };
        let ((fine, coarse), (last, top)) = (ends(&config.encoder), ends(&config.decoder));
        let mel = Mel {
            rate: RATE,
            window: WINDOW,
            hop: HOP,
            bands: config.vocoder.bands,
            low: 40.0,
            high: 16_000.0,
        };
        Ok(Self {
            device: weights.device(),
            encoder_in: encoder.conv("conv_in", fine, config.sound, 3, 1)?,
            downs,
            encoder_out: encoder.conv("conv_out", config.latent, coarse, 3, 1)?,
            decoder_in: decoder.conv("conv_in", top, config.latent, 3, 1)?,
            ups,
            norm: Norm::new(&decoder, "norm_out", last)?,
            decoder_out: decoder.conv("conv_out", config.sound, last, 3, 1)?,
            vocoder: Vocoder::new(&weights.at("vocoder"), &config.vocoder)?,
            bands: MelBands::new(mel),
            latent: config.latent,
            top,
            ratio: config.ratio(),
        })
    }

    /// Logarithms of the bands of each channel, (b, channels, bands, frames).
    pub fn log_mel(&self, sound: &Tensor) -> Result<Tensor> {
        let [b, channels, samples] = sound.dims3()?;
        let whole = samples.div_ceil(self.ratio) * self.ratio;
        let mut all = Vec::new();
        for line in sound.data().chunks_exact(samples.max(1)) {
            let mut line = line.to_vec();
            line.resize(whole, 0.0);
            let line = reflected(&line, (WINDOW - HOP) / 2)?;
            let bands = spectrogram(&self.bands, &line, |square| (square + 1e-6).sqrt())?;
            all.push(bands.map(|v| v.max(1e-5).ln()));
        }
        let all = Tensor::stack(&all.iter().collect::<Vec<_>>(), 0)?;
        let (bands, frames) = (all.dim(1)?, all.dim(2)?);
        Ok(all.reshape([b, channels, bands, frames])?)
    }

    /// The latent (b, c, rows, frames) of a sound (b, channels, samples).
    pub fn encode(&self, sound: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mel = self.log_mel(sound)?;
        let picture = mel.map(|v| (v - LOWEST) / (HIGHEST - LOWEST) * 2.0 - 1.0);
        let mut x = self
            .encoder_in
            .forward(&picture.nchw_to_nhwc()?.to(&self.device)?)?;
        for stage in &self.downs {
            for block in &stage.blocks {
                check()?;
                x = block.forward(&x)?;
            }
            if let Some(down) = &stage.resize {
                x = down.forward(&x)?;
            }
        }
        let out = self.encoder_out.forward(&x)?;
        let out = out.add(&group_means(&x, self.latent)?)?;
        let out = out.to(&Device::cpu())?.nhwc_to_nchw()?;
        Ok(out.add_scalar(-SHIFT).mul_scalar(SCALE))
    }

    /// The spectrogram of a latent, (b, channels, bands, frames), between -1 and 1.
    pub fn decode_mel(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let z = latent.map(|v| v / SCALE + SHIFT);
        let z = z.nchw_to_nhwc()?.to(&self.device)?;
        let spread = z.repeat_interleave(3, self.top / self.latent.max(1))?;
        let mut x = self.decoder_in.forward(&z)?.add(&spread)?;
        for stage in &self.ups {
            if let Some(up) = &stage.resize {
                x = up.forward(&x)?;
            }
            for block in &stage.blocks {
                check()?;
                x = block.forward(&x)?;
            }
        }
        let x = activate(self.norm.forward(&x)?, Act::Relu);
        let out = self.decoder_out.forward(&x)?.to(&Device::cpu())?;
        Ok(out.nhwc_to_nchw()?)
    }

    /// What the vocoder makes of the bands (n, bands, frames) of lines: (n, width, frames).
    pub fn features(&self, bands: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let bands = bands.permute(&[0, 2, 1])?.to(&self.device)?;
        let found = self.vocoder.features(&bands, check)?;
        Ok(found.to(&Device::cpu())?.permute(&[0, 2, 1])?)
    }

    /// The samples (n, 1, samples) of the bands (n, bands, frames) of lines.
    pub fn vocode(&self, bands: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let bands = bands.permute(&[0, 2, 1])?.to(&self.device)?;
        let found = self.vocoder.forward(&bands, check)?;
        Ok(found.to(&Device::cpu())?.permute(&[0, 2, 1])?)
    }

    /// Bands as the vocoder takes them, of a spectrogram between -1 and 1.
    pub fn unscaled(mel: &Tensor) -> Tensor {
        mel.map(|v| (v * 0.5 + 0.5) * (HIGHEST - LOWEST) + LOWEST)
    }

    /// The sound (b, channels, samples) of a latent.
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mel = Self::unscaled(&self.decode_mel(latent, check)?);
        let [b, channels, bands, frames] = mel.dims4()?;
        let lines = mel.reshape([b * channels, bands, frames])?;
        let sound = self.vocode(&lines, check)?;
        let samples = sound.dim(2)?;
        Ok(sound.reshape([b, channels, samples])?)
    }
}
