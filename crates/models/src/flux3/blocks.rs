//! The block: attention and a gated product beside each other.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, Mask, RmsNorm, attention, swiglu_halves};

use super::config::Flux3Config;
use crate::epilogue::plus;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::Rope;

pub(super) const EPS: f32 = 1e-6;

pub(super) struct Block {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    mlp_in: Arc<Linear>,
    mlp_out: Arc<Linear>,
    heads: usize,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &Flux3Config) -> Result<Self> {
        let (dim, head) = (config.dim, config.dim / config.heads);
        Ok(Self {
            q: weights.matrix("q_proj", dim, dim)?,
            k: weights.matrix("k_proj", dim, dim)?,
            v: weights.matrix("v_proj", dim, dim)?,
            out: weights.matrix("attn_out", dim, dim)?,
            q_norm: weights.rms_norm("norm.query_norm.scale", head, EPS)?,
            k_norm: weights.rms_norm("norm.key_norm.scale", head, EPS)?,
            mlp_in: weights.matrix("mlp_in", 2 * config.ffn, dim)?,
            mlp_out: weights.matrix("mlp_out", dim, config.ffn)?,
            heads: config.heads,
        })
    }

    /// Of tokens that were told the noise level.
    pub(super) fn forward(&self, x: &Tensor, rope: &Rope) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let turned = |layer: &Linear, norm: &RmsNorm| -> Result<Tensor> {
            let heads = layer.forward(x)?;
            let heads = heads.reshape([b, n, self.heads, dim / self.heads])?;
            let heads = norm.forward(&heads)?.reshape([b, n, dim])?;
            rope.interleaved(&heads, self.heads)
        };
        let q = turned(&self.q, &self.q_norm)?;
        let k = turned(&self.k, &self.k_norm)?;
        let v = self.v.forward(x)?;
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        drop((q, k, v));
        let seen = self.out.forward(&seen)?;
        let inner = swiglu_halves(&self.mlp_in.forward(x)?)?;
        Ok(self.mlp_out.forward_with(&inner, plus(&seen))?)
    }
}
