//! The blocks. Feature maps are (b, h, w, c).

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, LayerNorm, Linear, Mask, Value, attention, concat_channels, matmul, modulate,
};
use fresco_tensor::{Axes, Tensor};

use super::config::{CascadeConfig, CascadeLevel, Part};
use crate::depthwise::Depthwise;
use crate::epilogue::{plus, then};
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::chunks;

pub(super) const EPS: f32 = 1e-6;

/// Wider inside, by so much.
const INNER: usize = 4;

/// Convolutions for each channel, then layers across them.
struct CellBlock {
    depthwise: Depthwise,
    first: Arc<Linear>,
    gamma: Arc<Value>,
    beta: Arc<Value>,
    last: Arc<Linear>,
}

impl CellBlock {
    fn new(weights: &Walk<'_>, channels: usize, skip: usize) -> Result<Self> {
        let inner = INNER * channels;
        let across = weights.at("channelwise");
        let shape = [1, 1, 1, inner];
        Ok(Self {
            depthwise: Depthwise::new(weights, "depthwise", channels)?,
            first: across.linear("0", inner, channels + skip)?,
            gamma: across.value("2.gamma", &shape)?,
            beta: across.value("2.beta", &shape)?,
            last: across.linear("4", channels, inner)?,
        })
    }

    fn forward(&self, norm: &LayerNorm, x: &Tensor, skip: Option<&Tensor>) -> Result<Tensor> {
        let mut h = norm.forward(&self.depthwise.forward(x)?)?;
        if let Some(skip) = skip {
            h = concat_channels(&[&h, skip])?;
        }
        let h = self.first.forward_with(&h, then(Act::Gelu))?;
        let h = self.balanced(h)?;
        Ok(self.last.forward_with(&h, plus(x))?)
    }

    /// Channels with much in them get more, the others less (Woo et al. 2023).
    fn balanced(&self, x: Tensor) -> Result<Tensor> {
        let device = x.device();
        let size = x.norm(&[1, 2], Axes::Keep)?;
        let mean = size.mean(&[3], Axes::Keep)?.add_scalar(EPS);
        let factor = size.div(&mean)?.mul(&self.gamma.at(&device)?)?;
        let [b, _, _, c] = x.dims4()?;
        let shift = self.beta.at(&device)?.reshape([1, c])?.expand(&[b, c])?;
        Ok(modulate(x, &factor.reshape([b, c])?, Some(&shift))?)
    }
}

/// Scale and shift by numbers that the network is told, each with a layer.
struct TimeBlock(Vec<Arc<Linear>>);

impl TimeBlock {
    fn new(weights: &Walk<'_>, config: &CascadeConfig, channels: usize) -> Result<Self> {
        let others = config.stage.numbers().iter();
        let others = others.map(|name| format!("mapper_{name}"));
        let names = std::iter::once("mapper".to_owned()).chain(others);
        let layer = |name: String| weights.linear(&name, 2 * channels, config.waves);
        Ok(Self(names.map(layer).collect::<Result<_>>()?))
    }

    /// `told` is (b, waves) for each number.
    fn forward(&self, x: Tensor, told: &[Tensor]) -> Result<Tensor> {
        let mut sum: Option<Tensor> = None;
        for (layer, waves) in self.0.iter().zip(told) {
            sum = Some(match sum {
                None => layer.forward(waves)?,
                Some(sum) => layer.forward_with(waves, plus(&sum))?,
            });
        }
        let Some(sum) = sum else { return Ok(x) };
        let [scale, shift] = chunks(&sum)?;
        Ok(modulate(x, &scale, Some(&shift))?)
    }
}

/// Cells look at each other and at the prompt.
struct AttentionBlock {
    prompt: Arc<Linear>,
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    heads: usize,
}

impl AttentionBlock {
    fn new(weights: &Walk<'_>, config: &CascadeConfig, level: &CascadeLevel) -> Result<Self> {
        let channels = level.channels;
        let attn = weights.at("attention.attn");
        let layer = |name: &str| attn.linear(name, channels, channels);
        Ok(Self {
            prompt: weights.linear("kv_mapper.1", channels, config.cond)?,
            q: layer("to_q")?,
            k: layer("to_k")?,
            v: layer("to_v")?,
            out: layer("out_proj")?,
            heads: level.heads,
        })
    }

    /// `prompt` is activated.
    fn forward(&self, norm: &LayerNorm, x: &Tensor, prompt: &Tensor) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let own = norm.forward(x)?.reshape([b, h * w, c])?;
        let seen = Tensor::cat(&[&own, &self.prompt.forward(prompt)?], 1)?;
        let (k, v) = (self.k.forward(&seen)?, self.v.forward(&seen)?);
        let q = self.q.forward(&own)?;
        drop((own, seen));
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        let tokens = x.reshape([b, h * w, c])?;
        let out = self.out.forward_with(&seen, plus(&tokens))?;
        Ok(out.reshape([b, h, w, c])?)
    }
}

enum Block {
    Cells(CellBlock),
    Time(TimeBlock),
    Attention(AttentionBlock),
}

/// What all blocks see.
pub(super) struct BlockPass<'a> {
    pub(super) norm: &'a LayerNorm,
    pub(super) told: &'a [Tensor],
    /// Tokens (b, n, c), activated.
    pub(super) prompt: &'a Tensor,
    pub(super) check: &'a dyn Fn() -> Result<()>,
}

/// One level: its blocks, perhaps several times with a layer between.
pub(super) struct Level {
    blocks: Vec<Block>,
    between: Vec<Arc<Linear>>,
}

impl Level {
    /// `skip`: channels of what comes back from the way down.
    pub(super) fn new(
        weights: &Walk<'_>,
        (way, number): (&str, usize),
        config: &CascadeConfig,
        level: &CascadeLevel,
        skip: usize,
    ) -> Result<Self> {
        let list = weights.at(format!("{way}_blocks")).at(number);
        let block = |(at, part): (usize, &Part)| -> Result<Block> {
            let weights = &list.at(at);
            let skip = if at == 0 { skip } else { 0 };
            Ok(match part {
                Part::Cells => Block::Cells(CellBlock::new(weights, level.channels, skip)?),
                Part::Time => Block::Time(TimeBlock::new(weights, config, level.channels)?),
                Part::Attention => Block::Attention(AttentionBlock::new(weights, config, level)?),
            })
        };
        let between = weights.at(format!("{way}_repeat_mappers")).at(number);
        let channels = level.channels;
        Ok(Self {
            blocks: level
                .parts
                .iter()
                .enumerate()
                .map(block)
                .collect::<Result<_>>()?,
            between: (1..level.repeats)
                .map(|at| between.linear(&(at - 1).to_string(), channels, channels))
                .collect::<Result<_>>()?,
        })
    }

    pub(super) fn forward(
        &self,
        mut x: Tensor,
        skip: Option<&Tensor>,
        pass: &BlockPass<'_>,
    ) -> Result<Tensor> {
        for round in 0..=self.between.len() {
            for (at, block) in self.blocks.iter().enumerate() {
                (pass.check)()?;
                x = match block {
                    Block::Cells(block) => {
                        let skip = skip.filter(|_| at == 0);
                        if let Some(skip) = skip {
                            let [_, rows, columns, _] = skip.dims4()?;
                            x = stretched(&x, rows, columns)?;
                        }
                        block.forward(pass.norm, &x, skip)?
                    }
                    Block::Time(block) => block.forward(x, pass.told)?,
                    Block::Attention(block) => block.forward(pass.norm, &x, pass.prompt)?,
                };
            }
            if let Some(layer) = self.between.get(round) {
                x = layer.forward(&x)?;
            }
        }
        Ok(x)
    }
}

/// (b, h, w, c) in another size: corners stay, cells between are weighed.
pub(super) fn stretched(x: &Tensor, rows: usize, columns: usize) -> Result<Tensor> {
    along(&along(x, 1, rows)?, 2, columns)
}

fn along(x: &Tensor, dim: usize, count: usize) -> Result<Tensor> {
    let len = x.dim(dim)?;
    if len == count || len == 0 {
        return Ok(x.clone());
    }
    let step = if count > 1 {
        (len - 1) as f32 / (count - 1) as f32
    } else {
        0.0
    };
    let place = |at: usize| at as f32 * step;
    let low: Vec<usize> = (0..count)
        .map(|at| (place(at) as usize).min(len - 1))
        .collect();
    let high: Vec<usize> = low.iter().map(|low| (low + 1).min(len - 1)).collect();
    let mut shape = vec![1; x.rank()];
    shape[dim] = count;
    let part: Vec<f32> = (0..count).map(|at| place(at) - low[at] as f32).collect();
    let part = Tensor::from_vec(shape, part)?.to(&x.device())?;
    let near = x.index_select(dim, &low)?.mul(&part.rsub_scalar(1.0))?;
    let far = x.index_select(dim, &high)?.mul(&part)?;
    Ok(near.add(&far)?)
}

/// A layer that doubles the size: each cell becomes a square of two a side.
pub(super) struct Enlarge {
    taps: Arc<Value>,
    bias: Arc<Value>,
    channels: (usize, usize),
}

impl Enlarge {
    pub(super) fn new(weights: &Walk<'_>, input: usize, out: usize) -> Result<Self> {
        Ok(Self {
            taps: weights.value("weight", &[input, out, 2, 2])?,
            bias: weights.value("bias", &[out])?,
            channels: (input, out),
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (input, out) = self.channels;
        let device = x.device();
        let [b, h, w, _] = x.dims4()?;
        let taps = self.taps.at(&device)?.reshape([1, input, out * 4])?;
        let rows = x.reshape([1, b * h * w, input])?;
        let made = matmul(&rows, &taps)?;
        let made = made.reshape([b, h, w, out, 2, 2])?;
        let made = made.permute(&[0, 1, 4, 2, 5, 3])?;
        let made = made.reshape([b, 2 * h, 2 * w, out])?;
        Ok(made.add(&self.bias.at(&device)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_stay_where_they_are() {
        let x = Tensor::from_fn([1, 2, 3, 1], |i| i as f32).unwrap();
        let large = stretched(&x, 3, 5).unwrap();
        assert_eq!(large.shape(), [1, 3, 5, 1]);
        let first_row = [0.0, 0.5, 1.0, 1.5, 2.0];
        assert_eq!(large.data()[..5], first_row);
        assert_eq!(large.data()[5..10], first_row.map(|v| v + 1.5));
        assert_eq!(large.data()[14], 5.0);
        let one = stretched(&x, 1, 1).unwrap();
        assert_eq!(one.data(), [0.0]);
    }
}
