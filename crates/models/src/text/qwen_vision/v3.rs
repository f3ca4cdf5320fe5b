//! The network of Qwen 3 VL: learned positions, and states of some layers that go into the text network beside the last.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Linear, Mask};
use fresco_tensor::{Buffer, Device, Tensor};

use super::{MERGED, Squares, grid_rope, layers, matrix, merged_order};
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::text::decoder::Eyes;
use crate::text::sequence::SeenPicture;
use crate::transformer::{
    AttentionLayers, EncoderBlock, EncoderLayers, HeadNorm, Heads, MlpLayers, NormPlace, QkvLayers,
};

const EPS: f32 = 1e-6;

/// Sizes of the network.
#[derive(Debug, Clone, PartialEq)]
pub struct Vision3Config {
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Channels of the text network.
    pub out: usize,
    pub squares: Squares,
    /// Positions along a side of the table.
    pub positions: usize,
    /// Layers after which states are taken.
    pub deeper: Vec<usize>,
}

impl Vision3Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let (hidden, row) = matrix(store, "visual.patch_embed.proj.weight")?;
        let (inner, _) = matrix(store, "visual.blocks.0.mlp.linear_fc1.weight")?;
        let (out, _) = matrix(store, "visual.merger.linear_fc2.weight")?;
        let (table, _) = matrix(store, "visual.pos_embed.weight")?;
        let layers = layers(store);
        let (side, positions) = ((row / 6).isqrt(), table.isqrt());
        if 6 * side * side != row || side == 0 || positions == 0 {
            let reason = format!("{row} values are no square of a picture");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let merger = |k: usize| format!("visual.deepstack_merger_list.{k}.norm.weight");
        let count = (0..layers).take_while(|k| store.has(&merger(*k))).count();
        // As published; other depths are divided evenly.
        let deeper = match (layers, count) {
            (27, 3) => vec![8, 16, 24],
            _ => (1..=count)
                .map(|k| (k * layers / (count + 1)).saturating_sub(1))
                .collect(),
        };
        Ok(Self {
            hidden,
            inner,
            layers,
            heads: 16,
            out,
            squares: Squares {
                side,
                frames: 2,
                pixels: (65_536, 16_777_216),
                mean: [0.5; 3],
                deviation: [0.5; 3],
            },
            positions,
            deeper,
        })
    }
}

fn block(weights: &Walk<'_>, config: &Vision3Config) -> Result<EncoderBlock> {
    let hidden = config.hidden;
    let heads = Heads::new(config.heads, hidden / config.heads, HeadNorm::None);
    let qkv = QkvLayers::Joined("attn.qkv");
    let layers = EncoderLayers {
        attention: AttentionLayers::new(qkv, "attn.proj", hidden, heads),
        mlp: MlpLayers::Plain(["mlp.linear_fc1", "mlp.linear_fc2"], Act::GeluTanh),
        inner: config.inner,
        norms: ["norm1", "norm2"],
        place: NormPlace::Before,
        eps: EPS,
        scales: None,
    };
    EncoderBlock::new(weights, &layers)
}

/// Four neighbours to one row: normalised before they are put together, or after.
struct Merger {
    norm: Arc<LayerNorm>,
    before: bool,
    linear_fc1: Arc<Linear>,
    linear_fc2: Arc<Linear>,
}

impl Merger {
    fn new(weights: &Walk<'_>, config: &Vision3Config, before: bool) -> Result<Self> {
        let joined = config.hidden * MERGED * MERGED;
        let width = if before { config.hidden } else { joined };
        Ok(Self {
            norm: weights.layer_norm("norm", width, EPS)?,
            before,
            linear_fc1: weights.linear("linear_fc1", joined, joined)?,
            linear_fc2: weights.linear("linear_fc2", config.out, joined)?,
        })
    }

    /// `(1, n, c)` to `(n / 4, out)`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [_, n, c] = x.dims3()?;
        let each = MERGED * MERGED;
        let joined = [n / each, each * c];
        let x = if self.before {
            self.norm.forward(x)?.reshape(joined)?
        } else {
            self.norm.forward(&x.reshape(joined)?)?
        };
        let x = self.linear_fc1.forward_with(&x, then(Act::Gelu))?;
        Ok(self.linear_fc2.forward(&x)?)
    }
}

/// The network that sees pictures of Qwen 3 VL.
pub struct Vision3 {
    config: Vision3Config,
    device: Device,
    patch_embed: Arc<Linear>,
    pos_embed: Arc<Embedding>,
    blocks: Vec<EncoderBlock>,
    merger: Merger,
    deeper: Vec<Merger>,
}

impl Vision3 {
    pub fn new(store: &WeightStore, config: &Vision3Config) -> Result<Self> {
        store.build("the network that sees pictures", |weights| {
            Self::walk(weights, config)
        })
    }

    fn walk(weights: &Walk<'_>, config: &Vision3Config) -> Result<Self> {
        let visual = weights.at("visual");
        let hidden = config.hidden;
        let row = 3 * config.squares.frames * config.squares.side.pow(2);
        let blocks = visual.at("blocks");
        let deeper = (0..config.deeper.len()).map(|k| {
            let weights = visual.at("deepstack_merger_list").at(k);
            Merger::new(&weights, config, false)
        });
        Ok(Self {
            patch_embed: visual.linear("patch_embed.proj", hidden, row)?,
            pos_embed: visual.embedding("pos_embed", config.positions.pow(2), hidden)?,
            blocks: blocks.each(config.layers, |weights| block(weights, config))?,
            merger: Merger::new(&visual.at("merger"), config, true)?,
            deeper: deeper.collect::<Result<_>>()?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    /// The table's positions for a grid, between its entries where need be: `(1, n, c)` on the device.
    fn positions(&self, rows: usize, columns: usize) -> Result<Tensor> {
        let side = self.config.positions;
        // Where a line of the grid is in the table: between which entries, and how far.
        let along = |at: usize, count: usize| -> (usize, usize, f32) {
            let last = (side - 1) as f32;
            let place = if count > 1 {
                last * at as f32 / (count - 1) as f32
            } else {
                0.0
            };
            let low = (place as usize).min(side - 1);
            (low, (low + 1).min(side - 1), place - low as f32)
        };
        let places: Vec<(usize, usize)> = merged_order(rows, columns).collect();
        let mut ids = Vec::with_capacity(4 * places.len());
        let mut shares = Vec::with_capacity(4 * places.len());
        for (row, column) in &places {
            let (top, bottom, down) = along(*row, rows);
            let (left, right, across) = along(*column, columns);
            for (y, share_y) in [(top, 1.0 - down), (bottom, down)] {
                for (x, share_x) in [(left, 1.0 - across), (right, across)] {
                    ids.push((y * side + x) as u32);
                    shares.push(share_y * share_x);
                }
            }
        }
        let entries = self.pos_embed.lookup(&ids)?;
        let width = self.config.hidden;
        let mut out = Buffer::with_room(places.len() * width)?;
        let corners = entries
            .data()
            .chunks_exact(4 * width)
            .zip(shares.chunks_exact(4));
        for (corners, shares) in corners {
            out.extend((0..width).map(|c| {
                let corner = |k: usize| corners[k * width + c] * shares[k];
                corner(0) + corner(1) + corner(2) + corner(3)
            }));
        }
        let out = Tensor::from_buffer([1, places.len(), width], out)?;
        Ok(out.to(&self.device)?)
    }

    /// What it sees in squares that are cut and normalised already.
    pub fn see_squares(
        &self,
        squares: &Tensor,
        rows: usize,
        columns: usize,
    ) -> Result<SeenPicture> {
        let config = &self.config;
        let places = merged_order(rows, columns);
        let rope = grid_rope(places, config.hidden / config.heads)?.to(&self.device)?;
        let positions = self.positions(rows, columns)?;
        let squares = squares.unsqueeze(0)?.to(&self.device)?;
        let mut x = self.patch_embed.forward_with(&squares, plus(&positions))?;
        drop(positions);
        let mut deeper = Vec::new();
        for (i, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &rope, Mask::None)?;
            if let Some(k) = config.deeper.iter().position(|layer| *layer == i) {
                deeper.push(self.deeper[k].forward(&x)?);
            }
        }
        Ok(SeenPicture {
            rows: self.merger.forward(&x)?,
            grid: (rows / MERGED, columns / MERGED),
            deeper,
        })
    }
}

impl Eyes for Vision3 {
    fn see(&self, picture: &Tensor) -> Result<SeenPicture> {
        let (squares, (rows, columns)) = self.config.squares.cut(picture)?;
        self.see_squares(&squares, rows, columns)
    }
}
