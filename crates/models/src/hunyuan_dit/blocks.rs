//! The blocks. Sequences are (b, n, c).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask};

use super::config::HunyuanDitConfig;
use crate::error::Result;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Looks, Mlp, MlpLayers, QkvLayers, Rope, Rotation,
};

pub(super) const EPS: f32 = 1e-6;

pub(super) struct Block {
    norms: [Arc<LayerNorm>; 3],
    modulation: Arc<Linear>,
    attention: Attention,
    prompt_attention: Attention,
    mlp: Mlp,
    /// For what comes back from one of the first blocks.
    skip: Option<(Arc<LayerNorm>, Arc<Linear>)>,
}

/// What all blocks see.
pub(super) struct BlockPass<'a> {
    /// (b, c), activated.
    pub(super) signal: &'a Tensor,
    pub(super) rope: &'a Rope,
}

impl Block {
    pub(super) fn new(weights: &Walk<'_>, config: &HunyuanDitConfig, skip: bool) -> Result<Self> {
        let dim = config.dim;
        let norm = |name: &str| weights.layer_norm(name, dim, EPS);
        let head_norm = HeadNorm::Layer(["q_norm", "k_norm"], EPS);
        let heads = Heads::new(config.heads, dim / config.heads, head_norm);
        let own = AttentionLayers::new(QkvLayers::Joined("Wqkv"), "out_proj", dim, heads);
        let prompt = AttentionLayers {
            qkv: QkvLayers::Paired(["q_proj", "kv_proj"]),
            looks: Looks::Prompt(config.context),
            ..own
        };
        let layers = MlpLayers::Plain(["fc1", "fc2"], Act::GeluTanh);
        let skip = skip.then(|| {
            Ok::<_, crate::error::ModelError>((
                weights.layer_norm("skip_norm", 2 * dim, EPS)?,
                weights.linear("skip_linear", dim, 2 * dim)?,
            ))
        });
        Ok(Self {
            norms: [norm("norm1")?, norm("norm2")?, norm("norm3")?],
            modulation: weights.linear("default_modulation.1", dim, dim)?,
            attention: Attention::new(&weights.at("attn1"), &own)?,
            prompt_attention: Attention::new(&weights.at("attn2"), &prompt)?,
            mlp: Mlp::new(&weights.at("mlp"), layers, (dim, config.ffn), Bias::With)?,
            skip: skip.transpose()?,
        })
    }

    pub(super) fn forward(
        &self,
        mut x: Tensor,
        text: &Tensor,
        skip: Option<&Tensor>,
        pass: &BlockPass<'_>,
    ) -> Result<Tensor> {
        if let (Some((norm, layer)), Some(skip)) = (&self.skip, skip) {
            let both = Tensor::cat(&[&x, skip], 2)?;
            x = layer.forward(&norm.forward(&both)?)?;
        }
        let shift = self.modulation.forward(pass.signal)?.unsqueeze(1)?;
        let input = self.norms[0].forward(&x)?.add(&shift)?;
        let seen = self.attention.qkv(&input)?.attend(pass.rope, Mask::None)?;
        let x = self.attention.add(&seen, &x)?;
        let qkv = self
            .prompt_attention
            .qkv_to(&self.norms[2].forward(&x)?, text)?;
        let of_queries = Rotation {
            queries: Some(pass.rope),
            keys: None,
        };
        let x = self
            .prompt_attention
            .add(&qkv.attend(of_queries, Mask::None)?, &x)?;
        let inner = self.mlp.inner(&self.norms[1].forward(&x)?)?;
        self.mlp.add(&inner, &x)
    }
}
