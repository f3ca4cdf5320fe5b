//! Networks that mend the latents of Hunyuan Video 1.5 after they were enlarged: one for 720 lines, one for 1080.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Act, activate};
use fresco_tensor::{Device, Tensor, WeightFile};

use crate::error::{ModelError, Result};
use crate::latent_upscale::{self, LatentUpscaler, UpscalerConfig, UpscalerStore};
use crate::store::{Origin, Walk, WeightStore};
use crate::vae::{Carry, Check, Norm, Replicated, Residual, each_film};

/// More blocks than any of these has.
const MOST: usize = 256;

/// The shape of such a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpsamplerConfig {
    /// Blocks of three convolutions.
    Plain {
        channels: usize,
        width: usize,
        blocks: usize,
        out: usize,
    },
    /// Levels of residual blocks, each from a width to another.
    Levels {
        channels: usize,
        first: usize,
        levels: Vec<Vec<(usize, usize)>>,
        out: usize,
    },
}

impl UpsamplerConfig {
    pub fn detect(store: &WeightStore) -> Result<Option<Self>> {
        let pair = |key: &str| match store.shape(key) {
            Some(&[out, input, ..]) => Ok((input, out)),
            _ => Err(ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            }),
        };
        if store.has("blocks.0.block.0.conv.weight") {
            let (channels, width) = pair("in_conv.conv.weight")?;
            let there = |n: &usize| store.has(&format!("blocks.{n}.block.0.conv.weight"));
            return Ok(Some(Self::Plain {
                channels,
                width,
                blocks: (0..MOST).take_while(there).count(),
                out: pair("out_conv.conv.weight")?.1,
            }));
        }
        if !store.has("up.0.block.0.conv1.conv.weight") {
            return Ok(None);
        }
        let (channels, first) = pair("conv_in.conv.weight")?;
        let key = |level: usize, n: usize| format!("up.{level}.block.{n}.conv1.conv.weight");
        let mut levels = Vec::new();
        while store.has(&key(levels.len(), 0)) && levels.len() < MOST {
            let level = levels.len();
            let there = (0..MOST).take_while(|n| store.has(&key(level, *n)));
            let blocks = there.map(|n| pair(&key(level, n)));
            levels.push(blocks.collect::<Result<Vec<_>>>()?);
        }
        Ok(Some(Self::Levels {
            channels,
            first,
            levels,
            out: pair("conv_out.conv.weight")?.1,
        }))
    }
}

impl UpscalerConfig for UpsamplerConfig {
    fn channels(&self) -> usize {
        match self {
            Self::Plain { channels, .. } | Self::Levels { channels, .. } => *channels,
        }
    }

    fn build(&self, weights: &Walk<'_>) -> Result<Arc<dyn LatentUpscaler>> {
        Ok(Arc::new(Upsampler::new(weights, self)?))
    }
}

enum Inner {
    Plain(Vec<[Replicated; 3]>),
    Levels(Vec<Residual>, Norm),
}

pub struct Upsampler {
    device: Device,
    first: Replicated,
    inner: Inner,
    last: Replicated,
}

impl Upsampler {
    pub fn new(weights: &Walk<'_>, config: &UpsamplerConfig) -> Result<Self> {
        let device = weights.device().clone();
        match config {
            UpsamplerConfig::Plain {
                channels,
                width,
                blocks,
                out,
            } => {
                let block = |number: usize| -> Result<[Replicated; 3]> {
                    let weights = weights.at("blocks").at(number).at("block");
                    let conv = |name: &str| Replicated::new(&weights, name, *width, *width);
                    Ok([conv("0.conv")?, conv("2.conv")?, conv("4.conv")?])
                };
                Ok(Self {
                    device,
                    first: Replicated::new(weights, "in_conv.conv", *width, *channels)?,
                    inner: Inner::Plain((0..*blocks).map(block).collect::<Result<_>>()?),
                    last: Replicated::new(weights, "out_conv.conv", *out, *width)?,
                })
            }
            UpsamplerConfig::Levels {
                channels,
                first,
                levels,
                out,
            } => {
                if *channels == 0 || !first.is_multiple_of(*channels) {
                    let reason = format!("{channels} channels cannot become {first}");
                    return Err(weights.unsupported(reason));
                }
                let mut blocks = Vec::new();
                for (level, list) in levels.iter().enumerate() {
                    let weights = weights.at("up").at(level).at("block");
                    for (number, sizes) in list.iter().enumerate() {
                        blocks.push(Residual::new(&weights.at(number), *sizes, false)?);
                    }
                }
                let width = levels.iter().flatten().last();
                let width = width.map_or(*first, |sizes| sizes.1);
                let norm = Norm::new(weights, "norm_out", width, false)?;
                Ok(Self {
                    device,
                    first: Replicated::new(weights, "conv_in.conv", *first, *channels)?,
                    inner: Inner::Levels(blocks, norm),
                    last: Replicated::new(weights, "conv_out.conv", *out, width)?,
                })
            }
        }
    }
}

impl LatentUpscaler for Upsampler {
    fn upscale(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        each_film("latent upscale", latent, |film| {
            let carry = &mut Carry::default();
            let film = film.to(&self.device)?;
            let mut x = self.first.forward(&film, carry)?;
            match &self.inner {
                Inner::Plain(blocks) => {
                    for [first, second, third] in blocks {
                        check()?;
                        let h = activate(first.forward(&x, carry)?, Act::Silu);
                        let h = activate(second.forward(&h, carry)?, Act::Silu);
                        x = x.add(&third.forward(&h, carry)?)?;
                    }
                }
                Inner::Levels(blocks, norm) => {
                    let (wide, channels) = (x.dim(3)?, film.dim(3)?.max(1));
                    x = x.add(&film.repeat_interleave(3, wide / channels)?)?;
                    for block in blocks {
                        check()?;
                        x = block.forward(x, carry)?;
                    }
                    x = norm.forward(&x, Act::Silu)?;
                }
            }
            self.last.forward(&x, carry)
        })
    }
}

/// Finds one of them in a file.
pub(crate) fn find(file: &Arc<dyn WeightFile>, device: &Device) -> Result<Option<UpscalerStore>> {
    let names = file.names();
    let keys: BTreeMap<String, Origin> = names
        .iter()
        .map(|name| {
            // Published files have these layers without the inner name.
            let inner = ".nin_shortcut.conv.";
            let key = if name.contains(inner) {
                name.clone()
            } else {
                name.replace(".nin_shortcut.", inner)
            };
            (key, Origin::Whole(name.clone()))
        })
        .collect();
    let store = WeightStore::mapped(Arc::clone(file), keys, device.clone());
    let store = store.with_units(&latent_upscale::UNITS);
    let Some(config) = UpsamplerConfig::detect(&store)? else {
        return Ok(None);
    };
    Ok(Some(UpscalerStore {
        store,
        config: Arc::new(config),
    }))
}
