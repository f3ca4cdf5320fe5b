//! The blocks of the first version.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Linear, Mask, RmsNorm, Value, activate, add_gated, attention, matmul, modulate, relu,
    swiglu,
};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::AceConfig;
use crate::epilogue::then;
use crate::error::Result;
use crate::sound::Depthwise1d;
use crate::store::Walk;

pub(super) const EPS: f32 = 1e-6;
/// Keeps the sum that attention is divided by from being zero.
const TINY: f32 = 1e-15;

/// Positions as turned pairs whose two channels turn by different angles: the table repeats its frequencies in halves, the
/// pairs are neighbours.
pub(super) struct Turns {
    cos: Tensor,
    /// With the sign of the neighbour.
    sin: Tensor,
}

impl Turns {
    pub(super) fn new(count: usize, head: usize, theta: f64, device: &Device) -> Result<Self> {
        let half = head / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|k| (1.0 / theta.powf(2.0 * k as f64 / head as f64)) as f32)
            .collect();
        let mut cos = Buffer::with_room(count * head)?;
        let mut sin = Buffer::with_room(count * head)?;
        for position in 0..count {
            for channel in 0..head {
                let angle = position as f32 * frequencies[channel % half];
                cos.extend([angle.cos()]);
                sin.extend([if channel % 2 == 0 {
                    -angle.sin()
                } else {
                    angle.sin()
                }]);
            }
        }
        let table = |values| -> Result<Tensor> {
            Ok(Tensor::from_buffer([count, 1, head], values)?.to(&device.exact())?)
        };
        Ok(Self {
            cos: table(cos)?,
            sin: table(sin)?,
        })
    }

    /// (b, n, heads * d), all bits of it.
    fn turned(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let [b, n, width] = x.dims3()?;
        let d = width / heads;
        let x = x.to(&x.device().exact())?;
        let pairs = x.reshape([b, n, heads * d / 2, 2])?;
        let other = pairs.flip(&[3])?.reshape([b, n, heads, d])?;
        let x = x.reshape([b, n, heads, d])?;
        let sum = x.mul(&self.cos)?.add(&other.mul(&self.sin)?)?;
        Ok(sum.reshape([b, n, width])?)
    }
}

struct Attention {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    heads: usize,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &AceConfig) -> Result<Self> {
        let dim = config.dim;
        Ok(Self {
            q: weights.linear("to_q", dim, dim)?,
            k: weights.linear("to_k", dim, dim)?,
            v: weights.linear("to_v", dim, dim)?,
            out: weights.linear("to_out.0", dim, dim)?,
            heads: config.heads,
        })
    }

    /// (b, n, heads * d) as (b * heads, n, d).
    fn apart(&self, x: &Tensor) -> Result<Tensor> {
        let [b, n, width] = x.dims3()?;
        let d = width / self.heads;
        let x = x.reshape([b, n, self.heads, d])?.permute(&[0, 2, 1, 3])?;
        Ok(x.reshape([b * self.heads, n, d])?)
    }

    /// Attention whose work grows with the number of tokens, not with its square (Katharopoulos et al. 2020).
    fn linear(&self, x: &Tensor, turns: &Turns) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let (device, wide) = (x.device(), x.device().exact());
        let d = dim / self.heads;
        let q = relu(&turns.turned(&self.q.forward(x)?, self.heads)?);
        let k = relu(&turns.turned(&self.k.forward(x)?, self.heads)?);
        let v = self.v.forward(x)?.to(&wide)?;
        let (q, k, v) = (self.apart(&q)?, self.apart(&k)?, self.apart(&v)?);
        let ones = Tensor::ones([b * self.heads, n, 1])?.to(&wide)?;
        let v = Tensor::cat(&[&v, &ones], 2)?;
        let all = matmul(&q, &matmul(&k.transpose(1, 2)?, &v)?)?;
        let seen = all.narrow(2, 0, d)?;
        let total = all.narrow(2, d, 1)?.add_scalar(TINY);
        let seen = seen.div(&total)?.reshape([b, self.heads, n, d])?;
        let seen = seen.permute(&[0, 2, 1, 3])?.reshape([b, n, dim])?;
        Ok(self.out.forward(&seen.to(&device)?)?)
    }

    fn cross(&self, x: &Tensor, other: &Tensor, turns: [&Turns; 2]) -> Result<Tensor> {
        let device = x.device();
        let q = turns[0].turned(&self.q.forward(x)?, self.heads)?;
        let k = turns[1].turned(&self.k.forward(other)?, self.heads)?;
        let v = self.v.forward(other)?;
        let (q, k) = (q.to(&device)?, k.to(&device)?);
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        Ok(self.out.forward(&seen)?)
    }
}

pub(super) struct Block {
    table: Arc<Value>,
    attention: Attention,
    cross: Attention,
    wide: Arc<Linear>,
    depth: Depthwise1d,
    narrow: Arc<Linear>,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &AceConfig) -> Result<Self> {
        let (dim, inner) = (config.dim, config.inner);
        let feed = weights.at("ff");
        Ok(Self {
            table: weights.value("scale_shift_table", &[6, dim])?,
            attention: Attention::new(&weights.at("attn"), config)?,
            cross: Attention::new(&weights.at("cross_attn"), config)?,
            wide: feed.linear("inverted_conv.conv", 2 * inner, dim)?,
            depth: Depthwise1d::new(&feed, "depth_conv.conv", 2 * inner, 3, true)?,
            narrow: feed.matrix("point_conv.conv", dim, inner)?,
        })
    }

    /// `signal` is (b, 6 * dim).
    pub(super) fn forward(
        &self,
        norm: &RmsNorm,
        x: Tensor,
        prompt: &Tensor,
        turns: [&Turns; 2],
        signal: &Tensor,
    ) -> Result<Tensor> {
        let [b, _, dim] = x.dims3()?;
        let all = signal
            .reshape([b, 6, dim])?
            .add(&self.table.at(&x.device())?)?;
        let part = |i: usize| -> Result<Tensor> { Ok(all.narrow(1, i, 1)?) };
        let input = modulate(norm.forward(&x)?, &part(1)?, Some(&part(0)?))?;
        let seen = self.attention.linear(&input, turns[0])?;
        let x = add_gated(x, &part(2)?, &seen)?;
        let x = x.add(&self.cross.cross(&x, prompt, turns)?)?;
        let input = modulate(norm.forward(&x)?, &part(4)?, Some(&part(3)?))?;
        let inner = self.wide.forward_with(&input, then(Act::Silu))?;
        let inner = self.depth.forward(&inner)?;
        let [value, gate] = crate::transformer::chunks(&inner)?;
        let made = self.narrow.forward(&swiglu(&gate, &value)?)?;
        Ok(add_gated(x, &part(5)?, &made)?)
    }
}

/// Numbers of one value, activated.
pub(super) fn activated(x: &Tensor) -> Tensor {
    activate(x.clone(), Act::Silu)
}
