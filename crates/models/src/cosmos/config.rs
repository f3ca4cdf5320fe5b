//! The shape of a network, read from keys and shapes, and other people's names for its weights.

use crate::denoise::PassMemory;
use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// A network of this kind.
#[derive(Clone, Debug, PartialEq)]
pub struct CosmosConfig {
    /// Channels that go in, without the one that says what was padded.
    pub in_channels: usize,
    pub out_channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub blocks: usize,
    pub ffn: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    /// Rank of the matrices that say the noise level.
    pub rank: usize,
    /// How much further positions reach than in training, in time, height and width.
    pub ratios: [f64; 3],
    /// Frames, rows and columns that have a place of their own, in the first generation.
    pub places: Option<[usize; 3]>,
}

impl CosmosConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, values) = shapes.matrix("x_embedder.proj.1.weight")?;
        let (out, _) = shapes.matrix("final_layer.linear.weight")?;
        let head = shapes.vector("blocks.0.self_attn.q_norm.weight")?;
        let cells = PATCH * PATCH;
        let whole = values.is_multiple_of(cells) && out.is_multiple_of(cells);
        if !whole || values / cells < 2 || !dim.is_multiple_of(head) || head % 2 != 0 {
            let reason = format!("{values} values to {dim} channels in heads of {head}");
            return Err(shapes.unsupported(reason));
        }
        let (in_channels, out_channels) = (values / cells - 1, out / cells);
        let rows = |axis: &str| {
            let key = format!("extra_pos_embedder.pos_emb_{axis}");
            Some(shapes.matrix(&key).ok()?.0)
        };
        let places = match (rows("t"), rows("h"), rows("w")) {
            (Some(t), Some(h), Some(w)) => Some([t, h, w]),
            _ => None,
        };
        let ratios = match (places.is_some(), in_channels == out_channels, dim) {
            (true, _, 4096) => [2.0, 1.0, 1.0],
            (true, _, _) => [2.0, 2.0, 2.0],
            (false, true, _) => [1.0, 4.0, 4.0],
            (false, false, 5120) => [0.8333, 2.0, 2.0],
            (false, false, _) => [1.0, 3.0, 3.0],
        };
        let first = "blocks.0.adaln_modulation_self_attn.1.weight";
        Ok(Self {
            in_channels,
            out_channels,
            dim,
            heads: dim / head,
            blocks: shapes.count("blocks"),
            ffn: shapes.matrix("blocks.0.mlp.layer1.weight")?.0,
            context: shapes.matrix("blocks.0.cross_attn.k_proj.weight")?.1,
            rank: shapes.matrix(first)?.0,
            ratios,
            places,
        })
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }

    /// What a pass takes.
    pub(crate) fn pass(&self) -> PassMemory {
        /// Values of a token that a pass holds at its fullest, in widths of the network.
        const HELD: usize = 14;
        PassMemory::of_cells(PATCH * PATCH, self.dim, HELD)
    }
}
