//! The blocks of the transformer.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{LayerNorm, Linear, Mask, RmsNorm, add_gated, attention};

use super::config::HiDreamConfig;
use super::experts::{Experts, FeedForward};
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Rope, chunks};

const EPS: f32 = 1e-5;

/// Queries, keys, values and the way out, of one kind of tokens.
struct Projections {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
}

impl Projections {
    /// `end` is what the names of the prompt's layers end with.
    fn new(weights: &Walk<'_>, dim: usize, end: &str) -> Result<Self> {
        let linear = |name: &str| weights.linear(&format!("{name}{end}"), dim, dim);
        let norm = |name: &str| weights.rms_norm(&format!("{name}{end}.weight"), dim, EPS);
        Ok(Self {
            q: linear("to_q")?,
            k: linear("to_k")?,
            v: linear("to_v")?,
            out: linear("to_out")?,
            q_norm: norm("q_rms_norm")?,
            k_norm: norm("k_rms_norm")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        Ok([
            self.q_norm.forward(&self.q.forward(x)?)?,
            self.k_norm.forward(&self.k.forward(x)?)?,
            self.v.forward(x)?,
        ])
    }
}

fn looked(parts: &[[Tensor; 3]], heads: usize, rope: &Rope) -> Result<Tensor> {
    let all = |which: usize| -> Result<Tensor> {
        let parts: Vec<&Tensor> = parts.iter().map(|part| &part[which]).collect();
        Ok(Tensor::cat(&parts, 1)?)
    };
    let q = rope.interleaved(&all(0)?, heads)?;
    let k = rope.interleaved(&all(1)?, heads)?;
    Ok(attention(&q, &k, &all(2)?, heads, Mask::None, None)?)
}

/// Picture and prompt with weights of their own.
pub(super) struct DoubleBlock {
    modulation: Arc<Linear>,
    picture: Projections,
    text: Projections,
    experts: Experts,
    text_ff: FeedForward,
    heads: usize,
}

impl DoubleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &HiDreamConfig) -> Result<Self> {
        let dim = config.dim;
        let weights = weights.at("block");
        let attention = weights.at("attn1");
        Ok(Self {
            modulation: weights.linear("adaLN_modulation.1", 12 * dim, dim)?,
            picture: Projections::new(&attention, dim, "")?,
            text: Projections::new(&attention, dim, "_t")?,
            experts: Experts::new(&weights.at("ff_i"), config)?,
            text_ff: FeedForward::new(&weights.at("ff_t"), dim, config.text_ffn)?,
            heads: config.heads,
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
        let all: [Tensor; 12] = chunks(&self.modulation.forward(signal)?)?;
        let [shift, scale, gate, shift2, scale2, gate2, rest @ ..] = all;
        let [t_shift, t_scale, t_gate, t_shift2, t_scale2, t_gate2] = rest;
        let own = self.picture.forward(&norm.modulated(&x, &shift, &scale)?)?;
        let beside = self
            .text
            .forward(&norm.modulated(&text, &t_shift, &t_scale)?)?;
        let (cells, count) = (x.dim(1)?, text.dim(1)?);
        let seen = looked(&[own, beside], self.heads, rope)?;
        let own = self.picture.out.forward(&seen.narrow(1, 0, cells)?)?;
        let beside = self.text.out.forward(&seen.narrow(1, cells, count)?)?;
        let x = add_gated(x, &gate, &own)?;
        let text = add_gated(text, &t_gate, &beside)?;
        let made = self
            .experts
            .forward(&norm.modulated(&x, &shift2, &scale2)?)?;
        let x = add_gated(x, &gate2, &made)?;
        let made = self
            .text_ff
            .forward(&norm.modulated(&text, &t_shift2, &t_scale2)?)?;
        Ok((x, add_gated(text, &t_gate2, &made)?))
    }
}

/// All tokens with the same weights.
pub(super) struct SingleBlock {
    modulation: Arc<Linear>,
    all: Projections,
    experts: Experts,
    heads: usize,
}

impl SingleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &HiDreamConfig) -> Result<Self> {
        let dim = config.dim;
        let weights = weights.at("block");
        Ok(Self {
            modulation: weights.linear("adaLN_modulation.1", 6 * dim, dim)?,
            all: Projections::new(&weights.at("attn1"), dim, "")?,
            experts: Experts::new(&weights.at("ff_i"), config)?,
            heads: config.heads,
        })
    }

    pub(super) fn forward(
        &self,
        norm: &LayerNorm,
        x: Tensor,
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<Tensor> {
        let all: [Tensor; 6] = chunks(&self.modulation.forward(signal)?)?;
        let [shift, scale, gate, shift2, scale2, gate2] = all;
        let own = self.all.forward(&norm.modulated(&x, &shift, &scale)?)?;
        let seen = looked(&[own], self.heads, rope)?;
        let x = add_gated(x, &gate, &self.all.out.forward(&seen)?)?;
        let made = self
            .experts
            .forward(&norm.modulated(&x, &shift2, &scale2)?)?;
        Ok(add_gated(x, &gate2, &made)?)
    }
}
