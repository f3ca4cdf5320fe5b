//! The blocks of the transformer and of what a prompt passes before it.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, Mask, RmsNorm, Value, attention, modulate, sigmoid, swiglu};

use super::config::AttentionConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Rope, repeat_heads};

/// A root mean square norm whose factors are stored less one.
pub(super) struct Norm {
    plain: RmsNorm,
    less_one: Arc<Value>,
}

impl Norm {
    pub(super) fn new(weights: &Walk<'_>, name: &str, width: usize, eps: f32) -> Result<Self> {
        Ok(Self {
            plain: RmsNorm::new(None, eps)?,
            less_one: weights.value(name, &[width])?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let factors = self.less_one.at(&x.device())?;
        Ok(modulate(self.plain.forward(x)?, &factors, None)?)
    }
}

pub(super) struct Attention {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    gate: Arc<Linear>,
    out: Arc<Linear>,
    q_norm: Norm,
    k_norm: Norm,
    heads: usize,
    kv_heads: usize,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &AttentionConfig, eps: f32) -> Result<Self> {
        let (dim, head) = (config.dim, config.head());
        let beside = config.kv_heads * head;
        Ok(Self {
            q: weights.matrix("wq", dim, dim)?,
            k: weights.matrix("wk", beside, dim)?,
            v: weights.matrix("wv", beside, dim)?,
            gate: weights.matrix("gate", dim, dim)?,
            out: weights.matrix("wo", dim, dim)?,
            q_norm: Norm::new(weights, "qknorm.qnorm.scale", head, eps)?,
            k_norm: Norm::new(weights, "qknorm.knorm.scale", head, eps)?,
            heads: config.heads,
            kv_heads: config.kv_heads,
        })
    }

    fn forward(&self, x: &Tensor, mask: Mask<'_>, rope: Option<&Rope>) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let turned = |layer: &Linear, norm: &Norm, heads: usize| -> Result<Tensor> {
            let head = dim / self.heads;
            let own = layer.forward(x)?.reshape([b, n, heads, head])?;
            let own = norm.forward(&own)?.reshape([b, n, heads * head])?;
            match rope {
                Some(rope) => rope.interleaved(&own, heads),
                None => Ok(own),
            }
        };
        let q = turned(&self.q, &self.q_norm, self.heads)?;
        let times = self.heads / self.kv_heads;
        let k = turned(&self.k, &self.k_norm, self.kv_heads)?;
        let k = repeat_heads(&k, self.kv_heads, times)?;
        let v = repeat_heads(&self.v.forward(x)?, self.kv_heads, times)?;
        let seen = attention(&q, &k, &v, self.heads, mask, None)?;
        drop((q, k, v));
        let open = sigmoid(&self.gate.forward(x)?);
        Ok(self.out.forward(&seen.mul(&open)?)?)
    }
}

struct FeedForward {
    gate: Arc<Linear>,
    up: Arc<Linear>,
    down: Arc<Linear>,
}

impl FeedForward {
    fn new(weights: &Walk<'_>, config: &AttentionConfig) -> Result<Self> {
        Ok(Self {
            gate: weights.matrix("gate", config.ffn, config.dim)?,
            up: weights.matrix("up", config.ffn, config.dim)?,
            down: weights.matrix("down", config.dim, config.ffn)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = swiglu(&self.gate.forward(x)?, &self.up.forward(x)?)?;
        Ok(self.down.forward(&inner)?)
    }
}

/// Scale, shift and gate of the attention, and of what follows it: (b, c) each.
pub(super) type Modulation = [Tensor; 6];

pub(super) struct Block {
    norm: [Norm; 2],
    attention: Attention,
    feed_forward: FeedForward,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &AttentionConfig, eps: f32) -> Result<Self> {
        Ok(Self {
            norm: [
                Norm::new(weights, "prenorm.scale", config.dim, eps)?,
                Norm::new(weights, "postnorm.scale", config.dim, eps)?,
            ],
            attention: Attention::new(&weights.at("attn"), config, eps)?,
            feed_forward: FeedForward::new(&weights.at("mlp"), config)?,
        })
    }

    /// Without a noise level and without positions.
    pub(super) fn plain(&self, x: &Tensor, mask: Mask<'_>) -> Result<Tensor> {
        let seen = self
            .attention
            .forward(&self.norm[0].forward(x)?, mask, None)?;
        let x = x.add(&seen)?;
        let made = self.feed_forward.forward(&self.norm[1].forward(&x)?)?;
        Ok(x.add(&made)?)
    }

    pub(super) fn forward(
        &self,
        x: Tensor,
        mask: Mask<'_>,
        rope: &Rope,
        modulation: &Modulation,
    ) -> Result<Tensor> {
        let [scale, shift, gate, scale2, shift2, gate2] = modulation;
        let input = modulate(self.norm[0].forward(&x)?, scale, Some(shift))?;
        let seen = self.attention.forward(&input, mask, Some(rope))?;
        let x = fresco_tensor::nn::add_gated(x, gate, &seen)?;
        let input = modulate(self.norm[1].forward(&x)?, scale2, Some(shift2))?;
        let made = self.feed_forward.forward(&input)?;
        Ok(fresco_tensor::nn::add_gated(x, gate2, &made)?)
    }
}
