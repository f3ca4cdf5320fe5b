//! The network.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Linear, Mask, RmsNorm, silu};
use fresco_tensor::{Device, Tensor};

use super::config::{CosmosConfig, PATCH};
use crate::denoise::hooks::{BlockKind, Hooks};
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, Blocks, HeadNorm, Heads, Looks, Mlp, MlpLayers, Pairs, PatchOrder,
    PictureTokens, QkvLayers, Rope, Rotation, TokenGrid, TokenRows, chunks, grid_positions, part,
    sinusoid,
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

fn attention(weights: &Walk<'_>, config: &CosmosConfig, looks: Looks) -> Result<Attention> {
    let norm = HeadNorm::Rms(["q_norm.weight", "k_norm.weight"], EPS);
    let heads = Heads::new(config.heads, config.head(), norm);
    let qkv = QkvLayers::Apart(["q_proj", "k_proj", "v_proj"]);
    let layers = AttentionLayers {
        looks,
        ..AttentionLayers::unbiased(qkv, "output_proj", config.dim, heads)
    };
    Attention::new(weights, &layers)
}

struct Block {
    self_modulation: Modulation,
    self_attention: Attention,
    prompt_modulation: Modulation,
    prompt_attention: Attention,
    mlp_modulation: Modulation,
    mlp: Mlp,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &CosmosConfig) -> Result<Self> {
        let modulation = |of: &str| {
            let name = format!("adaln_modulation_{of}");
            Modulation::new(weights, &name, config, 3)
        };
        let (dim, ffn) = (config.dim, config.ffn);
        let layers = MlpLayers::Plain(["layer1", "layer2"], Act::Gelu);
        Ok(Self {
            self_modulation: modulation("self_attn")?,
            self_attention: attention(&weights.at("self_attn"), config, Looks::Own)?,
            prompt_modulation: modulation("cross_attn")?,
            prompt_attention: attention(
                &weights.at("cross_attn"),
                config,
                Looks::Prompt(config.context),
            )?,
            mlp_modulation: modulation("mlp")?,
            mlp: Mlp::new(&weights.at("mlp"), layers, (dim, ffn), Bias::Without)?,
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
    cells: PictureTokens,
    time: Mlp,
    time_norm: Arc<RmsNorm>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    last_modulation: Modulation,
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
            cells: PictureTokens::new(
                weights.matrix("x_embedder.proj.1", dim, (config.in_channels + 1) * cells)?,
                end.matrix("linear", config.out_channels * cells, dim)?,
                PATCH,
                [PatchOrder::ChannelFirst, PatchOrder::ChannelLast],
            ),
            time: Mlp::between(
                &time,
                MlpLayers::Plain(["linear_1", "linear_2"], Act::Silu),
                [dim, dim, 3 * dim],
                Bias::Without,
            )?,
            time_norm: weights.rms_norm("t_embedding_norm.weight", dim, EPS)?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: Modulation::new(&end, "adaln_modulation", config, 2)?,
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
        let original = x.shape();
        let &[b, _, t, h, w] = original else {
            let reason = format!("{original:?} is not the shape of a video");
            return Err(ModelError::invalid("latent", reason));
        };
        if levels.len() != b && levels.len() != b * t {
            let reason = format!("{} noise levels for {b} videos of {t} frames", levels.len());
            return Err(ModelError::invalid("noise levels", reason));
        }
        let nothing_padded = Tensor::zeros([b, 1, t, h, w])?;
        let x = Tensor::cat(&[x, &nothing_padded], 1)?;
        let (x, film) = self.cells.enter(&x, &self.device)?;
        let grid = film.grid;
        let rope = self.rope(grid, rate)?;
        let places = self.places(grid)?;
        let context = context.to(&self.device)?;
        let level = self.level(levels)?;
        // Rows of the noise level are first in the shape wherever it counts.
        let joined = [b, x.dim(1)?, self.config.dim];
        let apart = [levels.len(), b * joined[1] / levels.len().max(1), joined[2]];
        let (kind, heads, at) = (BlockKind::DOUBLE, self.config.heads, (hooks, original));
        let blocks = Blocks::of(kind, self.blocks.len(), heads, grid, at).with_shape(joined);
        let x = blocks.run(x.reshape(apart)?, |number, mut x| {
            let block = &self.blocks[number];
            let changed = |layer, x: &Tensor| changed(changes, (number, layer), x);
            if let Some(places) = &places {
                x = x.reshape(joined)?.add(places)?.reshape(apart)?;
            }
            let [shift, scale, gate] = chunks(&block.self_modulation.forward(&level)?)?;
            let input = self.norm.modulated(&x, &shift, &scale)?.reshape(joined)?;
            let inputs = [BlockLayer::Query, BlockLayer::Key, BlockLayer::Value];
            let attention = &block.self_attention;
            let qkv = if changes.is_empty() {
                attention.qkv(&input)?
            } else {
                let [q, k, v] = inputs.map(|layer| changed(layer, &input));
                attention.qkv_of([&q?, &k?, &v?])?
            };
            drop(input);
            let seen = qkv.attend(&rope, Mask::None)?.reshape(apart)?;
            x = attention.add_gated(&seen, x, &gate)?;
            let [shift, scale, gate] = chunks(&block.prompt_modulation.forward(&level)?)?;
            let input = self.norm.modulated(&x, &shift, &scale)?.reshape(joined)?;
            let input = changed(BlockLayer::PromptQuery, &input)?;
            let attention = &block.prompt_attention;
            let qkv = attention.qkv_to(&input, &context)?;
            let seen = qkv.attend(Rotation::NONE, Mask::None)?.reshape(apart)?;
            x = attention.add_gated(&seen, x, &gate)?;
            let [shift, scale, gate] = chunks(&block.mlp_modulation.forward(&level)?)?;
            let inner = if changes.is_empty() {
                let rows = TokenRows::modulated(&self.norm, &x, &shift, &scale);
                block.mlp.inner(rows)?
            } else {
                let input = self.norm.modulated(&x, &shift, &scale)?.reshape(joined)?;
                let input = changed(BlockLayer::Mlp, &input)?.reshape(apart)?;
                block.mlp.inner(&input)?
            };
            block.mlp.add_gated(&inner, x, &gate)
        })?;
        let [shift, scale] = chunks(&self.last_modulation.forward(&level)?)?;
        let x = self.norm.modulated(&x, &shift, &scale)?;
        self.cells.leave(&x.reshape(joined)?, &film)
    }

    fn level(&self, levels: &[f32]) -> Result<Level> {
        let waves = sinusoid(levels, self.config.dim)?.to(&self.device)?;
        Ok(Level {
            activated: silu(&self.time_norm.forward(&waves)?),
            shared: self.time.forward(&waves)?,
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
        let rope = Rope::with_thetas(positions.as_flattened(), &widths, &thetas)?;
        rope.pairing(Pairs::Halves).to(&self.device)
    }
}
