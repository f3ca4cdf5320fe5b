//! DAT (Chen et al. 2023): attention among places and attention among channels, in turn.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Conv2d, Embedding, LayerNorm, Linear, Value, activate, channel_attention, depthwise, gelu,
    sigmoid,
};
use fresco_tensor::{Device, Tensor};

use super::keys::UpscaleKeys;
use super::made::{taps, with_norm};
use super::swinir::EPS;
use super::tail::{Body, BodyKind, Tail, TailKind, centred, coloured};
use super::window::{
    Moved, Size, attend, bias_mask, channel_means, pair_rows, picture, rolled, rolled_back, thirds,
    windows, zeros_around,
};
use super::{FoundKind, UpscaleFacts, UpscaleNetwork};
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk};

#[derive(Clone)]
struct Config {
    input: usize,
    width: usize,
    /// Width inside of what follows an attention.
    inner: usize,
    /// Height and width of the windows of the first half of the channels; the second half has them the other way.
    split: Size,
    /// For each group its number of blocks and of heads.
    groups: Vec<(usize, usize)>,
    qkv_bias: Bias,
    body: BodyKind,
    tail: TailKind,
}

/// The sides of windows, which are nowhere but in a table of distances.
fn split(keys: &UpscaleKeys) -> Result<Size> {
    let name = "layers.0.blocks.0.attn.attns.0.rpe_biases";
    keys.shape(name, 2)?;
    let table = keys.file.read(&keys.whole(name))?.to_f32()?;
    let &[.., height, width] = table.data() else {
        return Err(keys.refused(format!("{name} is empty")));
    };
    let side = |largest: f32| {
        let side = largest.round() + 1.0;
        (1.0..=1024.0).contains(&side).then_some(side as usize)
    };
    side(height)
        .zip(side(width))
        .ok_or_else(|| keys.refused(format!("{name} is not a table of distances")))
}

pub(super) fn find(keys: &UpscaleKeys) -> Result<Option<FoundKind>> {
    let block = "layers.0.blocks.0";
    let signs = [
        "conv_first.weight".to_owned(),
        "before_RG.1.weight".to_owned(),
        format!("{block}.ffn.sg.norm.weight"),
        format!("{block}.attn.attns.0.pos.pos_proj.weight"),
    ];
    if !signs.iter().all(|name| keys.has(name)) {
        return Ok(None);
    }
    let shape = keys.shape("conv_first.weight", 4)?;
    let (width, input) = (shape[0], shape[1]);
    let mut groups = Vec::new();
    for i in 0..keys.count("layers") {
        let blocks = keys.count(&format!("layers.{i}.blocks"));
        let temperature = format!("layers.{i}.blocks.1.attn.temperature");
        let heads = if keys.has(&temperature) {
            keys.shape(&temperature, 3)?[0]
        } else {
            let last = format!("layers.{i}.blocks.0.attn.attns.0.pos.pos3.2.weight");
            2 * keys.shape(&last, 2)?[0]
        };
        groups.push((blocks, heads));
    }
    let config = Config {
        input,
        width,
        inner: keys.shape(&format!("{block}.ffn.fc1.weight"), 2)?[0],
        split: split(keys)?,
        groups,
        qkv_bias: Bias::of(keys.has(&format!("{block}.attn.qkv.bias"))),
        body: BodyKind::of(keys, "conv_after_body"),
        tail: TailKind::of(keys, input)?,
    };
    let mut recipes = Vec::new();
    for (i, (blocks, _)) in config.groups.iter().enumerate() {
        for j in 0..*blocks {
            let block = format!("layers.{i}.blocks.{j}");
            let attn = format!("{block}.attn");
            let gate = config.inner / 2;
            recipes.push(taps(keys, &format!("{block}.ffn.sg.conv"), None, (gate, 3)));
            let norm = format!("{attn}.dwconv.1");
            recipes.push(taps(
                keys,
                &format!("{attn}.dwconv.0"),
                Some(&norm),
                (width, 3),
            ));
            for (layer, norm, out) in [
                ("channel_interaction.1", "channel_interaction.2", width / 8),
                ("spatial_interaction.0", "spatial_interaction.1", width / 16),
            ] {
                let (layer, norm) = (format!("{attn}.{layer}"), format!("{attn}.{norm}"));
                let shape = vec![out, width, 1, 1];
                recipes.extend(with_norm(keys, &layer, &norm, shape));
            }
        }
    }
    let store = keys.made(|name| Some(name.to_owned()), recipes);
    let facts = UpscaleFacts {
        minimum: 16,
        ..UpscaleFacts::plain("DAT", config.tail.scale(), input, input)
    };
    let build = move |weights: &Walk<'_>| Dat::new(weights, &config);
    Ok(Some(FoundKind::new(facts, store, build)))
}

/// A kernel for each channel, with a bias.
struct Depthwise(Arc<Embedding>);

impl Depthwise {
    fn new(weights: &Walk<'_>, name: &str, channels: usize) -> Result<Self> {
        let table = weights.rows(&format!("{name}.taps"), &[10, channels])?;
        Ok(Self(table))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let rows: Vec<u32> = (0..10).collect();
        let table = self.0.lookup_on(&rows, &x.device())?;
        let (taps, bias) = (table.narrow(0, 0, 9)?, table.narrow(0, 9, 1)?);
        Ok(depthwise(x, &taps, Some(&bias))?)
    }
}

/// Biases for pairs of places, from their distance by a small network.
struct PlaceBias {
    /// None in networks so narrow that it has no channels: then all pairs are alike.
    into: Option<Arc<Linear>>,
    layers: Vec<(Arc<LayerNorm>, Arc<Linear>)>,
}

impl PlaceBias {
    fn new(weights: &Walk<'_>, width: usize, heads: usize) -> Result<Self> {
        let layer = |name: &str, out: usize| {
            let weights = weights.at(name);
            Ok::<_, ModelError>((
                weights.layer_norm("0", width, EPS)?,
                weights.linear("2", out, width)?,
            ))
        };
        if width == 0 {
            return Ok(Self {
                into: None,
                layers: Vec::new(),
            });
        }
        Ok(Self {
            into: Some(weights.linear("pos_proj", width, 2)?),
            layers: vec![
                layer("pos1", width)?,
                layer("pos2", width)?,
                layer("pos3", heads)?,
            ],
        })
    }

    /// For windows of a size: (1, heads, places, places).
    fn mask(&self, (wh, ww): Size, device: &Device) -> Result<Tensor> {
        let Some(into) = &self.into else {
            return Ok(Tensor::zeros_on(device, [1, 1, 1, wh * ww])?);
        };
        let (rows, columns) = (2 * wh - 1, 2 * ww - 1);
        let distances = Tensor::from_fn([rows * columns, 2], |i| {
            let (row, column) = (i / 2 / columns, i / 2 % columns);
            match i % 2 {
                0 => row as f32 + 1.0 - wh as f32,
                _ => column as f32 + 1.0 - ww as f32,
            }
        })?;
        let mut x = into.forward(&distances.to(device)?)?;
        for (norm, layer) in &self.layers {
            x = layer.forward(&activate(norm.forward(&x)?, Act::Relu))?;
        }
        let pairs: Vec<usize> = pair_rows((wh, ww))
            .iter()
            .map(|row| *row as usize)
            .collect();
        let places = wh * ww;
        bias_mask(&x.index_select(0, &pairs)?, places, places)
    }
}

/// What both kinds of attention do with a convolution beside them.
struct Interaction {
    conv: Depthwise,
    channels: (Arc<Linear>, Arc<Linear>),
    places: (Arc<Linear>, Arc<Linear>),
    proj: Arc<Linear>,
}

impl Interaction {
    fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        let pair = |first: &str, second: &str, inner: usize, out: usize| {
            Ok::<_, ModelError>((
                weights.linear(first, inner, width)?,
                weights.linear(second, out, inner)?,
            ))
        };
        Ok(Self {
            conv: Depthwise::new(weights, "dwconv.0", width)?,
            channels: pair(
                "channel_interaction.1",
                "channel_interaction.4",
                width / 8,
                width,
            )?,
            places: pair(
                "spatial_interaction.0",
                "spatial_interaction.3",
                width / 16,
                1,
            )?,
            proj: weights.linear("proj", width, width)?,
        })
    }

    fn convolved(&self, v: &Tensor) -> Result<Tensor> {
        Ok(gelu(&self.conv.forward(v)?))
    }

    /// A weight for each channel: (b, 1, 1, c).
    fn channel_weights(&self, x: &Tensor) -> Result<Tensor> {
        let (first, second) = &self.channels;
        let inner = first.forward_with(&channel_means(x)?, then(Act::Gelu))?;
        Ok(sigmoid(&second.forward(&inner)?))
    }

    /// A weight for each place: (b, h, w, 1).
    fn place_weights(&self, x: &Tensor) -> Result<Tensor> {
        let (first, second) = &self.places;
        let inner = first.forward_with(x, then(Act::Gelu))?;
        Ok(sigmoid(&second.forward(&inner)?))
    }
}

enum Attention {
    /// In windows, moved or not.
    Places {
        biases: [PlaceBias; 2],
        moved: bool,
        split: Size,
    },
    Channels {
        factors: Arc<Value>,
    },
}

struct Block {
    norm1: Arc<LayerNorm>,
    qkv: Arc<Linear>,
    attention: Attention,
    heads: usize,
    interaction: Interaction,
    norm2: Arc<LayerNorm>,
    fc1: Arc<Linear>,
    gate_norm: Arc<LayerNorm>,
    gate: Depthwise,
    fc2: Arc<Linear>,
}

impl Block {
    fn new(
        weights: &Walk<'_>,
        config: &Config,
        heads: usize,
        (group, number): (usize, usize),
    ) -> Result<Self> {
        let width = config.width;
        let attn = weights.at("attn");
        let attention = if number.is_multiple_of(2) {
            // Channels of the small network: an eighth of a half, and a quarter of that.
            let small = width / 2 / 4 / 4;
            let bias =
                |i: usize| PlaceBias::new(&attn.at("attns").at(i).at("pos"), small, heads / 2);
            Attention::Places {
                biases: [bias(0)?, bias(1)?],
                moved: if group.is_multiple_of(2) {
                    number > 0 && (number + 2).is_multiple_of(4)
                } else {
                    number.is_multiple_of(4)
                },
                split: config.split,
            }
        } else {
            Attention::Channels {
                factors: attn.value("temperature", &[heads, 1, 1])?,
            }
        };
        let ffn = weights.at("ffn");
        let (inner, gate) = (config.inner, config.inner / 2);
        Ok(Self {
            norm1: weights.layer_norm("norm1", width, EPS)?,
            qkv: attn.linear_with("qkv", 3 * width, width, config.qkv_bias)?,
            attention,
            heads,
            interaction: Interaction::new(&attn, width)?,
            norm2: weights.layer_norm("norm2", width, EPS)?,
            fc1: ffn.linear("fc1", inner, width)?,
            gate_norm: ffn.layer_norm("sg.norm", gate, EPS)?,
            gate: Depthwise::new(&ffn, "sg.conv", gate)?,
            fc2: ffn.linear("fc2", width, gate)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [q, k, v] = thirds(&self.qkv.forward(&self.norm1.forward(x)?)?)?;
        let both = &self.interaction;
        let convolved = both.convolved(&v)?;
        let joined = match &self.attention {
            Attention::Places {
                biases,
                moved,
                split,
            } => {
                let seen = self.places([&q, &k, &v], biases, *moved, *split)?;
                let channels = both.channel_weights(&convolved)?;
                let places = both.place_weights(&seen)?;
                seen.mul(&channels)?.add(&convolved.mul(&places)?)?
            }
            Attention::Channels { factors } => {
                let seen = self.channels([&q, &k, &v], factors)?;
                let channels = both.channel_weights(&seen)?;
                let places = both.place_weights(&convolved)?;
                seen.mul(&places)?.add(&convolved.mul(&channels)?)?
            }
        };
        let x = both.proj.forward_with(&joined, plus(x))?;
        let inner = self
            .fc1
            .forward_with(&self.norm2.forward(&x)?, then(Act::Gelu))?;
        let half = inner.dim(3)? / 2;
        let (value, gate) = (inner.narrow(3, 0, half)?, inner.narrow(3, half, half)?);
        let gate = self.gate.forward(&self.gate_norm.forward(&gate)?)?;
        Ok(self.fc2.forward_with(&value.mul(&gate)?, plus(&x))?)
    }

    fn channels(&self, parts: [&Tensor; 3], factors: &Value) -> Result<Tensor> {
        let [b, h, w, c] = parts[0].dims4()?;
        let flat = |x: &Tensor| x.reshape([b, h * w, c]);
        let [q, k, v] = [flat(parts[0])?, flat(parts[1])?, flat(parts[2])?];
        let factors = factors.at(&q.device())?;
        let seen = channel_attention(&q, &k, &v, self.heads, &factors)?;
        Ok(seen.reshape([b, h, w, c])?)
    }

    fn places(
        &self,
        parts: [&Tensor; 3],
        biases: &[PlaceBias; 2],
        moved: bool,
        split: Size,
    ) -> Result<Tensor> {
        let [_, h, w, c] = parts[0].dims4()?;
        let most = split.0.max(split.1);
        let (full_h, full_w) = (h.next_multiple_of(most), w.next_multiple_of(most));
        let half = c / 2;
        let mut halves = Vec::new();
        for (i, bias) in biases.iter().enumerate() {
            let window = if i == 0 { split } else { (split.1, split.0) };
            let shift = if moved {
                (window.0 / 2, window.1 / 2)
            } else {
                (0, 0)
            };
            let cut = |x: &Tensor| -> Result<Tensor> {
                let part = x.narrow(3, i * half, half)?;
                let part = zeros_around(&part, [0, full_h - h, 0, full_w - w])?;
                windows(&rolled(&part, shift)?, window)
            };
            let [q, k, v] = [cut(parts[0])?, cut(parts[1])?, cut(parts[2])?];
            let mask = bias.mask(window, &q.device())?;
            let ends = moved.then(|| Moved::new(window, shift, (full_h, full_w)));
            let seen = attend([&q, &k, &v], self.heads / 2, &mask, ends.as_ref())?;
            let seen = rolled_back(&picture(&seen, window, (full_h, full_w))?, shift)?;
            halves.push(seen.narrow(1, 0, h)?.narrow(2, 0, w)?);
        }
        Ok(Tensor::cat(&halves.iter().collect::<Vec<_>>(), 3)?)
    }
}

struct Dat {
    first: Arc<Conv2d>,
    before: Arc<LayerNorm>,
    groups: Vec<(Vec<Block>, Body)>,
    norm: Arc<LayerNorm>,
    body: Body,
    tail: Tail,
}

impl Dat {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let width = config.width;
        let group = |(i, &(blocks, heads)): (usize, &(usize, usize))| {
            let weights = weights.at("layers").at(i);
            let inner = weights.at("blocks");
            let block = |j: usize| Block::new(&inner.at(j), config, heads, (i, j));
            let blocks = (0..blocks).map(block).collect::<Result<_>>()?;
            Ok((blocks, Body::new(&weights, "conv", config.body, width)?))
        };
        Ok(Self {
            first: weights.conv("conv_first", width, config.input, 3, 1)?,
            before: weights.layer_norm("before_RG.1", width, EPS)?,
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

impl UpscaleNetwork for Dat {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let first = self.first.forward(&centred(x, 1.0)?)?;
        let mut h = self.before.forward(&first)?;
        for (blocks, body) in &self.groups {
            let mut inner = h.clone();
            for block in blocks {
                fresco_tensor::cancel::check()?;
                inner = block.forward(&inner)?;
            }
            h = h.add(&body.forward(&inner)?)?;
        }
        let h = self.body.forward(&self.norm.forward(&h)?)?.add(&first)?;
        coloured(&self.tail.forward(h)?, 1.0)
    }
}
