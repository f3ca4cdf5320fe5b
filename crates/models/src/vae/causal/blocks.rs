//! The blocks. Frames are (t, h, w, c).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, After, Conv2d, Conv3d, Linear, Mask, Padding, RmsNorm, activate, attention,
};

use super::config::CausalStep;
use super::stream::Stream;
use crate::epilogue::plus;
use crate::error::Result;
use crate::store::{Kernel, Walk};
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

pub(super) fn cube(
    weights: &Walk<'_>,
    name: &str,
    out: usize,
    input: usize,
) -> Result<Arc<Conv3d>> {
    weights.conv3d(name, out, input, CUBE)
}

pub(super) fn point(
    weights: &Walk<'_>,
    name: &str,
    out: usize,
    input: usize,
) -> Result<Arc<Conv3d>> {
    weights.conv3d(name, out, input, POINT)
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
    pub(super) fn new(weights: &Walk<'_>, input: usize, out: usize) -> Result<Self> {
        let inner = weights.at("residual");
        Ok(Self {
            norm1: norm(&inner, "0.gamma", input)?,
            conv1: cube(&inner, "2", out, input)?,
            norm2: norm(&inner, "3.gamma", out)?,
            conv2: cube(&inner, "6", out, out)?,
            shortcut: (input != out)
                .then(|| point(weights, "shortcut", out, input))
                .transpose()?,
        })
    }

    pub(super) fn forward(&self, x: Tensor, stream: &mut Stream) -> Result<Tensor> {
        let h = stream.causal(&self.conv1, &normed(&self.norm1, &x)?, None)?;
        let skip = match &self.shortcut {
            Some(shortcut) => shortcut.forward(&x, None, None)?,
            None => x,
        };
        let h = normed(&self.norm2, &h)?;
        stream.causal(&self.conv2, &h, Some(&skip))
    }
}

/// Attention of every position of a frame to every other, with one head.
pub(super) struct Attention {
    norm: Arc<RmsNorm>,
    to_qkv: Arc<Linear>,
    proj: Arc<Linear>,
}

impl Attention {
    fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        Ok(Self {
            norm: norm(weights, "norm.gamma", channels)?,
            to_qkv: weights.linear("to_qkv", 3 * channels, channels)?,
            proj: weights.linear("proj", channels, channels)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [t, h, w, c] = x.dims4()?;
        let all = self.to_qkv.forward(&self.norm.forward(x)?)?;
        let all = all.reshape([t, h * w, 3 * c])?;
        let part = |i: usize| all.narrow(2, i * c, c);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        drop(all);
        let seen = attention(&q, &k, &v, 1, Mask::None, None)?;
        let seen = seen.reshape([t, h, w, c])?;
        Ok(self.proj.forward_with(&seen, plus(x))?)
    }
}

/// The blocks at the bottom.
pub(super) struct Middle {
    first: Residual,
    attention: Attention,
    last: Residual,
}

impl Middle {
    pub(super) fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        Ok(Self {
            first: Residual::new(&weights.at(0), channels, channels)?,
            attention: Attention::new(&weights.at(1), channels)?,
            last: Residual::new(&weights.at(2), channels, channels)?,
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
    Up {
        conv: Arc<Conv2d>,
        time: Option<Arc<Conv3d>>,
    },
}

impl Step {
    pub(super) fn down(weights: &Walk<'_>, step: CausalStep) -> Result<Self> {
        Ok(match step {
            CausalStep::Residual { input, out } => {
                Self::Residual(Residual::new(weights, input, out)?)
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
                    time: frames
                        .then(|| weights.conv3d("time_conv", out, out, TIME))
                        .transpose()?,
                }
            }
        })
    }

    pub(super) fn up(weights: &Walk<'_>, step: CausalStep) -> Result<Self> {
        Ok(match step {
            CausalStep::Residual { input, out } => {
                Self::Residual(Residual::new(weights, input, out)?)
            }
            CausalStep::Resample { input, out, frames } => Self::Up {
                conv: weights.conv("resample.1", out, input, 3, 1)?,
                time: frames
                    .then(|| weights.conv3d("time_conv", 2 * input, input, TIME))
                    .transpose()?,
            },
        })
    }

    pub(super) fn forward(&self, x: Tensor, stream: &mut Stream) -> Result<Tensor> {
        match self {
            Self::Residual(block) => block.forward(x, stream),
            Self::Down { conv, time } => {
                let x = conv.forward(&x)?;
                match time {
                    Some(time) => stream.halve(time, x),
                    None => Ok(x),
                }
            }
            Self::Up { conv, time } => {
                let x = match time {
                    Some(time) => stream.double(time, x)?,
                    None => x,
                };
                let [_, h, w, _] = x.dims4()?;
                Ok(conv.upsampled(&x, (2 * h, 2 * w), After::default())?)
            }
        }
    }
}
