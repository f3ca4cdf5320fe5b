//! Convolutions over sequences (b, n, c).

use std::sync::Arc;

use fresco_tensor::nn::{Conv2d, Linear, Value, depthwise, snake};
use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk};

/// What is around a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    Zeros,
    /// The first and the last entry again and again.
    Repeated,
}

/// A sequence with more entries before and behind it.
pub fn padded(x: &Tensor, before: usize, behind: usize, edge: Edge) -> Result<Tensor> {
    let [b, n, c] = x.dims3()?;
    if before == 0 && behind == 0 {
        return Ok(x.clone());
    }
    let part = |count: usize, at: usize| -> Result<Tensor> {
        Ok(match edge {
            Edge::Zeros => Tensor::zeros_on(&x.device(), [b, count, c])?,
            Edge::Repeated => x.narrow(1, at, 1)?.repeat_interleave(1, count)?,
        })
    };
    let mut parts = Vec::new();
    let (first, last);
    if before > 0 {
        first = part(before, 0)?;
        parts.push(&first);
    }
    parts.push(x);
    if behind > 0 {
        last = part(behind, n.saturating_sub(1))?;
        parts.push(&last);
    }
    Ok(Tensor::cat(&parts, 1)?)
}

/// A convolution with a stride or with gaps between the entries that it looks at.
pub struct Conv1d {
    conv: Arc<Conv2d>,
    length: usize,
    stride: usize,
    gap: usize,
    around: (usize, usize),
    edge: Edge,
}

impl Conv1d {
    /// That keeps the length of a sequence; `gap` is 1 where neighbours are looked at.
    pub fn same(
        weights: &Walk<'_>,
        name: &str,
        shape: [usize; 3],
        gap: usize,
        bias: Bias,
    ) -> Result<Self> {
        let reach = (shape[2] - 1) * gap;
        Self::new(
            weights,
            name,
            shape,
            (1, gap),
            (reach / 2, reach - reach / 2),
            bias,
        )
    }

    /// With a stride, a gap and so many zeros before and behind.
    pub fn new(
        weights: &Walk<'_>,
        name: &str,
        shape: [usize; 3],
        (stride, gap): (usize, usize),
        around: (usize, usize),
        bias: Bias,
    ) -> Result<Self> {
        Ok(Self {
            conv: weights.conv1d(name, shape, stride, bias)?,
            length: shape[2],
            stride,
            gap,
            around,
            edge: Edge::Zeros,
        })
    }

    /// The same with other entries around the sequence.
    #[must_use]
    pub fn with_edge(mut self, edge: Edge) -> Self {
        self.edge = edge;
        self
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, n, c] = x.dims3()?;
        let (before, behind) = self.around;
        let total = before + n + behind;
        let reach = (self.length - 1) * self.gap;
        if n == 0 || total <= reach {
            let reason = format!(
                "a sequence of {n} is too short for a kernel of {}",
                reach + 1
            );
            return Err(ModelError::invalid("convolution", reason));
        }
        // Entries that are `gap` apart lie under each other in rows of that length, so a column is looked at.
        let rows = total.div_ceil(self.gap);
        let x = padded(x, before, behind, self.edge)?;
        let x = padded(&x, 0, rows * self.gap - total, Edge::Zeros)?;
        let y = self.conv.forward(&x.reshape([b, rows, self.gap, c])?)?;
        let [_, kept, _, out] = y.dims4()?;
        let y = y.reshape([b, kept * self.gap, out])?;
        let length = if self.stride == 1 {
            total - reach
        } else {
            kept
        };
        Ok(y.narrow(1, 0, length)?)
    }
}

/// A transposed convolution: every entry becomes `length` of them, `stride` after those of the one before, and what lies
/// upon each other is added. `cut` are left out at the start and at the end.
pub struct Grow1d {
    rows: Arc<Linear>,
    shift: Option<Arc<Value>>,
    out: usize,
    length: usize,
    stride: usize,
    cut: (usize, usize),
}

impl Grow1d {
    /// For weights that [`super::unnormed`] turned.
    pub fn new(
        weights: &Walk<'_>,
        name: &str,
        [input, out, length]: [usize; 3],
        stride: usize,
        cut: (usize, usize),
        bias: Bias,
    ) -> Result<Self> {
        let layer = weights.at(name);
        Ok(Self {
            rows: layer.matrix("turned", length * out, input)?,
            shift: bias.then(|| layer.value("shift", &[out])).transpose()?,
            out,
            length,
            stride,
            cut,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, n, _] = x.dims3()?;
        let (out, stride) = (self.out, self.stride);
        let blocks = self.length.div_ceil(stride);
        let mut rows = self.rows.forward(x)?.reshape([b, n, self.length, out])?;
        if blocks * stride > self.length {
            let missing = [b, n, blocks * stride - self.length, out];
            let zeros = Tensor::zeros_on(&rows.device(), missing)?;
            rows = Tensor::cat(&[&rows, &zeros], 2)?;
        }
        let mut sum: Option<Tensor> = None;
        for block in 0..blocks {
            let part = rows.narrow(2, block * stride, stride)?;
            let part = part.reshape([b, n * stride, out])?;
            let rest = (blocks - 1 - block) * stride;
            let part = padded(&part, block * stride, rest, Edge::Zeros)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => sum.add(&part)?,
            });
        }
        let sum = sum.ok_or_else(|| ModelError::invalid("convolution", "an empty kernel"))?;
        let whole = (n.max(1) - 1) * stride + self.length;
        let (first, last) = self.cut;
        let kept = whole.saturating_sub(first + last);
        let sum = sum.narrow(1, first, kept)?;
        match &self.shift {
            Some(shift) => Ok(sum.add(&shift.at(&sum.device())?)?),
            None => Ok(sum),
        }
    }
}

/// A convolution with a kernel of its own for each channel, which keeps the length.
pub struct Depthwise1d {
    taps: Arc<Value>,
    bias: Option<Arc<Value>>,
    channels: usize,
    length: usize,
}

impl Depthwise1d {
    pub fn new(
        weights: &Walk<'_>,
        name: &str,
        channels: usize,
        length: usize,
        bias: Bias,
    ) -> Result<Self> {
        let layer = weights.at(name);
        Ok(Self {
            taps: layer.value("weight", &[channels, 1, length])?,
            bias: bias.then(|| layer.value("bias", &[channels])).transpose()?,
            channels,
            length,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, n, c] = x.dims3()?;
        let device = x.device();
        let row = self
            .taps
            .at(&device)?
            .reshape([self.channels, self.length])?;
        let row = row.transpose(0, 1)?;
        // The middle row of a square kernel: a sequence is a picture one pixel high.
        let half = self.length / 2;
        let zeros = Tensor::zeros_on(&device, [half * self.length, self.channels])?;
        let taps = if half == 0 {
            row
        } else {
            Tensor::cat(&[&zeros, &row, &zeros], 0)?
        };
        let bias = self
            .bias
            .as_ref()
            .map(|bias| bias.at(&device))
            .transpose()?;
        let picture = x.reshape([b, 1, n, c])?;
        let y = depthwise(&picture, &taps, bias.as_ref())?;
        Ok(y.reshape([b, n, c])?)
    }
}

/// `x + sin²(x e^α) / (e^β + 1e-9)`.
pub struct Snake {
    frequencies: Tensor,
    amounts: Tensor,
}

impl Snake {
    pub fn new(weights: &Walk<'_>, name: &str, channels: usize) -> Result<Self> {
        let layer = weights.at(name);
        let read = |part: &str| -> Result<Tensor> {
            let value = layer.value(part, &[channels])?;
            Ok(value.stored()?.to_f32()?)
        };
        Ok(Self {
            frequencies: read("alpha")?.map(f32::exp),
            amounts: read("beta")?.map(|v| 1.0 / (v.exp() + 1e-9)),
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let device: Device = x.device();
        let (frequencies, amounts) = (self.frequencies.to(&device)?, self.amounts.to(&device)?);
        Ok(snake(x, &frequencies, &amounts)?)
    }
}
