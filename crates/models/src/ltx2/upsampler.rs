//! Latents of videos made larger, or with more frames, without decoding them.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, Conv3d, GroupNorm, Padding, activate, depthwise};
use fresco_tensor::{Device, Tensor, WeightFile};
use serde_json::Value as Json;

use crate::error::{ModelError, Result};
use crate::latent_upscale::{LatentUpscaler, UpscalerConfig, UpscalerStore};
use crate::store::{Kernel, Layout, UnitOrder, Walk, WeightStore};
use crate::transformer::Shapes;
use crate::vae::Check;

/// The network in messages.
const WHAT: &str = "the latent upscale model";

const GROUPS: usize = 32;
const EPS: f32 = 1e-5;
const KERNEL: [usize; 3] = [3, 3, 3];

/// How a latent grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Rows and columns, so many times; every so-manyth of them is kept, after a blur.
    Space { times: usize, kept: usize },
    /// Frames, twice.
    Time,
    /// All of them, twice.
    Both,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpsamplerConfig {
    pub channels: usize,
    pub mid: usize,
    /// Residual layers before and after it grows.
    pub blocks: [usize; 2],
    pub growth: Growth,
    /// Whether the layer that makes it grow has a name of its own.
    pub named: bool,
}

const SIGN: &str = "post_upsample_res_blocks.0.conv2.bias";

static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "initial_conv",
        "initial_norm",
        "res_blocks",
        "upsampler",
        "post_upsample_res_blocks",
        "final_conv",
    ],
    blocks: &[],
    values: &["kernel"],
};

impl UpsamplerConfig {
    /// Whether a file has such a network.
    pub fn is_in(names: &[String]) -> bool {
        names.iter().any(|name| name == SIGN)
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (mid, channels) = match store.shape("initial_conv.weight") {
            Some(&[mid, channels, _, _, _]) if mid > 0 && channels > 0 => (mid, channels),
            found => {
                let reason = format!("initial_conv.weight of shape {found:?} is not over frames");
                return Err(shapes.unsupported(reason));
            }
        };
        let named = store.has("upsampler.conv.weight");
        let key = if named {
            "upsampler.conv.weight"
        } else {
            "upsampler.0.weight"
        };
        let growth = match store.shape(key) {
            Some(&[rows, _, _, _, _]) if rows == 2 * mid => Growth::Time,
            Some(&[rows, _, _, _, _]) if rows == 8 * mid => Growth::Both,
            Some(&[rows, _, _, _]) if rows.is_multiple_of(mid) && rows > 0 => {
                let times = (rows / mid).isqrt();
                let said = parse_scale(store.metadata("config"));
                let kept = said.filter(|(n, _)| *n == times).map(|(_, kept)| kept);
                Growth::Space {
                    times,
                    kept: kept.unwrap_or(if times == 3 { 2 } else { 1 }),
                }
            }
            found => {
                let reason = format!("{key} of shape {found:?} makes nothing larger");
                return Err(shapes.unsupported(reason));
            }
        };
        if let Growth::Space { times, .. } = growth
            && times * times * mid != store.shape(key).map_or(0, |shape| shape[0])
        {
            return Err(shapes.unsupported(format!("{key} makes no squares")));
        }
        Ok(Self {
            channels,
            mid,
            blocks: ["res_blocks", "post_upsample_res_blocks"].map(|list| shapes.count(list)),
            growth,
            named,
        })
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(&self, store: &WeightStore) -> Result<()> {
        Layout::of(|weights| Upsampler::new(weights, self))?.verify(store, WHAT)
    }

    /// By what sizes are multiplied, and divided: rows and columns, frames.
    pub fn scale(&self) -> (usize, usize) {
        match self.growth {
            Growth::Space { times, kept } => (times, kept),
            Growth::Time => (1, 1),
            Growth::Both => (2, 1),
        }
    }
}

/// Values that the network holds for a cell of its result at its fullest, in its channels.
const HELD: u64 = 8;

impl UpscalerConfig for UpsamplerConfig {
    fn channels(&self) -> usize {
        self.channels
    }

    fn pass_bytes(&self, shape: &[usize]) -> u64 {
        let (times, _) = self.scale();
        let values: usize = shape.iter().product();
        let cells = (values / self.channels.max(1) * times * times) as u64;
        cells * self.mid as u64 * HELD * size_of::<f32>() as u64
    }

    fn build(&self, weights: &Walk<'_>) -> Result<Arc<dyn LatentUpscaler>> {
        Ok(Arc::new(Upsampler::new(weights, self)?))
    }
}

impl LatentUpscaler for Upsampler {
    fn upscale(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        self.forward(latent, check)
    }
}

/// One of these in a file; none if it has another.
pub(crate) fn find(file: &Arc<dyn WeightFile>, device: &Device) -> Result<Option<UpscalerStore>> {
    if !UpsamplerConfig::is_in(&file.names()) {
        return Ok(None);
    }
    let store = Upsampler::store(file, device.clone());
    let config = Arc::new(UpsamplerConfig::detect(&store)?);
    Ok(Some(UpscalerStore { store, config }))
}

/// The scale in a header: by how much the network enlarges, and which part of that it keeps.
fn parse_scale(text: Option<&str>) -> Option<(usize, usize)> {
    let said: Json = serde_json::from_str(text?).ok()?;
    let scale = said["rational_spatial_scale"]
        .as_f64()
        .or_else(|| said["spatial_scale"].as_f64())?;
    let known = [(0.75, (3, 4)), (1.5, (3, 2)), (2.0, (2, 1)), (4.0, (4, 1))];
    let found = known.iter().find(|(at, _)| (at - scale).abs() < 1e-6);
    found.map(|(_, pair)| *pair)
}

struct Centred(Arc<Conv3d>);

impl Centred {
    fn new(weights: &Walk<'_>, name: &str, out: usize, input: usize) -> Result<Self> {
        Ok(Self(weights.conv3d(name, out, input, KERNEL)?))
    }

    /// Frames see those before and after them; beyond the ends there is nothing.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut shape = x.shape().to_vec();
        shape[0] = 1;
        let nothing = Tensor::zeros_on(&x.device(), shape)?;
        let all = Tensor::cat(&[&nothing, x, &nothing], 0)?;
        Ok(self.0.strided(&all, 1)?)
    }
}

/// A norm over all frames.
fn normed(norm: &GroupNorm, x: Tensor, act: Act) -> Result<Tensor> {
    let [t, h, w, c] = x.dims4()?;
    let out = norm.forward_owned(x.reshape([1, t * h, w, c])?, act)?;
    Ok(out.reshape([t, h, w, c])?)
}

struct Residual {
    convs: [Centred; 2],
    norms: [Arc<GroupNorm>; 2],
}

impl Residual {
    fn new(weights: &Walk<'_>, mid: usize) -> Result<Self> {
        let groups = GROUPS.min(mid);
        Ok(Self {
            convs: [
                Centred::new(weights, "conv1", mid, mid)?,
                Centred::new(weights, "conv2", mid, mid)?,
            ],
            norms: [
                weights.group_norm("norm1", mid, groups, EPS)?,
                weights.group_norm("norm2", mid, groups, EPS)?,
            ],
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = normed(&self.norms[0], self.convs[0].forward(x)?, Act::Silu)?;
        let h = normed(&self.norms[1], self.convs[1].forward(&h)?, Act::None)?;
        Ok(activate(h.add(x)?, Act::Silu))
    }
}

enum Grow {
    Space(Arc<Conv2d>),
    Frames(Centred),
}

/// See the [module](self).
pub struct Upsampler {
    config: UpsamplerConfig,
    device: Device,
    first: Centred,
    norm: Arc<GroupNorm>,
    blocks: [Vec<Residual>; 2],
    grow: Grow,
    last: Centred,
}

impl Upsampler {
    /// The weights of one in a file.
    pub fn store(file: &Arc<dyn WeightFile>, device: Device) -> Arc<WeightStore> {
        WeightStore::open(Arc::clone(file), "", device).with_units(&UNITS)
    }

    pub fn with(store: &WeightStore, config: &UpsamplerConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::new(weights, config))
    }

    pub fn new(weights: &Walk<'_>, config: &UpsamplerConfig) -> Result<Self> {
        let mid = config.mid;
        let list = |name: &str, count: usize| -> Result<Vec<Residual>> {
            let list = weights.at(name);
            list.each(count, |weights| Residual::new(weights, mid))
        };
        let name = if config.named {
            "upsampler.conv"
        } else {
            "upsampler.0"
        };
        let grow = match config.growth {
            Growth::Space { times, .. } => {
                let kernel = Kernel {
                    out: times * times * mid,
                    input: mid,
                    side: 3,
                    bias: true,
                };
                Grow::Space(weights.conv_with(name, kernel, 1, Padding::Same(1))?)
            }
            Growth::Time => Grow::Frames(Centred::new(weights, name, 2 * mid, mid)?),
            Growth::Both => Grow::Frames(Centred::new(weights, name, 8 * mid, mid)?),
        };
        Ok(Self {
            device: weights.device(),
            first: Centred::new(weights, "initial_conv", mid, config.channels)?,
            norm: weights.group_norm("initial_norm", mid, GROUPS.min(mid), EPS)?,
            blocks: [
                list("res_blocks", config.blocks[0])?,
                list("post_upsample_res_blocks", config.blocks[1])?,
            ],
            grow,
            last: Centred::new(weights, "final_conv", config.channels, mid)?,
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &UpsamplerConfig {
        &self.config
    }

    /// Latents (b, c, t, h, w) as VAEs have them before means and deviations are taken away, larger.
    pub fn forward(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let wanted = self.config.channels;
        if latent.rank() != 5 || latent.shape()[1] != wanted || latent.is_empty() {
            let reason = format!(
                "this model takes latents of videos with {wanted} channels, got shape {:?}",
                latent.shape()
            );
            return Err(ModelError::invalid("latent upscale", reason));
        }
        let mut made = Vec::new();
        for item in 0..latent.dim(0)? {
            let x = latent.select(0, item)?.permute(&[1, 2, 3, 0])?;
            let out = self.one(&x.to(&self.device)?, check)?.to(&Device::cpu())?;
            made.push(out.permute(&[3, 0, 1, 2])?.unsqueeze(0)?);
        }
        Ok(Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?)
    }

    /// Frames (t, h, w, c).
    fn one(&self, x: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut x = normed(&self.norm, self.first.forward(x)?, Act::Silu)?;
        let run = |mut x: Tensor, blocks: &[Residual]| -> Result<Tensor> {
            for block in blocks {
                check()?;
                x = block.forward(&x)?;
            }
            Ok(x)
        };
        x = run(x, &self.blocks[0])?;
        x = match (&self.grow, self.config.growth) {
            (Grow::Space(conv), Growth::Space { times, kept }) => {
                let larger = unfolded(&conv.forward(&x)?, [1, times, times])?;
                thinned(larger, kept)?
            }
            (Grow::Frames(conv), growth) => {
                let steps = if growth == Growth::Time {
                    [2, 1, 1]
                } else {
                    [2, 2, 2]
                };
                let longer = unfolded(&conv.forward(&x)?, steps)?;
                // The first frame stands for one picture only.
                let frames = longer.dim(0)?;
                longer.narrow(0, 1, frames - 1)?
            }
            (Grow::Space(_), _) => x,
        };
        x = run(x, &self.blocks[1])?;
        self.last.forward(&x)
    }
}

/// Channels as frames, rows and columns.
fn unfolded(x: &Tensor, [pt, ph, pw]: [usize; 3]) -> Result<Tensor> {
    let [t, h, w, c] = x.dims4()?;
    let c = c / (pt * ph * pw);
    let cells = x.reshape([t, h, w, c, pt, ph, pw])?;
    let cells = cells.permute(&[0, 4, 1, 5, 2, 6, 3])?;
    Ok(cells.reshape([t * pt, h * ph, w * pw, c])?)
}

/// One line of the blur.
const LINE: [f32; 5] = [1.0, 4.0, 6.0, 4.0, 1.0];

/// Every so-manyth row and column of a blurred picture.
fn thinned(x: Tensor, kept: usize) -> Result<Tensor> {
    if kept <= 1 {
        return Ok(x);
    }
    let [_, h, w, c] = x.dims4()?;
    let taps = Tensor::from_fn([25, c], |i| {
        let tap = i / c;
        LINE[tap / 5] * LINE[tap % 5] / 256.0
    })?;
    let blurred = depthwise(&x, &taps.to(&x.device())?, None)?;
    let places = |n: usize| (0..n).step_by(kept).collect::<Vec<_>>();
    Ok(blurred
        .index_select(1, &places(h))?
        .index_select(2, &places(w))?)
}
