//! An autoencoder that was trained with a table of codes for its latents (van den Oord et al. 2017) and is used without it:
//! models work on what would have been looked up.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, LayerNorm, Linear, Padding, Value, matmul};
use fresco_tensor::{Device, Tensor};

use super::autoencoder::{Autoencoder, AutoencoderConfig, PixelRange, Subject, VaeFacts};
use super::images::Vae;
use super::kl::Check;
use crate::depthwise::Depthwise;
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::{Kernel, Layout, Walk, WeightStore};
use crate::transformer::{PatchOrder, Shapes, from_tokens, to_tokens};

const EPS: f32 = 1e-6;
/// Added to the variances that the latent is divided by.
const NORM_EPS: f32 = 1e-5;

/// Pixels along a side of the outermost cells.
const CELL: usize = 2;
/// Cells along a side of the kernels that change the size by two.
const KERNEL: usize = 4;

/// The network in messages.
const WHAT: &str = "the autoencoder";

/// One part of a way, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantisedPart {
    /// Layers over so many channels, so many inside.
    Block { channels: usize, inner: usize },
    /// Half or double the size, from so many channels to so many.
    Resize { input: usize, out: usize },
    /// Between the innermost cells and the latent.
    Latent { input: usize, out: usize },
}

/// The shape of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantisedConfig {
    pub down: Vec<QuantisedPart>,
    pub up: Vec<QuantisedPart>,
    /// Channels of the outermost cells, and of a picture.
    pub outer: usize,
    pub pixels: usize,
    latent: usize,
}

impl QuantisedConfig {
    /// Whether a store has one.
    pub fn is_in(store: &WeightStore) -> bool {
        store.has("vquantizer.codebook.weight") && store.has("out_block.0.weight")
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let down = parts(store, "down_blocks")?;
        let up = parts(store, "up_blocks")?;
        let &[values, outer, ..] = store.shape("out_block.0.weight").unwrap_or_default() else {
            return Err(Shapes(store).unsupported("out_block.0.weight is not a layer"));
        };
        let Some(QuantisedPart::Latent { input: latent, .. }) = up.first().copied() else {
            return Err(Shapes(store).unsupported("up_blocks.0 does not take a latent"));
        };
        let pixels = values / (CELL * CELL);
        if pixels == 0 || values % (CELL * CELL) != 0 {
            return Err(Shapes(store).unsupported("out_block.0 makes no whole pixels"));
        }
        Ok(Self {
            down,
            up,
            outer,
            pixels,
            latent,
        })
    }

    pub fn latent_channels(&self) -> usize {
        self.latent
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        let halves = |part: &&QuantisedPart| matches!(part, QuantisedPart::Resize { .. });
        let count = self.up.iter().filter(halves).count();
        CELL << count.min(16)
    }
}

impl AutoencoderConfig for QuantisedConfig {
    fn facts(&self) -> VaeFacts {
        VaeFacts {
            subject: Subject::Pictures(PixelRange::Unit),
            ..VaeFacts::pictures(self.latent_channels(), self.ratio())
        }
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        Layout::of(|weights| QuantisedVae::walk(weights, self))?.verify(store, WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(QuantisedVae::new(store)?.into())
    }
}

fn parts(store: &WeightStore, list: &str) -> Result<Vec<QuantisedPart>> {
    let shapes = Shapes(store);
    let part = |number: usize| {
        let name = format!("{list}.{number}");
        if shapes.has(&format!("{name}.gammas")) {
            let (inner, channels) = shapes.matrix(&format!("{name}.channelwise.0.weight"))?;
            return Ok(QuantisedPart::Block { channels, inner });
        }
        let whole = store.shape(&format!("{name}.weight"));
        let first = store.shape(&format!("{name}.0.weight"));
        Ok(match (whole, first, list == "up_blocks") {
            (Some(&[out, input, KERNEL, KERNEL]), _, false)
            | (Some(&[input, out, KERNEL, KERNEL]), _, true) => {
                QuantisedPart::Resize { input, out }
            }
            (_, Some(&[out, input, 1, 1]), _) => QuantisedPart::Latent { input, out },
            _ => {
                let reason = format!("{name} belongs to no autoencoder that this version runs");
                return Err(shapes.unsupported(reason));
            }
        })
    };
    (0..shapes.count(list)).map(part).collect()
}

/// Two small steps, each with a scale, a shift and a weight of its own.
struct Block {
    gammas: Arc<Value>,
    depthwise: Depthwise,
    across: [Arc<Linear>; 2],
}

impl Block {
    fn new(weights: &Walk<'_>, channels: usize, inner: usize) -> Result<Self> {
        Ok(Self {
            gammas: weights.value("gammas", &[6])?,
            depthwise: Depthwise::new(weights, "depthwise.1", channels)?,
            across: [
                weights.linear("channelwise.0", inner, channels)?,
                weights.linear("channelwise.2", channels, inner)?,
            ],
        })
    }

    fn forward(&self, norm: &LayerNorm, x: &Tensor) -> Result<Tensor> {
        let gammas = self.gammas.at(&x.device())?;
        let number = |at: usize| gammas.narrow(0, at, 1);
        let scaled = |x: &Tensor, at: usize| -> Result<Tensor> {
            let scale = number(at)?.add_scalar(1.0);
            Ok(norm.forward(x)?.mul(&scale)?.add(&number(at + 1)?)?)
        };
        let made = self.depthwise.repeating(&scaled(x, 0)?)?;
        let x = x.add(&made.mul(&number(2)?)?)?;
        let inner = self.across[0].forward_with(&scaled(&x, 3)?, then(Act::Gelu))?;
        let made = self.across[1].forward(&inner)?;
        Ok(x.add(&made.mul(&number(5)?)?)?)
    }
}

/// Doubles the size with kernels that reach into the neighbours.
struct Double {
    taps: Arc<Value>,
    bias: Arc<Value>,
    channels: (usize, usize),
}

impl Double {
    fn new(weights: &Walk<'_>, input: usize, out: usize) -> Result<Self> {
        Ok(Self {
            taps: weights.value("weight", &[input, out, KERNEL, KERNEL])?,
            bias: weights.value("bias", &[out])?,
            channels: (input, out),
        })
    }

    /// Row `2 y + r` of the result has two rows of the input in it: row y, and the one before or behind.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let device = x.device();
        let (input, out) = self.channels;
        let [b, h, w, _] = x.dims4()?;
        let taps = self.taps.at(&device)?;
        let rows = x.reshape([1, b * h * w, input])?;
        // All columns for one row of the kernel: (b, h, 2 w, out).
        let with_row = |row: usize| -> Result<Tensor> {
            let taps = taps.narrow(2, row, 1)?.reshape([input, out, KERNEL])?;
            let taps = taps
                .permute(&[0, 2, 1])?
                .reshape([1, input, KERNEL * out])?;
            let made = matmul(&rows, &taps)?.reshape([b, h, w, KERNEL * out])?;
            let column = |at: usize| made.narrow(3, at * out, out);
            let even = column(1)?.add(&moved(&column(3)?, 2, Shift::Further)?)?;
            let odd = column(2)?.add(&moved(&column(0)?, 2, Shift::Back)?)?;
            let both = Tensor::stack(&[&even, &odd], 3)?;
            Ok(both.reshape([b, h, 2 * w, out])?)
        };
        let even = with_row(1)?.add(&moved(&with_row(3)?, 1, Shift::Further)?)?;
        let odd = with_row(2)?.add(&moved(&with_row(0)?, 1, Shift::Back)?)?;
        let both = Tensor::stack(&[&even, &odd], 2)?;
        let both = both.reshape([b, 2 * h, 2 * w, out])?;
        Ok(both.add(&self.bias.at(&device)?)?)
    }
}

/// Where everything goes.
#[derive(Clone, Copy)]
enum Shift {
    Further,
    Back,
}

/// Everything one place further along a dimension, or one back; zeros come in.
fn moved(x: &Tensor, dim: usize, way: Shift) -> Result<Tensor> {
    let len = x.dim(dim)?;
    let mut shape = x.shape().to_vec();
    shape[dim] = 1;
    let zeros = Tensor::zeros_on(&x.device(), shape)?;
    let rest = len.saturating_sub(1);
    Ok(match way {
        Shift::Further => Tensor::cat(&[&zeros, &x.narrow(dim, 0, rest)?], dim)?,
        Shift::Back => Tensor::cat(&[&x.narrow(dim, 1, rest)?, &zeros], dim)?,
    })
}

/// The last step of the encoder: channels of the latent, each with the mean and the size that they have on average.
struct ToLatent {
    layer: Arc<Linear>,
    values: [Arc<Value>; 4],
}

impl ToLatent {
    fn new(weights: &Walk<'_>, input: usize, out: usize) -> Result<Self> {
        let names = ["1.weight", "1.bias", "1.running_mean", "1.running_var"];
        let mut values = Vec::with_capacity(names.len());
        for name in names {
            values.push(weights.value(name, &[out])?);
        }
        let values: Result<[Arc<Value>; 4], _> = values.try_into();
        Ok(Self {
            layer: weights.matrix("0", out, input)?,
            values: values.map_err(|_| ModelError::invalid("autoencoder", "four values"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.layer.forward(x)?;
        let [weight, bias, mean, var] = &self.values;
        let value = |value: &Value| value.at(&x.device());
        let size = value(var)?.add_scalar(NORM_EPS).sqrt();
        let x = x.sub(&value(mean)?)?.div(&size)?;
        Ok(x.mul(&value(weight)?)?.add(&value(bias)?)?)
    }
}

enum Step {
    Block(Block),
    Half(Arc<Conv2d>),
    Double(Double),
    ToLatent(ToLatent),
    FromLatent(Arc<Linear>),
}

impl Step {
    fn new(weights: &Walk<'_>, list: &str, number: usize, part: QuantisedPart) -> Result<Self> {
        let up = list == "up_blocks";
        let name = format!("{list}.{number}");
        let at = weights.at(&name);
        Ok(match part {
            QuantisedPart::Block { channels, inner } => {
                Self::Block(Block::new(&at, channels, inner)?)
            }
            QuantisedPart::Resize { input, out } if up => {
                Self::Double(Double::new(&at, input, out)?)
            }
            QuantisedPart::Resize { input, out } => {
                let kernel = Kernel {
                    out,
                    input,
                    side: KERNEL,
                    bias: true,
                };
                Self::Half(weights.conv_with(&name, kernel, 2, Padding::Same(1))?)
            }
            QuantisedPart::Latent { input, out } if up => {
                Self::FromLatent(at.linear("0", out, input)?)
            }
            QuantisedPart::Latent { input, out } => Self::ToLatent(ToLatent::new(&at, input, out)?),
        })
    }

    fn forward(&self, norm: &LayerNorm, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Block(block) => block.forward(norm, x),
            Self::Half(conv) => Ok(conv.forward(x)?),
            Self::Double(double) => double.forward(x),
            Self::ToLatent(step) => step.forward(x),
            Self::FromLatent(layer) => Ok(layer.forward(x)?),
        }
    }
}

/// An autoencoder that was trained with a table of codes for its latents.
pub struct QuantisedVae {
    device: Device,
    config: QuantisedConfig,
    first: Arc<Linear>,
    down: Vec<Step>,
    up: Vec<Step>,
    last: Arc<Linear>,
    norm: LayerNorm,
}

impl QuantisedVae {
    pub fn new(store: &WeightStore) -> Result<Self> {
        let config = QuantisedConfig::detect(store)?;
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    fn walk(weights: &Walk<'_>, config: &QuantisedConfig) -> Result<Self> {
        let values = config.pixels * CELL * CELL;
        let steps = |list: &str, parts: &[QuantisedPart]| -> Result<Vec<Step>> {
            let numbered = parts.iter().enumerate();
            numbered
                .map(|(number, part)| Step::new(weights, list, number, *part))
                .collect()
        };
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            first: weights.linear("in_block.1", config.outer, values)?,
            down: steps("down_blocks", &config.down)?,
            up: steps("up_blocks", &config.up)?,
            last: weights.linear("out_block.0", values, config.outer)?,
            norm: LayerNorm::new(None, None, EPS)?,
        })
    }

    pub fn config(&self) -> &QuantisedConfig {
        &self.config
    }

    fn run(&self, steps: &[Step], mut x: Tensor, check: Check<'_>) -> Result<Tensor> {
        for step in steps {
            check()?;
            x = step.forward(&self.norm, &x)?;
        }
        Ok(x)
    }
}

impl Autoencoder for QuantisedVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// (b, c, h, w) in 0..1 to the latent.
    fn encode(&self, planes: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [b, _, h, w] = planes.dims4()?;
        let cells = to_tokens(planes, CELL, PatchOrder::ChannelFirst)?.to(&self.device)?;
        let x = self.first.forward(&cells)?;
        let x = x.reshape([b, h / CELL, w / CELL, self.config.outer])?;
        let x = self.run(&self.down, x, check)?;
        Ok(x.to(&Device::cpu())?.nhwc_to_nchw()?)
    }

    /// The latent to (b, c, h, w), about in 0..1.
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let x = latent.nchw_to_nhwc()?.to(&self.device)?;
        let x = self.run(&self.up, x, check)?;
        let [b, h, w, c] = x.dims4()?;
        let x = self.last.forward(&x.reshape([b, h * w, c])?)?;
        from_tokens(
            &x.to(&Device::cpu())?,
            (h, w),
            CELL,
            PatchOrder::ChannelFirst,
        )
    }
}
