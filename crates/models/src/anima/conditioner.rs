//! What makes the prompt: tokens of T5 that look at the states of Qwen 3.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, Linear, Mask, RmsNorm, attention};
use fresco_tensor::{Device, Tensor};

use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::transformer::{Rope, Shapes, hide};

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

struct Attention {
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    heads: usize,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &ConditionerConfig, source: usize) -> Result<Self> {
        let (dim, head) = (config.dim, config.dim / config.heads);
        Ok(Self {
            q: weights.matrix("q_proj", dim, dim)?,
            k: weights.matrix("k_proj", dim, source)?,
            v: weights.matrix("v_proj", dim, source)?,
            out: weights.matrix("o_proj", dim, dim)?,
            q_norm: weights.rms_norm("q_norm.weight", head, EPS)?,
            k_norm: weights.rms_norm("k_norm.weight", head, EPS)?,
            heads: config.heads,
        })
    }

    fn turned(&self, x: &Tensor, norm: &RmsNorm, rope: &Rope) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let heads = x.reshape([b, n, self.heads, dim / self.heads])?;
        let normed = norm.forward(&heads)?.reshape([b, n, dim])?;
        rope.half(&normed, self.heads)
    }

    /// What is seen, added to `x`. Each side has positions of its own.
    fn forward(
        &self,
        x: &Tensor,
        normed: &Tensor,
        (source, mask): (&Tensor, Mask<'_>),
        ropes: (&Rope, &Rope),
    ) -> Result<Tensor> {
        let q = self.turned(&self.q.forward(normed)?, &self.q_norm, ropes.0)?;
        let k = self.turned(&self.k.forward(source)?, &self.k_norm, ropes.1)?;
        let v = self.v.forward(source)?;
        let seen = attention(&q, &k, &v, self.heads, mask, None)?;
        Ok(self.out.forward_with(&seen, plus(x))?)
    }
}

struct Block {
    self_norm: Arc<RmsNorm>,
    self_attention: Attention,
    source_norm: Arc<RmsNorm>,
    source_attention: Attention,
    mlp_norm: Arc<RmsNorm>,
    mlp: [Arc<Linear>; 2],
}

impl Block {
    fn new(weights: &Walk<'_>, config: &ConditionerConfig) -> Result<Self> {
        let (dim, ffn) = (config.dim, config.ffn);
        let source = config.source;
        Ok(Self {
            self_norm: weights.rms_norm("norm_self_attn.weight", dim, EPS)?,
            self_attention: Attention::new(&weights.at("self_attn"), config, dim)?,
            source_norm: weights.rms_norm("norm_cross_attn.weight", dim, EPS)?,
            source_attention: Attention::new(&weights.at("cross_attn"), config, source)?,
            mlp_norm: weights.rms_norm("norm_mlp.weight", dim, EPS)?,
            mlp: [
                weights.linear("mlp.0", ffn, dim)?,
                weights.linear("mlp.2", dim, ffn)?,
            ],
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
        let hidden = mask.map(|mask| -> Result<Tensor> { Ok(hide(mask, 0)?.to(&self.device)?) });
        let hidden = hidden.transpose()?;
        let source_mask = hidden.as_ref().map_or(Mask::None, Mask::Add);
        let (own, source) = (self.rope(m)?, self.rope(n)?);
        for block in &self.blocks {
            let normed = block.self_norm.forward(&x)?;
            let around = (&normed, Mask::None);
            x = block
                .self_attention
                .forward(&x, &normed, around, (&own, &own))?;
            let normed = block.source_norm.forward(&x)?;
            let around = (&states, source_mask);
            x = block
                .source_attention
                .forward(&x, &normed, around, (&own, &source))?;
            let normed = block.mlp_norm.forward(&x)?;
            let inner = block.mlp[0].forward_with(&normed, then(Act::Gelu))?;
            x = block.mlp[1].forward_with(&inner, plus(&x))?;
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
        Rope::new(&positions, &[head], 10000.0)?.to(&self.device)
    }
}
