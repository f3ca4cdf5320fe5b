//! The block of the transformer.

use super::config::OmniGenConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{
    AttentionLayers, HeadNorm, Heads, MlpLayers, QkvLayers, SandwichBlock, SandwichLayers,
};

pub(super) const EPS: f32 = 1e-5;

/// One that is told the noise level, or not.
pub(super) fn block(
    weights: &Walk<'_>,
    config: &OmniGenConfig,
    modulated: bool,
) -> Result<SandwichBlock> {
    let head_norm = HeadNorm::Rms(["attn.norm_q.weight", "attn.norm_k.weight"], EPS);
    let heads = Heads::grouped(config.heads, config.kv_heads, config.head(), head_norm);
    let qkv = QkvLayers::Apart(["attn.to_q", "attn.to_k", "attn.to_v"]);
    let before = if modulated { "norm1.norm" } else { "norm1" };
    let mlp = [
        "feed_forward.linear_1",
        "feed_forward.linear_3",
        "feed_forward.linear_2",
    ];
    let layers = SandwichLayers {
        attention: AttentionLayers::unbiased(qkv, "attn.to_out.0", config.dim, heads),
        mlp: MlpLayers::Gated(mlp),
        inner: config.ffn,
        norms: [before, "norm2", "ffn_norm1", "ffn_norm2"],
        eps: EPS,
        modulation: modulated.then_some(("norm1.linear", config.signal)),
    };
    SandwichBlock::new(weights, &layers)
}
