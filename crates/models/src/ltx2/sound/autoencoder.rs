//! The autoencoder of spectrograms: pictures whose rows are moments, none of which sees a later one.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, Linear, Padding, RmsNorm, Value, activate, upsample_nearest};
use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};
use crate::store::{Kernel, Walk, WeightStore};
use crate::vae::{Check, Side};

const EPS: f32 = 1e-6;
const SIDE: usize = 3;
/// More levels, and more layers in one, than any of these has.
const MOST: usize = 64;
/// Bands of the spectrograms that published models are made for.
const BANDS: usize = 64;

/// What it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpectrogramConfig {
    /// Of a spectrogram: one for each ear.
    pub channels: usize,
    pub latent: usize,
    /// Of each level, the widest picture first: its channels.
    pub widths: Vec<usize>,
    /// Residual layers of a level on the way down.
    pub layers: usize,
    pub encoder: bool,
    /// How many means and deviations there are, if any.
    pub measured: Option<usize>,
}

impl SpectrogramConfig {
    pub fn detect(store: &WeightStore, prefix: &str) -> Result<Self> {
        let shape = |key: &str| -> Result<[usize; 2]> {
            let key = format!("{prefix}{key}.weight");
            match store.shape(&key) {
                Some(&[out, input, _, _]) if out > 0 && input > 0 => Ok([out, input]),
                Some(found) => Err(ModelError::Shape {
                    file: store.file().to_owned(),
                    key,
                    expected: "a convolution over pictures".to_owned(),
                    found: found.to_vec(),
                }),
                None => Err(ModelError::Missing {
                    file: store.file().to_owned(),
                    key,
                }),
            }
        };
        let has = |key: &str| store.has(&format!("{prefix}{key}.weight"));
        let layer = |level: usize, n: usize| format!("decoder.up.{level}.block.{n}.conv1.conv");
        let levels = (0..MOST).take_while(|n| has(&layer(*n, 0))).count();
        let widths = (0..levels).map(|level| Ok(shape(&layer(level, 0))?[0]));
        let layers = (0..MOST).take_while(|n| has(&layer(0, *n))).count();
        let means = format!("{prefix}{MEANS}");
        Ok(Self {
            channels: shape("decoder.conv_out.conv")?[0],
            latent: shape("decoder.conv_in.conv")?[1],
            widths: widths.collect::<Result<_>>()?,
            layers: layers.saturating_sub(1),
            encoder: has("encoder.conv_in.conv"),
            measured: store.shape(&means).map(|shape| shape.iter().product()),
        })
    }

    /// Slices of a spectrogram for one latent frame, and bands for one latent band.
    pub fn ratio(&self) -> usize {
        1 << self.widths.len().saturating_sub(1)
    }

    /// Bands of a spectrogram.
    pub fn bands(&self) -> usize {
        let latent = self.measured.map(|n| n / self.latent.max(1));
        latent.map_or(BANDS, |n| n * self.ratio())
    }

    /// Bands of a latent.
    pub fn latent_bands(&self) -> usize {
        self.bands() / self.ratio()
    }
}

const MEANS: &str = "per_channel_statistics.mean-of-means";
const DEVIATIONS: &str = "per_channel_statistics.std-of-means";

/// A convolution that sees two rows before, and one column on both sides.
struct Causal(Arc<Conv2d>);

impl Causal {
    fn new(weights: &Walk<'_>, name: &str, out: usize, input: usize) -> Result<Self> {
        conv(weights, name, out, input, 1).map(Self)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.0.forward(&around(x, (2, 0), (1, 1))?)?)
    }
}

fn conv(
    weights: &Walk<'_>,
    name: &str,
    out: usize,
    input: usize,
    stride: usize,
) -> Result<Arc<Conv2d>> {
    let kernel = Kernel {
        out,
        input,
        side: SIDE,
        bias: true,
    };
    weights.conv_with(name, kernel, stride, Padding::Same(0))
}

/// (b, h, w, c) with zeros around: rows before and after, columns before and after.
fn around(x: &Tensor, rows: (usize, usize), columns: (usize, usize)) -> Result<Tensor> {
    let device = x.device();
    let mut x = x.clone();
    for (dim, (before, after)) in [(1, rows), (2, columns)] {
        let zeros = |x: &Tensor, count: usize| -> Result<Tensor> {
            let mut shape = x.shape().to_vec();
            shape[dim] = count;
            Ok(Tensor::zeros_on(&device, shape)?)
        };
        let (first, last) = (zeros(&x, before)?, zeros(&x, after)?);
        let parts: Vec<&Tensor> = [&first, &x, &last]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        x = Tensor::cat(&parts, dim)?;
    }
    Ok(x)
}

struct Residual {
    conv1: Causal,
    conv2: Causal,
    shortcut: Option<Arc<Linear>>,
    norm: RmsNorm,
}

impl Residual {
    fn new(weights: &Walk<'_>, from: usize, to: usize) -> Result<Self> {
        let shortcut = || weights.linear("nin_shortcut.conv", to, from);
        Ok(Self {
            conv1: Causal::new(weights, "conv1.conv", to, from)?,
            conv2: Causal::new(weights, "conv2.conv", to, to)?,
            shortcut: (from != to).then(shortcut).transpose()?,
            norm: RmsNorm::new(None, EPS)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let half = |x: &Tensor, conv: &Causal| -> Result<Tensor> {
            conv.forward(&activate(self.norm.forward(x)?, Act::Silu))
        };
        let h = half(&half(x, &self.conv1)?, &self.conv2)?;
        match &self.shortcut {
            Some(shortcut) => Ok(shortcut.forward(x)?.add(&h)?),
            None => Ok(x.add(&h)?),
        }
    }
}

/// Residual layers, and what comes after them.
struct Level {
    layers: Vec<Residual>,
    resize: Option<Arc<Conv2d>>,
}

struct Half {
    conv_in: Causal,
    mid: [Residual; 2],
    /// In the order they run.
    levels: Vec<Level>,
    norm: RmsNorm,
    conv_out: Causal,
}

impl Half {
    fn new(weights: &Walk<'_>, config: &SpectrogramConfig, side: Side) -> Result<Self> {
        let widths = &config.widths;
        let (Some(first), Some(last)) = (widths.first(), widths.last()) else {
            return Err(weights.unsupported("the autoencoder has no levels"));
        };
        let (input, start, end, values) = side.pick(
            (config.channels, *first, *last, 2 * config.latent),
            (config.latent, *last, *first, config.channels),
        );
        let list = weights.at(side.pick("down", "up"));
        let mut numbers: Vec<usize> = (0..widths.len()).collect();
        if side == Side::Decoder {
            numbers.reverse();
        }
        let count = config.layers + side.pick(0, 1);
        let mut levels = Vec::new();
        let mut width = start;
        for number in numbers {
            let place = list.at(number);
            let to = widths[number];
            let mut layers = Vec::new();
            for layer in 0..count {
                layers.push(Residual::new(&place.at("block").at(layer), width, to)?);
                width = to;
            }
            let resized = side.pick(number + 1 < widths.len(), number > 0);
            let resize = || match side {
                Side::Encoder => conv(&place, "downsample.conv", to, to, 2),
                Side::Decoder => conv(&place, "upsample.conv.conv", to, to, 1),
            };
            levels.push(Level {
                layers,
                resize: resized.then(resize).transpose()?,
            });
        }
        let middle = side.pick(end, start);
        let mid = |name: &str| Residual::new(&weights.at("mid").at(name), middle, middle);
        Ok(Self {
            conv_in: Causal::new(weights, "conv_in.conv", start, input)?,
            mid: [mid("block_1")?, mid("block_2")?],
            levels,
            norm: RmsNorm::new(None, EPS)?,
            conv_out: Causal::new(weights, "conv_out.conv", values, end)?,
        })
    }

    fn forward(&self, x: &Tensor, side: Side, check: Check<'_>) -> Result<Tensor> {
        let middle = |mut x: Tensor| -> Result<Tensor> {
            for layer in &self.mid {
                x = layer.forward(&x)?;
            }
            Ok(x)
        };
        let mut x = self.conv_in.forward(x)?;
        if side == Side::Decoder {
            x = middle(x)?;
        }
        for level in &self.levels {
            for layer in &level.layers {
                check()?;
                x = layer.forward(&x)?;
            }
            let Some(resize) = &level.resize else {
                continue;
            };
            x = match side {
                Side::Encoder => resize.forward(&around(&x, (2, 0), (0, 1))?)?,
                Side::Decoder => {
                    let [_, h, w, _] = x.dims4()?;
                    let larger = upsample_nearest(&x, 2 * h, 2 * w)?;
                    let made = resize.forward(&around(&larger, (2, 0), (1, 1))?)?;
                    // The first moment stands for one slice only.
                    made.narrow(1, 1, 2 * h - 1)?
                }
            };
        }
        if side == Side::Encoder {
            x = middle(x)?;
        }
        let x = activate(self.norm.forward(&x)?, Act::Silu);
        self.conv_out.forward(&x)
    }
}

/// An autoencoder of spectrograms.
pub struct SpectrogramVae {
    config: SpectrogramConfig,
    device: Device,
    encoder: Option<Half>,
    decoder: Half,
    measured: Option<[Arc<Value>; 2]>,
}

impl SpectrogramVae {
    pub fn new(weights: &Walk<'_>, config: &SpectrogramConfig) -> Result<Self> {
        let encoder = || Half::new(&weights.at("encoder"), config, Side::Encoder);
        let measured = config.measured.map(|count| {
            Ok::<_, ModelError>([
                weights.value(MEANS, &[count])?,
                weights.value(DEVIATIONS, &[count])?,
            ])
        });
        Ok(Self {
            device: weights.device(),
            encoder: config.encoder.then(encoder).transpose()?,
            decoder: Half::new(&weights.at("decoder"), config, Side::Decoder)?,
            measured: measured.transpose()?,
            config: config.clone(),
        })
    }

    /// The latent (b, c, frames, bands) of spectrograms (b, channels, slices, bands).
    pub fn encode(&self, mel: &Tensor, check: Check<'_>) -> Result<Tensor> {
        self.measure(&self.encode_plain(mel, check)?, Side::Encoder)
    }

    /// The same as the network makes it.
    pub fn encode_plain(&self, mel: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let Some(encoder) = &self.encoder else {
            let reason = "the file has a decoder only";
            return Err(ModelError::invalid("audio VAE encode", reason));
        };
        let x = mel.nchw_to_nhwc()?.to(&self.device)?;
        let made = encoder.forward(&x, Side::Encoder, check)?;
        let mean = made.narrow(3, 0, self.config.latent)?;
        Ok(mean.to(&Device::cpu())?.nhwc_to_nchw()?)
    }

    /// Spectrograms of latents.
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [_, channels, _, _] = latent.dims4()?;
        if channels != self.config.latent || latent.is_empty() {
            let reason = format!(
                "this one takes latents of {} channels, got shape {:?}",
                self.config.latent,
                latent.shape()
            );
            return Err(ModelError::invalid("audio VAE decode", reason));
        }
        self.decode_plain(&self.measure(latent, Side::Decoder)?, check)
    }

    /// The same of latents as the network takes them.
    pub fn decode_plain(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let x = latent.nchw_to_nhwc()?.to(&self.device)?;
        let made = self.decoder.forward(&x, Side::Decoder, check)?;
        Ok(made.to(&Device::cpu())?.nhwc_to_nchw()?)
    }

    /// With the usual means and deviations taken away, or put back. They are of channel and band together.
    fn measure(&self, latent: &Tensor, side: Side) -> Result<Tensor> {
        let Some([means, deviations]) = &self.measured else {
            return Ok(latent.clone());
        };
        let [_, channels, _, bands] = latent.dims4()?;
        let value = |value: &Value| -> Result<Tensor> {
            let value = value.at(&Device::cpu())?;
            if value.len() != channels * bands {
                let reason = format!(
                    "{} means are not those of {channels} channels and {bands} bands",
                    value.len()
                );
                return Err(ModelError::invalid("audio VAE", reason));
            }
            Ok(value.reshape([1, channels, 1, bands])?)
        };
        let (means, deviations) = (value(means)?, value(deviations)?);
        Ok(match side {
            Side::Encoder => latent.sub(&means)?.div(&deviations)?,
            Side::Decoder => latent.mul(&deviations)?.add(&means)?,
        })
    }
}
