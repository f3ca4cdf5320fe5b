//! The style adapter of T2I adapters: a small transformer that reads a picture's features and gives tokens of a prompt.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, Value, attention};
use fresco_tensor::{Device, Tensor};

use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::style::{StyleKind, StyleNetwork};

const EPS: f32 = 1e-5;
/// Of the published adapter.
const HEADS: usize = 8;

/// How its files are recognised.
pub const KIND: StyleKind = StyleKind {
    key: "style_embedding",
    build: |store| Ok(Box::new(StyleAdapter::new(store, HEADS)?)),
};

struct Block {
    norm_1: Arc<LayerNorm>,
    qkv: (Arc<Value>, Arc<Value>),
    out: Arc<Linear>,
    norm_2: Arc<LayerNorm>,
    first: Arc<Linear>,
    second: Arc<Linear>,
}

impl Block {
    fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        let attn = weights.at("attn");
        Ok(Self {
            norm_1: weights.layer_norm("ln_1", width, EPS)?,
            qkv: (
                attn.value("in_proj_weight", &[3 * width, width])?,
                attn.value("in_proj_bias", &[3 * width])?,
            ),
            out: attn.linear("out_proj", width, width)?,
            norm_2: weights.layer_norm("ln_2", width, EPS)?,
            first: weights.linear("mlp.c_fc", 4 * width, width)?,
            second: weights.linear("mlp.c_proj", width, 4 * width)?,
        })
    }

    fn forward(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let device = x.device();
        let width = x.dim(2)?;
        let inner = self.norm_1.forward(x)?;
        // One tensor for all three, under a name that no layer has; the adapter runs once for a picture.
        let weight = fresco_tensor::Stored::from(&self.qkv.0.at(&device)?.to(&Device::cpu())?);
        let bias = fresco_tensor::Stored::from(&self.qkv.1.at(&device)?.to(&Device::cpu())?);
        let all = Linear::new(&weight, Some(&bias), &device)?.forward(&inner)?;
        let part = |n: usize| all.narrow(2, n * width, width);
        let seen = attention(&part(0)?, &part(1)?, &part(2)?, heads, Mask::None, None)?;
        let x = self.out.forward_with(&seen, plus(x))?;
        let inner = self.norm_2.forward(&x)?;
        let inner = self.first.forward_with(&inner, then(Act::QuickGelu))?;
        Ok(self.second.forward_with(&inner, plus(&x))?)
    }
}

/// See the [module](self).
pub struct StyleAdapter {
    device: Device,
    heads: usize,
    tokens: Arc<Value>,
    count: usize,
    pre: Arc<LayerNorm>,
    blocks: Vec<Block>,
    post: Arc<LayerNorm>,
    proj: Arc<Value>,
    width: usize,
}

impl StyleAdapter {
    /// With so many heads in each attention.
    pub fn new(store: &WeightStore, heads: usize) -> Result<Self> {
        let unknown = |key: &str| ModelError::Missing {
            file: store.file().to_owned(),
            key: key.to_owned(),
        };
        let Some(&[_, count, width]) = store.shape("style_embedding") else {
            return Err(unknown("style_embedding"));
        };
        let Some(&[_, out]) = store.shape("proj") else {
            return Err(unknown("proj"));
        };
        let numbers = store.keys().into_iter().filter_map(|key| {
            let rest = key.strip_prefix("transformer_layes.")?;
            rest.split('.').next()?.parse::<usize>().ok()
        });
        let layers = numbers.max().map_or(0, |last| last.saturating_add(1));
        if layers > 64 || heads == 0 || !width.is_multiple_of(heads) {
            let reason = format!("{layers} layers of width {width} are no style adapter");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        store.build("the style adapter", |weights| {
            let layer = weights.at("transformer_layes");
            Ok(Self {
                device: weights.device().clone(),
                heads,
                tokens: weights.value("style_embedding", &[1, count, width])?,
                count,
                pre: weights.layer_norm("ln_pre", width, EPS)?,
                blocks: (0..layers)
                    .map(|n| Block::new(&layer.at(n), width))
                    .collect::<Result<_>>()?,
                post: weights.layer_norm("ln_post", width, EPS)?,
                proj: weights.value("proj", &[width, out])?,
                width,
            })
        })
    }
}

impl StyleNetwork for StyleAdapter {
    fn tokens(&self, seen: &Tensor) -> Result<Tensor> {
        let [b, count, width] = seen.dims3()?;
        if width != self.width {
            let reason = format!(
                "it takes {} values for each part of a picture, not {width}",
                self.width
            );
            return Err(ModelError::invalid("style adapter", reason));
        }
        let device = &self.device;
        let own = self.tokens.at(device)?;
        let own = own.expand(&[b, self.count, width])?;
        let mut x = Tensor::cat(&[&seen.to(device)?, &own], 1)?;
        x = self.pre.forward(&x)?;
        for block in &self.blocks {
            x = block.forward(&x, self.heads)?;
        }
        let last = self.post.forward(&x.narrow(1, count, self.count)?)?;
        // Stored the other way round than a layer's weight.
        let proj = self.proj.at(device)?.to(&Device::cpu())?.transpose(0, 1)?;
        let proj = Linear::new(&fresco_tensor::Stored::from(&proj), None, device)?;
        Ok(proj.forward(&last)?.to(&Device::cpu())?)
    }
}
