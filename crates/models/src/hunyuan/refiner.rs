//! What a prompt passes before it meets the picture: blocks that see the noise level, and what takes letters.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, silu};
use fresco_tensor::{Axes, Tensor};

use super::config::HunyuanConfig;
use crate::epilogue::then;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, Embedder, HeadNorm, Heads, Mlp, MlpLayers, QkvLayers,
    Rotation,
};

const EPS: f32 = 1e-6;

/// Width of the waves that stand for a number.
pub(super) const WAVES: usize = 256;

pub(super) const LAYERS: [&str; 2] = ["in_layer", "out_layer"];

struct Block {
    gates: AdaLn<2>,
    norm: [Arc<LayerNorm>; 2],
    attention: Attention,
    mlp: Mlp,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &HunyuanConfig) -> Result<Self> {
        let dim = config.dim;
        let heads = Heads::new(config.heads, dim / config.heads.max(1), HeadNorm::None);
        let layers = AttentionLayers::new(QkvLayers::Joined("qkv"), "proj", dim, heads);
        let mlp = MlpLayers::Plain(["0", "2"], Act::Silu);
        Ok(Self {
            gates: AdaLn::new(weights, "adaLN_modulation.1", dim, dim, Bias::With)?,
            norm: [
                weights.layer_norm("norm1", dim, EPS)?,
                weights.layer_norm("norm2", dim, EPS)?,
            ],
            attention: Attention::new(&weights.at("self_attn"), &layers)?,
            mlp: Mlp::new(&weights.at("mlp"), mlp, (dim, 4 * dim), Bias::With)?,
        })
    }

    fn forward(&self, x: Tensor, mask: Mask<'_>, signal: &Tensor) -> Result<Tensor> {
        let [gate, gate2] = self.gates.forward(signal)?;
        let qkv = self.attention.qkv(&self.norm[0].forward(&x)?)?;
        let seen = qkv.attend(Rotation::NONE, mask)?;
        let x = self.attention.add_gated(&seen, x, &gate)?;
        let inner = self.mlp.inner(&self.norm[1].forward(&x)?)?;
        self.mlp.add_gated(&inner, x, &gate2)
    }
}

/// The prompt, refined.
pub(super) struct TokenRefiner {
    into: Arc<Linear>,
    time: Embedder,
    content: Embedder,
    blocks: Vec<Block>,
}

impl TokenRefiner {
    pub(super) fn new(weights: &Walk<'_>, config: &HunyuanConfig) -> Result<Self> {
        let (dim, context) = (config.dim, config.context);
        let list = weights.at("individual_token_refiner").at("blocks");
        let block = |number| Block::new(&list.at(number), config);
        Ok(Self {
            into: weights.linear("input_embedder", dim, context)?,
            time: Embedder::new(&weights.at("t_embedder"), LAYERS, WAVES, dim, Bias::With)?,
            content: Embedder::new(&weights.at("c_embedder"), LAYERS, context, dim, Bias::With)?,
            blocks: (0..config.refiners).map(block).collect::<Result<_>>()?,
        })
    }

    /// `prompt` is (b, n, c) in main memory, `waves` are those of the noise level where the network computes.
    pub(super) fn forward(
        &self,
        prompt: &Tensor,
        waves: &Tensor,
        mask: Mask<'_>,
    ) -> Result<Tensor> {
        let device = waves.device();
        let mean = prompt.mean(&[1], Axes::Drop)?.to(&device)?;
        let time = self.time.forward(waves)?;
        let signal = silu(&time.add(&self.content.forward(&mean)?)?);
        let mut x = self.into.forward(&prompt.to(&device)?)?;
        for block in &self.blocks {
            x = block.forward(x, mask, &signal)?;
        }
        Ok(x)
    }
}

/// Vectors of letters as tokens of the prompt.
pub(super) struct Letters {
    norm: Arc<LayerNorm>,
    layers: [Arc<Linear>; 3],
}

impl Letters {
    pub(super) fn new(
        weights: &Walk<'_>,
        (width, inner): (usize, usize),
        dim: usize,
    ) -> Result<Self> {
        Ok(Self {
            norm: weights.layer_norm("layernorm", width, 1e-5)?,
            layers: [
                weights.linear("fc1", inner, width)?,
                weights.linear("fc2", inner, inner)?,
                weights.linear("fc3", dim, inner)?,
            ],
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(x)?;
        let x = self.layers[0].forward_with(&x, then(Act::Gelu))?;
        let x = self.layers[1].forward_with(&x, then(Act::Gelu))?;
        Ok(self.layers[2].forward(&x)?)
    }
}
