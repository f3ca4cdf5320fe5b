//! The blocks of the transformer. The picture's tokens come before the prompt's.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, LayerNorm, Linear, Mask, RmsNorm, activate, attention, concat_channels,
};

use super::config::HunyuanConfig;
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Rope, chunks, part};

pub(super) const EPS: f32 = 1e-6;

/// What all blocks of a pass are given.
pub(super) struct BlockPass<'a> {
    /// Of the noise level and the guidance, activated.
    pub(super) signal: &'a Tensor,
    pub(super) rope: &'a Rope,
    pub(super) mask: Mask<'a>,
    /// Without weights.
    pub(super) norm: &'a LayerNorm,
    pub(super) heads: usize,
}

impl BlockPass<'_> {
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let q = self.rope.interleaved(q, self.heads)?;
        let k = self.rope.interleaved(k, self.heads)?;
        Ok(attention(&q, &k, v, self.heads, self.mask, None)?)
    }
}

struct HeadNorms {
    query: Arc<RmsNorm>,
    key: Arc<RmsNorm>,
    heads: usize,
}

impl HeadNorms {
    fn new(weights: &Walk<'_>, config: &HunyuanConfig) -> Result<Self> {
        let head = config.head();
        Ok(Self {
            query: weights.rms_norm("query_norm.scale", head, EPS)?,
            key: weights.rms_norm("key_norm.scale", head, EPS)?,
            heads: config.heads,
        })
    }

    /// Queries, keys and values from the first three widths of (b, n, ..).
    fn split(&self, joined: &Tensor, dim: usize) -> Result<[Tensor; 3]> {
        let [b, n, _] = joined.dims3()?;
        let normed = |which: usize, norm: &RmsNorm| -> Result<Tensor> {
            let own = part(joined, which * dim, dim)?;
            let own = own.reshape([b, n, self.heads, dim / self.heads])?;
            Ok(norm.forward(&own)?.reshape([b, n, dim])?)
        };
        Ok([
            normed(0, &self.query)?,
            normed(1, &self.key)?,
            part(joined, 2 * dim, dim)?,
        ])
    }
}

/// Picture or prompt in a double block.
struct Stream {
    modulation: Arc<Linear>,
    qkv: Arc<Linear>,
    norms: HeadNorms,
    proj: Arc<Linear>,
    mlp: [Arc<Linear>; 2],
    dim: usize,
}

impl Stream {
    fn new(weights: &Walk<'_>, config: &HunyuanConfig, name: &str) -> Result<Self> {
        let dim = config.dim;
        let attn = weights.at(format!("{name}_attn"));
        let mlp = weights.at(format!("{name}_mlp"));
        Ok(Self {
            modulation: weights.linear(&format!("{name}_mod.lin"), 6 * dim, dim)?,
            qkv: attn.linear("qkv", 3 * dim, dim)?,
            norms: HeadNorms::new(&attn.at("norm"), config)?,
            proj: attn.linear("proj", dim, dim)?,
            mlp: [
                mlp.linear("0", config.mlp, dim)?,
                mlp.linear("2", dim, config.mlp)?,
            ],
            dim,
        })
    }

    fn modulation(&self, pass: &BlockPass<'_>) -> Result<[Tensor; 6]> {
        chunks(&self.modulation.forward(pass.signal)?)
    }

    fn qkv(&self, x: &Tensor, pass: &BlockPass<'_>, level: &[Tensor; 6]) -> Result<[Tensor; 3]> {
        let x = pass.norm.modulated(x, &level[0], &level[1])?;
        self.norms.split(&self.qkv.forward(&x)?, self.dim)
    }

    fn finish(
        &self,
        x: Tensor,
        seen: &Tensor,
        pass: &BlockPass<'_>,
        level: &[Tensor; 6],
    ) -> Result<Tensor> {
        let x = self.proj.forward_gated(seen, x, &level[2])?;
        let inner = pass.norm.modulated(&x, &level[3], &level[4])?;
        let inner = self.mlp[0].forward_with(&inner, then(Act::GeluTanh))?;
        Ok(self.mlp[1].forward_gated(&inner, x, &level[5])?)
    }
}

pub(super) struct DoubleBlock {
    image: Stream,
    text: Stream,
}

impl DoubleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &HunyuanConfig) -> Result<Self> {
        Ok(Self {
            image: Stream::new(weights, config, "img")?,
            text: Stream::new(weights, config, "txt")?,
        })
    }

    /// Picture and prompt after the block.
    pub(super) fn forward(
        &self,
        image: Tensor,
        text: Tensor,
        pass: &BlockPass<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let (of_image, of_text) = (self.image.modulation(pass)?, self.text.modulation(pass)?);
        let [iq, ik, iv] = self.image.qkv(&image, pass, &of_image)?;
        let [tq, tk, tv] = self.text.qkv(&text, pass, &of_text)?;
        let join = |a: Tensor, b: Tensor| Tensor::cat(&[&a, &b], 1);
        let (q, k, v) = (join(iq, tq)?, join(ik, tk)?, join(iv, tv)?);
        let seen = pass.attend(&q, &k, &v)?;
        drop((q, k, v));
        let (cells, words) = (image.dim(1)?, text.dim(1)?);
        let own = seen.narrow(1, 0, cells)?;
        let image = self.image.finish(image, &own, pass, &of_image)?;
        let own = seen.narrow(1, cells, words)?;
        let text = self.text.finish(text, &own, pass, &of_text)?;
        Ok((image, text))
    }
}

pub(super) struct SingleBlock {
    modulation: Arc<Linear>,
    first: Arc<Linear>,
    second: Arc<Linear>,
    norms: HeadNorms,
    dim: usize,
}

impl SingleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &HunyuanConfig) -> Result<Self> {
        let (dim, mlp) = (config.dim, config.mlp);
        Ok(Self {
            modulation: weights.linear("modulation.lin", 3 * dim, dim)?,
            first: weights.linear("linear1", 3 * dim + mlp, dim)?,
            second: weights.linear("linear2", dim, dim + mlp)?,
            norms: HeadNorms::new(&weights.at("norm"), config)?,
            dim,
        })
    }

    pub(super) fn forward(&self, x: Tensor, pass: &BlockPass<'_>) -> Result<Tensor> {
        let [shift, scale, gate] = chunks(&self.modulation.forward(pass.signal)?)?;
        let joined = self
            .first
            .forward(&pass.norm.modulated(&x, &shift, &scale)?)?;
        let [q, k, v] = self.norms.split(&joined, self.dim)?;
        let inner = joined.dims3()?[2] - 3 * self.dim;
        let beside = activate(part(&joined, 3 * self.dim, inner)?, Act::GeluTanh);
        drop(joined);
        let seen = pass.attend(&q, &k, &v)?;
        drop((q, k, v));
        let both = concat_channels(&[&seen, &beside])?;
        Ok(self.second.forward_gated(&both, x, &gate)?)
    }
}
