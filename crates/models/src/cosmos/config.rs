//! The shape of a network, read from keys and shapes, and other people's names for its weights.

use crate::denoise::PassMemory;
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
    /// Frames, rows and columns that have a place of their own, in the first generation.
    pub places: Option<[usize; 3]>,
}

/// The names that the first generation has.
pub const FIRST: Renames = Renames {
    parts: &[
        (".blocks.0.block.attn.to_q.0.", ".self_attn.q_proj."),
        (".blocks.0.block.attn.to_k.0.", ".self_attn.k_proj."),
        (".blocks.0.block.attn.to_v.0.", ".self_attn.v_proj."),
        (".blocks.0.block.attn.to_out.0.", ".self_attn.output_proj."),
        (".blocks.0.block.attn.to_q.1.", ".self_attn.q_norm."),
        (".blocks.0.block.attn.to_k.1.", ".self_attn.k_norm."),
        (".blocks.1.block.attn.to_q.0.", ".cross_attn.q_proj."),
        (".blocks.1.block.attn.to_k.0.", ".cross_attn.k_proj."),
        (".blocks.1.block.attn.to_v.0.", ".cross_attn.v_proj."),
        (".blocks.1.block.attn.to_out.0.", ".cross_attn.output_proj."),
        (".blocks.1.block.attn.to_q.1.", ".cross_attn.q_norm."),
        (".blocks.1.block.attn.to_k.1.", ".cross_attn.k_norm."),
        (".blocks.2.block.layer", ".mlp.layer"),
        (
            ".blocks.0.adaLN_modulation.",
            ".adaln_modulation_self_attn.",
        ),
        (
            ".blocks.1.adaLN_modulation.",
            ".adaln_modulation_cross_attn.",
        ),
        (".blocks.2.adaLN_modulation.", ".adaln_modulation_mlp."),
    ],
    starts: &[
        ("blocks.block", "blocks."),
        ("affline_norm.", "t_embedding_norm."),
        (
            "final_layer.adaLN_modulation.",
            "final_layer.adaln_modulation.",
        ),
    ],
};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_first_generation() {
        for (theirs, ours) in [
            (
                "blocks.block12.blocks.0.block.attn.to_q.0.weight",
                "blocks.12.self_attn.q_proj.weight",
            ),
            (
                "blocks.block3.blocks.1.block.attn.to_k.1.weight",
                "blocks.3.cross_attn.k_norm.weight",
            ),
            (
                "blocks.block3.blocks.2.block.layer1.weight",
                "blocks.3.mlp.layer1.weight",
            ),
            (
                "blocks.block3.blocks.2.adaLN_modulation.2.weight",
                "blocks.3.adaln_modulation_mlp.2.weight",
            ),
            ("affline_norm.weight", "t_embedding_norm.weight"),
            (
                "final_layer.adaLN_modulation.1.weight",
                "final_layer.adaln_modulation.1.weight",
            ),
        ] {
            assert_eq!(FIRST.key(theirs), ours);
            assert_eq!(FIRST.name(ours), theirs);
        }
    }
}
