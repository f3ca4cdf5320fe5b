//! Attention and feed-forward, as all parts of the network have them.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, Mask, RmsNorm};
use fresco_tensor::{Device, Tensor};

use super::config::LayerShape;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Looks, Mlp, MlpLayers, Pairs, QkvLayers, Rope,
};

pub(super) const EPS: f32 = 1e-6;

pub(super) fn attention(weights: &Walk<'_>, shape: LayerShape, looks: Looks) -> Result<Attention> {
    let LayerShape {
        dim,
        head,
        heads,
        shared,
        ..
    } = shape;
    let norm = HeadNorm::Rms(["norm_q.weight", "norm_k.weight"], EPS);
    let heads = Heads::grouped(heads, shared, head, norm);
    let qkv = QkvLayers::Apart(["to_q", "to_k", "to_v"]);
    let layers = AttentionLayers {
        looks,
        ..AttentionLayers::unbiased(qkv, "to_out.0", dim, heads)
    };
    Attention::new(weights, &layers)
}

pub(super) fn feed_forward(weights: &Walk<'_>, shape: LayerShape) -> Result<Mlp> {
    let layers = MlpLayers::Gated(["gate_proj", "up_proj", "down_proj"]);
    Mlp::new(weights, layers, (shape.dim, shape.inner), Bias::Without)
}

/// A layer of the parts that read lyrics and voices.
struct EncoderLayer {
    attention: Attention,
    feed_forward: Mlp,
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
                attention: attention(&at.at("self_attn"), shape, Looks::Own)?,
                feed_forward: feed_forward(&at.at("mlp"), shape)?,
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
            let mask = mask.map_or(Mask::None, Mask::Add);
            let qkv = layer.attention.qkv(&layer.first_norm.forward(&x)?)?;
            x = layer.attention.add(&qkv.attend(&rope, mask)?, &x)?;
            let inner = layer.feed_forward.inner(&layer.second_norm.forward(&x)?)?;
            x = layer.feed_forward.add(&inner, &x)?;
        }
        Ok(self.norm.forward(&x)?)
    }
}

pub(super) fn rope(count: usize, shape: LayerShape, device: &Device) -> Result<Rope> {
    let positions: Vec<f64> = (0..count).map(|i| i as f64).collect();
    let rope = Rope::new(&positions, &[shape.head], shape.theta)?;
    rope.pairing(Pairs::Halves).to(device)
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
