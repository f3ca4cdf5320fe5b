//! The block: attention and a gated product beside each other.

use fresco_tensor::Tensor;
use fresco_tensor::nn::Mask;

use super::config::Flux3Config;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, QkvLayers, Rope,
};

pub(super) const EPS: f32 = 1e-6;

pub(super) struct Block {
    attention: Attention,
    mlp: Mlp,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &Flux3Config) -> Result<Self> {
        let dim = config.dim;
        let norm = HeadNorm::Rms(["norm.query_norm.scale", "norm.key_norm.scale"], EPS);
        let heads = Heads::new(config.heads, dim / config.heads, norm);
        let qkv = QkvLayers::Apart(["q_proj", "k_proj", "v_proj"]);
        let layers = AttentionLayers::unbiased(qkv, "attn_out", dim, heads);
        let gated = MlpLayers::GateFirst(["mlp_in", "mlp_out"]);
        Ok(Self {
            attention: Attention::new(weights, &layers)?,
            mlp: Mlp::new(weights, gated, (dim, config.ffn), Bias::Without)?,
        })
    }

    /// Of tokens that were told the noise level.
    pub(super) fn forward(&self, x: &Tensor, rope: &Rope) -> Result<Tensor> {
        let seen = self.attention.qkv(x)?.attend(rope, Mask::None)?;
        let seen = self.attention.out(&seen)?;
        self.mlp.add(&self.mlp.inner(x)?, &seen)
    }
}
