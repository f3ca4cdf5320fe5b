//! The blocks of the transformer and of what a prompt passes before it.

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Mask, modulate};

use super::config::AttentionConfig;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, GateLayer, HeadNorm, Heads, LessOneNorm, Mlp, MlpLayers, QkvLayers,
    Rope, Rotation,
};

/// Scale, shift and gate of the attention, and of what follows it: (b, c) each.
pub(super) type Modulation = [Tensor; 6];

pub(super) struct Block {
    norm: [LessOneNorm; 2],
    attention: Attention,
    feed_forward: Mlp,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &AttentionConfig, eps: f32) -> Result<Self> {
        let dim = config.dim;
        let norm = |name: &str| LessOneNorm::new(weights, name, dim, eps);
        let head_norm = HeadNorm::LessOne(["qknorm.qnorm.scale", "qknorm.knorm.scale"], eps);
        let heads = Heads::grouped(config.heads, config.kv_heads, config.head(), head_norm);
        let layers = AttentionLayers {
            gate: GateLayer::Channels("gate"),
            ..AttentionLayers::unbiased(QkvLayers::Apart(["wq", "wk", "wv"]), "wo", dim, heads)
        };
        let gated = MlpLayers::Gated(["gate", "up", "down"]);
        Ok(Self {
            norm: [norm("prenorm.scale")?, norm("postnorm.scale")?],
            attention: Attention::new(&weights.at("attn"), &layers)?,
            feed_forward: Mlp::new(&weights.at("mlp"), gated, (dim, config.ffn), Bias::Without)?,
        })
    }

    /// Without a noise level and without positions.
    pub(super) fn plain(&self, x: &Tensor, mask: Mask<'_>) -> Result<Tensor> {
        let input = self.norm[0].forward(x)?;
        let seen = self.attention.qkv(&input)?.attend(Rotation::NONE, mask)?;
        let x = self.attention.add(&seen, x)?;
        let inner = self.feed_forward.inner(&self.norm[1].forward(&x)?)?;
        self.feed_forward.add(&inner, &x)
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
        let seen = self.attention.qkv(&input)?.attend(rope, mask)?;
        let x = self.attention.add_gated(&seen, x, gate)?;
        let input = modulate(self.norm[1].forward(&x)?, scale2, Some(shift2))?;
        let inner = self.feed_forward.inner(&input)?;
        self.feed_forward.add_gated(&inner, x, gate2)
    }
}
