//! The blocks: picture and prompt with weights of their own, and both with the same.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, MlpJoin, silu};

use super::config::{FluxConfig, MlpKind, ModulationKind};
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, ParallelBlock, Qkv, QkvLayers,
    Rope, TokenRows,
};

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
    /// Without weights.
    pub(super) norm: &'a LayerNorm,
}

impl BlockPass<'_> {
    /// The tokens of a layer, normalised.
    fn modulated<'a>(&'a self, x: &'a Tensor, by: &'a Modulation) -> TokenRows<'a> {
        TokenRows::modulated(self.norm, x, &by.shift, &by.scale)
    }

    fn mask(&self) -> Mask<'_> {
        self.mask.map_or(Mask::None, Mask::Add)
    }
}

/// Heads whose queries and keys are normalised by weights of these names.
fn heads<'a>(config: &FluxConfig, norms: [&'a str; 2]) -> Heads<'a> {
    let width = config.hidden / config.heads;
    Heads::new(config.heads, width, HeadNorm::Rms(norms, EPS))
}

/// Picture or prompt in a double block.
struct Stream {
    modulation: Option<Arc<Linear>>,
    attention: Attention,
    mlp: Mlp,
}

impl Stream {
    fn new(weights: &Walk<'_>, config: &FluxConfig, name: &str) -> Result<Self> {
        let (width, bias) = (config.hidden, config.bias);
        let own = config.modulation == ModulationKind::Own;
        let heads = heads(config, ["norm.query_norm.scale", "norm.key_norm.scale"]);
        let layers = AttentionLayers {
            bias: bias.into(),
            ..AttentionLayers::new(QkvLayers::Joined("qkv"), "proj", width, heads)
        };
        let mlp = match config.mlp_kind {
            MlpKind::Gelu => MlpLayers::Plain(["0", "2"], Act::GeluTanh),
            MlpKind::Gated => MlpLayers::GateFirst(["0", "2"]),
            MlpKind::Split => MlpLayers::Gated(["gate_proj", "up_proj", "down_proj"]),
        };
        let mlp_at = weights.at(format!("{name}_mlp"));
        Ok(Self {
            modulation: own
                .then(|| weights.linear(&format!("{name}_mod.lin"), 6 * width, width))
                .transpose()?,
            attention: Attention::new(&weights.at(format!("{name}_attn")), &layers)?,
            mlp: Mlp::new(&mlp_at, mlp, (width, config.mlp), bias)?,
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

    fn finish(
        &self,
        x: Tensor,
        seen: &Tensor,
        pass: &BlockPass<'_>,
        [first, second]: [&Modulation; 2],
    ) -> Result<Tensor> {
        let x = self.attention.add_gated(seen, x, &first.gate)?;
        let inner = self.mlp.inner(pass.modulated(&x, second))?;
        self.mlp.add_gated(&inner, x, &second.gate)
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
        let streams = [
            self.text.attention.qkv(pass.modulated(&text, t1))?,
            self.image.attention.qkv(pass.modulated(&image, i1))?,
        ];
        let [of_text, of_image] = Qkv::attend_joint(streams, pass.rope, pass.mask())?;
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
    layers: ParallelBlock,
}

impl SingleBlock {
    pub(super) fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        let (width, bias) = (config.hidden, config.bias);
        let kind = match config.mlp_kind {
            MlpKind::Gelu => MlpJoin::GeluTanh,
            MlpKind::Gated => MlpJoin::GateFirst,
            MlpKind::Split => MlpJoin::GateLast,
        };
        let own = config.modulation == ModulationKind::Own;
        Ok(Self {
            modulation: own
                .then(|| weights.linear("modulation.lin", 3 * width, width))
                .transpose()?,
            layers: ParallelBlock::new(
                weights,
                ["linear1", "linear2"],
                (width, config.mlp),
                heads(config, ["norm.query_norm.scale", "norm.key_norm.scale"]),
                kind,
                bias,
            )?,
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
        let seen = self.layers.attend(rows, pass.rope, pass.mask())?;
        seen.add_gated(x, &modulation.gate)
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
