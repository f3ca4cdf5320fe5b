//! HAT (Chen et al. 2023): window attention beside convolutions that weigh channels, and windows that overlap.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Conv2d, Embedding, LayerNorm, Linear, Mask, attention, sigmoid};

use super::keys::UpscaleKeys;
use super::swinir::{EPS, Group, Mlp, WindowAttention, window_side};
use super::tail::{Body, BodyKind, Tail, TailKind, centred, coloured};
use super::window::{bias_mask, channel_means, picture, thirds, windows, zeros_around};
use super::{Edge, FoundKind, UpscaleFacts, UpscaleNetwork};
use crate::epilogue::{plus, then};
use crate::error::Result;
use crate::store::{Bias, Walk};

/// How much of what the convolutions of a block found is added.
const SHARE: f32 = 0.01;

#[derive(Clone)]
struct Config {
    input: usize,
    width: usize,
    mlp: usize,
    window: usize,
    /// Side of a window with its overlap.
    wide: usize,
    compressed: usize,
    squeezed: usize,
    groups: Vec<Group>,
    qkv_bias: Bias,
    patch_norm: bool,
    body: BodyKind,
    tail: TailKind,
}

pub(super) fn find(keys: &UpscaleKeys) -> Result<Option<FoundKind>> {
    let group = "layers.0.residual_group";
    let block = format!("{group}.blocks.0");
    let cab = format!("{block}.conv_block.cab.0.weight");
    let overlap = format!("{group}.overlap_attn.relative_position_bias_table");
    if !keys.has(&cab) || !keys.has(&overlap) {
        return Ok(None);
    }
    if keys.has("absolute_pos_embed") {
        return Err(keys.refused("a HAT with a table of positions works at one size only"));
    }
    let shape = keys.shape("conv_first.weight", 4)?;
    let (width, input) = (shape[0], shape[1]);
    let table = format!("{block}.attn.relative_position_bias_table");
    let window = window_side(keys.shape(&table, 2)?[0]);
    // The table has a row for each distance: window + wide - 1 on a side.
    let side = (keys.shape(&overlap, 2)?[0] as f64).sqrt().round() as usize;
    let wide = (side + 1).saturating_sub(window).max(window);
    let squeeze = format!("{block}.conv_block.cab.3.attention.1.weight");
    let groups = (0..keys.count("layers")).map(|i| {
        let group = format!("layers.{i}.residual_group");
        let table = format!("{group}.overlap_attn.relative_position_bias_table");
        Ok(Group {
            blocks: keys.count(&format!("{group}.blocks")),
            heads: keys.shape(&table, 2)?[1],
        })
    });
    let config = Config {
        input,
        width,
        mlp: keys.shape(&format!("{block}.mlp.fc1.weight"), 2)?[0],
        window,
        wide,
        compressed: keys.shape(&cab, 4)?[0],
        squeezed: keys.shape(&squeeze, 4)?[0],
        groups: groups.collect::<Result<_>>()?,
        qkv_bias: Bias::of(keys.has(&format!("{block}.attn.qkv.bias"))),
        patch_norm: keys.has("patch_embed.norm.weight"),
        body: BodyKind::of(keys, "conv_after_body"),
        tail: TailKind::of(keys, input)?,
    };
    let facts = UpscaleFacts {
        minimum: 16,
        edge: Edge::Mirror(window),
        ..UpscaleFacts::plain("HAT", config.tail.scale(), input, input)
    };
    let build = move |weights: &Walk<'_>| Hat::new(weights, &config);
    Ok(Some(FoundKind::new(facts, keys.store(), build)))
}

/// Convolutions, and a weight for each channel from its mean.
struct ChannelBlock {
    into: Arc<Conv2d>,
    out: Arc<Conv2d>,
    squeeze: Arc<Linear>,
    excite: Arc<Linear>,
}

impl ChannelBlock {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let (width, inner, small) = (config.width, config.compressed, config.squeezed);
        Ok(Self {
            into: weights.conv("0", inner, width, 3, 1)?,
            out: weights.conv("2", width, inner, 3, 1)?,
            squeeze: weights.linear("3.attention.1", small, width)?,
            excite: weights.linear("3.attention.3", width, small)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.into.forward_with(x, then(Act::Gelu))?;
        let h = self.out.forward(&h)?;
        let small = self
            .squeeze
            .forward_with(&channel_means(&h)?, then(Act::Relu))?;
        Ok(h.mul(&sigmoid(&self.excite.forward(&small)?))?)
    }
}

struct Block {
    norm1: Arc<LayerNorm>,
    attn: WindowAttention,
    channels: ChannelBlock,
    norm2: Arc<LayerNorm>,
    mlp: Mlp,
    shift: usize,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &Config, heads: usize, number: usize) -> Result<Self> {
        let (width, window) = (config.width, config.window);
        let attn = weights.at("attn");
        Ok(Self {
            norm1: weights.layer_norm("norm1", width, EPS)?,
            attn: WindowAttention::new(&attn, width, heads, window, config.qkv_bias)?,
            channels: ChannelBlock::new(&weights.at("conv_block").at("cab"), config)?,
            norm2: weights.layer_norm("norm2", width, EPS)?,
            mlp: Mlp::new(&weights.at("mlp"), width, config.mlp)?,
            shift: if number.is_multiple_of(2) {
                0
            } else {
                window / 2
            },
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = self.norm1.forward(x)?;
        let found = self.channels.forward(&normed)?.mul_scalar(SHARE);
        let seen = self.attn.forward(&normed, self.shift)?;
        let x = x.add(&seen)?.add(&found)?;
        self.mlp.added(&x, &self.norm2.forward(&x)?)
    }
}

/// Attention of windows to wider ones around them.
struct Overlap {
    norm1: Arc<LayerNorm>,
    qkv: Arc<Linear>,
    table: Arc<Embedding>,
    proj: Arc<Linear>,
    norm2: Arc<LayerNorm>,
    mlp: Mlp,
    heads: usize,
    window: usize,
    wide: usize,
}

impl Overlap {
    fn new(weights: &Walk<'_>, config: &Config, heads: usize) -> Result<Self> {
        let width = config.width;
        let side = config.window + config.wide - 1;
        Ok(Self {
            norm1: weights.layer_norm("norm1", width, EPS)?,
            qkv: weights.linear_with("qkv", 3 * width, width, config.qkv_bias)?,
            table: weights.rows("relative_position_bias_table", &[side * side, heads])?,
            proj: weights.linear("proj", width, width)?,
            norm2: weights.layer_norm("norm2", width, EPS)?,
            mlp: Mlp::new(&weights.at("mlp"), width, config.mlp)?,
            heads,
            window: config.window,
            wide: config.wide,
        })
    }

    /// For each place of a window and each of the wider one, the row of the table. Distances below zero count from the
    /// table's end, as they do in the network's training.
    fn rows(&self) -> Vec<u32> {
        let (own, wide) = (self.window as i64, self.wide as i64);
        let side = own + wide - 1;
        let shift = own - wide + 1;
        let mut rows = Vec::with_capacity((own * own * wide * wide) as usize);
        for i in 0..own * own {
            for j in 0..wide * wide {
                let dy = j / wide - i / own + shift;
                let dx = j % wide - i % own + shift;
                rows.push((dy * side + dx).rem_euclid(side * side) as u32);
            }
        }
        rows
    }

    /// Windows with what is around them.
    fn wide_windows(&self, x: &Tensor) -> Result<Tensor> {
        let [_, h, w, _] = x.dims4()?;
        let around = (self.wide - self.window) / 2;
        let more = self.wide - self.window - around;
        let framed = zeros_around(x, [around, more, around, more])?;
        let places = |len: usize| -> Vec<usize> {
            let starts = (0..len / self.window).map(|i| i * self.window);
            starts.flat_map(|start| start..start + self.wide).collect()
        };
        let all = framed
            .index_select(1, &places(h))?
            .index_select(2, &places(w))?;
        windows(&all, (self.wide, self.wide))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [_, h, w, _] = x.dims4()?;
        let size = (self.window, self.window);
        let [q, k, v] = thirds(&self.qkv.forward(&self.norm1.forward(x)?)?)?;
        let (q, k, v) = (
            windows(&q, size)?,
            self.wide_windows(&k)?,
            self.wide_windows(&v)?,
        );
        let bias = self.table.lookup_on(&self.rows(), &x.device())?;
        let (queries, keys) = (self.window * self.window, self.wide * self.wide);
        let bias = bias_mask(&bias, queries, keys)?;
        let seen = attention(&q, &k, &v, self.heads, Mask::Add(&bias), None)?;
        let seen = picture(&seen, size, (h, w))?;
        let x = self.proj.forward_with(&seen, plus(x))?;
        self.mlp.added(&x, &self.norm2.forward(&x)?)
    }
}

struct HatGroup {
    blocks: Vec<Block>,
    overlap: Overlap,
    body: Body,
}

struct Hat {
    first: Arc<Conv2d>,
    patch_norm: Option<Arc<LayerNorm>>,
    groups: Vec<HatGroup>,
    norm: Arc<LayerNorm>,
    body: Body,
    tail: Tail,
}

impl Hat {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let width = config.width;
        let group = |(i, group): (usize, &Group)| {
            let weights = weights.at("layers").at(i);
            let inner = weights.at("residual_group");
            let blocks = inner.at("blocks");
            let block = |j: usize| Block::new(&blocks.at(j), config, group.heads, j);
            Ok(HatGroup {
                blocks: (0..group.blocks).map(block).collect::<Result<_>>()?,
                overlap: Overlap::new(&inner.at("overlap_attn"), config, group.heads)?,
                body: Body::new(&weights, "conv", config.body, width)?,
            })
        };
        Ok(Self {
            first: weights.conv("conv_first", width, config.input, 3, 1)?,
            patch_norm: config
                .patch_norm
                .then(|| weights.layer_norm("patch_embed.norm", width, EPS))
                .transpose()?,
            groups: config
                .groups
                .iter()
                .enumerate()
                .map(group)
                .collect::<Result<_>>()?,
            norm: weights.layer_norm("norm", width, EPS)?,
            body: Body::new(weights, "conv_after_body", config.body, width)?,
            tail: Tail::new(weights, &config.tail, width, config.input)?,
        })
    }
}

impl UpscaleNetwork for Hat {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let first = self.first.forward(&centred(x, 1.0)?)?;
        let mut h = match &self.patch_norm {
            Some(norm) => norm.forward(&first)?,
            None => first.clone(),
        };
        for group in &self.groups {
            let mut inner = h.clone();
            for block in &group.blocks {
                fresco_tensor::cancel::check()?;
                inner = block.forward(&inner)?;
            }
            inner = group.overlap.forward(&inner)?;
            h = h.add(&group.body.forward(&inner)?)?;
        }
        let h = self.body.forward(&self.norm.forward(&h)?)?.add(&first)?;
        coloured(&self.tail.forward(h)?, 1.0)
    }
}
