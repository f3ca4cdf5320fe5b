//! Other people's names for the weights.

use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, layer, place, rows, value};

const EMBEDDER: &[Rule] = &[layer("linear_1", "mlp.0"), layer("linear_2", "mlp.2")];

/// The names that diffusers has.
pub(crate) static DIFFUSERS: NameTable = NameTable::new(&[
    place(
        "transformer_blocks.{i}.",
        "blocks.{i}.",
        &[
            rows("attn1.to_q", "attn.qkv", 0, 1),
            rows("attn1.to_k", "attn.qkv", 1, 1),
            rows("attn1.to_v", "attn.qkv", 2, 1),
            layer("attn1.to_out.0", "attn.proj"),
            layer("attn2.to_q", "cross_attn.q_linear"),
            rows("attn2.to_k", "cross_attn.kv_linear", 0, 1),
            rows("attn2.to_v", "cross_attn.kv_linear", 1, 1),
            layer("attn2.to_out.0", "cross_attn.proj"),
            layer("ff.net.0.proj", "mlp.fc1"),
            layer("ff.net.2", "mlp.fc2"),
            value("scale_shift_table", "scale_shift_table"),
        ],
    ),
    place(
        "adaln_single.emb.timestep_embedder.",
        "t_embedder.",
        EMBEDDER,
    ),
    place(
        "adaln_single.emb.resolution_embedder.",
        "csize_embedder.",
        EMBEDDER,
    ),
    place(
        "adaln_single.emb.aspect_ratio_embedder.",
        "ar_embedder.",
        EMBEDDER,
    ),
    place(
        "",
        "",
        &[
            layer("pos_embed.proj", "x_embedder.proj"),
            layer("adaln_single.linear", "t_block.1"),
            layer("caption_projection.linear_1", "y_embedder.y_proj.fc1"),
            layer("caption_projection.linear_2", "y_embedder.y_proj.fc2"),
            layer("proj_out", "final_layer.linear"),
            value("scale_shift_table", "final_layer.scale_shift_table"),
        ],
    ),
])
.counted_in(&["blocks.0.attn.proj.weight"]);

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["t_block.1.weight"],
    layouts: &[(
        LoraLayout::Table(&DIFFUSERS),
        &[
            Spelling::dots("transformer."),
            Spelling::dots("base_model.model."),
            Spelling::dots("unet.base_model.model."),
        ],
    )],
};
