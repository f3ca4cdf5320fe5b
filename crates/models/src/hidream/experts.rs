//! Gated products, and several of them of which each row asks a few.

use super::config::HiDreamConfig;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{Experts, Mlp, MlpLayers};

pub(super) fn feed_forward(weights: &Walk<'_>, dim: usize, ffn: usize) -> Result<Mlp> {
    let layers = MlpLayers::Gated(["w1", "w3", "w2"]);
    Mlp::new(weights, layers, (dim, ffn), Bias::Without)
}

pub(super) fn experts(weights: &Walk<'_>, config: &HiDreamConfig) -> Result<Experts> {
    let (dim, list) = (config.dim, weights.at("experts"));
    let expert = |number| feed_forward(&list.at(number), dim, config.ffn);
    Ok(Experts {
        scores: weights.matrix("gate", config.experts, dim)?,
        shared: feed_forward(&weights.at("shared_experts"), dim, config.shared_ffn)?,
        list: (0..config.experts).map(expert).collect::<Result<_>>()?,
        asked: config.asked,
    })
}
