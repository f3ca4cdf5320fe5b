//! What makes the prompt: tokens of T5 that look at the states of Qwen 3.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, Linear, Mask, RmsNorm};
use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk, WeightStore};
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Looks, Mlp, MlpLayers, Pairs, QkvLayers, Rope,
    Rotation, Shapes, TokenMask,
};

const EPS: f32 = 1e-6;

/// Rows that a prompt has at least; those that are missing are zero.
const ROWS: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionerConfig {
    pub vocabulary: usize,
    /// Width of the table and of the result.
    pub target: usize,
    pub dim: usize,
    pub heads: usize,
    pub layers: usize,
    pub ffn: usize,
    /// Width of the states that are looked at.
    pub source: usize,
    /// Rows of the result at least.
    pub rows: usize,
}

impl ConditionerConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let key = |name: &str| format!("llm_adapter.{name}.weight");
        let (vocabulary, target) = shapes.matrix(&key("embed"))?;
        let (dim, source) = shapes.matrix(&key("blocks.0.cross_attn.k_proj"))?;
        let head = shapes.vector(&key("blocks.0.cross_attn.q_norm"))?;
        if !dim.is_multiple_of(head) || head % 2 != 0 {
            let reason = format!("a width of {dim} is no heads of {head}");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            vocabulary,
            target,
            dim,
            heads: dim / head,
            layers: shapes.count("llm_adapter.blocks"),
            ffn: shapes.matrix(&key("blocks.0.mlp.0"))?.0,
            source,
            rows: ROWS,
        })
    }
}

fn attention(weights: &Walk<'_>, config: &ConditionerConfig, looks: Looks) -> Result<Attention> {
    let (dim, norm) = (
        config.dim,
        HeadNorm::Rms(["q_norm.weight", "k_norm.weight"], EPS),
    );
    let heads = Heads::new(config.heads, dim / config.heads, norm);
    let qkv = QkvLayers::Apart(["q_proj", "k_proj", "v_proj"]);
    let layers = AttentionLayers {
        looks,
        ..AttentionLayers::unbiased(qkv, "o_proj", dim, heads)
    };
    Attention::new(weights, &layers)
}

struct Block {
    self_norm: Arc<RmsNorm>,
    self_attention: Attention,
    source_norm: Arc<RmsNorm>,
    source_attention: Attention,
    mlp_norm: Arc<RmsNorm>,
    mlp: Mlp,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &ConditionerConfig) -> Result<Self> {
        let (dim, ffn) = (config.dim, config.ffn);
        let source = config.source;
        let layers = MlpLayers::Plain(["0", "2"], Act::Gelu);
        Ok(Self {
            self_norm: weights.rms_norm("norm_self_attn.weight", dim, EPS)?,
            self_attention: attention(&weights.at("self_attn"), config, Looks::Own)?,
            source_norm: weights.rms_norm("norm_cross_attn.weight", dim, EPS)?,
            source_attention: attention(&weights.at("cross_attn"), config, Looks::Prompt(source))?,
            mlp_norm: weights.rms_norm("norm_mlp.weight", dim, EPS)?,
            mlp: Mlp::new(&weights.at("mlp"), layers, (dim, ffn), Bias::With)?,
        })
    }
}

/// The network that makes a prompt.
pub struct Conditioner {
    device: Device,
    config: ConditionerConfig,
    table: Arc<Embedding>,
    into: Option<Arc<Linear>>,
    blocks: Vec<Block>,
    out: Arc<Linear>,
    norm: Arc<RmsNorm>,
}

impl Conditioner {
    pub fn new(weights: &Walk<'_>, config: &ConditionerConfig) -> Result<Self> {
        let (dim, target) = (config.dim, config.target);
        let weights = weights.at("llm_adapter");
        let block = |number| Block::new(&weights.at("blocks").at(number), config);
        let into = (dim != target).then(|| weights.linear("in_proj", dim, target));
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            table: weights.embedding("embed", config.vocabulary, target)?,
            into: into.transpose()?,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            out: weights.linear("out_proj", target, dim)?,
            norm: weights.rms_norm("norm.weight", target, EPS)?,
        })
    }

    /// `states` are (b, n, c), `mask` says which of them count, `ids` are those of (b, m) words. In main memory, filled
    /// up with rows of zeros.
    pub fn forward(&self, states: &Tensor, mask: Option<&Tensor>, ids: &Tensor) -> Result<Tensor> {
        let [b, n, _] = states.dims3()?;
        let m = ids.len() / b.max(1);
        if ids.len() != b * m || m == 0 {
            let reason = format!("{:?} tokens for {b} prompts", ids.shape());
            return Err(ModelError::invalid("prompt", reason));
        }
        let numbers = self.numbers(ids)?;
        let words = self.table.lookup_on(&numbers, &self.device)?;
        let mut x = words.reshape([b, m, self.config.target])?;
        if let Some(into) = &self.into {
            x = into.forward(&x)?;
        }
        let states = match mask {
            Some(mask) => states.mul(&mask.reshape([b, n, 1])?)?,
            None => states.clone(),
        };
        let states = states.to(&self.device)?;
        let mask = TokenMask::new(mask, 0, &self.device)?;
        let (own, source) = (self.rope(m)?, self.rope(n)?);
        for block in &self.blocks {
            let qkv = block.self_attention.qkv(&block.self_norm.forward(&x)?)?;
            let seen = qkv.attend(&own, Mask::None)?;
            x = block.self_attention.add(&seen, &x)?;
            let normed = block.source_norm.forward(&x)?;
            let qkv = block.source_attention.qkv_to(&normed, &states)?;
            // Each side has positions of its own.
            let seen = qkv.attend(Rotation::new(&own, &source), mask.mask())?;
            x = block.source_attention.add(&seen, &x)?;
            let inner = block.mlp.inner(&block.mlp_norm.forward(&x)?)?;
            x = block.mlp.add(&inner, &x)?;
        }
        let out = self.norm.forward(&self.out.forward(&x)?)?;
        Ok(out.to(&Device::cpu())?)
    }

    /// A prompt with as many rows as the network was trained with.
    pub fn filled(&self, prompt: Tensor) -> Result<Tensor> {
        let [b, m, width] = prompt.dims3()?;
        if m >= self.config.rows {
            return Ok(prompt);
        }
        let rest = Tensor::zeros([b, self.config.rows - m, width])?;
        Ok(Tensor::cat(&[&prompt, &rest], 1)?)
    }

    fn numbers(&self, ids: &Tensor) -> Result<Vec<u32>> {
        let most = self.config.vocabulary;
        let number = |id: &f32| {
            let known = *id >= 0.0 && (*id as usize) < most;
            known.then_some(*id as u32).ok_or_else(|| {
                let reason = format!("token {id} is not one of the {most} of this model");
                ModelError::invalid("prompt", reason)
            })
        };
        ids.data().iter().map(number).collect()
    }

    fn rope(&self, count: usize) -> Result<Rope> {
        let positions: Vec<f64> = (0..count).map(|i| i as f64).collect();
        let head = self.config.dim / self.config.heads;
        let rope = Rope::new(&positions, &[head], 10000.0)?;
        rope.pairing(Pairs::Halves).to(&self.device)
    }
}
