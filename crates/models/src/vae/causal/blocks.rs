//! The blocks. Frames are (t, h, w, c).

use crate::vae::autoencoder::Side;
use std::ops::Range;
use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, Conv3d, Mask, Padding, RmsNorm, activate};
use fresco_tensor::{Axes, Tensor, trim_spare_memory};

use super::config::{CausalLevel, CausalStep};
use super::stream::Stream;
use crate::error::Result;
use crate::store::{Kernel, Walk};
use crate::transformer::QkvLayers;
use crate::vae::cells::CellAttention;
use crate::vae::kl::Check;

const CUBE: [usize; 3] = [3, 3, 3];
const POINT: [usize; 3] = [1, 1, 1];
const TIME: [usize; 3] = [3, 1, 1];

/// What keeps a vector of zeros from a division by zero: far below every other.
const EPS: f32 = 1e-26;

/// The norm and its activation.
pub(super) fn normed(norm: &RmsNorm, x: &Tensor) -> Result<Tensor> {
    Ok(activate(norm.forward(x)?, Act::Silu))
}

/// How kernels are written.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Without a dimension for time.
    pub(super) flat: bool,
    /// Whether frames are doubled and halved.
    pub(super) moving: bool,
}

impl Kernels {
    fn conv(
        self,
        weights: &Walk<'_>,
        name: &str,
        channels: (usize, usize),
        kernel: [usize; 3],
    ) -> Result<Arc<Conv3d>> {
        let (input, out) = channels;
        if self.flat {
            return weights.flat_conv3d(name, out, input, kernel[1]);
        }
        weights.conv3d(name, out, input, kernel)
    }

    pub(super) fn cube(
        self,
        weights: &Walk<'_>,
        name: &str,
        out: usize,
        input: usize,
    ) -> Result<Arc<Conv3d>> {
        self.conv(weights, name, (input, out), CUBE)
    }

    pub(super) fn point(
        self,
        weights: &Walk<'_>,
        name: &str,
        out: usize,
        input: usize,
    ) -> Result<Arc<Conv3d>> {
        self.conv(weights, name, (input, out), POINT)
    }

    /// Over time, where frames are doubled or halved.
    fn time(
        self,
        weights: &Walk<'_>,
        frames: bool,
        out: usize,
        input: usize,
    ) -> Result<Option<Arc<Conv3d>>> {
        (frames && self.moving)
            .then(|| weights.conv3d("time_conv", out, input, TIME))
            .transpose()
    }
}

pub(super) fn norm(weights: &Walk<'_>, name: &str, channels: usize) -> Result<Arc<RmsNorm>> {
    weights.channel_norm(name, channels, EPS)
}

/// Norm, activation, convolution, twice.
pub(super) struct Residual {
    norm1: Arc<RmsNorm>,
    conv1: Arc<Conv3d>,
    norm2: Arc<RmsNorm>,
    conv2: Arc<Conv3d>,
    shortcut: Option<Arc<Conv3d>>,
}

impl Residual {
    pub(super) fn new(
        weights: &Walk<'_>,
        kernels: Kernels,
        input: usize,
        out: usize,
    ) -> Result<Self> {
        let inner = weights.at("residual");
        Ok(Self {
            norm1: norm(&inner, "0.gamma", input)?,
            conv1: kernels.cube(&inner, "2", out, input)?,
            norm2: norm(&inner, "3.gamma", out)?,
            conv2: kernels.cube(&inner, "6", out, out)?,
            shortcut: (input != out)
                .then(|| kernels.point(weights, "shortcut", out, input))
                .transpose()?,
        })
    }

    pub(super) fn forward(&self, x: Tensor, stream: &mut Stream) -> Result<Tensor> {
        let h = stream.causal_of(&self.conv1, &x, || normed(&self.norm1, &x), None)?;
        let skip = match &self.shortcut {
            Some(shortcut) => shortcut.forward(&x, &[], None)?,
            None => x,
        };
        stream.causal_of(&self.conv2, &h, || normed(&self.norm2, &h), Some(skip))
    }
}

/// Attention of every position of a frame to every other.
pub(super) struct Attention {
    norm: Arc<RmsNorm>,
    cells: CellAttention,
}

impl Attention {
    fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        Ok(Self {
            norm: norm(weights, "norm.gamma", channels)?,
            cells: CellAttention::new(weights, QkvLayers::Joined("to_qkv"), "proj", channels)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [t, h, w, c] = x.dims4()?;
        let normed = self.norm.forward(x)?.reshape([t, h * w, c])?;
        let seen = self.cells.attend(normed, Mask::None)?;
        self.cells.add(&seen, x)
    }
}

/// The blocks at the bottom.
pub(super) struct Middle {
    first: Residual,
    attention: Attention,
    last: Residual,
}

impl Middle {
    pub(super) fn new(weights: &Walk<'_>, kernels: Kernels, channels: usize) -> Result<Self> {
        let residual = |number: usize| {
            let weights = weights.at(number);
            Residual::new(&weights, kernels, channels, channels)
        };
        Ok(Self {
            first: residual(0)?,
            attention: Attention::new(&weights.at(1), channels)?,
            last: residual(2)?,
        })
    }

    pub(super) fn forward(
        &self,
        x: Tensor,
        stream: &mut Stream,
        check: Check<'_>,
    ) -> Result<Tensor> {
        let x = self.first.forward(x, stream)?;
        check()?;
        let x = self.attention.forward(&x)?;
        check()?;
        self.last.forward(x, stream)
    }
}

/// One entry of the list of blocks of a half.
pub(super) enum Step {
    Residual(Residual),
    Down {
        conv: Arc<Conv2d>,
        time: Option<Arc<Conv3d>>,
    },
    /// Twice as many frames.
    Double(Arc<Conv3d>),
    /// Twice as high and as wide.
    Enlarge(Arc<Conv2d>),
}

impl Step {
    fn down(weights: &Walk<'_>, kernels: Kernels, step: CausalStep) -> Result<Self> {
        Ok(match step {
            CausalStep::Residual { input, out } => {
                Self::Residual(Residual::new(weights, kernels, input, out)?)
            }
            CausalStep::Resample { input, out, frames } => {
                let kernel = Kernel {
                    out,
                    input,
                    side: 3,
                    bias: true,
                };
                Self::Down {
                    conv: weights.conv_with("resample.1", kernel, 2, Padding::RightBottom)?,
                    time: kernels.time(weights, frames, out, out)?,
                }
            }
        })
    }

    /// One step or two.
    fn up(weights: &Walk<'_>, kernels: Kernels, step: CausalStep) -> Result<Vec<Self>> {
        Ok(match step {
            CausalStep::Residual { input, out } => {
                vec![Self::Residual(Residual::new(weights, kernels, input, out)?)]
            }
            CausalStep::Resample { input, out, frames } => {
                let conv = weights.conv("resample.1", out, input, 3, 1)?;
                let time = kernels.time(weights, frames, 2 * input, input)?;
                let double = time.map(Self::Double);
                double.into_iter().chain([Self::Enlarge(conv)]).collect()
            }
        })
    }

    fn forward(&self, x: Tensor, stream: &mut Stream) -> Result<Tensor> {
        match self {
            Self::Residual(block) => block.forward(x, stream),
            Self::Down { conv, time } => {
                let x = conv.forward(&x)?;
                match time {
                    Some(time) => stream.halve(time, x),
                    None => Ok(x),
                }
            }
            Self::Double(time) => stream.double(time, x),
            Self::Enlarge(conv) => {
                let [_, h, w, _] = x.dims4()?;
                Ok(conv.upsampled(&x, (2 * h, 2 * w), After::default())?)
            }
        }
    }
}

/// The way around a level, without weights: means of neighbours on the way down, copies on the way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LevelShortcut {
    out: usize,
    /// By which the number of frames, and height and width, are divided or multiplied.
    time: usize,
    space: usize,
}

impl LevelShortcut {
    fn down(self, x: &Tensor) -> Result<Tensor> {
        let [t, h, w, c] = x.dims4()?;
        let Self { out, time, space } = self;
        let missing = t.next_multiple_of(time) - t;
        let padded = if missing > 0 {
            let zeros = Tensor::zeros_on(&x.device(), [missing, h, w, c])?;
            Some(Tensor::cat(&[&zeros, x], 0)?)
        } else {
            None
        };
        let x = padded.as_ref().unwrap_or(x);
        let (t, h, w) = ((t + missing) / time, h / space, w / space);
        let cells = x.reshape([t, time, h, space, w, space, c])?;
        let cells = cells.permute(&[0, 2, 4, 6, 1, 3, 5])?;
        let each = c * time * space * space / out;
        Ok(cells
            .reshape([t, h, w, out, each])?
            .mean(&[4], Axes::Drop)?)
    }

    /// The first piece of a video gives one frame.
    fn up(self, x: &Tensor, first: bool) -> Result<Tensor> {
        let [t, h, w, c] = x.dims4()?;
        let Self { out, time, space } = self;
        let copies = x.repeat_interleave(3, out * time * space * space / c)?;
        let cells = copies.reshape([t, h, w, out, time, space, space])?;
        let cells = cells.permute(&[0, 4, 1, 5, 2, 6, 3])?;
        let all = cells.reshape([t * time, h * space, w * space, out])?;
        let start = if first { time - 1 } else { 0 };
        Ok(all.narrow(0, start, t * time - start)?)
    }
}

/// Blocks one after the other, and the way around them.
pub(super) struct Level {
    steps: Vec<Step>,
    around: Option<LevelShortcut>,
    side: Side,
}

impl Level {
    /// `weights` is where the entries are by number.
    pub(super) fn new(
        weights: &Walk<'_>,
        kernels: Kernels,
        level: &CausalLevel,
        side: Side,
    ) -> Result<Self> {
        let mut steps = Vec::new();
        for (number, step) in level.steps.iter().enumerate() {
            let weights = weights.at(number);
            match side {
                Side::Encoder => steps.push(Step::down(&weights, kernels, *step)?),
                Side::Decoder => steps.extend(Step::up(&weights, kernels, *step)?),
            }
        }
        let (resizes, frames) = level.resamples();
        let around = level.around.map(|(input, out)| {
            let around = LevelShortcut {
                out,
                time: if frames { 2 } else { 1 },
                space: if resizes { 2 } else { 1 },
            };
            (input, around)
        });
        if let Some((input, around)) = around {
            let cells = around.time * around.space * around.space;
            let (from, to) = side.pick((input * cells, around.out), (around.out * cells, input));
            if to == 0 || !from.is_multiple_of(to) {
                let out = around.out;
                let reason = format!("there is no way around from {input} to {out} channels");
                return Err(weights.unsupported(reason));
            }
        }
        Ok(Self {
            steps,
            around: around.map(|(_, around)| around),
            side,
        })
    }

    /// From which step on the number of frames stays as it is. What goes around steps goes around all of them.
    pub(super) fn settled(&self) -> usize {
        let is_time = |step: &Step| match step {
            Step::Double(_) => true,
            Step::Down { time, .. } => time.is_some(),
            Step::Residual(_) | Step::Enlarge(_) => false,
        };
        match self.steps.iter().rposition(is_time) {
            None => 0,
            Some(_) if self.around.is_some() => self.steps.len(),
            Some(last) => last + 1,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn forward(
        &self,
        x: Tensor,
        stream: &mut Stream,
        check: Check<'_>,
    ) -> Result<Tensor> {
        self.part(x, 0..self.steps.len(), stream, check)
    }

    /// Some of its steps; all of them or none where there is a way around.
    pub(super) fn part(
        &self,
        x: Tensor,
        steps: Range<usize>,
        stream: &mut Stream,
        check: Check<'_>,
    ) -> Result<Tensor> {
        let around = match self.around {
            _ if steps.is_empty() => None,
            Some(around) if self.side == Side::Decoder => Some(around.up(&x, stream.is_first())?),
            Some(around) => Some(around.down(&x)?),
            None => None,
        };
        let mut x = x;
        for step in &self.steps[steps] {
            check()?;
            x = step.forward(x, stream)?;
            trim_spare_memory();
        }
        match around {
            Some(around) => Ok(x.add(&around)?),
            None => Ok(x),
        }
    }
}
