//! The block of the transformer.

use super::config::BlockConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{
    AttentionLayers, HeadNorm, Heads, MlpLayers, QkvLayers, SandwichBlock, SandwichLayers,
};

const EPS: f32 = 1e-5;
/// The reference leaves it at the smallest difference that its numbers have.
const HEAD_EPS: f32 = f32::EPSILON;

/// One that is told the noise level, or not.
pub(super) fn block(
    weights: &Walk<'_>,
    config: &BlockConfig,
    modulated: bool,
) -> Result<SandwichBlock> {
    let norms = ["attention.q_norm.weight", "attention.k_norm.weight"];
    let head_norm = HeadNorm::Rms(norms, HEAD_EPS);
    let heads = Heads::grouped(config.heads, config.kv_heads, config.head(), head_norm);
    let qkv = QkvLayers::Joined("attention.qkv");
    let layers = SandwichLayers {
        attention: AttentionLayers::unbiased(qkv, "attention.out", config.dim, heads),
        mlp: MlpLayers::Gated(["feed_forward.w1", "feed_forward.w3", "feed_forward.w2"]),
        inner: config.ffn,
        norms: [
            "attention_norm1",
            "attention_norm2",
            "ffn_norm1",
            "ffn_norm2",
        ],
        eps: EPS,
        modulation: modulated.then_some((config.modulation.layer(), config.signal)),
    };
    SandwichBlock::new(weights, &layers)
}
