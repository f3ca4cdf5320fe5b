//! Gated products, and several of them of which each row asks a few.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, softmax_last, swiglu};
use fresco_tensor::{Device, Tensor};

use super::config::HiDreamConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::ExpertPlan;

pub(super) struct FeedForward {
    gate: Arc<Linear>,
    value: Arc<Linear>,
    out: Arc<Linear>,
}

impl FeedForward {
    pub(super) fn new(weights: &Walk<'_>, dim: usize, ffn: usize) -> Result<Self> {
        Ok(Self {
            gate: weights.matrix("w1", ffn, dim)?,
            out: weights.matrix("w2", dim, ffn)?,
            value: weights.matrix("w3", ffn, dim)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = swiglu(&self.gate.forward(x)?, &self.value.forward(x)?)?;
        Ok(self.out.forward(&inner)?)
    }
}

pub(super) struct Experts {
    scores: Arc<Linear>,
    shared: FeedForward,
    list: Vec<FeedForward>,
    asked: usize,
}

impl Experts {
    pub(super) fn new(weights: &Walk<'_>, config: &HiDreamConfig) -> Result<Self> {
        let (dim, list) = (config.dim, weights.at("experts"));
        let expert = |number| FeedForward::new(&list.at(number), dim, config.ffn);
        Ok(Self {
            scores: weights.matrix("gate", config.experts, dim)?,
            shared: FeedForward::new(&weights.at("shared_experts"), dim, config.shared_ffn)?,
            list: (0..config.experts).map(expert).collect::<Result<_>>()?,
            asked: config.asked.min(config.experts),
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let rows = x.reshape([b * n, dim])?;
        let scores = softmax_last(&self.scores.forward(&rows)?)?;
        let plan = ExpertPlan::new(&scores.to(&Device::cpu())?, self.asked);
        // Each expert works on its rows only; then all rows go back to where they were.
        let mut made = Vec::with_capacity(self.list.len());
        for (expert, own) in self.list.iter().zip(&plan.rows) {
            if !own.is_empty() {
                made.push(expert.forward(&rows.index_select(0, own)?)?);
            }
        }
        let made = Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?;
        let mut out = self.shared.forward(&rows)?;
        for (places, weights) in plan.places.iter().zip(plan.weights) {
            let weights = Tensor::from_vec([b * n, 1], weights)?.to(&rows.device())?;
            let answer = made.index_select(0, places)?.mul(&weights)?;
            out = out.add(&answer)?;
        }
        Ok(out.reshape([b, n, dim])?)
    }
}
