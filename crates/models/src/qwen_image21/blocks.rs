//! The blocks: one set of weights for all tokens.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, RmsNorm, attention, modulate, silu, tanh};
use fresco_tensor::{Device, Tensor};

use super::config::Qwen21Config;
use super::sequence::Segment;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, QkvLayers, Rope, TimeEmbed,
};

pub(super) const EPS: f32 = 1e-6;
/// Width of the waves that stand for a noise level.
const WAVES: usize = 256;
/// Noise levels are told in thousandths.
const STEPS: f32 = 1000.0;

/// The prompt's rows as tokens.
pub(super) struct TextIn {
    plain: RmsNorm,
    /// Its factors are those of the norm, less one.
    norm: Arc<RmsNorm>,
    layers: Mlp,
}

impl TextIn {
    pub(super) fn new(weights: &Walk<'_>, config: &Qwen21Config) -> Result<Self> {
        let (width, context) = (config.width, config.context);
        Ok(Self {
            plain: RmsNorm::new(None, EPS)?,
            norm: weights.rms_norm("text_norm.weight", context, EPS)?,
            layers: Mlp::between(
                weights,
                MlpLayers::Plain(["in_layer", "out_layer"], Act::GeluTanh),
                [context, width, width],
                Bias::Without,
            )?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.plain.forward(x)?.add(&self.norm.forward(x)?)?;
        self.layers.forward(&x)
    }
}

/// What is known of noise levels: their embedding, activated, and the modulation of all blocks.
pub(super) struct Level {
    pub(super) emb: Tensor,
    scales: [Tensor; 2],
    gates: [Tensor; 2],
}

/// Makes [`Level`]s.
pub(super) struct Levels {
    time: TimeEmbed,
    modulation: Arc<Linear>,
}

impl Levels {
    pub(super) fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        let time = weights.at("time_text_embed").at("timestep_embedder");
        Ok(Self {
            time: TimeEmbed::between(
                &time,
                MlpLayers::Plain(["linear_1", "linear_2"], Act::Silu),
                [WAVES, width, width],
                Bias::Without,
            )?,
            modulation: weights.matrix("modulation.1", 4 * width, width)?,
        })
    }

    pub(super) fn at(&self, levels: &[f32], device: &Device) -> Result<Level> {
        let emb = silu(&self.time.forward(levels, STEPS, device)?);
        let all = self.modulation.forward(&emb)?;
        let width = all.dim(1)? / 4;
        let part = |i: usize| all.narrow(1, i * width, width);
        Ok(Level {
            scales: [part(0)?, part(2)?],
            gates: [tanh(&part(1)?), tanh(&part(3)?)],
            emb,
        })
    }
}

/// One block.
pub(super) struct Block {
    attention: Attention,
    mlp: Mlp,
    norm: LayerNorm,
    heads: usize,
}

/// Queries, keys and values of some tokens.
pub(super) struct Projected {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &Qwen21Config) -> Result<Self> {
        let width = config.width;
        let norm = HeadNorm::Rms(["norm_q.weight", "norm_k.weight"], EPS);
        let heads = Heads::new(width / config.head, config.head, norm);
        let qkv = QkvLayers::Apart(["to_q", "to_k", "to_v"]);
        let layers = AttentionLayers::unbiased(qkv, "to_out.0", width, heads);
        let gated = if config.joined {
            MlpLayers::GateFirst(["gate_up", "out"])
        } else {
            MlpLayers::Gated(["gate_layer", "proj", "out"])
        };
        let mlp = weights.at("img_mlp");
        Ok(Self {
            attention: Attention::new(&weights.at("attn"), &layers)?,
            mlp: Mlp::new(&mlp, gated, (width, config.inner), Bias::Without)?,
            norm: LayerNorm::new(None, None, EPS)?,
            heads: heads.count,
        })
    }

    /// Queries and keys, each head normalised and turned to its position, and values.
    pub(super) fn project(&self, x: &Tensor, level: &Level, rope: &Rope) -> Result<Projected> {
        let x = modulate(self.norm.forward(x)?, &level.scales[0], None)?;
        let [q, k, v] = self.attention.qkv(&x)?.heads(rope)?;
        Ok(Projected { q, k, v })
    }

    /// Adds what attention saw, then the feed-forward part.
    fn finish(&self, x: Tensor, seen: &Tensor, level: &Level) -> Result<Tensor> {
        let x = self.attention.add_gated(seen, x, &level.gates[0])?;
        let h = modulate(self.norm.forward(&x)?, &level.scales[1], None)?;
        let inner = self.mlp.inner(&h)?;
        drop(h);
        self.mlp.add_gated(&inner, x, &level.gates[1])
    }

    /// The tokens before the picture that is made: each part sees those before it.
    pub(super) fn prefix(
        &self,
        x: Tensor,
        own: &Projected,
        segments: &[Segment],
        level: &Level,
    ) -> Result<Tensor> {
        let mut parts = Vec::with_capacity(segments.len());
        let mut start = 0;
        for segment in segments {
            let (len, end) = (segment.len(), start + segment.len());
            let q = own.q.narrow(1, start, len)?;
            let (k, v) = (own.k.narrow(1, 0, end)?, own.v.narrow(1, 0, end)?);
            let heads = self.heads;
            parts.push(match segment {
                Segment::Picture { .. } => attention(&q, &k, &v, heads, Mask::None, None)?,
                Segment::Text { .. } if start == 0 => {
                    attention(&q, &k, &v, heads, Mask::Causal, None)?
                }
                Segment::Text { .. } => {
                    let mask = later_hidden(start, len)?.to(&q.device())?;
                    attention(&q, &k, &v, heads, Mask::Add(&mask), None)?
                }
            });
            start = end;
        }
        let seen = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?;
        self.finish(x, &seen, level)
    }

    /// The tokens of the picture that is made, which see everything.
    pub(super) fn target(
        &self,
        x: Tensor,
        own: Projected,
        before: Option<&(Tensor, Tensor)>,
        level: &Level,
    ) -> Result<Tensor> {
        let Projected { q, k, v } = own;
        let (k, v) = match before {
            Some((keys, values)) => (
                Tensor::cat(&[&keys.to(&k.device())?, &k], 1)?,
                Tensor::cat(&[&values.to(&v.device())?, &v], 1)?,
            ),
            None => (k, v),
        };
        let seen = self.attention.attend([q, k, v], Mask::None)?;
        self.finish(x, &seen, level)
    }
}

/// What is added to the scores of `len` rows after `start` others, so that none sees a later one: (len, start + len).
fn later_hidden(start: usize, len: usize) -> Result<Tensor> {
    let columns = start + len;
    Ok(Tensor::from_fn([len, columns], |i| {
        if i % columns > start + i / columns {
            f32::NEG_INFINITY
        } else {
            0.0
        }
    })?)
}
