//! The blocks of the transformer. The picture's tokens come before the prompt's.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, Beside, HeadPart, HeadSource, LayerInput, LayerNorm, Linear, Mask, MlpJoin, ReadyHeads,
    RmsNorm,
};

use super::config::HunyuanConfig;
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Rope, chunks};

pub(super) const EPS: f32 = 1e-6;

/// What all blocks of a pass are given.
pub(super) struct BlockPass<'a> {
    /// Of the noise level and the guidance, activated.
    pub(super) signal: &'a Tensor,
    /// The first so many tokens of the picture, where they are told something else.
    pub(super) first: Option<(usize, &'a Tensor)>,
    pub(super) rope: &'a Rope,
    pub(super) mask: Mask<'a>,
    /// Without weights.
    pub(super) norm: &'a LayerNorm,
    pub(super) heads: usize,
}

impl<'a> BlockPass<'a> {
    /// Queries, keys and values of all tokens, from the products of each part of them.
    fn qkv(&self, parts: &[HeadPart<'_>], dim: usize) -> Result<ReadyHeads<'a>> {
        let rope = Some(self.rope.neighbours());
        Ok(ReadyHeads::new(parts, self.heads, dim, rope, self.mask)?)
    }
}

/// What a layer makes of the noise level, for all tokens or apart for the first ones.
pub(super) struct Levels<const N: usize> {
    rest: [Tensor; N],
    first: Option<(usize, [Tensor; N])>,
}

impl<const N: usize> Levels<N> {
    /// `begins` says that the tokens it is for begin with those that are told something else.
    pub(super) fn new(layer: &Linear, pass: &BlockPass<'_>, begins: bool) -> Result<Self> {
        let first = pass.first.filter(|_| begins).map(|(count, signal)| {
            let levels = chunks(&layer.forward(signal)?)?;
            Ok::<_, crate::error::ModelError>((count, levels))
        });
        Ok(Self {
            rest: chunks(&layer.forward(pass.signal)?)?,
            first: first.transpose()?,
        })
    }

    /// Tokens after a norm, shifted and scaled.
    pub(super) fn modulated(
        &self,
        norm: &LayerNorm,
        x: &Tensor,
        (shift, scale): (usize, usize),
    ) -> Result<Tensor> {
        let Some((count, first)) = &self.first else {
            return Ok(norm.modulated(x, &self.rest[shift], &self.rest[scale])?);
        };
        let after = x.dim(1)? - count;
        let begin = norm.modulated(&x.narrow(1, 0, *count)?, &first[shift], &first[scale])?;
        let end = x.narrow(1, *count, after)?;
        let end = norm.modulated(&end, &self.rest[shift], &self.rest[scale])?;
        Ok(Tensor::cat(&[&begin, &end], 1)?)
    }

    /// `x` plus what a layer makes of `from`, as much as the gate lets through.
    fn gated(&self, layer: &Linear, from: &Tensor, x: Tensor, gate: usize) -> Result<Tensor> {
        let Some((count, first)) = &self.first else {
            return Ok(layer.forward_gated(from, x, &self.rest[gate])?);
        };
        let after = x.dim(1)? - count;
        let part = |start: usize, len: usize, gate: &Tensor| -> Result<Tensor> {
            let (from, x) = (from.narrow(1, start, len)?, x.narrow(1, start, len)?);
            Ok(layer.forward_gated(&from, x, gate)?)
        };
        let begin = part(0, *count, &first[gate])?;
        let end = part(*count, after, &self.rest[gate])?;
        Ok(Tensor::cat(&[&begin, &end], 1)?)
    }
}

struct HeadNorms {
    query: Arc<RmsNorm>,
    key: Arc<RmsNorm>,
}

impl HeadNorms {
    fn new(weights: &Walk<'_>, config: &HunyuanConfig) -> Result<Self> {
        let head = config.head();
        Ok(Self {
            query: weights.rms_norm("query_norm.scale", head, EPS)?,
            key: weights.rms_norm("key_norm.scale", head, EPS)?,
        })
    }

    /// Queries, keys and values are the first three widths of (b, n, ..).
    fn part<'a>(&'a self, joined: &'a Tensor) -> HeadPart<'a> {
        HeadPart {
            from: HeadSource::Joined(joined),
            norms: Some((&self.query, &self.key)),
        }
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

    fn qkv(&self, x: &Tensor, pass: &BlockPass<'_>, level: &Levels<6>) -> Result<Tensor> {
        let x = level.modulated(pass.norm, x, (0, 1))?;
        Ok(self.qkv.forward(&x)?)
    }

    fn finish(
        &self,
        x: Tensor,
        seen: &Tensor,
        pass: &BlockPass<'_>,
        level: &Levels<6>,
    ) -> Result<Tensor> {
        let x = level.gated(&self.proj, seen, x, 2)?;
        let inner = level.modulated(pass.norm, &x, (3, 4))?;
        let inner = self.mlp[0].forward_with(&inner, then(Act::GeluTanh))?;
        level.gated(&self.mlp[1], &inner, x, 5)
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
        let of_image = Levels::new(&self.image.modulation, pass, true)?;
        let of_text = Levels::new(&self.text.modulation, pass, false)?;
        let from_image = self.image.qkv(&image, pass, &of_image)?;
        let from_text = self.text.qkv(&text, pass, &of_text)?;
        let parts = [
            self.image.norms.part(&from_image),
            self.text.norms.part(&from_text),
        ];
        let qkv = pass.qkv(&parts, self.image.dim)?;
        drop((from_image, from_text));
        let seen = qkv.attend()?;
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
        let level = Levels::<3>::new(&self.modulation, pass, true)?;
        let inner = level.modulated(pass.norm, &x, (0, 1))?;
        let (first, kind) = (&self.first, MlpJoin::GeluTanh);
        let (joined, kind) = first.forward_beside(LayerInput::Rows(&inner), 3 * self.dim, kind)?;
        drop(inner);
        let qkv = pass.qkv(&[self.norms.part(&joined)], self.dim)?;
        let beside = Beside::new(joined, 3 * self.dim, kind)?;
        let seen = qkv.attend()?;
        if level.first.is_none() {
            return Ok(beside.through(&self.second, &seen, x, &level.rest[2])?);
        }
        level.gated(&self.second, &beside.join(&seen)?, x, 2)
    }
}
