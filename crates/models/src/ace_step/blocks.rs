//! The blocks of the first version.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear, Mask, RmsNorm, matmul, modulate, relu, swiglu};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::AceConfig;
use crate::epilogue::then;
use crate::error::Result;
use crate::sound::Depthwise1d;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, HeadNorm, Heads, Looks, Qkv, QkvLayers, Rotation, chunks,
};

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

fn attention(weights: &Walk<'_>, config: &AceConfig, looks: Looks) -> Result<Attention> {
    let heads = Heads::new(config.heads, config.dim / config.heads, HeadNorm::None);
    let qkv = QkvLayers::Apart(["to_q", "to_k", "to_v"]);
    let layers = AttentionLayers {
        looks,
        ..AttentionLayers::new(qkv, "to_out.0", config.dim, heads)
    };
    Attention::new(weights, &layers)
}

/// (b, n, heads * d) as (b * heads, n, d).
fn apart(x: &Tensor, heads: usize) -> Result<Tensor> {
    let [b, n, width] = x.dims3()?;
    let d = width / heads;
    let x = x.reshape([b, n, heads, d])?.permute(&[0, 2, 1, 3])?;
    Ok(x.reshape([b * heads, n, d])?)
}

/// Attention whose work grows with the number of tokens, not with its square (Katharopoulos et al. 2020).
fn attend_linear(qkv: Qkv<'_>, heads: usize, turns: &Turns) -> Result<Tensor> {
    let [q, k, v] = qkv.heads(Rotation::NONE)?;
    let [b, n, dim] = q.dims3()?;
    let (device, wide) = (q.device(), q.device().exact());
    let d = dim / heads;
    let (q, k) = (
        relu(&turns.turned(&q, heads)?),
        relu(&turns.turned(&k, heads)?),
    );
    let v = apart(&v.to(&wide)?, heads)?;
    let (q, k) = (apart(&q, heads)?, apart(&k, heads)?);
    let ones = Tensor::ones([b * heads, n, 1])?.to(&wide)?;
    let v = Tensor::cat(&[&v, &ones], 2)?;
    let all = matmul(&q, &matmul(&k.transpose(1, 2)?, &v)?)?;
    let seen = all.narrow(2, 0, d)?;
    let total = all.narrow(2, d, 1)?.add_scalar(TINY);
    let seen = seen.div(&total)?.reshape([b, heads, n, d])?;
    let seen = seen.permute(&[0, 2, 1, 3])?.reshape([b, n, dim])?;
    Ok(seen.to(&device)?)
}

/// What tokens see of a prompt, each at its own positions.
fn attend_prompt(
    attention: &Attention,
    [x, prompt]: [&Tensor; 2],
    heads: usize,
    turns: [&Turns; 2],
) -> Result<Tensor> {
    let [q, k, v] = attention.qkv_to(x, prompt)?.heads(Rotation::NONE)?;
    let device = q.device();
    let q = turns[0].turned(&q, heads)?.to(&device)?;
    let k = turns[1].turned(&k, heads)?.to(&device)?;
    attention.attend([q, k, v], Mask::None)
}

pub(super) struct Block {
    modulation: AdaLn<6>,
    heads: usize,
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
            modulation: AdaLn::table(weights, "scale_shift_table", &[6, dim])?,
            heads: config.heads,
            attention: attention(&weights.at("attn"), config, Looks::Own)?,
            cross: attention(&weights.at("cross_attn"), config, Looks::Prompt(dim))?,
            wide: feed.linear("inverted_conv.conv", 2 * inner, dim)?,
            depth: Depthwise1d::new(&feed, "depth_conv.conv", 2 * inner, 3, Bias::With)?,
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
        let [shift, scale, gate, shift2, scale2, gate2] = self.modulation.forward(signal)?;
        let input = modulate(norm.forward(&x)?, &scale, Some(&shift))?;
        let seen = attend_linear(self.attention.qkv(&input)?, self.heads, turns[0])?;
        let x = self.attention.add_gated(&seen, x, &gate)?;
        let seen = attend_prompt(&self.cross, [&x, prompt], self.heads, turns)?;
        let x = self.cross.add(&seen, &x)?;
        let input = modulate(norm.forward(&x)?, &scale2, Some(&shift2))?;
        let inner = self.wide.forward_with(&input, then(Act::Silu))?;
        let inner = self.depth.forward(&inner)?;
        let [value, gate] = chunks(&inner)?;
        let inner = swiglu(&gate, &value)?;
        Ok(self.narrow.forward_gated(&inner, x, &gate2)?)
    }
}
