//! The block of the transformer.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, Mask, RmsNorm, add_gated, attention, modulate, swiglu, tanh};

use super::config::OmniGenConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Rope, chunks, repeat_heads};

pub(super) const EPS: f32 = 1e-5;

struct Attention {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    heads: usize,
    kv_heads: usize,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &OmniGenConfig) -> Result<Self> {
        let (dim, head) = (config.dim, config.head());
        let beside = config.kv_heads * head;
        Ok(Self {
            q: weights.matrix("to_q", dim, dim)?,
            k: weights.matrix("to_k", beside, dim)?,
            v: weights.matrix("to_v", beside, dim)?,
            out: weights.matrix("to_out.0", dim, dim)?,
            q_norm: weights.rms_norm("norm_q.weight", head, EPS)?,
            k_norm: weights.rms_norm("norm_k.weight", head, EPS)?,
            heads: config.heads,
            kv_heads: config.kv_heads,
        })
    }

    fn forward(&self, x: &Tensor, mask: Mask<'_>, rope: &Rope) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let turned = |layer: &Linear, norm: &RmsNorm, heads: usize| -> Result<Tensor> {
            let head = dim / self.heads;
            let own = layer.forward(x)?.reshape([b, n, heads, head])?;
            let own = norm.forward(&own)?.reshape([b, n, heads * head])?;
            rope.interleaved(&own, heads)
        };
        let times = self.heads / self.kv_heads;
        let q = turned(&self.q, &self.q_norm, self.heads)?;
        let k = turned(&self.k, &self.k_norm, self.kv_heads)?;
        let k = repeat_heads(&k, self.kv_heads, times)?;
        let v = repeat_heads(&self.v.forward(x)?, self.kv_heads, times)?;
        let seen = attention(&q, &k, &v, self.heads, mask, None)?;
        drop((q, k, v));
        Ok(self.out.forward(&seen)?)
    }
}

/// The norm before the attention, and what says the noise level.
enum Entry {
    Plain(Arc<RmsNorm>),
    Modulated(Arc<RmsNorm>, Arc<Linear>),
}

pub(super) struct Block {
    entry: Entry,
    attention: Attention,
    after: Arc<RmsNorm>,
    ffn_norm: [Arc<RmsNorm>; 2],
    gate: Arc<Linear>,
    value: Arc<Linear>,
    out: Arc<Linear>,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &OmniGenConfig, modulated: bool) -> Result<Self> {
        let (dim, ffn) = (config.dim, config.ffn);
        let norm = |name: &str| weights.rms_norm(&format!("{name}.weight"), dim, EPS);
        let entry = if modulated {
            let level = weights.linear("norm1.linear", 4 * dim, config.signal)?;
            Entry::Modulated(norm("norm1.norm")?, level)
        } else {
            Entry::Plain(norm("norm1")?)
        };
        let inner = weights.at("feed_forward");
        Ok(Self {
            entry,
            attention: Attention::new(&weights.at("attn"), config)?,
            after: norm("norm2")?,
            ffn_norm: [norm("ffn_norm1")?, norm("ffn_norm2")?],
            gate: inner.matrix("linear_1", ffn, dim)?,
            out: inner.matrix("linear_2", dim, ffn)?,
            value: inner.matrix("linear_3", ffn, dim)?,
        })
    }

    fn feed_forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = swiglu(&self.gate.forward(x)?, &self.value.forward(x)?)?;
        Ok(self.ffn_norm[1].forward(&self.out.forward(&inner)?)?)
    }

    /// `signal` is (b, c), activated.
    pub(super) fn forward(
        &self,
        x: Tensor,
        mask: Mask<'_>,
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<Tensor> {
        match &self.entry {
            Entry::Plain(norm) => {
                let seen = self.attention.forward(&norm.forward(&x)?, mask, rope)?;
                let x = x.add(&self.after.forward(&seen)?)?;
                let made = self.feed_forward(&self.ffn_norm[0].forward(&x)?)?;
                Ok(x.add(&made)?)
            }
            Entry::Modulated(norm, level) => {
                let [scale, gate, scale2, gate2] = chunks(&level.forward(signal)?)?;
                let input = modulate(norm.forward(&x)?, &scale, None)?;
                let seen = self.attention.forward(&input, mask, rope)?;
                let x = add_gated(x, &tanh(&gate), &self.after.forward(&seen)?)?;
                let input = modulate(self.ffn_norm[0].forward(&x)?, &scale2, None)?;
                let made = self.feed_forward(&input)?;
                Ok(add_gated(x, &tanh(&gate2), &made)?)
            }
        }
    }
}
