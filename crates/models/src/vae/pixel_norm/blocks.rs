//! The layers. Frames are (t, h, w, c).

use crate::vae::autoencoder::Side;
use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv3d, LayerNorm, Linear, RmsNorm, Value, activate, modulate};
use fresco_tensor::{Axes, Device, Generator, Tensor};

use super::config::BlockConfig;
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::{chunks, sinusoid};
use crate::vae::kl::Check;

const EPS: f32 = 1e-8;
const SHORTCUT_EPS: f32 = 1e-6;
const KERNEL: [usize; 3] = [3, 3, 3];
/// Width of the waves that tell how much noise is left.
const WAVES: usize = 256;

/// How convolutions see beyond the first and last frame, and beyond the borders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beyond {
    /// Only frames before, the first one again; nothing around them.
    Causal,
    /// The first and the last one again; nothing around them, or their mirror image.
    Both { mirrored: bool },
}

pub(super) struct Convolution(Arc<Conv3d>);

impl Convolution {
    pub(super) fn new(weights: &Walk<'_>, name: &str, out: usize, input: usize) -> Result<Self> {
        Ok(Self(weights.conv3d(name, out, input, KERNEL)?))
    }

    pub(super) fn forward(&self, x: &Tensor, beyond: Beyond) -> Result<Tensor> {
        let frames = x.dim(0)?;
        let first = x.narrow(0, 0, 1)?;
        let Beyond::Both { mirrored } = beyond else {
            return Ok(self.0.forward(x, &[first.clone(), first], None)?);
        };
        let last = x.narrow(0, frames - 1, 1)?;
        let all = Tensor::cat(&[&first, x, &last], 0)?;
        if !mirrored {
            return Ok(self.0.strided(&all, 1)?);
        }
        let around = mirror(&mirror(&all, 1)?, 2)?;
        Ok(self.0.inside(&around, (1, 1), None)?)
    }
}

/// One line more on both sides, as in a mirror that lies on the outermost one.
fn mirror(x: &Tensor, dim: usize) -> Result<Tensor> {
    let len = x.dim(dim)?;
    let inner = 1.min(len - 1);
    let mut places = vec![inner];
    places.extend(0..len);
    places.push(len - 1 - inner);
    Ok(x.index_select(dim, &places)?)
}

/// What a half of the network gets in a pass besides its picture.
pub(super) struct PassInputs<'a> {
    pub(super) beyond: Beyond,
    /// How much noise is left, times a number of the file, where that is told.
    pub(super) level: Option<f32>,
    pub(super) random: Option<&'a mut Generator>,
}

/// What tells layers how much noise is left.
pub(super) struct TimeEmbedder([Arc<Linear>; 2]);

impl TimeEmbedder {
    fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        let weights = weights.at("timestep_embedder");
        Ok(Self([
            weights.linear("linear_1", width, WAVES)?,
            weights.linear("linear_2", width, width)?,
        ]))
    }

    fn forward(&self, level: f32, device: &Device) -> Result<Tensor> {
        let waves = sinusoid(&[level], WAVES)?.to(device)?;
        let inner = self.0[0].forward_with(&waves, then(Act::Silu))?;
        Ok(self.0[1].forward(&inner)?)
    }
}

/// Shift and scale before the last convolution, by how much noise is left.
pub(super) struct LastLevel {
    embedder: TimeEmbedder,
    table: Arc<Value>,
    width: usize,
}

impl LastLevel {
    pub(super) fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        Ok(Self {
            embedder: TimeEmbedder::new(&weights.at("last_time_embedder"), 2 * width)?,
            table: weights.value("last_scale_shift_table", &[2, width])?,
            width,
        })
    }

    pub(super) fn forward(&self, x: Tensor, level: f32) -> Result<Tensor> {
        let device = x.device();
        let told = self.embedder.forward(level, &device)?;
        let table = self.table.at(&device)?.reshape([1, 2 * self.width])?;
        let [shift, scale] = chunks(&told.add(&table)?)?;
        let line = |x: Tensor| x.reshape([self.width]);
        Ok(modulate(x, &line(scale)?, Some(&line(shift)?))?)
    }
}

/// What the blocks of some decoders have; those of encoders have none of it.
#[derive(Clone, Copy, Default)]
pub(super) struct DecoderTraits {
    /// They are told a noise level.
    pub(super) told: bool,
    /// They are given noise.
    pub(super) noisy: bool,
    /// What goes into a change of size is repeated beside what comes out.
    pub(super) repeated: bool,
}

/// Two convolutions around a shortcut.
pub(super) struct Residual {
    conv1: Convolution,
    conv2: Convolution,
    /// Where the width changes.
    shortcut: Option<(Arc<LayerNorm>, Arc<Conv3d>)>,
    table: Option<Arc<Value>>,
    noise: Option<[Arc<Value>; 2]>,
    norm: RmsNorm,
    width: usize,
}

impl Residual {
    fn new(weights: &Walk<'_>, (from, to): (usize, usize), traits: DecoderTraits) -> Result<Self> {
        let shortcut = || -> Result<(Arc<LayerNorm>, Arc<Conv3d>)> {
            Ok((
                weights.layer_norm("norm3.norm", from, SHORTCUT_EPS)?,
                weights.conv3d("conv_shortcut", to, from, [1, 1, 1])?,
            ))
        };
        let noise = |at: usize| weights.value(&format!("per_channel_scale{at}"), &[to, 1, 1]);
        let table = || weights.value("scale_shift_table", &[4, to]);
        let noises = || -> Result<[Arc<Value>; 2]> { Ok([noise(1)?, noise(2)?]) };
        Ok(Self {
            conv1: Convolution::new(weights, "conv1.conv", to, from)?,
            conv2: Convolution::new(weights, "conv2.conv", to, to)?,
            shortcut: (from != to).then(shortcut).transpose()?,
            table: traits.told.then(table).transpose()?,
            noise: traits.noisy.then(noises).transpose()?,
            norm: RmsNorm::new(None, EPS)?,
            width: to,
        })
    }

    fn forward(
        &self,
        x: Tensor,
        level: Option<&Tensor>,
        told: &mut PassInputs<'_>,
    ) -> Result<Tensor> {
        let device = x.device();
        let levels = match (&self.table, level) {
            (Some(table), Some(level)) => {
                let table = table.at(&device)?.reshape([1, 4 * self.width])?;
                let parts = chunks::<4>(&level.add(&table)?)?;
                Some(parts.map(|part| part.reshape([self.width])))
            }
            _ => None,
        };
        let [shift1, scale1, shift2, scale2] = match levels {
            Some(parts) => parts.map(|part| part.map(Some)),
            None => [const { Ok(None) }; 4],
        };
        let h = self.half(&x, &self.conv1, (shift1?, scale1?), told.beyond)?;
        let h = self.with_noise(h, 0, told)?;
        let h = self.half(&h, &self.conv2, (shift2?, scale2?), told.beyond)?;
        let h = self.with_noise(h, 1, told)?;
        let x = match &self.shortcut {
            Some((norm, conv)) => conv.forward(&norm.forward(&x)?, &[], None)?,
            None => x,
        };
        Ok(x.add(&h)?)
    }

    fn half(
        &self,
        x: &Tensor,
        conv: &Convolution,
        (shift, scale): (Option<Tensor>, Option<Tensor>),
        beyond: Beyond,
    ) -> Result<Tensor> {
        let mut h = self.norm.forward(x)?;
        if let Some(scale) = scale {
            h = modulate(h, &scale, shift.as_ref())?;
        }
        conv.forward(&activate(h, Act::Silu), beyond)
    }

    /// Plus noise, one value for each pixel, as much of it as the channel takes.
    fn with_noise(&self, x: Tensor, at: usize, told: &mut PassInputs<'_>) -> Result<Tensor> {
        let (Some(scales), Some(random)) = (&self.noise, told.random.as_deref_mut()) else {
            return Ok(x);
        };
        let [_, h, w, c] = x.dims4()?;
        let device = x.device();
        let noise = random.randn(&[h, w])?.reshape([1, h, w, 1])?.to(&device)?;
        let scale = scales[at].at(&device)?.reshape([1, 1, 1, c])?;
        Ok(x.add(&noise.mul(&scale)?)?)
    }
}

/// One block of either half.
pub(super) enum Block {
    Layers {
        layers: Vec<Residual>,
        time: Option<TimeEmbedder>,
    },
    Stride(Convolution),
    /// Into channels.
    Down {
        conv: Convolution,
        steps: [usize; 3],
        to: usize,
    },
    /// Out of channels; `again` is how often the input is repeated beside what the convolution makes.
    Up {
        conv: Convolution,
        steps: [usize; 3],
        again: Option<usize>,
    },
}

impl Block {
    pub(super) fn new(
        weights: &Walk<'_>,
        config: BlockConfig,
        side: Side,
        traits: DecoderTraits,
    ) -> Result<Self> {
        Ok(match config {
            BlockConfig::Layers { count, width } => {
                let list = weights.at("res_blocks");
                let layer = |number: usize| Residual::new(&list.at(number), (width, width), traits);
                let time = || TimeEmbedder::new(&weights.at("time_embedder"), 4 * width);
                Self::Layers {
                    layers: (0..count).map(layer).collect::<Result<_>>()?,
                    time: traits.told.then(time).transpose()?,
                }
            }
            BlockConfig::Change { from, to } => Self::Layers {
                layers: vec![Residual::new(
                    weights,
                    (from, to),
                    DecoderTraits::default(),
                )?],
                time: None,
            },
            BlockConfig::Stride { width } => {
                Self::Stride(Convolution::new(weights, "conv", width, width)?)
            }
            BlockConfig::Fold { steps, from, to } if side == Side::Encoder => {
                let cells: usize = steps.iter().product();
                Self::Down {
                    conv: Convolution::new(weights, "conv.conv", to / cells, from)?,
                    steps,
                    to,
                }
            }
            BlockConfig::Fold { steps, from, to } => {
                let cells: usize = steps.iter().product();
                Self::Up {
                    conv: Convolution::new(weights, "conv.conv", to * cells, from)?,
                    steps,
                    // Those that keep their width have no shortcut.
                    again: (traits.repeated && from != to).then(|| to * cells / from.max(1)),
                }
            }
        })
    }

    pub(super) fn forward(
        &self,
        x: Tensor,
        told: &mut PassInputs<'_>,
        check: Check<'_>,
    ) -> Result<Tensor> {
        check()?;
        match self {
            Self::Layers { layers, time } => {
                let level = match (time, told.level) {
                    (Some(time), Some(level)) => Some(time.forward(level, &x.device())?),
                    _ => None,
                };
                let mut x = x;
                for layer in layers {
                    check()?;
                    x = layer.forward(x, level.as_ref(), told)?;
                }
                Ok(x)
            }
            Self::Stride(conv) => {
                let x = conv.forward(&x, told.beyond)?;
                let every = |x: &Tensor, dim: usize| -> Result<Tensor> {
                    let places: Vec<usize> = (0..x.dim(dim)?).step_by(2).collect();
                    Ok(x.index_select(dim, &places)?)
                };
                every(&every(&every(&x, 0)?, 1)?, 2)
            }
            Self::Down { conv, steps, to } => {
                let mut x = x;
                if steps[0] > 1 {
                    x = Tensor::cat(&[&x.narrow(0, 0, 1)?, &x], 0)?;
                }
                let short = folded(&x, *steps)?;
                let [t, h, w, c] = short.dims4()?;
                let short = short.reshape([t, h, w, *to, c / to])?;
                let short = short.to(&Device::cpu())?.mean(&[4], Axes::Drop)?;
                let made = folded(&conv.forward(&x, told.beyond)?, *steps)?;
                Ok(made.add(&short.to(&made.device())?)?)
            }
            Self::Up { conv, steps, again } => {
                let made = unfolded(&conv.forward(&x, told.beyond)?, *steps)?;
                let made = match again {
                    None => made,
                    Some(again) => {
                        let short = unfolded(&x, *steps)?;
                        let short = short.repeat(&[1, 1, 1, *again])?;
                        made.add(&short)?
                    }
                };
                if steps[0] == 1 {
                    return Ok(made);
                }
                let frames = made.dim(0)?;
                Ok(made.narrow(0, 1, frames - 1)?)
            }
        }
    }
}

/// Cells of frames, rows and columns as channels, those of each channel together.
fn folded(x: &Tensor, [pt, ph, pw]: [usize; 3]) -> Result<Tensor> {
    let [t, h, w, c] = x.dims4()?;
    if !t.is_multiple_of(pt) || !h.is_multiple_of(ph) || !w.is_multiple_of(pw) {
        let reason = format!("{t} frames of {w}x{h} cannot be made smaller");
        return Err(ModelError::invalid("VAE encode", reason));
    }
    let cells = x.reshape([t / pt, pt, h / ph, ph, w / pw, pw, c])?;
    let cells = cells.permute(&[0, 2, 4, 6, 1, 3, 5])?;
    Ok(cells.reshape([t / pt, h / ph, w / pw, c * pt * ph * pw])?)
}

/// The reverse of [`folded`].
fn unfolded(x: &Tensor, [pt, ph, pw]: [usize; 3]) -> Result<Tensor> {
    let [t, h, w, c] = x.dims4()?;
    let c = c / (pt * ph * pw);
    let cells = x.reshape([t, h, w, c, pt, ph, pw])?;
    let cells = cells.permute(&[0, 4, 1, 5, 2, 6, 3])?;
    Ok(cells.reshape([t * pt, h * ph, w * pw, c])?)
}
