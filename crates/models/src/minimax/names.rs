//! Other people's names for the weights.

use crate::name_table::{NameTable, Rule, layer, place, rows, swapped};

const BLOCK: &[Rule] = &[
    layer("norm1", "norm1"),
    layer("norm2", "norm2"),
    rows("attn.to_q", "attn.qkv_proj", 0, 1),
    rows("attn.to_k", "attn.qkv_proj", 1, 1),
    rows("attn.to_v", "attn.qkv_proj", 2, 1),
    layer("attn.norm_q", "attn.q_norm"),
    layer("attn.norm_k", "attn.k_norm"),
    layer("attn.to_out.0", "attn.out_proj"),
    swapped("ff.net.0.proj", "mlp.fc1"),
    layer("ff.net.2", "mlp.fc2"),
    layer("adaln_proj.linear", "adaln_proj.linear"),
];

/// The names that diffusers has.
pub(crate) static DIFFUSERS: NameTable = NameTable::new(&[
    place("transformer_blocks.{i}.", "blocks.{i}.", BLOCK),
    place(
        "token_refiner.refiner_blocks.{i}.",
        "token_refiner.blocks.{i}.",
        BLOCK,
    ),
    place(
        "",
        "",
        &[
            layer("time_embedder.linear_1", "time_embedder.proj_in"),
            layer("time_embedder.linear_2", "time_embedder.proj_out"),
            layer("proj_in", "video_patch_proj"),
            layer("audio_proj_in", "audio_patch_proj"),
            layer("context_embedder", "condition_proj"),
            layer("norm_out.norm", "final_layer.norm"),
            layer("norm_out.linear", "final_layer.adaln_proj.linear"),
            layer("proj_out", "final_layer.video_out"),
            layer("audio_proj_out", "final_layer.audio_out"),
        ],
    ),
])
.keeping_others()
.counted_in(&["blocks.0.attn.out_proj.weight"]);
