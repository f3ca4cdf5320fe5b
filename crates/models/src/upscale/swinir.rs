//! SwinIR (Liang et al. 2021): transformers over windows that move.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Conv2d, Embedding, LayerNorm, Linear};

use super::keys::UpscaleKeys;
use super::shuffle::pixel_unshuffle;
use super::tail::{Body, BodyKind, Tail, TailKind, centred, coloured};
use super::window::{
    Moved, Size, attend, bias_mask, pair_rows, picture, rolled, rolled_back, thirds, windows,
};
use super::{Edge, FoundKind, UpscaleFacts, UpscaleNetwork};
use crate::epilogue::{plus, then};
use crate::error::Result;
use crate::store::{Bias, Walk};

pub(super) const EPS: f32 = 1e-5;

/// A group of blocks: how many, and the heads of their attentions.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) blocks: usize,
    pub(super) heads: usize,
}

#[derive(Clone)]
struct Config {
    /// Channels after pixels became channels.
    input: usize,
    out: usize,
    width: usize,
    mlp: usize,
    window: usize,
    groups: Vec<Group>,
    qkv_bias: Bias,
    patch_norm: bool,
    group_body: BodyKind,
    body: BodyKind,
    tail: TailKind,
    unshuffle: usize,
    range: f32,
}

/// The side of a window, from the number of rows of its table of biases.
pub(super) fn window_side(rows: usize) -> usize {
    ((rows as f64).sqrt().round() as usize).div_ceil(2)
}

pub(super) fn find(keys: &UpscaleKeys) -> Result<Option<FoundKind>> {
    let block = "layers.0.residual_group.blocks.0";
    let table = format!("{block}.attn.relative_position_bias_table");
    let first = ["conv_first.weight", "conv_first.1.weight"];
    let Some(first) = first.into_iter().find(|name| keys.has(name)) else {
        return Ok(None);
    };
    if !keys.has(&format!("{block}.mlp.fc1.bias")) || !keys.has(&table) {
        return Ok(None);
    }
    if keys.has("absolute_pos_embed") {
        return Err(keys.refused("a SwinIR with a table of positions works at one size only"));
    }
    let shape = keys.shape(first, 4)?;
    let (width, input) = (shape[0], shape[1]);
    let unshuffle = if first == "conv_first.1.weight" {
        (((input / 3) as f64).sqrt().round() as usize).max(1)
    } else {
        1
    };
    let colours = input / (unshuffle * unshuffle);
    let out = if keys.has("conv_last.weight") {
        keys.shape("conv_last.weight", 4)?[0]
    } else {
        colours
    };
    let window = window_side(keys.shape(&table, 2)?[0]);
    let tail = TailKind::of(keys, out)?;
    let groups = (0..keys.count("layers")).map(|i| {
        let list = format!("layers.{i}.residual_group.blocks");
        let table = format!("{list}.0.attn.relative_position_bias_table");
        Ok(Group {
            blocks: keys.count(&list),
            heads: keys.shape(&table, 2)?[1],
        })
    });
    let config = Config {
        input,
        out,
        width,
        mlp: keys.shape(&format!("{block}.mlp.fc1.bias"), 1)?[0],
        window,
        groups: groups.collect::<Result<_>>()?,
        qkv_bias: Bias::of(keys.has(&format!("{block}.attn.qkv.bias"))),
        patch_norm: keys.has("patch_embed.norm.weight"),
        group_body: BodyKind::of(keys, "layers.0.conv"),
        body: BodyKind::of(keys, "conv_after_body"),
        unshuffle,
        // Those for JPEG have windows of 7, and no others.
        range: if window == 7 { 255.0 } else { 1.0 },
        tail,
    };
    let scale = config.tail.scale();
    if !scale.is_multiple_of(unshuffle) {
        return Err(keys.refused("it makes pictures smaller"));
    }
    let facts = UpscaleFacts {
        minimum: 16,
        multiple: unshuffle * unshuffle,
        edge: Edge::Mirror(window * unshuffle),
        ..UpscaleFacts::plain("SwinIR", scale / unshuffle, colours, out)
    };
    let store = keys.renamed(|name| Some(name.replace("conv_first.1.", "conv_first.")));
    let build = move |weights: &Walk<'_>| SwinIr::new(weights, &config);
    Ok(Some(FoundKind::new(facts, store, build)))
}

/// Attention in windows with its table of biases.
pub(super) struct WindowAttention {
    qkv: Arc<Linear>,
    table: Arc<Embedding>,
    proj: Arc<Linear>,
    heads: usize,
    window: usize,
}

impl WindowAttention {
    pub(super) fn new(
        weights: &Walk<'_>,
        width: usize,
        heads: usize,
        window: usize,
        qkv_bias: Bias,
    ) -> Result<Self> {
        let pairs = (2 * window - 1) * (2 * window - 1);
        Ok(Self {
            qkv: weights.linear_with("qkv", 3 * width, width, qkv_bias)?,
            table: weights.rows("relative_position_bias_table", &[pairs, heads])?,
            proj: weights.linear("proj", width, width)?,
            heads,
            window,
        })
    }

    /// Of a picture (b, h, w, c); `shift` moves its windows.
    pub(super) fn forward(&self, x: &Tensor, shift: usize) -> Result<Tensor> {
        let [_, h, w, _] = x.dims4()?;
        let size: Size = (self.window, self.window);
        let by = (shift, shift);
        let x = match shift {
            0 => x.clone(),
            _ => rolled(x, by)?,
        };
        let [q, k, v] = thirds(&self.qkv.forward(&windows(&x, size)?)?)?;
        let places = self.window * self.window;
        let bias = self.table.lookup_on(&pair_rows(size), &x.device())?;
        let bias = bias_mask(&bias, places, places)?;
        let moved = (shift > 0).then(|| Moved::new(size, by, (h, w)));
        let seen = attend([&q, &k, &v], self.heads, &bias, moved.as_ref())?;
        let seen = picture(&self.proj.forward(&seen)?, size, (h, w))?;
        match shift {
            0 => Ok(seen),
            _ => rolled_back(&seen, by),
        }
    }
}

/// Two layers with a GELU between.
pub(super) struct Mlp {
    fc1: Arc<Linear>,
    fc2: Arc<Linear>,
}

impl Mlp {
    pub(super) fn new(weights: &Walk<'_>, width: usize, inner: usize) -> Result<Self> {
        Ok(Self {
            fc1: weights.linear("fc1", inner, width)?,
            fc2: weights.linear("fc2", width, inner)?,
        })
    }

    /// `x` plus what the layers make of `normed`.
    pub(super) fn added(&self, x: &Tensor, normed: &Tensor) -> Result<Tensor> {
        let inner = self.fc1.forward_with(normed, then(Act::Gelu))?;
        Ok(self.fc2.forward_with(&inner, plus(x))?)
    }
}

struct Block {
    norm1: Arc<LayerNorm>,
    attn: WindowAttention,
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
        let seen = self.attn.forward(&self.norm1.forward(x)?, self.shift)?;
        let x = x.add(&seen)?;
        self.mlp.added(&x, &self.norm2.forward(&x)?)
    }
}

struct SwinIr {
    config: Config,
    first: Arc<Conv2d>,
    patch_norm: Option<Arc<LayerNorm>>,
    groups: Vec<(Vec<Block>, Body)>,
    norm: Arc<LayerNorm>,
    body: Body,
    tail: Tail,
}

impl SwinIr {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let width = config.width;
        let group = |(i, group): (usize, &Group)| {
            let weights = weights.at("layers").at(i);
            let inner = weights.at("residual_group").at("blocks");
            let block = |j: usize| Block::new(&inner.at(j), config, group.heads, j);
            let blocks = (0..group.blocks).map(block).collect::<Result<_>>()?;
            Ok((
                blocks,
                Body::new(&weights, "conv", config.group_body, width)?,
            ))
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
            tail: Tail::new(weights, &config.tail, width, config.out)?,
            config: config.clone(),
        })
    }
}

impl UpscaleNetwork for SwinIr {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let range = self.config.range;
        let x = centred(x, range)?;
        let cells = match self.config.unshuffle {
            1 => x.clone(),
            s => pixel_unshuffle(&x, s)?,
        };
        let first = self.first.forward(&cells)?;
        let mut h = match &self.patch_norm {
            Some(norm) => norm.forward(&first)?,
            None => first.clone(),
        };
        for (blocks, body) in &self.groups {
            let mut inner = h.clone();
            for block in blocks {
                fresco_tensor::cancel::check()?;
                inner = block.forward(&inner)?;
            }
            h = h.add(&body.forward(&inner)?)?;
        }
        let h = self.body.forward(&self.norm.forward(&h)?)?.add(&first)?;
        let mut out = self.tail.forward(h)?;
        if self.config.tail == TailKind::Same {
            out = out.add(&x)?;
        }
        coloured(&out, range)
    }
}
