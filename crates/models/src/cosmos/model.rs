//! The network.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Embedding, LayerNorm, Linear, Mask, RmsNorm, add_gated, attention, modulate, silu,
};
use fresco_tensor::{Device, Tensor};

use super::config::{CosmosConfig, PATCH};
use crate::denoise::hooks::Hooks;
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::{
    PatchOrder, Rope, TokenGrid, chunks, grid_positions, part, sinusoid, video_from_tokens,
    video_to_tokens,
};

const EPS: f32 = 1e-6;

/// Shift, scale and for most a gate, through a matrix of low rank.
struct Modulation {
    down: Arc<Linear>,
    up: Arc<Linear>,
}

impl Modulation {
    fn new(weights: &Walk<'_>, name: &str, config: &CosmosConfig, parts: usize) -> Result<Self> {
        let weights = weights.at(name);
        Ok(Self {
            down: weights.matrix("1", config.rank, config.dim)?,
            up: weights.matrix("2", parts * config.dim, config.rank)?,
        })
    }

    /// `shared` is what all blocks have in common.
    fn forward(&self, level: &Level) -> Result<Tensor> {
        let own = self.up.forward(&self.down.forward(&level.activated)?)?;
        let width = own.dim(1)?;
        Ok(own.add(&part(&level.shared, 0, width)?)?)
    }
}

/// The noise level: one row for each item, or for each frame of each item.
struct Level {
    activated: Tensor,
    shared: Tensor,
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
    fn new(weights: &Walk<'_>, config: &CosmosConfig, source: usize) -> Result<Self> {
        let (dim, head) = (config.dim, config.head());
        Ok(Self {
            q: weights.matrix("q_proj", dim, dim)?,
            k: weights.matrix("k_proj", dim, source)?,
            v: weights.matrix("v_proj", dim, source)?,
            out: weights.matrix("output_proj", dim, dim)?,
            q_norm: weights.rms_norm("q_norm.weight", head, EPS)?,
            k_norm: weights.rms_norm("k_norm.weight", head, EPS)?,
            heads: config.heads,
        })
    }

    fn normed(&self, x: &Tensor, norm: &RmsNorm) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let heads = x.reshape([b, n, self.heads, dim / self.heads])?;
        Ok(norm.forward(&heads)?.reshape([b, n, dim])?)
    }

    /// With positions where tokens look at each other. The inputs of queries, keys and values are mostly one and the same.
    fn forward(&self, [x, keys, values]: [&Tensor; 3], rope: Option<&Rope>) -> Result<Tensor> {
        let mut q = self.normed(&self.q.forward(x)?, &self.q_norm)?;
        let mut k = self.normed(&self.k.forward(keys)?, &self.k_norm)?;
        if let Some(rope) = rope {
            q = rope.half(&q, self.heads)?;
            k = rope.half(&k, self.heads)?;
        }
        let v = self.v.forward(values)?;
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        drop((q, k, v));
        Ok(self.out.forward(&seen)?)
    }
}

struct Block {
    self_modulation: Modulation,
    self_attention: Attention,
    prompt_modulation: Modulation,
    prompt_attention: Attention,
    mlp_modulation: Modulation,
    mlp: [Arc<Linear>; 2],
}

impl Block {
    fn new(weights: &Walk<'_>, config: &CosmosConfig) -> Result<Self> {
        let modulation = |of: &str| {
            let name = format!("adaln_modulation_{of}");
            Modulation::new(weights, &name, config, 3)
        };
        let (dim, ffn) = (config.dim, config.ffn);
        Ok(Self {
            self_modulation: modulation("self_attn")?,
            self_attention: Attention::new(&weights.at("self_attn"), config, dim)?,
            prompt_modulation: modulation("cross_attn")?,
            prompt_attention: Attention::new(&weights.at("cross_attn"), config, config.context)?,
            mlp_modulation: modulation("mlp")?,
            mlp: [
                weights.at("mlp").matrix("layer1", ffn, dim)?,
                weights.at("mlp").matrix("layer2", dim, ffn)?,
            ],
        })
    }
}

/// A layer of a block whose input can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockLayer {
    /// Of tokens that look at each other.
    Query,
    Key,
    Value,
    /// Of tokens that look at the prompt.
    PromptQuery,
    /// The first of the feed-forward part.
    Mlp,
}

/// Changes what goes into layers of the blocks during one pass.
pub trait InputChange {
    /// The input (b, n, c) of a layer of a block as it is to be; none where it stays.
    fn changed(&self, block: usize, layer: BlockLayer, x: &Tensor) -> Result<Option<Tensor>>;
}

/// All changes of the input of one layer.
fn changed(
    changes: &[Box<dyn InputChange>],
    (block, layer): (usize, BlockLayer),
    x: &Tensor,
) -> Result<Tensor> {
    let mut x = x.clone();
    for change in changes {
        if let Some(other) = change.changed(block, layer, &x)? {
            x = other;
        }
    }
    Ok(x)
}

/// The transformer.
pub struct CosmosDit {
    device: Device,
    config: CosmosConfig,
    cells: Arc<Linear>,
    time: [Arc<Linear>; 2],
    time_norm: Arc<RmsNorm>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    last_modulation: Modulation,
    last: Arc<Linear>,
    /// Places of frames, rows and columns that were learnt.
    places: Option<[Arc<Embedding>; 3]>,
    length: RmsNorm,
}

/// Frames a second of the films that positions are counted in.
const RATE: f64 = 24.0;
/// What keeps a place of zeros from a division by zero.
const PLACE_EPS: f32 = 1e-12;

impl CosmosDit {
    pub fn new(weights: &Walk<'_>, config: &CosmosConfig) -> Result<Self> {
        let (dim, cells) = (config.dim, PATCH * PATCH);
        let time = weights.at("t_embedder").at(1);
        let block = |number| Block::new(&weights.at("blocks").at(number), config);
        let end = weights.at("final_layer");
        let places = config.places.map(|[t, h, w]| -> Result<_> {
            let weights = weights.at("extra_pos_embedder");
            let rows =
                |axis: &str, count: usize| weights.rows(&format!("pos_emb_{axis}"), &[count, dim]);
            Ok([rows("t", t)?, rows("h", h)?, rows("w", w)?])
        });
        Ok(Self {
            places: places.transpose()?,
            length: RmsNorm::new(None, PLACE_EPS)?,
            device: weights.device().clone(),
            config: config.clone(),
            cells: weights.matrix("x_embedder.proj.1", dim, (config.in_channels + 1) * cells)?,
            time: [
                time.matrix("linear_1", dim, dim)?,
                time.matrix("linear_2", 3 * dim, dim)?,
            ],
            time_norm: weights.rms_norm("t_embedding_norm.weight", dim, EPS)?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: Modulation::new(&end, "adaln_modulation", config, 2)?,
            last: end.matrix("linear", config.out_channels * cells, dim)?,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// One pass over (b, c, t, h, w). There is a level for each item, or for each frame of each item; `context` is
    /// (b, n, c). `changes` are made in their order. The result is in main memory.
    pub fn forward(
        &self,
        x: &Tensor,
        levels: &[f32],
        context: &Tensor,
        hooks: &Hooks,
        changes: &[Box<dyn InputChange>],
    ) -> Result<Tensor> {
        self.run(x, levels, context, None, hooks, changes)
    }

    /// The same of a film with so many frames a second, where that is told.
    pub fn forward_at(
        &self,
        x: &Tensor,
        levels: &[f32],
        context: &Tensor,
        rate: Option<f64>,
        hooks: &Hooks,
    ) -> Result<Tensor> {
        self.run(x, levels, context, rate, hooks, &[])
    }

    fn run(
        &self,
        x: &Tensor,
        levels: &[f32],
        context: &Tensor,
        rate: Option<f64>,
        hooks: &Hooks,
        changes: &[Box<dyn InputChange>],
    ) -> Result<Tensor> {
        let &[b, _, t, h, w] = x.shape() else {
            let reason = format!("{:?} is not the shape of a video", x.shape());
            return Err(ModelError::invalid("latent", reason));
        };
        if levels.len() != b && levels.len() != b * t {
            let reason = format!("{} noise levels for {b} videos of {t} frames", levels.len());
            return Err(ModelError::invalid("noise levels", reason));
        }
        let nothing_padded = Tensor::zeros([b, 1, t, h, w])?;
        let x = Tensor::cat(&[x, &nothing_padded], 1)?;
        let (tokens, grid) = video_to_tokens(&x, PATCH, PatchOrder::ChannelFirst)?;
        let rope = self.rope(grid, rate)?;
        let places = self.places(grid)?;
        let context = context.to(&self.device)?;
        let level = self.level(levels)?;
        // Rows of the noise level are first in the shape wherever it counts.
        let joined = [b, tokens.dim(1)?, self.config.dim];
        let apart = [levels.len(), b * joined[1] / levels.len().max(1), joined[2]];
        let mut x = self
            .cells
            .forward(&tokens.to(&self.device)?)?
            .reshape(apart)?;
        for (number, block) in self.blocks.iter().enumerate() {
            let changed = |layer, x: &Tensor| changed(changes, (number, layer), x);
            hooks.check()?;
            if let Some(places) = &places {
                x = x.reshape(joined)?.add(places)?.reshape(apart)?;
            }
            let [shift, scale, gate] = chunks(&block.self_modulation.forward(&level)?)?;
            let input = self.norm.modulated(&x, &shift, &scale)?.reshape(joined)?;
            let inputs = [BlockLayer::Query, BlockLayer::Key, BlockLayer::Value];
            let [q, k, v] = inputs.map(|layer| changed(layer, &input));
            let seen = block.self_attention.forward([&q?, &k?, &v?], Some(&rope))?;
            drop(input);
            x = add_gated(x, &gate, &seen.reshape(apart)?)?;
            let [shift, scale, gate] = chunks(&block.prompt_modulation.forward(&level)?)?;
            let input = self.norm.modulated(&x, &shift, &scale)?.reshape(joined)?;
            let input = changed(BlockLayer::PromptQuery, &input)?;
            let seen = block
                .prompt_attention
                .forward([&input, &context, &context], None)?;
            x = add_gated(x, &gate, &seen.reshape(apart)?)?;
            let [shift, scale, gate] = chunks(&block.mlp_modulation.forward(&level)?)?;
            let input = self.norm.modulated(&x, &shift, &scale)?.reshape(joined)?;
            let input = changed(BlockLayer::Mlp, &input)?.reshape(apart)?;
            let inner = block.mlp[0].forward_with(&input, then(Act::Gelu))?;
            let made = block.mlp[1].forward(&inner)?;
            x = add_gated(x, &gate, &made)?;
        }
        let [shift, scale] = chunks(&self.last_modulation.forward(&level)?)?;
        let x = modulate(self.norm.forward(&x)?, &scale, Some(&shift))?;
        let out = self.last.forward(&x)?.to(&Device::cpu())?;
        let width = self.config.out_channels * PATCH * PATCH;
        let out = out.reshape([b, joined[1], width])?;
        video_from_tokens(&out, grid, PATCH, PatchOrder::ChannelLast, (h, w))
    }

    fn level(&self, levels: &[f32]) -> Result<Level> {
        let waves = sinusoid(levels, self.config.dim)?.to(&self.device)?;
        let inner = self.time[0].forward_with(&waves, then(Act::Silu))?;
        Ok(Level {
            activated: silu(&self.time_norm.forward(&waves)?),
            shared: self.time[1].forward(&inner)?,
        })
    }

    /// What was learnt of places, of unit length: (1, n, dim).
    fn places(&self, grid: TokenGrid) -> Result<Option<Tensor>> {
        let Some(tables) = &self.places else {
            return Ok(None);
        };
        let mut sum: Option<Tensor> = None;
        for (axis, table) in tables.iter().enumerate() {
            let count = grid[axis];
            if count > table.entries() {
                let known = table.entries();
                let what = ["frames", "rows", "columns"][axis];
                let reason = format!("{count} {what} of tokens, and the model knows {known}");
                return Err(ModelError::invalid("latent", reason));
            }
            let ids: Vec<u32> = (0..count as u32).collect();
            let mut shape = [1, 1, 1, self.config.dim];
            shape[axis] = count;
            let rows = table.lookup_on(&ids, &self.device)?.reshape(shape)?;
            sum = Some(match sum {
                Some(sum) => sum.add(&rows)?,
                None => rows,
            });
        }
        let all = sum.map(|sum| -> Result<Tensor> {
            let count = grid.iter().product();
            Ok(self
                .length
                .forward(&sum)?
                .reshape([1, count, self.config.dim])?)
        });
        all.transpose()
    }

    fn rope(&self, [frames, rows, columns]: TokenGrid, rate: Option<f64>) -> Result<Rope> {
        let mut positions = Vec::new();
        let step = rate.map_or(1.0, |rate| RATE / rate);
        for frame in 0..frames {
            let at = frame as f64 * step;
            positions.extend(grid_positions(at, (rows, columns), (0.0, 0.0)));
        }
        let head = self.config.head();
        let side = head / 6 * 2;
        let widths = [head - 2 * side, side, side];
        let theta = |axis: usize| {
            let width = widths[axis] as f64;
            10000.0 * self.config.ratios[axis].powf(width / (width - 2.0))
        };
        let thetas = [theta(0), theta(1), theta(2)];
        Rope::with_thetas(positions.as_flattened(), &widths, &thetas)?.to(&self.device)
    }
}
