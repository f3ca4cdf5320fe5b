//! The block of the transformer.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Mask, RmsNorm, add_gated, modulate, tanh};

use super::config::BlockConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, QkvLayers, Rope,
};

const EPS: f32 = 1e-5;
/// The reference leaves it at the smallest difference that its numbers have.
const HEAD_EPS: f32 = f32::EPSILON;

/// Attention and a gated product, each between two norms.
pub(super) struct Block {
    attention: Attention,
    feed_forward: Mlp,
    attention_norm: [Arc<RmsNorm>; 2],
    ffn_norm: [Arc<RmsNorm>; 2],
    /// None for those that are not told the noise level.
    modulation: Option<AdaLn<4>>,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &BlockConfig, modulated: bool) -> Result<Self> {
        let dim = config.dim;
        let norm = |name: &str| weights.rms_norm(&format!("{name}.weight"), dim, EPS);
        let modulation = modulated.then(|| {
            let name = config.modulation.layer();
            AdaLn::new(weights, name, dim, config.signal, true)
        });
        let head_norm = HeadNorm::Rms(["q_norm.weight", "k_norm.weight"], HEAD_EPS);
        let heads = Heads::grouped(config.heads, config.kv_heads, config.head(), head_norm);
        let layers = AttentionLayers::unbiased(QkvLayers::Joined("qkv"), "out", dim, heads);
        let gated = MlpLayers::Gated(["w1", "w3", "w2"]);
        let feed_forward = weights.at("feed_forward");
        Ok(Self {
            attention: Attention::new(&weights.at("attention"), &layers)?,
            feed_forward: Mlp::new(&feed_forward, gated, (dim, config.ffn), false)?,
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
        let attend = |x: &Tensor| -> Result<Tensor> {
            let seen = self.attention.qkv(x)?.attend(rope, mask)?;
            self.attention.out(&seen)
        };
        let [before, after] = &self.attention_norm;
        let [before_ffn, after_ffn] = &self.ffn_norm;
        let Some(modulation) = &self.modulation else {
            let seen = attend(&before.forward(&x)?)?;
            let x = x.add(&after.forward(&seen)?)?;
            let made = self.feed_forward.forward(&before_ffn.forward(&x)?)?;
            return Ok(x.add(&after_ffn.forward(&made)?)?);
        };
        let [scale, gate, scale_ffn, gate_ffn] = modulation.forward(signal)?;
        let seen = attend(&modulate(before.forward(&x)?, &scale, None)?)?;
        let x = add_gated(x, &tanh(&gate), &after.forward(&seen)?)?;
        let input = modulate(before_ffn.forward(&x)?, &scale_ffn, None)?;
        let made = self.feed_forward.forward(&input)?;
        Ok(add_gated(x, &tanh(&gate_ffn), &after_ffn.forward(&made)?)?)
    }
}
