//! The blocks. Sequences are (b, n, c).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, attention};

use super::config::HunyuanDitConfig;
use crate::epilogue::{plus, then};
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::Rope;

pub(super) const EPS: f32 = 1e-6;

/// Norms of queries and keys, each head by itself.
struct HeadNorms {
    q: Arc<LayerNorm>,
    k: Arc<LayerNorm>,
    heads: usize,
}

impl HeadNorms {
    fn new(weights: &Walk<'_>, config: &HunyuanDitConfig) -> Result<Self> {
        let head = config.dim / config.heads;
        Ok(Self {
            q: weights.layer_norm("q_norm", head, EPS)?,
            k: weights.layer_norm("k_norm", head, EPS)?,
            heads: config.heads,
        })
    }

    fn normed(&self, norm: &LayerNorm, x: &Tensor) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let heads = x.reshape([b, n, self.heads, dim / self.heads])?;
        Ok(norm.forward(&heads)?.reshape([b, n, dim])?)
    }
}

pub(super) struct Block {
    norms: [Arc<LayerNorm>; 3],
    modulation: Arc<Linear>,
    qkv: Arc<Linear>,
    own: HeadNorms,
    own_out: Arc<Linear>,
    prompt_q: Arc<Linear>,
    prompt_kv: Arc<Linear>,
    prompt: HeadNorms,
    prompt_out: Arc<Linear>,
    mlp: [Arc<Linear>; 2],
    /// For what comes back from one of the first blocks.
    skip: Option<(Arc<LayerNorm>, Arc<Linear>)>,
}

/// What all blocks see.
pub(super) struct BlockPass<'a> {
    pub(super) text: &'a Tensor,
    /// (b, c), activated.
    pub(super) signal: &'a Tensor,
    pub(super) rope: &'a Rope,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &HunyuanDitConfig, skip: bool) -> Result<Self> {
        let dim = config.dim;
        let norm = |name: &str| weights.layer_norm(name, dim, EPS);
        let (own, prompt) = (weights.at("attn1"), weights.at("attn2"));
        let skip = skip.then(|| {
            Ok::<_, crate::error::ModelError>((
                weights.layer_norm("skip_norm", 2 * dim, EPS)?,
                weights.linear("skip_linear", dim, 2 * dim)?,
            ))
        });
        Ok(Self {
            norms: [norm("norm1")?, norm("norm2")?, norm("norm3")?],
            modulation: weights.linear("default_modulation.1", dim, dim)?,
            qkv: own.linear("Wqkv", 3 * dim, dim)?,
            own: HeadNorms::new(&own, config)?,
            own_out: own.linear("out_proj", dim, dim)?,
            prompt_q: prompt.linear("q_proj", dim, dim)?,
            prompt_kv: prompt.linear("kv_proj", 2 * dim, config.context)?,
            prompt: HeadNorms::new(&prompt, config)?,
            prompt_out: prompt.linear("out_proj", dim, dim)?,
            mlp: [
                weights.linear("mlp.fc1", config.ffn, dim)?,
                weights.linear("mlp.fc2", dim, config.ffn)?,
            ],
            skip: skip.transpose()?,
        })
    }

    pub(super) fn forward(
        &self,
        mut x: Tensor,
        skip: Option<&Tensor>,
        pass: &BlockPass<'_>,
    ) -> Result<Tensor> {
        if let (Some((norm, layer)), Some(skip)) = (&self.skip, skip) {
            let both = Tensor::cat(&[&x, skip], 2)?;
            x = layer.forward(&norm.forward(&both)?)?;
        }
        let (dim, heads) = (x.dims3()?[2], self.own.heads);
        let shift = self.modulation.forward(pass.signal)?.unsqueeze(1)?;
        let input = self.norms[0].forward(&x)?.add(&shift)?;
        let qkv = self.qkv.forward(&input)?;
        let part = |at: usize| qkv.narrow(2, at * dim, dim);
        let q = self.own.normed(&self.own.q, &part(0)?)?;
        let k = self.own.normed(&self.own.k, &part(1)?)?;
        let (q, k) = (
            pass.rope.interleaved(&q, heads)?,
            pass.rope.interleaved(&k, heads)?,
        );
        let seen = attention(&q, &k, &part(2)?, heads, Mask::None, None)?;
        drop((q, k, qkv));
        let x = self.own_out.forward_with(&seen, plus(&x))?;
        let q = self.prompt_q.forward(&self.norms[2].forward(&x)?)?;
        let q = self.prompt.normed(&self.prompt.q, &q)?;
        let q = pass.rope.interleaved(&q, heads)?;
        let kv = self.prompt_kv.forward(pass.text)?;
        let k = self.prompt.normed(&self.prompt.k, &kv.narrow(2, 0, dim)?)?;
        let seen = attention(&q, &k, &kv.narrow(2, dim, dim)?, heads, Mask::None, None)?;
        let x = self.prompt_out.forward_with(&seen, plus(&x))?;
        let input = self.norms[1].forward(&x)?;
        let inner = self.mlp[0].forward_with(&input, then(Act::GeluTanh))?;
        Ok(self.mlp[1].forward_with(&inner, plus(&x))?)
    }
}
