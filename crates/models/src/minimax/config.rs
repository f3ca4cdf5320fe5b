//! The shape of a network, read from keys and shapes.

use crate::denoise::PassMemory;
use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Cells of a token along rows and columns.
pub(super) const PATCH: usize = 2;
/// Shares of a head's channels that positions on one axis turn.
const AXIS_SHARE: usize = 8;

/// How the noise level is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeConfig {
    /// By waves and two layers: widths of the waves, of the first and of the second layer.
    Layers([usize; 3]),
    /// By a table: rows and columns.
    Table(usize, usize),
}

impl TimeConfig {
    /// Numbers that tell a level.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::Layers([_, _, width]) | Self::Table(_, width) => *width,
        }
    }
}

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct MiniMaxConfig {
    pub dim: usize,
    pub heads: usize,
    /// Channels of a head.
    pub head: usize,
    pub ffn: usize,
    pub blocks: usize,
    pub refiners: usize,
    /// Channels of the latents of pictures and of sound.
    pub channels: usize,
    pub sound: usize,
    pub context: usize,
    pub time: TimeConfig,
    /// Frequencies of an axis of positions.
    pub axis: usize,
}

impl MiniMaxConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, values) = shapes.matrix("video_patch_proj.weight")?;
        let channels = values / (PATCH * PATCH);
        let head = shapes.vector("blocks.0.attn.q_norm.weight")?;
        let (rows, _) = shapes.matrix("blocks.0.attn.qkv_proj.weight")?;
        let heads = rows / (3 * head);
        if heads * head * 3 != rows || channels * PATCH * PATCH != values || head < 2 * AXIS_SHARE {
            let reason = format!("{rows} rows do not make heads of {head} channels");
            return Err(shapes.unsupported(reason));
        }
        let time = if shapes.has("adaln_t_table") {
            let (rows, columns) = shapes.matrix("adaln_t_table")?;
            TimeConfig::Table(rows, columns)
        } else {
            let (inner, waves) = shapes.matrix("time_embedder.proj_in.weight")?;
            let (width, _) = shapes.matrix("time_embedder.proj_out.weight")?;
            TimeConfig::Layers([waves, inner, width])
        };
        let (sound, _) = shapes
            .matrix("audio_patch_proj.weight")
            .map(|(a, b)| (b, a))?;
        for (key, wanted) in [
            ("final_layer.video_out.weight", values),
            ("final_layer.audio_out.weight", sound),
        ] {
            let (rows, _) = shapes.matrix(key)?;
            if rows != wanted {
                let reason = format!(
                    "{key} has {rows} rows where {wanted} are known: files with several heads for few steps are not run"
                );
                return Err(shapes.unsupported(reason));
            }
        }
        Ok(Self {
            dim,
            heads,
            head,
            ffn: shapes.matrix("blocks.0.mlp.fc1.weight")?.0 / 2,
            blocks: shapes.count("blocks"),
            refiners: shapes.count("token_refiner.blocks"),
            channels,
            sound,
            context: shapes.matrix("condition_proj.weight")?.1,
            time,
            axis: head / AXIS_SHARE,
        })
    }

    /// What a pass takes.
    pub(crate) fn pass(&self) -> PassMemory {
        /// Values of a token that a pass holds at its fullest, in widths of the network.
        const HELD: usize = 16;
        PassMemory::of_values(self.channels * PATCH * PATCH, self.dim, HELD)
    }
}
