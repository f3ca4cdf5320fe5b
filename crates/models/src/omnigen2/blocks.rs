//! The block of the transformer.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Mask, RmsNorm, add_gated, modulate, tanh};

use super::config::OmniGenConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, QkvLayers, Rope,
};

pub(super) const EPS: f32 = 1e-5;

pub(super) struct Block {
    /// The norm before the attention, and what says the noise level where it is told.
    before: Arc<RmsNorm>,
    level: Option<AdaLn<4>>,
    attention: Attention,
    after: Arc<RmsNorm>,
    ffn_norm: [Arc<RmsNorm>; 2],
    feed_forward: Mlp,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &OmniGenConfig, modulated: bool) -> Result<Self> {
        let dim = config.dim;
        let norm = |name: &str| weights.rms_norm(&format!("{name}.weight"), dim, EPS);
        let level = || AdaLn::new(weights, "norm1.linear", dim, config.signal, true);
        let head_norm = HeadNorm::Rms(["norm_q.weight", "norm_k.weight"], EPS);
        let heads = Heads::grouped(config.heads, config.kv_heads, config.head(), head_norm);
        let qkv = QkvLayers::Apart(["to_q", "to_k", "to_v"]);
        let layers = AttentionLayers::unbiased(qkv, "to_out.0", dim, heads);
        let gated = MlpLayers::Gated(["linear_1", "linear_3", "linear_2"]);
        let feed_forward = weights.at("feed_forward");
        Ok(Self {
            before: norm(if modulated { "norm1.norm" } else { "norm1" })?,
            level: modulated.then(level).transpose()?,
            attention: Attention::new(&weights.at("attn"), &layers)?,
            after: norm("norm2")?,
            ffn_norm: [norm("ffn_norm1")?, norm("ffn_norm2")?],
            feed_forward: Mlp::new(&feed_forward, gated, (dim, config.ffn), false)?,
        })
    }

    /// `signal` is (b, c), activated.
    pub(super) fn forward(
        &self,
        x: Tensor,
        mask: Mask<'_>,
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<Tensor> {
        let attend = |x: &Tensor| -> Result<Tensor> {
            let seen = self.attention.qkv(x)?.attend(rope, mask)?;
            Ok(self.after.forward(&self.attention.out(&seen)?)?)
        };
        let [before_ffn, after_ffn] = &self.ffn_norm;
        let Some(level) = &self.level else {
            let x = x.add(&attend(&self.before.forward(&x)?)?)?;
            let made = self.feed_forward.forward(&before_ffn.forward(&x)?)?;
            return Ok(x.add(&after_ffn.forward(&made)?)?);
        };
        let [scale, gate, scale2, gate2] = level.forward(signal)?;
        let seen = attend(&modulate(self.before.forward(&x)?, &scale, None)?)?;
        let x = add_gated(x, &tanh(&gate), &seen)?;
        let input = modulate(before_ffn.forward(&x)?, &scale2, None)?;
        let made = self.feed_forward.forward(&input)?;
        Ok(add_gated(x, &tanh(&gate2), &after_ffn.forward(&made)?)?)
    }
}
