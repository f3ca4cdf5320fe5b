//! Attention and feed-forward, as all parts of the network have them.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, Mask, RmsNorm, attention, swiglu};
use fresco_tensor::{Device, Tensor};

use super::config::LayerShape;
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Rope, repeat_heads};

pub(super) const EPS: f32 = 1e-6;

pub(super) struct Attention {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    shape: LayerShape,
}

impl Attention {
    pub(super) fn new(weights: &Walk<'_>, shape: LayerShape) -> Result<Self> {
        let LayerShape {
            dim,
            head,
            heads,
            shared,
            ..
        } = shape;
        Ok(Self {
            q: weights.matrix("to_q", heads * head, dim)?,
            k: weights.matrix("to_k", shared * head, dim)?,
            v: weights.matrix("to_v", shared * head, dim)?,
            out: weights.matrix("to_out.0", dim, heads * head)?,
            q_norm: weights.rms_norm("norm_q.weight", head, EPS)?,
            k_norm: weights.rms_norm("norm_k.weight", head, EPS)?,
            shape,
        })
    }

    fn normed(x: &Tensor, norm: &RmsNorm, heads: usize) -> Result<Tensor> {
        let [b, n, width] = x.dims3()?;
        let each = x.reshape([b, n, heads, width / heads])?;
        Ok(norm.forward(&each)?.reshape([b, n, width])?)
    }

    pub(super) fn forward(
        &self,
        x: &Tensor,
        source: &Tensor,
        rope: Option<&Rope>,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let LayerShape { heads, shared, .. } = self.shape;
        let mut q = Self::normed(&self.q.forward(x)?, &self.q_norm, heads)?;
        let mut k = Self::normed(&self.k.forward(source)?, &self.k_norm, shared)?;
        if let Some(rope) = rope {
            q = rope.half(&q, heads)?;
            k = rope.half(&k, shared)?;
        }
        let k = repeat_heads(&k, shared, heads / shared)?;
        let v = repeat_heads(&self.v.forward(source)?, shared, heads / shared)?;
        let mask = mask.map_or(Mask::None, Mask::Add);
        let seen = attention(&q, &k, &v, heads, mask, None)?;
        Ok(self.out.forward(&seen)?)
    }
}

pub(super) struct FeedForward {
    gate: Arc<Linear>,
    up: Arc<Linear>,
    down: Arc<Linear>,
}

impl FeedForward {
    pub(super) fn new(weights: &Walk<'_>, shape: LayerShape) -> Result<Self> {
        let LayerShape { dim, inner, .. } = shape;
        Ok(Self {
            gate: weights.matrix("gate_proj", inner, dim)?,
            up: weights.matrix("up_proj", inner, dim)?,
            down: weights.matrix("down_proj", dim, inner)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = swiglu(&self.gate.forward(x)?, &self.up.forward(x)?)?;
        Ok(self.down.forward(&inner)?)
    }
}

/// A layer of the parts that read lyrics and voices.
struct EncoderLayer {
    attention: Attention,
    feed_forward: FeedForward,
    first_norm: Arc<RmsNorm>,
    second_norm: Arc<RmsNorm>,
}

/// Rows through layers of which every other one, the first too, looks only so far.
pub(super) struct Encoder {
    embed: Arc<Linear>,
    layers: Vec<EncoderLayer>,
    norm: Arc<RmsNorm>,
    shape: LayerShape,
}

impl Encoder {
    pub(super) fn new(
        weights: &Walk<'_>,
        input: usize,
        layers: usize,
        shape: LayerShape,
    ) -> Result<Self> {
        let list = weights.at("layers");
        let layer = |number: usize| -> Result<EncoderLayer> {
            let at = list.at(number);
            Ok(EncoderLayer {
                attention: Attention::new(&at.at("self_attn"), shape)?,
                feed_forward: FeedForward::new(&at.at("mlp"), shape)?,
                first_norm: at.rms_norm("input_layernorm.weight", shape.dim, EPS)?,
                second_norm: at.rms_norm("post_attention_layernorm.weight", shape.dim, EPS)?,
            })
        };
        Ok(Self {
            embed: weights.linear("embed_tokens", shape.dim, input)?,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            norm: weights.rms_norm("norm.weight", shape.dim, EPS)?,
            shape,
        })
    }

    pub(super) fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.layers(self.embed(rows)?)
    }

    /// Rows of the layers' width.
    pub(super) fn embed(&self, rows: &Tensor) -> Result<Tensor> {
        Ok(self.embed.forward(rows)?)
    }

    /// The layers and the norm alone.
    pub(super) fn layers(&self, mut x: Tensor) -> Result<Tensor> {
        let (count, device) = (x.dim(1)?, x.device());
        let rope = rope(count, self.shape, &device)?;
        let near = near(count, self.shape.window, &device)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let mask = near.as_ref().filter(|_| number % 2 == 0);
            let input = layer.first_norm.forward(&x)?;
            x = x.add(&layer.attention.forward(&input, &input, Some(&rope), mask)?)?;
            let input = layer.second_norm.forward(&x)?;
            x = x.add(&layer.feed_forward.forward(&input)?)?;
        }
        Ok(self.norm.forward(&x)?)
    }
}

pub(super) fn rope(count: usize, shape: LayerShape, device: &Device) -> Result<Rope> {
    let positions: Vec<f64> = (0..count).map(|i| i as f64).collect();
    Rope::new(&positions, &[shape.head], shape.theta)?.to(device)
}

/// Hides what is farther away than `window`; none where nothing is.
pub(super) fn near(count: usize, window: usize, device: &Device) -> Result<Option<Tensor>> {
    if count <= window + 1 {
        return Ok(None);
    }
    let hidden = Tensor::from_fn([1, 1, count, count], |i| {
        let (row, column) = (i / count, i % count);
        if row.abs_diff(column) <= window {
            0.0
        } else {
            -f32::MAX
        }
    })?;
    Ok(Some(hidden.to(device)?))
}
