//! The blocks: picture and prompt with weights of their own, and both with the same.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, After, Beside, HeadPart, HeadSource, LayerInput, LayerNorm, Linear, Mask, MlpJoin,
    ModulatedRows, ReadyHeads, RmsNorm, silu, swiglu, swiglu_halves,
};

use super::config::{FluxConfig, MlpKind, ModulationKind};
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::Rope;

/// Of all norms here.
pub(super) const EPS: f32 = 1e-6;

/// What the noise level does to one sub-layer: (b, c) each.
#[derive(Clone, Debug)]
pub(super) struct Modulation {
    pub(super) shift: Tensor,
    pub(super) scale: Tensor,
    pub(super) gate: Tensor,
}

impl Modulation {
    /// `count` of them from (b, count * 3 * width).
    pub(super) fn split(all: &Tensor, count: usize) -> Result<Vec<Self>> {
        let mut parts = all.split_last(3 * count)?.into_iter();
        let mut next = || {
            let missing = || crate::ModelError::invalid("modulation", "a part is missing");
            parts.next().ok_or_else(missing)
        };
        (0..count)
            .map(|_| {
                Ok(Self {
                    shift: next()?,
                    scale: next()?,
                    gate: next()?,
                })
            })
            .collect()
    }

    /// From three rows of (b, rows, width).
    pub(super) fn of_rows(rows: &Tensor, first: usize) -> Result<Self> {
        Ok(Self {
            shift: rows.select(1, first)?,
            scale: rows.select(1, first + 1)?,
            gate: rows.select(1, first + 2)?,
        })
    }
}

/// What all blocks of a pass are given.
pub(super) struct BlockPass<'a> {
    /// The vector of noise level, guidance and pooled prompt after SiLU, where blocks make something of it.
    pub(super) vector: Option<&'a Tensor>,
    pub(super) rope: &'a Rope,
    /// Added to the scores of attention.
    pub(super) mask: Option<&'a Tensor>,
    pub(super) heads: usize,
    /// Without weights.
    pub(super) norm: &'a LayerNorm,
}

impl BlockPass<'_> {
    /// Queries, keys and values of all tokens, from the products of each part of them.
    fn qkv(&self, parts: &[HeadPart<'_>], width: usize) -> Result<ReadyHeads<'_>> {
        let rope = Some(self.rope.neighbours());
        let mask = self.mask.map_or(Mask::None, Mask::Add);
        Ok(ReadyHeads::new(parts, self.heads, width, rope, mask)?)
    }

    /// The tokens of a layer, normalised.
    fn modulated<'a>(&'a self, x: &'a Tensor, by: &'a Modulation) -> ModulatedRows<'a> {
        ModulatedRows {
            norm: self.norm,
            x,
            shift: &by.shift,
            scale: &by.scale,
        }
    }
}

/// Normalises queries and keys head by head.
struct HeadNorms {
    query: Arc<RmsNorm>,
    key: Arc<RmsNorm>,
}

impl HeadNorms {
    fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        let width = config.hidden / config.heads;
        Ok(Self {
            query: weights.rms_norm("query_norm.scale", width, EPS)?,
            key: weights.rms_norm("key_norm.scale", width, EPS)?,
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

/// What follows the attention.
enum Mlp {
    Gelu(Arc<Linear>, Arc<Linear>),
    Gated(Arc<Linear>, Arc<Linear>),
    Split {
        gate: Arc<Linear>,
        up: Arc<Linear>,
        down: Arc<Linear>,
    },
}

impl Mlp {
    fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        let (hidden, mlp, bias) = (config.hidden, config.mlp, config.bias);
        Ok(match config.mlp_kind {
            MlpKind::Gelu => Self::Gelu(
                weights.linear_with("0", mlp, hidden, bias)?,
                weights.linear_with("2", hidden, mlp, bias)?,
            ),
            MlpKind::Gated => Self::Gated(
                weights.linear_with("0", 2 * mlp, hidden, bias)?,
                weights.linear_with("2", hidden, mlp, bias)?,
            ),
            MlpKind::Split => Self::Split {
                gate: weights.linear_with("gate_proj", mlp, hidden, bias)?,
                up: weights.linear_with("up_proj", mlp, hidden, bias)?,
                down: weights.linear_with("down_proj", hidden, mlp, bias)?,
            },
        })
    }

    /// `to` with the result for it times a gate.
    fn add_to(&self, to: Tensor, pass: &BlockPass<'_>, by: &Modulation) -> Result<Tensor> {
        let x = pass.modulated(&to, by);
        let (last, inner) = match self {
            Self::Gelu(first, second) => {
                let inner = first.forward_modulated(x, then(Act::GeluTanh))?;
                (second, inner)
            }
            Self::Gated(first, second) => {
                let inner = first.forward_modulated(x, After::default())?;
                (second, swiglu_halves(&inner)?)
            }
            Self::Split { gate, up, down } => {
                let [gate, up] = Linear::forward_each([gate, up], &x.to_tensor()?)?;
                (down, swiglu(&gate, &up)?)
            }
        };
        Ok(last.forward_gated(&inner, to, &by.gate)?)
    }
}

/// Picture or prompt in a double block.
struct Stream {
    modulation: Option<Arc<Linear>>,
    qkv: Arc<Linear>,
    norms: HeadNorms,
    proj: Arc<Linear>,
    mlp: Mlp,
    width: usize,
}

impl Stream {
    fn new(weights: &Walk<'_>, config: &FluxConfig, name: &str) -> Result<Self> {
        let (width, bias) = (config.hidden, config.bias);
        let own = config.modulation == ModulationKind::Own;
        let attn = weights.at(format!("{name}_attn"));
        Ok(Self {
            modulation: own
                .then(|| weights.linear(&format!("{name}_mod.lin"), 6 * width, width))
                .transpose()?,
            qkv: attn.linear_with("qkv", 3 * width, width, bias)?,
            norms: HeadNorms::new(&attn.at("norm"), config)?,
            proj: attn.linear_with("proj", width, width, bias)?,
            mlp: Mlp::new(&weights.at(format!("{name}_mlp")), config)?,
            width,
        })
    }

    /// The stream's own modulation, or the one that all blocks have.
    fn modulation(
        &self,
        pass: &BlockPass<'_>,
        given: Option<&[Modulation]>,
    ) -> Result<Vec<Modulation>> {
        match (&self.modulation, pass.vector, given) {
            (Some(layer), Some(vector), _) => Modulation::split(&layer.forward(vector)?, 2),
            (_, _, given) => Ok(given.unwrap_or_default().to_vec()),
        }
    }

    fn qkv(&self, x: &Tensor, pass: &BlockPass<'_>, first: &Modulation) -> Result<Tensor> {
        let x = pass.modulated(x, first);
        Ok(self.qkv.forward_modulated(x, After::default())?)
    }

    fn finish(
        &self,
        x: Tensor,
        seen: &Tensor,
        pass: &BlockPass<'_>,
        [first, second]: [&Modulation; 2],
    ) -> Result<Tensor> {
        let x = self.proj.forward_gated(seen, x, &first.gate)?;
        self.mlp.add_to(x, pass, second)
    }
}

/// A block in which picture and prompt have weights of their own and attend to each other.
pub(super) struct DoubleBlock {
    image: Stream,
    text: Stream,
}

/// The modulations of a double block, of picture and prompt, where the block has none of its own.
pub(super) type GivenPair<'a> = Option<(&'a [Modulation], &'a [Modulation])>;

impl DoubleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
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
        given: GivenPair<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let of_image = self.image.modulation(pass, given.map(|(image, _)| image))?;
        let of_text = self.text.modulation(pass, given.map(|(_, text)| text))?;
        let ([i1, i2], [t1, t2]) = (pair(&of_image)?, pair(&of_text)?);
        let from_text = self.text.qkv(&text, pass, t1)?;
        let from_image = self.image.qkv(&image, pass, i1)?;
        let count = from_text.dim(1)?;
        let parts = [
            self.text.norms.part(&from_text),
            self.image.norms.part(&from_image),
        ];
        let qkv = pass.qkv(&parts, self.text.width)?;
        drop((from_text, from_image));
        let seen = qkv.attend()?;
        let of_text = seen.narrow(1, 0, count)?;
        let of_image = seen.narrow(1, count, seen.dim(1)? - count)?;
        let image = self.image.finish(image, &of_image, pass, [i1, i2])?;
        let text = self.text.finish(text, &of_text, pass, [t1, t2])?;
        Ok((image, text))
    }
}

fn pair(list: &[Modulation]) -> Result<[&Modulation; 2]> {
    match list {
        [first, second, ..] => Ok([first, second]),
        _ => Err(crate::ModelError::invalid(
            "block",
            "it has no modulation of its own and is given none",
        )),
    }
}

/// A block with one set of weights for all tokens, whose attention and other layers run side by side.
pub(super) struct SingleBlock {
    modulation: Option<Arc<Linear>>,
    first: Arc<Linear>,
    second: Arc<Linear>,
    norms: HeadNorms,
    kind: MlpKind,
    width: usize,
}

impl SingleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        let (width, bias) = (config.hidden, config.bias);
        let inner = match config.mlp_kind {
            MlpKind::Gelu => config.mlp,
            MlpKind::Gated | MlpKind::Split => 2 * config.mlp,
        };
        let own = config.modulation == ModulationKind::Own;
        Ok(Self {
            modulation: own
                .then(|| weights.linear("modulation.lin", 3 * width, width))
                .transpose()?,
            first: weights.linear_with("linear1", 3 * width + inner, width, bias)?,
            second: weights.linear_with("linear2", width, width + config.mlp, bias)?,
            norms: HeadNorms::new(&weights.at("norm"), config)?,
            kind: config.mlp_kind,
            width,
        })
    }

    pub(super) fn forward(
        &self,
        x: Tensor,
        pass: &BlockPass<'_>,
        given: Option<&Modulation>,
    ) -> Result<Tensor> {
        let own = match (&self.modulation, pass.vector) {
            (Some(layer), Some(vector)) => Modulation::split(&layer.forward(vector)?, 1)?.pop(),
            _ => None,
        };
        let modulation = own.as_ref().or(given).ok_or_else(|| {
            crate::ModelError::invalid("block", "it has no modulation of its own and is given none")
        })?;
        let rows = pass.modulated(&x, modulation);
        let kind = match self.kind {
            MlpKind::Gelu => MlpJoin::GeluTanh,
            MlpKind::Gated => MlpJoin::GateFirst,
            MlpKind::Split => MlpJoin::GateLast,
        };
        let rows = LayerInput::Modulated(rows);
        let (all, kind) = self.first.forward_beside(rows, 3 * self.width, kind)?;
        let qkv = pass.qkv(&[self.norms.part(&all)], self.width)?;
        let beside = Beside::new(all, 3 * self.width, kind)?;
        let seen = qkv.attend()?;
        Ok(beside.through(&self.second, &seen, x, &modulation.gate)?)
    }
}

/// Norm, modulation and a linear layer at the end.
pub(super) struct LastLayer {
    modulation: Option<Arc<Linear>>,
    linear: Arc<Linear>,
}

impl LastLayer {
    pub(super) fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        let out = config.out_channels * config.patch * config.patch;
        let own = !matches!(config.modulation, ModulationKind::Distilled { .. });
        let (width, bias) = (config.hidden, config.bias);
        Ok(Self {
            modulation: own
                .then(|| weights.linear_with("adaLN_modulation.1", 2 * width, width, bias))
                .transpose()?,
            linear: weights.linear_with("linear", out, width, bias)?,
        })
    }

    /// `given` is shift and scale, for networks in which the layer has none of its own.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        norm: &LayerNorm,
        vector: Option<&Tensor>,
        given: Option<(Tensor, Tensor)>,
    ) -> Result<Tensor> {
        let own = match (&self.modulation, vector) {
            (Some(layer), Some(vector)) => {
                let both = layer.forward(vector)?;
                let width = both.dim(1)? / 2;
                Some((both.narrow(1, 0, width)?, both.narrow(1, width, width)?))
            }
            _ => None,
        };
        let Some((shift, scale)) = own.or(given) else {
            return Err(crate::ModelError::invalid("last layer", "no modulation"));
        };
        Ok(self.linear.forward(&norm.modulated(x, &shift, &scale)?)?)
    }
}

/// The vector as blocks want it.
pub(super) fn activated(vector: &Tensor) -> Tensor {
    silu(vector)
}

/// A norm without weights.
pub(super) fn plain_norm() -> Result<LayerNorm> {
    Ok(LayerNorm::new(None, None, EPS)?)
}
