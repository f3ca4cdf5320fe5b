//! TAEHV: a tiny autoencoder of films that stands in for the large one in previews and, where asked, in its place.
//!
//! Its layers are numbered as in a sequence; what has no weights (activations, enlargements) has a number too. Blocks see
//! what they saw in the frame before.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Conv2d, Linear, Padding, activate, concat_channels, upsample_nearest,
};
use fresco_tensor::{Device, Dtype, Tensor};

use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Kernel, Layout, Walk, WeightStore};
use crate::vae::Check;
use crate::vae::Vae;
use crate::vae::VaeMemory;
use crate::vae::each_film;
use crate::vae::{Autoencoder, AutoencoderConfig, Side, VaeFacts};

/// How the files of the published ones begin, which lie among those of previews.
pub const NAMES: [&str; 4] = ["taehv", "lighttaew2_2", "lighttaew2_1", "lighttaehy1_5"];

/// Whether a file of previews is one of them.
pub fn is_published(name: &str) -> bool {
    NAMES.iter().any(|start| name.starts_with(start))
}

/// The network in messages.
const WHAT: &str = "the small autoencoder";

const MOST: usize = 200;
/// Frames that one latent frame is of, for which films are filled up.
const SPAN: usize = 4;
/// What the latents of files in sixteen bits are multiplied with: they are of another large autoencoder.
const HALF_SCALE: f32 = 0.476_986;
/// Values beyond this are pressed together.
const BOUND: f32 = 3.0;

/// One place of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallLayer {
    Conv {
        number: usize,
        input: usize,
        out: usize,
        /// Those without halve the size in an encoder.
        bias: bool,
    },
    Block {
        number: usize,
        input: usize,
        out: usize,
        skip: bool,
    },
    /// Frames onto channels, or back, by a matrix.
    Frames {
        number: usize,
        input: usize,
        out: usize,
        /// Channels of a frame.
        each: usize,
    },
    Activate,
    Enlarge,
}

/// The shape of the network. Files with one half only load too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaehvConfig {
    pub encoder: Vec<SmallLayer>,
    pub decoder: Vec<SmallLayer>,
    /// Whether what is negative is not lost.
    pub leaky: bool,
    /// Pixels along a side that are channels from the start.
    pub patch: usize,
    /// Whether latents are scaled.
    pub scaled: bool,
    latent: usize,
}

fn sequence(store: &WeightStore, side: Side) -> Result<Vec<SmallLayer>> {
    let half = side.pick("encoder", "decoder");
    let numbers = store.keys().into_iter().filter_map(|key| {
        let rest = key.strip_prefix(half)?.strip_prefix('.')?;
        rest.split('.').next()?.parse::<usize>().ok()
    });
    let Some(last) = numbers.filter(|n| *n < MOST).max() else {
        return Ok(Vec::new());
    };
    let shape = |rest: String| match store.shape(&format!("{half}.{rest}")) {
        Some(&[out, input, ..]) => Some((input, out)),
        _ => None,
    };
    let frames = |number: usize| shape(format!("{number}.conv.weight"));
    let mut found = Vec::new();
    let mut at = 0;
    for number in 0..=last {
        let layer = if let Some((input, out)) = shape(format!("{number}.conv.0.weight")) {
            at = out;
            SmallLayer::Block {
                number,
                input: input / 2,
                out,
                skip: input / 2 != out || store.has(&format!("{half}.{number}.skip.weight")),
            }
        } else if let Some((input, out)) = frames(number) {
            let each = side.pick(out, input);
            SmallLayer::Frames {
                number,
                input,
                out,
                each,
            }
        } else if let Some((input, out)) = shape(format!("{number}.weight")) {
            at = out;
            SmallLayer::Conv {
                number,
                input,
                out,
                bias: store.has(&format!("{half}.{number}.bias")),
            }
        } else if at == 0 {
            // What presses latents together.
            continue;
        } else if side == Side::Decoder && frames(number + 1).is_some() {
            SmallLayer::Enlarge
        } else {
            SmallLayer::Activate
        };
        found.push(layer);
    }
    Ok(found)
}

impl TaehvConfig {
    pub fn is_in(store: &WeightStore) -> bool {
        store.has("decoder.22.bias") && store.has("decoder.3.conv.0.weight")
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let (encoder, decoder) = (
            sequence(store, Side::Encoder)?,
            sequence(store, Side::Decoder)?,
        );
        let ends = |list: &[SmallLayer]| {
            let convs = list.iter().filter_map(|layer| match layer {
                SmallLayer::Conv { input, out, .. } => Some((*input, *out)),
                _ => None,
            });
            let convs: Vec<(usize, usize)> = convs.collect();
            Some((convs.first()?.0, convs.last()?.1))
        };
        let Some((latent, pixels)) = ends(&decoder) else {
            return Err(ModelError::unsupported(
                store.file(),
                "this is not a small autoencoder of films: it has no decoder",
            ));
        };
        let patch = match pixels {
            3 => 1,
            12 => 2,
            _ => {
                let reason = format!("{pixels} values are no square of pixels");
                return Err(ModelError::unsupported(store.file(), reason));
            }
        };
        let half = store.dtype("decoder.1.weight") == Some(Dtype::F16);
        let found = Self {
            encoder,
            decoder,
            leaky: latent == 32,
            patch,
            scaled: latent == 16 && half,
            latent,
        };
        if found.ratio() > 256 {
            let reason = format!("a cell would be {} pixels wide", found.ratio());
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(found)
    }

    pub fn latent_channels(&self) -> usize {
        self.latent
    }

    pub fn ratio(&self) -> usize {
        let enlarged = self.decoder.iter();
        let enlarged = enlarged.filter(|layer| matches!(layer, SmallLayer::Enlarge));
        self.patch << enlarged.count().min(16)
    }

    pub fn temporal_ratio(&self) -> usize {
        let frames = self.decoder.iter().filter_map(|layer| match layer {
            SmallLayer::Frames { out, each, .. } => Some((out / each.max(&1)).max(1)),
            _ => None,
        });
        frames.product()
    }
}

impl AutoencoderConfig for TaehvConfig {
    fn facts(&self) -> VaeFacts {
        let channels = self.latent_channels();
        VaeFacts::film(channels, self.ratio(), self.temporal_ratio()).with_memory(VaeMemory::Small)
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        Layout::of(|weights| Taehv::walk(weights, self))?.verify(store, WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(Taehv::new(store, self)?.into())
    }
}

enum Layer {
    Conv(Arc<Conv2d>),
    Block([Arc<Conv2d>; 3], Option<Arc<Linear>>),
    Pool(Arc<Linear>, usize),
    Grow(Arc<Linear>, usize),
    Activate,
    Enlarge,
}

impl Layer {
    fn new(weights: &Walk<'_>, layer: SmallLayer, side: Side) -> Result<Self> {
        Ok(match layer {
            SmallLayer::Activate => Self::Activate,
            SmallLayer::Enlarge => Self::Enlarge,
            SmallLayer::Conv {
                number,
                input,
                out,
                bias,
            } => {
                let stride = if bias { 1 } else { side.pick(2, 1) };
                let kernel = Kernel {
                    out,
                    input,
                    side: 3,
                    bias,
                };
                let name = number.to_string();
                Self::Conv(weights.conv_with(&name, kernel, stride, Padding::Same(1))?)
            }
            SmallLayer::Block {
                number,
                input,
                out,
                skip,
            } => {
                let inner = weights.at(number);
                let convs = [
                    inner.conv("conv.0", out, 2 * input, 3, 1)?,
                    inner.conv("conv.2", out, out, 3, 1)?,
                    inner.conv("conv.4", out, out, 3, 1)?,
                ];
                let skip = skip.then(|| inner.matrix("skip", out, input));
                Self::Block(convs, skip.transpose()?)
            }
            SmallLayer::Frames {
                number,
                input,
                out,
                each,
            } => {
                let layer = weights.at(number).matrix("conv", out, input)?;
                let frames = |values: usize| (values / each.max(1)).max(1);
                match side {
                    Side::Encoder => Self::Pool(layer, frames(input)),
                    Side::Decoder => Self::Grow(layer, frames(out)),
                }
            }
        })
    }

    fn forward(&self, x: Tensor, act: Act) -> Result<Tensor> {
        Ok(match self {
            Self::Conv(conv) => conv.forward(&x)?,
            Self::Activate => activate(x, act),
            Self::Enlarge => {
                let [_, h, w, _] = x.dims4()?;
                upsample_nearest(&x, 2 * h, 2 * w)?
            }
            Self::Block([first, second, third], skip) => {
                let [t, h, w, c] = x.dims4()?;
                let none = Tensor::zeros_on(&x.device(), [1, h, w, c])?;
                let before = if t > 1 {
                    Tensor::cat(&[&none, &x.narrow(0, 0, t - 1)?], 0)?
                } else {
                    none
                };
                let both = concat_channels(&[&x, &before])?;
                drop(before);
                let inner = first.forward_with(&both, then(act))?;
                drop(both);
                let inner = second.forward_with(&inner, then(act))?;
                let x = match skip {
                    Some(skip) => skip.forward(&x)?,
                    None => x,
                };
                activate(third.forward_with(&inner, plus(&x))?, act)
            }
            Self::Pool(layer, frames) => {
                let [t, h, w, c] = x.dims4()?;
                let joined = x.reshape([t / frames, *frames, h, w, c])?;
                let joined = joined.permute(&[0, 2, 3, 1, 4])?;
                layer.forward(&joined.reshape([t / frames, h, w, frames * c])?)?
            }
            Self::Grow(layer, frames) => {
                let made = layer.forward(&x)?;
                let [t, h, w, c] = made.dims4()?;
                let apart = made.reshape([t, h, w, *frames, c / frames])?;
                let apart = apart.permute(&[0, 3, 1, 2, 4])?;
                apart.reshape([t * frames, h, w, c / frames])?
            }
        })
    }
}

/// See the [module](self).
pub struct Taehv {
    config: TaehvConfig,
    device: Device,
    encoder: Vec<Layer>,
    decoder: Vec<Layer>,
}

impl Taehv {
    pub fn new(store: &WeightStore, config: &TaehvConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, config))
    }

    fn walk(weights: &Walk<'_>, config: &TaehvConfig) -> Result<Self> {
        let half = |side: Side, list: &[SmallLayer]| -> Result<Vec<Layer>> {
            let inner = weights.at(side.pick("encoder", "decoder"));
            let layer = |layer: &SmallLayer| Layer::new(&inner, *layer, side);
            list.iter().map(layer).collect()
        };
        Ok(Self {
            encoder: half(Side::Encoder, &config.encoder)?,
            decoder: half(Side::Decoder, &config.decoder)?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &TaehvConfig {
        &self.config
    }

    fn run(&self, layers: &[Layer], mut x: Tensor, check: Check<'_>) -> Result<Tensor> {
        let act = if self.config.leaky {
            Act::Leaky
        } else {
            Act::Relu
        };
        for layer in layers {
            check()?;
            x = layer.forward(x, act)?;
        }
        Ok(x)
    }

    /// The same of films in 0..1.
    pub fn encode_plain(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        if self.encoder.is_empty() {
            let reason = "the file has a decoder only";
            return Err(ModelError::invalid("VAE encode", reason));
        }
        let latent = each_film("VAE encode", pixels, |film| {
            let frames = film.dim(0)?;
            let all = frames.next_multiple_of(SPAN);
            let places: Vec<usize> = (0..all).map(|i| i.min(frames - 1)).collect();
            let film = film.index_select(0, &places)?.to(&self.device)?;
            let patch = self.config.patch;
            let [t, h, w, c] = film.dims4()?;
            let cells = film.reshape([t, h / patch, patch, w / patch, patch, c])?;
            let cells = cells.permute(&[0, 1, 3, 5, 2, 4])?;
            let film = cells.reshape([t, h / patch, w / patch, c * patch * patch])?;
            self.run(&self.encoder, film, check)
        })?;
        Ok(if self.config.scaled {
            latent.div_scalar(HALF_SCALE)
        } else {
            latent
        })
    }

    /// The same about 0..1.
    pub fn decode_plain(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let scale = if self.config.scaled { HALF_SCALE } else { 1.0 };
        let bounded = latent.map(|v| (v * scale / BOUND).tanh() * BOUND);
        each_film("VAE decode", &bounded, |film| {
            let made = self.run(&self.decoder, film.to(&self.device)?, check)?;
            let patch = self.config.patch;
            let [t, h, w, c] = made.dims4()?;
            let c = c / (patch * patch);
            let cells = made.reshape([t, h, w, c, patch, patch])?;
            let cells = cells.permute(&[0, 1, 4, 2, 5, 3])?;
            let film = cells.reshape([t, h * patch, w * patch, c])?;
            // Frames that would be before the first.
            let skipped = self.config.temporal_ratio() - 1;
            Ok(film.narrow(0, skipped, t.saturating_sub(skipped))?)
        })
    }
}

impl Autoencoder for Taehv {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// The latent (b, c, t, h, w) of films (b, 3, frames, h, w) in -1..1.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        self.encode_plain(&pixels.map(|v| v * 0.5 + 0.5), check)
    }

    /// Films (b, 3, frames, h, w), about -1..1, of latents (b, c, t, h, w).
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut made = self.decode_plain(latent, check)?;
        made.map_inplace(|v| v * 2.0 - 1.0);
        Ok(made)
    }
}
