//! The blocks of an autoencoder with much smaller latents than pictures (Chen et al. 2025), and its attention (Cai et al.
//! 2023). Pictures are (b, h, w, c).

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Conv2d, Linear, Padding, RmsNorm, Value, activate, concat_channels, depthwise, matmul,
    relu, swiglu,
};
use fresco_tensor::{Axes, Device, Tensor};

use super::mel::BlockKind;
use crate::epilogue::then;
use crate::error::Result;
use crate::store::{Bias, Kernel, Walk};
use crate::transformer::chunks;

const EPS: f32 = 1e-5;
/// Keeps the sum that attention is divided by from being zero.
const TINY: f32 = 1e-15;

/// A norm of each pixel's channels, with a shift.
pub(super) struct Norm {
    norm: Arc<RmsNorm>,
    shift: Arc<Value>,
}

impl Norm {
    pub(super) fn new(weights: &Walk<'_>, name: &str, channels: usize) -> Result<Self> {
        let at = weights.at(name);
        Ok(Self {
            norm: at.rms_norm("weight", channels, EPS)?,
            shift: at.value("bias", &[channels])?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.norm.forward(x)?.add(&self.shift.at(&x.device())?)?)
    }
}

struct ResBlock {
    first: Arc<Conv2d>,
    second: Arc<Conv2d>,
    norm: Norm,
}

impl ResBlock {
    fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        let plain = Kernel {
            out: channels,
            input: channels,
            side: 3,
            bias: false,
        };
        Ok(Self {
            first: weights.conv("conv1", channels, channels, 3, 1)?,
            second: weights.conv_with("conv2", plain, 1, Padding::Same(1))?,
            norm: Norm::new(weights, "norm", channels)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.first.forward_with(x, then(Act::Silu))?;
        let inner = self.norm.forward(&self.second.forward(&inner)?)?;
        Ok(x.add(&inner)?)
    }
}

/// A convolution with a kernel for each channel, from weights (c, 1, side, side).
struct Depthwise {
    taps: Arc<Value>,
    bias: Option<Arc<Value>>,
    channels: usize,
    side: usize,
}

impl Depthwise {
    fn new(
        weights: &Walk<'_>,
        name: &str,
        channels: usize,
        side: usize,
        bias: Bias,
    ) -> Result<Self> {
        let at = weights.at(name);
        Ok(Self {
            taps: at.value("weight", &[channels, 1, side, side])?,
            bias: bias.then(|| at.value("bias", &[channels])).transpose()?,
            channels,
            side,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let device: Device = x.device();
        let taps = self.taps.at(&device)?;
        let taps = taps.reshape([self.channels, self.side * self.side])?;
        let bias = self.bias.as_ref().map(|b| b.at(&device)).transpose()?;
        Ok(depthwise(x, &taps.transpose(0, 1)?, bias.as_ref())?)
    }
}

/// Attention over pixels and over their surroundings, and a gated convolution.
struct VitBlock {
    qkv: [Arc<Linear>; 3],
    around: Depthwise,
    mix: Arc<Value>,
    out: Arc<Linear>,
    norm: Norm,
    wide: Arc<Linear>,
    depth: Depthwise,
    narrow: Arc<Linear>,
    last_norm: Norm,
    head: usize,
}

impl VitBlock {
    fn new(weights: &Walk<'_>, channels: usize, head: usize, inner: usize) -> Result<Self> {
        let (look, conv) = (weights.at("attn"), weights.at("conv_out"));
        let side = look.at("to_qkv_multiscale.0");
        Ok(Self {
            qkv: [
                look.matrix("to_q", channels, channels)?,
                look.matrix("to_k", channels, channels)?,
                look.matrix("to_v", channels, channels)?,
            ],
            around: Depthwise::new(&side, "proj_in", 3 * channels, 5, Bias::Without)?,
            mix: side.value("proj_out.weight", &[3 * channels, head, 1, 1])?,
            out: look.matrix("to_out", channels, 2 * channels)?,
            norm: Norm::new(&look, "norm_out", channels)?,
            wide: conv.linear("conv_inverted", 2 * inner, channels)?,
            depth: Depthwise::new(&conv, "conv_depth", 2 * inner, 3, Bias::With)?,
            narrow: conv.matrix("conv_point", channels, inner)?,
            last_norm: Norm::new(&conv, "norm", channels)?,
            head,
        })
    }

    /// Each head's channels mixed among themselves.
    fn mixed(&self, x: &Tensor) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let (d, pixels) = (self.head, b * h * w);
        let groups = c / d;
        let mix = self.mix.at(&x.device())?.reshape([groups, d, d])?;
        let x = x.reshape([pixels, groups, d])?.permute(&[1, 0, 2])?;
        let y = matmul(&x, &mix.transpose(1, 2)?)?;
        Ok(y.permute(&[1, 0, 2])?.reshape([b, h, w, c])?)
    }

    fn attention(&self, x: &Tensor) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let parts = self.qkv.each_ref().map(|layer| layer.forward(x));
        let [q, k, v] = parts;
        let near = concat_channels(&[&q?, &k?, &v?])?;
        let wide = self.mixed(&self.around.forward(&near)?)?;
        let all = concat_channels(&[&near, &wide])?;
        let (n, d) = (h * w, self.head);
        // As many heads again as there are, each with its queries, keys and values side by side.
        let groups = 2 * c / d;
        let all = all.reshape([b, n, groups, 3 * d])?;
        let all = all.permute(&[0, 2, 1, 3])?;
        let all = all.reshape([b * groups, n, 3 * d])?;
        let all = all.to(&x.device().exact())?;
        let [q, k, v] = chunks(&all)?;
        let (q, k) = (relu(&q), relu(&k));
        let ones = Tensor::ones([b * groups, n, 1])?.to(&v.device())?;
        let v = Tensor::cat(&[&v, &ones], 2)?;
        let seen = matmul(&q, &matmul(&k.transpose(1, 2)?, &v)?)?;
        let total = seen.narrow(2, d, 1)?.add_scalar(TINY);
        let seen = seen.narrow(2, 0, d)?.div(&total)?;
        let seen = seen.reshape([b, groups, n, d])?.permute(&[0, 2, 1, 3])?;
        let seen = seen.reshape([b, h, w, groups * d])?.to(&x.device())?;
        self.norm.forward(&self.out.forward(&seen)?)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.attention(x)?)?;
        let inner = activate(self.wide.forward(&x)?, Act::Silu);
        let [value, gate] = chunks(&self.depth.forward(&inner)?)?;
        let made = self.narrow.forward(&swiglu(&gate, &value)?)?;
        Ok(x.add(&self.last_norm.forward(&made)?)?)
    }
}

enum AnyBlock {
    Plain(ResBlock),
    Vit(Box<VitBlock>),
}

/// A block of either kind.
pub(super) struct Block(AnyBlock);

impl Block {
    pub(super) fn new(weights: &Walk<'_>, channels: usize, kind: BlockKind) -> Result<Self> {
        Ok(Self(match kind {
            BlockKind::Plain => AnyBlock::Plain(ResBlock::new(weights, channels)?),
            BlockKind::Vit { head, inner } => {
                let block = VitBlock::new(weights, channels, head, inner)?;
                AnyBlock::Vit(Box::new(block))
            }
        }))
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0 {
            AnyBlock::Plain(block) => block.forward(x),
            AnyBlock::Vit(block) => block.forward(x),
        }
    }
}

/// Half the size, beside means of what is left out.
pub(super) struct Down {
    conv: Arc<Conv2d>,
    out: usize,
}

impl Down {
    pub(super) fn new(weights: &Walk<'_>, input: usize, out: usize) -> Result<Self> {
        Ok(Self {
            conv: weights.conv("conv", out, input, 3, 2)?,
            out,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let made = self.conv.forward(x)?;
        let [b, h, w, c] = x.dims4()?;
        let (h, w) = (h / 2, w / 2);
        // The four pixels of a square as channels, those of one channel side by side.
        let squares = x.narrow(1, 0, 2 * h)?.narrow(2, 0, 2 * w)?;
        let squares = squares.reshape([b, h, 2, w, 2, c])?;
        let squares = squares.permute(&[0, 1, 3, 5, 2, 4])?;
        let squares = squares.reshape([b, h, w, 4 * c])?;
        Ok(made.add(&group_means(&squares, self.out)?)?)
    }
}

/// Means of neighbouring channels, so that `out` are left.
pub(super) fn group_means(x: &Tensor, out: usize) -> Result<Tensor> {
    let [b, h, w, c] = x.dims4()?;
    let groups = x.reshape([b, h, w, out, c / out.max(1)])?;
    Ok(groups.mean(&[4], Axes::Drop)?)
}

/// Twice the size, beside what is there spread over it.
pub(super) struct Up {
    conv: Arc<Conv2d>,
    input: usize,
    out: usize,
}

impl Up {
    pub(super) fn new(weights: &Walk<'_>, input: usize, out: usize) -> Result<Self> {
        Ok(Self {
            conv: weights.conv("conv", out, input, 3, 1)?,
            input,
            out,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, h, w, _] = x.dims4()?;
        let made = self.conv.upsampled(x, (2 * h, 2 * w), then(Act::None))?;
        let each = x.repeat_interleave(3, 4 * self.out / self.input.max(1))?;
        let spread = each.reshape([b, h, w, self.out, 2, 2])?;
        let spread = spread.permute(&[0, 1, 4, 2, 5, 3])?;
        Ok(made.add(&spread.reshape([b, 2 * h, 2 * w, self.out])?)?)
    }
}
