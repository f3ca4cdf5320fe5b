//! The blocks of the transformer.

use fresco_tensor::Tensor;
use fresco_tensor::nn::{LayerNorm, Mask, add_gated};

use super::config::HiDreamConfig;
use super::experts::{experts, feed_forward};
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, Experts, HeadNorm, Heads, Mlp, Qkv, QkvLayers, Rope,
    TokenRows,
};

const EPS: f32 = 1e-5;

/// The attention of one kind of tokens. `end` is what the names of the prompt's layers end with.
fn attention(weights: &Walk<'_>, config: &HiDreamConfig, end: &str) -> Result<Attention> {
    let named = |name: &str| format!("{name}{end}");
    let [q, k, v, out] = ["to_q", "to_k", "to_v", "to_out"].map(named);
    let [q_norm, k_norm] = ["q_rms_norm", "k_rms_norm"].map(|name| named(name) + ".weight");
    let norm = HeadNorm::RmsOfAll([&q_norm, &k_norm], EPS);
    let heads = Heads::new(config.heads, config.dim / config.heads, norm);
    let layers = AttentionLayers::new(QkvLayers::Apart([&q, &k, &v]), &out, config.dim, heads);
    Attention::new(&weights.at("attn1"), &layers)
}

/// Picture and prompt with weights of their own.
pub(super) struct DoubleBlock {
    modulation: AdaLn<12>,
    picture: Attention,
    text: Attention,
    experts: Experts,
    text_ff: Mlp,
}

impl DoubleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &HiDreamConfig) -> Result<Self> {
        let dim = config.dim;
        let weights = weights.at("block");
        Ok(Self {
            modulation: AdaLn::new(&weights, "adaLN_modulation.1", dim, dim, Bias::With)?,
            picture: attention(&weights, config, "")?,
            text: attention(&weights, config, "_t")?,
            experts: experts(&weights.at("ff_i"), config)?,
            text_ff: feed_forward(&weights.at("ff_t"), dim, config.text_ffn)?,
        })
    }

    /// `signal` is (b, c), activated.
    pub(super) fn forward(
        &self,
        norm: &LayerNorm,
        (x, text): (Tensor, Tensor),
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let all = self.modulation.forward(signal)?;
        let [shift, scale, gate, shift2, scale2, gate2, rest @ ..] = all;
        let [t_shift, t_scale, t_gate, t_shift2, t_scale2, t_gate2] = rest;
        let streams = [
            self.picture
                .qkv(TokenRows::modulated(norm, &x, &shift, &scale))?,
            self.text
                .qkv(TokenRows::modulated(norm, &text, &t_shift, &t_scale))?,
        ];
        let [own, beside] = Qkv::attend_joint(streams, rope, Mask::None)?;
        let x = self.picture.add_gated(&own, x, &gate)?;
        let text = self.text.add_gated(&beside, text, &t_gate)?;
        let input = norm.modulated(&x, &shift2, &scale2)?;
        let x = add_gated(x, &gate2, &self.experts.forward(&input)?)?;
        let rows = TokenRows::modulated(norm, &text, &t_shift2, &t_scale2);
        let inner = self.text_ff.inner(rows)?;
        Ok((x, self.text_ff.add_gated(&inner, text, &t_gate2)?))
    }
}

/// All tokens with the same weights.
pub(super) struct SingleBlock {
    modulation: AdaLn<6>,
    attention: Attention,
    experts: Experts,
}

impl SingleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &HiDreamConfig) -> Result<Self> {
        let dim = config.dim;
        let weights = weights.at("block");
        Ok(Self {
            modulation: AdaLn::new(&weights, "adaLN_modulation.1", dim, dim, Bias::With)?,
            attention: attention(&weights, config, "")?,
            experts: experts(&weights.at("ff_i"), config)?,
        })
    }

    pub(super) fn forward(
        &self,
        norm: &LayerNorm,
        x: Tensor,
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<Tensor> {
        let [shift, scale, gate, shift2, scale2, gate2] = self.modulation.forward(signal)?;
        let qkv = self
            .attention
            .qkv(TokenRows::modulated(norm, &x, &shift, &scale))?;
        let seen = qkv.attend(rope, Mask::None)?;
        let x = self.attention.add_gated(&seen, x, &gate)?;
        let input = norm.modulated(&x, &shift2, &scale2)?;
        Ok(add_gated(x, &gate2, &self.experts.forward(&input)?)?)
    }
}
