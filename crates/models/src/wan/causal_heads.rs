//! Convolutions over time that see only what was before, the first again where nothing was, split into heads that become
//! tokens of a frame: what turns sound and the motion of a face into something that tokens look at.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, LayerNorm, Linear, Value, activate};

use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::Shapes;

const EPS: f32 = 1e-6;
/// Moments that a convolution sees.
const KERNEL: usize = 3;

/// Sizes of such a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsConfig {
    /// Width of what goes in, and of a head after the first, second and third convolution.
    pub input: usize,
    pub widths: [usize; 3],
    /// Tokens that come out for a frame, without the one that is always the same.
    pub heads: usize,
}

impl HeadsConfig {
    pub(super) fn detect(shapes: Shapes<'_>, place: &str) -> Result<Self> {
        let matrix = |name: &str| -> Result<(usize, usize)> {
            let (rows, values) = shapes.matrix(&format!("{place}.{name}.conv.weight"))?;
            Ok((rows, values / KERNEL))
        };
        let (rows, input) = matrix("conv1_local")?;
        let (second, first) = matrix("conv2")?;
        let (third, _) = matrix("conv3")?;
        let heads = rows.checked_div(first).unwrap_or(0);
        if heads == 0 || heads * first != rows {
            let reason = format!("{place} makes {rows} values for heads of {first}");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            input,
            widths: [first, second, third],
            heads,
        })
    }
}

/// One of the convolutions, as a matrix.
struct Causal {
    layer: Arc<Linear>,
    stride: usize,
}

impl Causal {
    fn new(
        weights: &Walk<'_>,
        name: &str,
        (out, input): (usize, usize),
        stride: usize,
    ) -> Result<Self> {
        let name = format!("{name}.conv");
        Ok(Self {
            layer: weights.linear(&name, out, input * KERNEL)?,
            stride,
        })
    }

    /// (b, t, c) to (b, t / stride, out).
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, t, c] = x.dims3()?;
        if t == 0 {
            return Err(ModelError::invalid("sound", "it is empty"));
        }
        let count = (t - 1) / self.stride + 1;
        let seen = |tap: usize| -> Result<Tensor> {
            let places = (0..count).map(|i| (self.stride * i + tap).saturating_sub(KERNEL - 1));
            Ok(x.index_select(1, &places.collect::<Vec<_>>())?)
        };
        let taps = [seen(0)?, seen(1)?, seen(2)?];
        let all = Tensor::stack(&taps.iter().collect::<Vec<_>>(), 3)?;
        Ok(self.layer.forward(&all.reshape([b, count, c * KERNEL])?)?)
    }
}

/// See the [module](self).
pub(super) struct CausalHeads {
    config: HeadsConfig,
    first: Causal,
    later: [Causal; 2],
    norm: LayerNorm,
    padding: Arc<Value>,
}

impl CausalHeads {
    /// `token` is the width of the tokens that come out in the end.
    pub(super) fn new(weights: &Walk<'_>, config: HeadsConfig, token: usize) -> Result<Self> {
        let [first, second, third] = config.widths;
        let rows = config.heads * first;
        Ok(Self {
            config,
            first: Causal::new(weights, "conv1_local", (rows, config.input), 1)?,
            later: [
                Causal::new(weights, "conv2", (second, first), 2)?,
                Causal::new(weights, "conv3", (third, second), 2)?,
            ],
            norm: LayerNorm::new(None, None, EPS)?,
            padding: weights.value("padding_tokens", &[1, 1, 1, token])?,
        })
    }

    fn finished(&self, x: &Tensor) -> Result<Tensor> {
        Ok(activate(self.norm.forward(x)?, Act::Silu))
    }

    /// The second and third convolution over the first one's result, (b, t, c).
    fn rest(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.finished(x)?;
        for layer in &self.later {
            x = self.finished(&layer.forward(&x)?)?;
        }
        Ok(x)
    }

    /// (b, t, c) to (b, t / 4, heads, third width).
    pub(super) fn local(&self, x: &Tensor) -> Result<Tensor> {
        let b = x.dim(0)?;
        let (heads, width) = (self.config.heads, self.config.widths[0]);
        let made = self.first.forward(x)?;
        let t = made.dim(1)?;
        let apart = made.reshape([b, t, heads, width])?;
        let apart = apart
            .permute(&[0, 2, 1, 3])?
            .reshape([b * heads, t, width])?;
        let made = self.rest(&apart)?;
        let [_, t, width] = made.dims3()?;
        let tokens = made.reshape([b, heads, t, width])?;
        Ok(tokens.permute(&[0, 2, 1, 3])?)
    }

    /// Tokens (b, t, heads, c) with the one that is always the same.
    pub(super) fn padded(&self, tokens: &Tensor) -> Result<Tensor> {
        let &[b, t, _, c] = tokens.shape() else {
            return Err(ModelError::invalid("tokens", "they have no frames"));
        };
        let padding = self.padding.at(&tokens.device())?;
        let padding = padding.expand(&[b, t, 1, c])?;
        Ok(Tensor::cat(&[tokens, &padding], 2)?)
    }

    /// Another first convolution, without heads: (b, t, c) to (b, t / 4, third width).
    pub(super) fn through(&self, first: &FirstLayer, x: &Tensor) -> Result<Tensor> {
        self.rest(&first.0.forward(x)?)
    }
}

/// A first convolution beside the usual one.
pub(super) struct FirstLayer(Causal);

impl FirstLayer {
    pub(super) fn new(weights: &Walk<'_>, name: &str, config: HeadsConfig) -> Result<Self> {
        let sizes = (config.widths[0], config.input);
        Ok(Self(Causal::new(weights, name, sizes, 1)?))
    }
}
