//! The block of the transformer.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, Mask, RmsNorm, add_gated, attention, modulate, swiglu, tanh};

use super::config::BlockConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Rope, chunks, part, repeat_heads};

const EPS: f32 = 1e-5;

struct Attention {
    qkv: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    out: Arc<Linear>,
    heads: usize,
    kv_heads: usize,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &BlockConfig) -> Result<Self> {
        let (dim, head) = (config.dim, config.head());
        Ok(Self {
            qkv: weights.matrix("qkv", dim + 2 * config.kv_heads * head, dim)?,
            // The reference leaves it at the smallest difference that its numbers have.
            q_norm: weights.rms_norm("q_norm.weight", head, f32::EPSILON)?,
            k_norm: weights.rms_norm("k_norm.weight", head, f32::EPSILON)?,
            out: weights.matrix("out", dim, dim)?,
            heads: config.heads,
            kv_heads: config.kv_heads,
        })
    }

    fn forward(&self, x: &Tensor, mask: Mask<'_>, rope: &Rope) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let beside = dim / self.heads * self.kv_heads;
        let qkv = self.qkv.forward(x)?;
        let turned = |start: usize, heads: usize, norm: &RmsNorm| -> Result<Tensor> {
            let width = dim / self.heads;
            let own = part(&qkv, start, heads * width)?.reshape([b, n, heads, width])?;
            let own = norm.forward(&own)?.reshape([b, n, heads * width])?;
            rope.interleaved(&own, heads)
        };
        let q = turned(0, self.heads, &self.q_norm)?;
        let k = turned(dim, self.kv_heads, &self.k_norm)?;
        let v = part(&qkv, dim + beside, beside)?;
        drop(qkv);
        let times = self.heads / self.kv_heads;
        let k = repeat_heads(&k, self.kv_heads, times)?;
        let v = repeat_heads(&v, self.kv_heads, times)?;
        let seen = attention(&q, &k, &v, self.heads, mask, None)?;
        drop((q, k, v));
        Ok(self.out.forward(&seen)?)
    }
}

struct FeedForward {
    gate: Arc<Linear>,
    value: Arc<Linear>,
    out: Arc<Linear>,
}

impl FeedForward {
    fn new(weights: &Walk<'_>, config: &BlockConfig) -> Result<Self> {
        Ok(Self {
            gate: weights.matrix("w1", config.ffn, config.dim)?,
            out: weights.matrix("w2", config.dim, config.ffn)?,
            value: weights.matrix("w3", config.ffn, config.dim)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = swiglu(&self.gate.forward(x)?, &self.value.forward(x)?)?;
        Ok(self.out.forward(&inner)?)
    }
}

/// Attention and a gated product, each between two norms.
pub(super) struct Block {
    attention: Attention,
    feed_forward: FeedForward,
    attention_norm: [Arc<RmsNorm>; 2],
    ffn_norm: [Arc<RmsNorm>; 2],
    /// None for those that are not told the noise level.
    modulation: Option<Arc<Linear>>,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &BlockConfig, modulated: bool) -> Result<Self> {
        let dim = config.dim;
        let norm = |name: &str| weights.rms_norm(&format!("{name}.weight"), dim, EPS);
        let modulation = modulated.then(|| {
            let name = config.modulation.layer();
            weights.linear(name, 4 * dim, config.signal)
        });
        Ok(Self {
            attention: Attention::new(&weights.at("attention"), config)?,
            feed_forward: FeedForward::new(&weights.at("feed_forward"), config)?,
            attention_norm: [norm("attention_norm1")?, norm("attention_norm2")?],
            ffn_norm: [norm("ffn_norm1")?, norm("ffn_norm2")?],
            modulation: modulation.transpose()?,
        })
    }

    /// `signal` is (b, c); blocks that take none do not look at it.
    pub(super) fn forward(
        &self,
        x: Tensor,
        mask: Mask<'_>,
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<Tensor> {
        let [before, after] = &self.attention_norm;
        let [before_ffn, after_ffn] = &self.ffn_norm;
        let Some(modulation) = &self.modulation else {
            let seen = self.attention.forward(&before.forward(&x)?, mask, rope)?;
            let x = x.add(&after.forward(&seen)?)?;
            let made = self.feed_forward.forward(&before_ffn.forward(&x)?)?;
            return Ok(x.add(&after_ffn.forward(&made)?)?);
        };
        let [scale, gate, scale_ffn, gate_ffn] = chunks(&modulation.forward(signal)?)?;
        let input = modulate(before.forward(&x)?, &scale, None)?;
        let seen = self.attention.forward(&input, mask, rope)?;
        let x = add_gated(x, &tanh(&gate), &after.forward(&seen)?)?;
        let input = modulate(before_ffn.forward(&x)?, &scale_ffn, None)?;
        let made = self.feed_forward.forward(&input)?;
        Ok(add_gated(x, &tanh(&gate_ffn), &after_ffn.forward(&made)?)?)
    }
}
