//! The shape of a network, read from keys and shapes, and other people's names for its weights.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::{Renames, Shapes};

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;

/// The names that diffusers has.
pub const DIFFUSERS: Renames = Renames {
    parts: &[
        (".norm1.linear_1.", ".adaln_modulation_self_attn.1."),
        (".norm1.linear_2.", ".adaln_modulation_self_attn.2."),
        (".norm2.linear_1.", ".adaln_modulation_cross_attn.1."),
        (".norm2.linear_2.", ".adaln_modulation_cross_attn.2."),
        (".norm3.linear_1.", ".adaln_modulation_mlp.1."),
        (".norm3.linear_2.", ".adaln_modulation_mlp.2."),
        (".attn1.to_q.", ".self_attn.q_proj."),
        (".attn1.to_k.", ".self_attn.k_proj."),
        (".attn1.to_v.", ".self_attn.v_proj."),
        (".attn1.to_out.0.", ".self_attn.output_proj."),
        (".attn1.norm_q.", ".self_attn.q_norm."),
        (".attn1.norm_k.", ".self_attn.k_norm."),
        (".attn2.to_q.", ".cross_attn.q_proj."),
        (".attn2.to_k.", ".cross_attn.k_proj."),
        (".attn2.to_v.", ".cross_attn.v_proj."),
        (".attn2.to_out.0.", ".cross_attn.output_proj."),
        (".attn2.norm_q.", ".cross_attn.q_norm."),
        (".attn2.norm_k.", ".cross_attn.k_norm."),
        (".ff.net.0.proj.", ".mlp.layer1."),
        (".ff.net.2.", ".mlp.layer2."),
    ],
    starts: &[
        ("patch_embed.proj.", "x_embedder.proj.1."),
        ("time_embed.t_embedder.", "t_embedder.1."),
        ("time_embed.norm.", "t_embedding_norm."),
        ("transformer_blocks.", "blocks."),
        ("norm_out.linear_1.", "final_layer.adaln_modulation.1."),
        ("norm_out.linear_2.", "final_layer.adaln_modulation.2."),
        ("proj_out.", "final_layer.linear."),
    ],
};

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
        let ratios = match (in_channels == out_channels, dim) {
            (true, _) => [1.0, 4.0, 4.0],
            (false, 5120) => [0.8333, 2.0, 2.0],
            (false, _) => [1.0, 3.0, 3.0],
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
        })
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }

    /// Bytes that a pass over latents of this shape takes, roughly.
    pub fn memory_required(&self, shape: &[usize]) -> u64 {
        /// Values of a token that a pass holds at its fullest, in widths of the network.
        const HELD: u64 = 14;
        let batch = shape.first().copied().unwrap_or(0) as u64;
        let cells: u64 = shape.iter().skip(2).map(|n| *n as u64).product();
        let tokens = batch.saturating_mul(cells / (PATCH * PATCH) as u64 + 1);
        tokens.saturating_mul(self.dim as u64 * HELD * size_of::<f32>() as u64)
    }
}
