//! OmniSR (Wang et al. 2023): attention among places and channels, in windows and over the whole picture in strides.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Conv2d, Embedding, LayerNorm, Linear, Mask, Padding, Value, attention, channel_attention,
    depthwise, gelu, sigmoid,
};
use fresco_tensor::{Buffer, Crop, ResizeMethod, Tensor, common_upscale};

use super::keys::{UpscaleKeys, spread};
use super::made::taps;
use super::shuffle::pixel_shuffle;
use super::window::{bias_mask, channel_means, home, pair_rows, thirds};
use super::{Edge, FoundKind, UpscaleFacts, UpscaleNetwork};
use crate::epilogue::{plus, then};
use crate::error::Result;
use crate::store::{Bias, Kernel, Walk};

/// Heads of all attentions.
const HEADS: usize = 4;

#[derive(Clone, Copy)]
struct Config {
    input: usize,
    width: usize,
    window: usize,
    groups: usize,
    blocks: usize,
    total: usize,
    scale: usize,
    /// Channels inside of what weighs places at the end of a group.
    small: usize,
    squeezed: usize,
    places: bool,
    bias: bool,
}

const BLOCK: &str = "residual_layer.0.residual_layer.0.layer";

pub(super) fn find(keys: &UpscaleKeys) -> Result<Option<FoundKind>> {
    let signs = [
        format!("{BLOCK}.0.fn.0.weight"),
        "input.weight".to_owned(),
        "up.0.weight".to_owned(),
    ];
    if !signs.iter().all(|name| keys.has(name)) {
        return Ok(None);
    }
    let shape = keys.shape("input.weight", 4)?;
    let (width, input) = (shape[0], shape[1]);
    let total = keys.shape("up.0.weight", 4)?[0];
    let (scale, out) = spread(keys, total, input)?;
    let table = format!("{BLOCK}.2.fn.rel_pos_bias.weight");
    let places = keys.has(&table);
    let window = if places {
        ((keys.shape(&table, 2)?[0] as f64).sqrt().round() as usize).div_ceil(2)
    } else {
        8
    };
    let config = Config {
        input,
        width,
        window,
        groups: keys.count("residual_layer"),
        blocks: keys
            .count("residual_layer.0.residual_layer")
            .saturating_sub(1),
        total,
        scale,
        small: keys.shape("residual_layer.0.esa.conv1.weight", 4)?[0],
        squeezed: keys.shape(&format!("{BLOCK}.0.fn.4.gate.1.weight"), 2)?[0],
        places,
        bias: keys.has("input.bias"),
    };
    let mut recipes = Vec::new();
    for group in 0..config.groups {
        for block in 0..config.blocks {
            let layer = format!("residual_layer.{group}.residual_layer.{block}.layer");
            recipes.push(taps(keys, &format!("{layer}.0.fn.2"), None, (width, 3)));
            for i in [4, 6, 10, 12] {
                let name = format!("{layer}.{i}.fn.dwconv");
                recipes.push(taps(keys, &name, None, (2 * width, 3)));
            }
            for i in [5, 11] {
                let name = format!("{layer}.{i}.fn.qkv_dwconv");
                recipes.push(taps(keys, &name, None, (3 * width, 3)));
            }
        }
    }
    let kept = |name: &str| {
        let counted = name.ends_with("total_ops") || name.ends_with("total_params");
        (!counted).then(|| name.to_owned())
    };
    let store = keys.made(kept, recipes);
    let facts = UpscaleFacts {
        minimum: 16,
        edge: Edge::Zeros(window),
        ..UpscaleFacts::plain("OmniSR", scale, input, out)
    };
    let build = move |weights: &Walk<'_>| OmniSr::new(weights, &config);
    Ok(Some(FoundKind::new(facts, store, build)))
}

/// Which places belong together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Neighbours.
    Block,
    /// Those at equal distances over the whole picture.
    Grid,
}

impl Layout {
    /// (b, h, w, c) as groups of `side` by `side` places: (b * groups, side * side, c).
    fn groups(self, x: &Tensor, side: usize) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let (rows, columns) = (h / side, w / side);
        let cells = match self {
            Self::Block => x
                .reshape([b, rows, side, columns, side, c])?
                .permute(&[0, 1, 3, 2, 4, 5])?,
            Self::Grid => x
                .reshape([b, side, rows, side, columns, c])?
                .permute(&[0, 2, 4, 1, 3, 5])?,
        };
        Ok(cells.reshape([b * rows * columns, side * side, c])?)
    }

    /// The opposite.
    fn whole(self, x: &Tensor, side: usize, (h, w): (usize, usize)) -> Result<Tensor> {
        let [count, _, c] = x.dims3()?;
        let (rows, columns) = (h / side, w / side);
        let b = count / (rows * columns).max(1);
        let cells = x.reshape([b, rows, columns, side, side, c])?;
        let cells = match self {
            Self::Block => cells.permute(&[0, 1, 3, 2, 4, 5])?,
            Self::Grid => cells.permute(&[0, 3, 1, 4, 2, 5])?,
        };
        Ok(cells.reshape([b, h, w, c])?)
    }
}

/// A kernel for each channel.
struct Depthwise(Arc<Embedding>);

impl Depthwise {
    fn new(weights: &Walk<'_>, name: &str, channels: usize) -> Result<Self> {
        Ok(Self(
            weights.rows(&format!("{name}.taps"), &[10, channels])?,
        ))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let rows: Vec<u32> = (0..10).collect();
        let table = self.0.lookup_on(&rows, &x.device())?;
        let (taps, bias) = (table.narrow(0, 0, 9)?, table.narrow(0, 9, 1)?);
        Ok(depthwise(x, &taps, Some(&bias))?)
    }
}

/// A convolution block that weighs its channels.
struct Mixer {
    into: Arc<Linear>,
    conv: Depthwise,
    squeeze: Arc<Linear>,
    excite: Arc<Linear>,
    out: Arc<Linear>,
}

impl Mixer {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let (width, small) = (config.width, config.squeezed);
        Ok(Self {
            into: weights.linear("0", width, width)?,
            conv: Depthwise::new(weights, "2", width)?,
            squeeze: weights.matrix("4.gate.1", small, width)?,
            excite: weights.matrix("4.gate.3", width, small)?,
            out: weights.linear("5", width, width)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.into.forward_with(x, then(Act::Gelu))?;
        let h = gelu(&self.conv.forward(&h)?);
        let gate = self
            .squeeze
            .forward_with(&channel_means(&h)?, then(Act::Silu))?;
        let h = h.mul(&sigmoid(&self.excite.forward(&gate)?))?;
        Ok(self.out.forward_with(&h, plus(x))?)
    }
}

/// Attention among the places of a group.
struct PlaceAttention {
    norm: Arc<LayerNorm>,
    qkv: Arc<Linear>,
    out: Arc<Linear>,
    table: Option<Arc<Embedding>>,
    layout: Layout,
    window: usize,
}

impl PlaceAttention {
    fn new(weights: &Walk<'_>, config: &Config, layout: Layout) -> Result<Self> {
        let (width, window) = (config.width, config.window);
        let pairs = (2 * window - 1) * (2 * window - 1);
        let inner = weights.at("fn");
        Ok(Self {
            norm: weights.layer_norm("norm", width, 1e-5)?,
            qkv: inner.matrix("to_qkv", 3 * width, width)?,
            out: inner.matrix("to_out.0", width, width)?,
            table: config
                .places
                .then(|| inner.embedding("rel_pos_bias", pairs, HEADS))
                .transpose()?,
            layout,
            window,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [_, h, w, _] = x.dims4()?;
        let groups = self.layout.groups(&self.norm.forward(x)?, self.window)?;
        let [q, k, v] = thirds(&self.qkv.forward(&groups)?)?;
        let places = self.window * self.window;
        let bias = match &self.table {
            Some(table) => {
                let rows = pair_rows((self.window, self.window));
                let rows = table.lookup_on(&rows, &x.device())?;
                Some(bias_mask(&rows, places, places)?)
            }
            None => None,
        };
        let mask = bias.as_ref().map_or(Mask::None, Mask::Add);
        let seen = attention(&q, &k, &v, HEADS, mask, None)?;
        let seen = self.out.forward(&seen)?;
        Ok(self.layout.whole(&seen, self.window, (h, w))?.add(x)?)
    }
}

/// Attention among channels, over the places of a group.
struct ChannelAttention {
    norm: Arc<LayerNorm>,
    qkv: Arc<Linear>,
    conv: Depthwise,
    factors: Arc<Value>,
    out: Arc<Linear>,
    layout: Layout,
    window: usize,
}

impl ChannelAttention {
    fn new(weights: &Walk<'_>, config: &Config, layout: Layout) -> Result<Self> {
        let width = config.width;
        let inner = weights.at("fn");
        Ok(Self {
            norm: weights.layer_norm("norm", width, 1e-6)?,
            qkv: inner.matrix("qkv", 3 * width, width)?,
            conv: Depthwise::new(&inner, "qkv_dwconv", 3 * width)?,
            factors: inner.value("temperature", &[HEADS, 1, 1])?,
            out: inner.matrix("project_out", width, width)?,
            layout,
            window: config.window,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let qkv = self
            .conv
            .forward(&self.qkv.forward(&self.norm.forward(x)?)?)?;
        let side = self.window;
        let [q, k, v] = thirds(&qkv)?;
        // Of a grid, the places at the same offset in all windows are one group.
        let cut = |x: &Tensor| -> Result<Tensor> {
            match self.layout {
                Layout::Block => Layout::Block.groups(x, side),
                Layout::Grid => offsets(x, side),
            }
        };
        let factors = self.factors.at(&x.device())?;
        let seen = channel_attention(&cut(&q)?, &cut(&k)?, &cut(&v)?, HEADS, &factors)?;
        let seen = match self.layout {
            Layout::Block => Layout::Block.whole(&seen, side, (h, w))?,
            Layout::Grid => {
                let (rows, columns) = (h / side, w / side);
                seen.reshape([b, side, side, rows, columns, c])?
                    .permute(&[0, 3, 1, 4, 2, 5])?
                    .reshape([b, h, w, c])?
            }
        };
        Ok(self.out.forward_with(&seen, plus(x))?)
    }
}

/// (b, h, w, c) as (b * side * side, windows, c).
fn offsets(x: &Tensor, side: usize) -> Result<Tensor> {
    let [b, h, w, c] = x.dims4()?;
    let (rows, columns) = (h / side, w / side);
    let cells = x.reshape([b, rows, side, columns, side, c])?;
    let cells = cells.permute(&[0, 2, 4, 1, 3, 5])?;
    Ok(cells.reshape([b * side * side, rows * columns, c])?)
}

/// Gated layers with a convolution between.
struct Gated {
    norm: Arc<LayerNorm>,
    into: Arc<Linear>,
    conv: Depthwise,
    out: Arc<Linear>,
}

impl Gated {
    fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        let inner = weights.at("fn");
        Ok(Self {
            norm: weights.layer_norm("norm", width, 1e-6)?,
            into: inner.matrix("project_in", 2 * width, width)?,
            conv: Depthwise::new(&inner, "dwconv", 2 * width)?,
            out: inner.matrix("project_out", width, width)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self
            .conv
            .forward(&self.into.forward(&self.norm.forward(x)?)?)?;
        let half = h.dim(3)? / 2;
        let (gate, value) = (h.narrow(3, 0, half)?, h.narrow(3, half, half)?);
        Ok(self.out.forward_with(&gelu(&gate).mul(&value)?, plus(x))?)
    }
}

struct Block {
    mixer: Mixer,
    /// Neighbours first, then the grid.
    halves: Vec<(PlaceAttention, Gated, ChannelAttention, Gated)>,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let layer = |i: usize| weights.at("layer").at(i);
        let half = |(first, layout): (usize, Layout)| {
            Ok((
                PlaceAttention::new(&layer(first), config, layout)?,
                Gated::new(&layer(first + 2), config.width)?,
                ChannelAttention::new(&layer(first + 3), config, layout)?,
                Gated::new(&layer(first + 4), config.width)?,
            ))
        };
        let halves = [(2, Layout::Block), (8, Layout::Grid)];
        Ok(Self {
            mixer: Mixer::new(&layer(0).at("fn"), config)?,
            halves: halves.into_iter().map(half).collect::<Result<_>>()?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.mixer.forward(x)?;
        for (places, gate, channels, last) in &self.halves {
            fresco_tensor::cancel::check()?;
            x = gate.forward(&places.forward(&x)?)?;
            x = last.forward(&channels.forward(&x)?)?;
        }
        Ok(x)
    }
}

/// Weighs places by what is around them, seen from afar.
struct Weigher {
    conv1: Arc<Linear>,
    beside: Arc<Linear>,
    conv2: Arc<Conv2d>,
    conv3: Arc<Conv2d>,
    conv4: Arc<Linear>,
}

impl Weigher {
    fn new(weights: &Walk<'_>, width: usize, small: usize) -> Result<Self> {
        let kernel = Kernel {
            out: small,
            input: small,
            side: 3,
            bias: true,
        };
        Ok(Self {
            conv1: weights.linear("conv1", small, width)?,
            beside: weights.linear("conv_f", small, small)?,
            conv2: weights.conv_with("conv2", kernel, 2, Padding::Same(0))?,
            conv3: weights.conv("conv3", small, small, 3, 1)?,
            conv4: weights.linear("conv4", width, small)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [_, h, w, _] = x.dims4()?;
        let near = self.conv1.forward(x)?;
        let far = home(&self.conv2.forward(&near)?)?;
        let far = largest(&far)?.to(&x.device())?;
        let far = home(&self.conv3.forward(&far)?)?.nhwc_to_nchw()?;
        let far = common_upscale(&far, w, h, ResizeMethod::Bilinear, Crop::Disabled)?;
        let far = far.nchw_to_nhwc()?.to(&x.device())?;
        let joined = self.beside.forward_with(&near, plus(&far))?;
        Ok(x.mul(&sigmoid(&self.conv4.forward(&joined)?))?)
    }
}

/// The largest values of windows of 7 by 7, three apart: (b, h, w, c) in main memory.
fn largest(x: &Tensor) -> Result<Tensor> {
    const SIDE: usize = 7;
    const STRIDE: usize = 3;
    let [b, h, w, c] = x.dims4()?;
    let count = |len: usize| len.checked_sub(SIDE).map_or(1, |n| n / STRIDE + 1);
    let (rows, columns) = (count(h), count(w));
    let values = x.data();
    let mut out = Buffer::filled(b * rows * columns * c, f32::NEG_INFINITY)?;
    for (place, to) in out.chunks_exact_mut(c).enumerate() {
        let (item, row, column) = (
            place / (rows * columns),
            place / columns % rows * STRIDE,
            place % columns * STRIDE,
        );
        for y in row..(row + SIDE).min(h) {
            for x in column..(column + SIDE).min(w) {
                let from = &values[((item * h + y) * w + x) * c..][..c];
                for (to, from) in to.iter_mut().zip(from) {
                    *to = to.max(*from);
                }
            }
        }
    }
    Ok(Tensor::from_buffer([b, rows, columns, c], out)?)
}

struct OmniGroup {
    blocks: Vec<Block>,
    last: Arc<Linear>,
    weigher: Weigher,
}

struct OmniSr {
    input: Arc<Conv2d>,
    groups: Vec<OmniGroup>,
    output: Arc<Conv2d>,
    up: Arc<Conv2d>,
    scale: usize,
}

impl OmniSr {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let (width, bias) = (config.width, config.bias);
        let conv = |name: &str, out: usize, input: usize| {
            let kernel = Kernel {
                out,
                input,
                side: 3,
                bias,
            };
            weights.conv_with(name, kernel, 1, Padding::Same(1))
        };
        let group = |i: usize| {
            let weights = weights.at("residual_layer").at(i);
            let inner = weights.at("residual_layer");
            let block = |j: usize| Block::new(&inner.at(j), config);
            Ok(OmniGroup {
                blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
                last: inner.linear_with(
                    &config.blocks.to_string(),
                    width,
                    width,
                    Bias::of(bias),
                )?,
                weigher: Weigher::new(&weights.at("esa"), width, config.small)?,
            })
        };
        Ok(Self {
            input: conv("input", width, config.input)?,
            groups: (0..config.groups).map(group).collect::<Result<_>>()?,
            output: conv("output", width, width)?,
            up: conv("up.0", config.total, width)?,
            scale: config.scale,
        })
    }
}

impl UpscaleNetwork for OmniSr {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let first = self.input.forward(x)?;
        let mut h = first.clone();
        for group in &self.groups {
            let mut inner = h.clone();
            for block in &group.blocks {
                inner = block.forward(&inner)?;
            }
            inner = group.last.forward_with(&inner, plus(&h))?;
            h = group.weigher.forward(&inner)?;
        }
        let h = self.output.forward_with(&h, plus(&first))?;
        pixel_shuffle(&self.up.forward(&h)?, self.scale)
    }
}
