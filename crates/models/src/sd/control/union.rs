//! What a control net for many kinds of hints has besides: it is told the kind, and looks at the hint with it in mind.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Linear, Mask, attention};
use fresco_tensor::{Axes, Device, Tensor};

use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk, WeightStore};
use crate::transformer::{Embedder, sinusoid};

/// Width of the waves that say whether a kind is meant.
const WAVES: usize = 256;
const HEADS: usize = 8;
const EPS: f32 = 1e-5;

pub(super) struct Union {
    kinds: usize,
    device: Device,
    /// A vector for each kind.
    tasks: Arc<Embedding>,
    norm1: Arc<LayerNorm>,
    qkv: Arc<Linear>,
    out: Arc<Linear>,
    norm2: Arc<LayerNorm>,
    inner: Arc<Linear>,
    outer: Arc<Linear>,
    spatial: Arc<Linear>,
    embedder: Embedder,
}

/// How many kinds of hints a net knows; none if it is for one.
pub(super) fn kinds(store: &WeightStore) -> Option<usize> {
    let rows = store.shape("task_embedding")?.first().copied()?;
    store
        .has("control_add_embedding.linear_1.bias")
        .then_some(rows)
}

impl Union {
    /// `width` is that of the net's first level.
    pub(super) fn new(weights: &Walk<'_>, kinds: usize, width: usize) -> Result<Self> {
        let layer = weights.at("transformer_layes").at(0);
        Ok(Self {
            kinds,
            device: weights.device().clone(),
            tasks: weights.rows("task_embedding", &[kinds, width])?,
            norm1: layer.layer_norm("ln_1", width, EPS)?,
            qkv: layer.linear("attn.in_proj", 3 * width, width)?,
            out: layer.linear("attn.out_proj", width, width)?,
            norm2: layer.layer_norm("ln_2", width, EPS)?,
            inner: layer.linear("mlp.c_fc", 4 * width, width)?,
            outer: layer.linear("mlp.c_proj", width, 4 * width)?,
            spatial: weights.linear("spatial_ch_projs", width, width)?,
            embedder: Embedder::new(
                &weights.at("control_add_embedding"),
                ["linear_1", "linear_2"],
                kinds * WAVES,
                4 * width,
                Bias::With,
            )?,
        })
    }

    fn check(&self, types: &[usize]) -> Result<()> {
        match types.iter().find(|kind| **kind >= self.kinds) {
            None => Ok(()),
            Some(kind) => {
                let known = self.kinds;
                let reason = format!("it knows {known} kinds of hints and none of number {kind}");
                Err(ModelError::invalid("control net", reason))
            }
        }
    }

    /// What is added to the embedding of the noise level: (1, 4 * width).
    pub(super) fn embedding(&self, types: &[usize]) -> Result<Tensor> {
        self.check(types)?;
        let meant = |kind: usize| f32::from(u8::from(types.contains(&kind)));
        let values: Vec<f32> = (0..self.kinds).map(meant).collect();
        let waves = sinusoid(&values, WAVES)?.reshape([1, self.kinds * WAVES])?;
        self.embedder.forward(&waves.to(&self.device)?)
    }

    /// What the net saw in a hint (b, h, w, c), with its first kind in mind.
    pub(super) fn fused(&self, seen: &Tensor, types: &[usize]) -> Result<Tensor> {
        self.check(types)?;
        let Some(&first) = types.first() else {
            return Ok(seen.clone());
        };
        let seen = seen.to(&Device::cpu())?;
        let [b, _, _, width] = seen.dims4()?;
        let task = self.tasks.lookup(&[first as u32])?;
        let token = seen.mean(&[1, 2], Axes::Drop)?.add(&task)?;
        let token = token.reshape([b, 1, width])?.to(&self.device)?;
        let qkv = self.qkv.forward(&self.norm1.forward(&token)?)?;
        let part = |i: usize| qkv.narrow(2, i * width, width);
        let heads = attention(&part(0)?, &part(1)?, &part(2)?, HEADS, Mask::None, None)?;
        let token = self.out.forward_with(&heads, plus(&token))?;
        let inner = self.norm2.forward(&token)?;
        let inner = self.inner.forward_with(&inner, then(Act::QuickGelu))?;
        let token = self.outer.forward_with(&inner, plus(&token))?;
        let more = self.spatial.forward(&token)?.to(&Device::cpu())?;
        Ok(seen.add(&more.reshape([b, 1, 1, width])?)?)
    }
}
