//! The blocks of the transformer. The picture's tokens come before the prompt's.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, MlpJoin};

use super::config::HunyuanConfig;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, ParallelBlock, Qkv, QkvLayers,
    Rope, TokenRows, chunks,
};

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

    /// What a layer makes of tokens after a norm, shifted and scaled.
    fn rows<T>(
        &self,
        norm: &LayerNorm,
        x: &Tensor,
        (shift, scale): (usize, usize),
        layer: impl FnOnce(TokenRows<'_>) -> Result<T>,
    ) -> Result<T> {
        if self.first.is_some() {
            return layer((&self.modulated(norm, x, (shift, scale))?).into());
        }
        let (shift, scale) = (&self.rest[shift], &self.rest[scale]);
        layer(TokenRows::modulated(norm, x, shift, scale))
    }

    /// `x` plus what a layer makes of `from`, as much as the gate lets through.
    fn add_gated(
        &self,
        x: Tensor,
        from: &Tensor,
        gate: usize,
        layer: impl Fn(&Tensor, Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let Some((count, first)) = &self.first else {
            return layer(from, x, &self.rest[gate]);
        };
        let after = x.dim(1)? - count;
        let part = |start: usize, len: usize, gate: &Tensor| -> Result<Tensor> {
            let (from, x) = (from.narrow(1, start, len)?, x.narrow(1, start, len)?);
            layer(&from, x, gate)
        };
        let begin = part(0, *count, &first[gate])?;
        let end = part(*count, after, &self.rest[gate])?;
        Ok(Tensor::cat(&[&begin, &end], 1)?)
    }
}

/// Heads whose queries and keys are normalised by weights of these names.
fn heads<'a>(config: &HunyuanConfig, norms: [&'a str; 2]) -> Heads<'a> {
    Heads::new(config.heads, config.head(), HeadNorm::Rms(norms, EPS))
}

/// Picture or prompt in a double block.
struct Stream {
    modulation: Arc<Linear>,
    attention: Attention,
    mlp: Mlp,
}

impl Stream {
    fn new(weights: &Walk<'_>, config: &HunyuanConfig, name: &str) -> Result<Self> {
        let dim = config.dim;
        let heads = heads(config, ["norm.query_norm.scale", "norm.key_norm.scale"]);
        let layers = AttentionLayers::new(QkvLayers::Joined("qkv"), "proj", dim, heads);
        let mlp = MlpLayers::Plain(["0", "2"], Act::GeluTanh);
        let (attn_at, mlp_at) = (format!("{name}_attn"), format!("{name}_mlp"));
        Ok(Self {
            modulation: weights.linear(&format!("{name}_mod.lin"), 6 * dim, dim)?,
            attention: Attention::new(&weights.at(attn_at), &layers)?,
            mlp: Mlp::new(&weights.at(mlp_at), mlp, (dim, config.mlp), Bias::With)?,
        })
    }

    fn qkv(&self, x: &Tensor, pass: &BlockPass<'_>, level: &Levels<6>) -> Result<Qkv<'_>> {
        level.rows(pass.norm, x, (0, 1), |rows| self.attention.qkv(rows))
    }

    fn finish(
        &self,
        x: Tensor,
        seen: &Tensor,
        pass: &BlockPass<'_>,
        level: &Levels<6>,
    ) -> Result<Tensor> {
        let x = level.add_gated(x, seen, 2, |seen, x, gate| {
            self.attention.add_gated(seen, x, gate)
        })?;
        let inner = level.rows(pass.norm, &x, (3, 4), |rows| self.mlp.inner(rows))?;
        level.add_gated(x, &inner, 5, |inner, x, gate| {
            self.mlp.add_gated(inner, x, gate)
        })
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
        let streams = [
            self.image.qkv(&image, pass, &of_image)?,
            self.text.qkv(&text, pass, &of_text)?,
        ];
        let [seen_image, seen_text] = Qkv::attend_joint(streams, pass.rope, pass.mask)?;
        let image = self.image.finish(image, &seen_image, pass, &of_image)?;
        let text = self.text.finish(text, &seen_text, pass, &of_text)?;
        Ok((image, text))
    }
}

pub(super) struct SingleBlock {
    modulation: Arc<Linear>,
    layers: ParallelBlock,
}

impl SingleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &HunyuanConfig) -> Result<Self> {
        let dim = config.dim;
        Ok(Self {
            modulation: weights.linear("modulation.lin", 3 * dim, dim)?,
            layers: ParallelBlock::new(
                weights,
                ["linear1", "linear2"],
                (dim, config.mlp),
                heads(config, ["norm.query_norm.scale", "norm.key_norm.scale"]),
                MlpJoin::GeluTanh,
                Bias::With,
            )?,
        })
    }

    pub(super) fn forward(&self, x: Tensor, pass: &BlockPass<'_>) -> Result<Tensor> {
        let level = Levels::<3>::new(&self.modulation, pass, true)?;
        let seen = level.rows(pass.norm, &x, (0, 1), |rows| {
            self.layers.attend(rows, pass.rope, pass.mask)
        })?;
        if level.first.is_none() {
            return seen.add_gated(x, &level.rest[2]);
        }
        let (inner, layer) = seen.join()?;
        level.add_gated(x, &inner, 2, |inner, x, gate| {
            Ok(layer.forward_gated(inner, x, gate)?)
        })
    }
}
