//! The blocks: one set of weights for all tokens.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, LayerNorm, Linear, Mask, RmsNorm, activate, attention, modulate, swiglu, swiglu_halves,
    tanh,
};
use fresco_tensor::{Device, Tensor};

use super::config::Qwen21Config;
use super::sequence::Segment;
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Embedder, Rope, sinusoid};

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
    first: Arc<Linear>,
    last: Arc<Linear>,
}

impl TextIn {
    pub(super) fn new(weights: &Walk<'_>, config: &Qwen21Config) -> Result<Self> {
        let (width, context) = (config.width, config.context);
        Ok(Self {
            plain: RmsNorm::new(None, EPS)?,
            norm: weights.rms_norm("text_norm.weight", context, EPS)?,
            first: weights.matrix("in_layer", width, context)?,
            last: weights.matrix("out_layer", width, width)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.plain.forward(x)?.add(&self.norm.forward(x)?)?;
        let inner = self.first.forward_with(&x, then(Act::GeluTanh))?;
        Ok(self.last.forward(&inner)?)
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
    time: Embedder,
    modulation: Arc<Linear>,
}

impl Levels {
    pub(super) fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        let time = weights.at("time_text_embed").at("timestep_embedder");
        Ok(Self {
            time: Embedder::new(&time, ["linear_1", "linear_2"], WAVES, width, false)?,
            modulation: weights.matrix("modulation.1", 4 * width, width)?,
        })
    }

    pub(super) fn at(&self, levels: &[f32], device: &Device) -> Result<Level> {
        let told: Vec<f32> = levels.iter().map(|t| t * STEPS).collect();
        let waves = sinusoid(&told, WAVES)?.to(device)?;
        let emb = activate(self.time.forward(&waves)?, Act::Silu);
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

/// The gate and the values of a feed-forward part, in one matrix or in two.
enum Gated {
    Joined(Arc<Linear>),
    Apart {
        gate: Arc<Linear>,
        value: Arc<Linear>,
    },
}

/// One block.
pub(super) struct Block {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    norm_q: Arc<RmsNorm>,
    norm_k: Arc<RmsNorm>,
    to_out: Arc<Linear>,
    gated: Gated,
    out: Arc<Linear>,
    norm: LayerNorm,
    head: usize,
}

/// Queries, keys and values of some tokens.
pub(super) struct Projected {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &Qwen21Config) -> Result<Self> {
        let (width, inner) = (config.width, config.inner);
        let attn = weights.at("attn");
        let mlp = weights.at("img_mlp");
        let linear = |name: &str| attn.matrix(name, width, width);
        Ok(Self {
            q: linear("to_q")?,
            k: linear("to_k")?,
            v: linear("to_v")?,
            norm_q: attn.rms_norm("norm_q.weight", config.head, EPS)?,
            norm_k: attn.rms_norm("norm_k.weight", config.head, EPS)?,
            to_out: linear("to_out.0")?,
            gated: if config.joined {
                Gated::Joined(mlp.matrix("gate_up", 2 * inner, width)?)
            } else {
                Gated::Apart {
                    gate: mlp.matrix("gate_layer", inner, width)?,
                    value: mlp.matrix("proj", inner, width)?,
                }
            },
            out: mlp.matrix("out", width, inner)?,
            norm: LayerNorm::new(None, None, EPS)?,
            head: config.head,
        })
    }

    fn heads(&self) -> usize {
        self.q.out_features() / self.head
    }

    /// Queries and keys, each head normalised and turned to its position, and values.
    pub(super) fn project(&self, x: &Tensor, level: &Level, rope: &Rope) -> Result<Projected> {
        let [b, n, width] = x.dims3()?;
        let x = modulate(self.norm.forward(x)?, &level.scales[0], None)?;
        let turned = |layer: &Linear, norm: &RmsNorm| -> Result<Tensor> {
            let heads = layer.forward(&x)?;
            let heads = heads.reshape([b, n, width / self.head, self.head])?;
            let heads = norm.forward(&heads)?.reshape([b, n, width])?;
            rope.interleaved(&heads, self.heads())
        };
        Ok(Projected {
            q: turned(&self.q, &self.norm_q)?,
            k: turned(&self.k, &self.norm_k)?,
            v: self.v.forward(&x)?,
        })
    }

    /// Adds what attention saw, then the feed-forward part.
    fn finish(&self, x: Tensor, seen: &Tensor, level: &Level) -> Result<Tensor> {
        let x = self.to_out.forward_gated(seen, x, &level.gates[0])?;
        let h = modulate(self.norm.forward(&x)?, &level.scales[1], None)?;
        let inner = match &self.gated {
            Gated::Joined(both) => swiglu_halves(&both.forward(&h)?)?,
            Gated::Apart { gate, value } => swiglu(&gate.forward(&h)?, &value.forward(&h)?)?,
        };
        drop(h);
        Ok(self.out.forward_gated(&inner, x, &level.gates[1])?)
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
            let heads = self.heads();
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
        let seen = attention(&q, &k, &v, self.heads(), Mask::None, None)?;
        drop((q, k, v));
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
