//! Other people's names for the weights.

use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, layer, place, swapped, value, within};

const BLOCK: &[Rule] = &[
    layer("attn.to_q", "q_proj"),
    layer("attn.to_k", "k_proj"),
    layer("attn.to_v", "v_proj"),
    layer("attn.to_out.0", "attn_out"),
    value("attn.norm_q.weight", "norm.query_norm.scale"),
    value("attn.norm_k.weight", "norm.key_norm.scale"),
    layer("ff.linear_in", "mlp_in"),
    layer("ff.linear_out", "mlp_out"),
];

/// Modulations of the streams.
const STREAMS: &[Rule] = &[
    layer("image.linear", "image.lin"),
    layer("image_cond.linear", "image_cond.lin"),
    layer("txt.linear", "txt.lin"),
];

/// The names that diffusers has. There the last scale comes before the shift.
pub(crate) static DIFFUSERS: NameTable = NameTable::new(&[
    within("txt_mode_blocks.{i}.", BLOCK),
    place(
        "mode_blocks.image.{i}.",
        "content_mode_blocks.image.{i}.",
        BLOCK,
    ),
    place(
        "mode_blocks.image_cond.{i}.",
        "content_mode_blocks.image_cond.{i}.",
        BLOCK,
    ),
    place(
        "single_transformer_blocks.{i}.",
        "single_blocks.{i}.",
        BLOCK,
    ),
    within("early_stream_modulations.", STREAMS),
    within("single_stream_modulations.", STREAMS),
    place(
        "",
        "",
        &[
            layer("x_embedders.image", "emb_in.image"),
            layer("x_embedders.image_cond", "emb_in.image_cond"),
            layer("context_embedder", "txt_in"),
            layer("timestep_embedder.linear_1", "time_in.in_layer"),
            layer("timestep_embedder.linear_2", "time_in.out_layer"),
            layer("target_timestep_embedder.linear_1", "ref_time_in.in_layer"),
            layer("target_timestep_embedder.linear_2", "ref_time_in.out_layer"),
            layer("proj_out", "final_layer.image.linear"),
            swapped("norm_out.linear", "final_layer.image.adaLN_modulation.1"),
        ],
    ),
])
.keeping_others();

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["early_stream_modulations.image.lin.weight"],
    layouts: &[(LoraLayout::Table(&DIFFUSERS), Spelling::DIFFUSERS)],
};
