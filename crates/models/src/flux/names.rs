//! Other people's names for the weights.

use std::collections::BTreeMap;

use crate::detect::FileKeys;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, layer, place, rows, swapped, value};
use crate::store::Origin;

/// Attention of a block with weights of its own for picture and prompt.
const STREAMS: &[Rule] = &[
    rows("attn.to_q", "img_attn.qkv", 0, 1),
    rows("attn.to_k", "img_attn.qkv", 1, 1),
    rows("attn.to_v", "img_attn.qkv", 2, 1),
    rows("attn.add_q_proj", "txt_attn.qkv", 0, 1),
    rows("attn.add_k_proj", "txt_attn.qkv", 1, 1),
    rows("attn.add_v_proj", "txt_attn.qkv", 2, 1),
    layer("attn.to_out.0", "img_attn.proj"),
    layer("attn.to_add_out", "txt_attn.proj"),
    value("attn.norm_q.weight", "img_attn.norm.query_norm.scale"),
    value("attn.norm_k.weight", "img_attn.norm.key_norm.scale"),
    value("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
    value("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
];

/// Norms of a block with one set of weights.
const NORMS: &[Rule] = &[
    value("attn.norm_q.weight", "norm.query_norm.scale"),
    value("attn.norm_k.weight", "norm.key_norm.scale"),
];

/// The two ends. The halves of the last modulation are the other way round.
const ENDS: &[Rule] = &[
    layer("x_embedder", "img_in"),
    layer("context_embedder", "txt_in"),
    layer("proj_out", "final_layer.linear"),
    swapped("norm_out.linear", "final_layer.adaLN_modulation.1"),
];

const EMBEDDER: &[Rule] = &[
    layer("linear_1", "in_layer"),
    layer("linear_2", "out_layer"),
];

const WIDTH: &[&str] = &["img_in.weight", "double_blocks.0.img_attn.proj.weight"];

/// The names that diffusers has for the first version.
pub(crate) static DIFFUSERS: NameTable = NameTable::new(&[
    place("transformer_blocks.{i}.", "double_blocks.{i}.", STREAMS),
    place(
        "transformer_blocks.{i}.",
        "double_blocks.{i}.",
        &[
            layer("norm1.linear", "img_mod.lin"),
            layer("norm1_context.linear", "txt_mod.lin"),
            layer("ff.net.0.proj", "img_mlp.0"),
            layer("ff.net.2", "img_mlp.2"),
            layer("ff_context.net.0.proj", "txt_mlp.0"),
            layer("ff_context.net.2", "txt_mlp.2"),
        ],
    ),
    place(
        "single_transformer_blocks.{i}.",
        "single_blocks.{i}.",
        &[
            rows("attn.to_q", "linear1", 0, 1),
            rows("attn.to_k", "linear1", 1, 1),
            rows("attn.to_v", "linear1", 2, 1),
            rows("proj_mlp", "linear1", 3, 4),
            layer("norm.linear", "modulation.lin"),
            layer("proj_out", "linear2"),
        ],
    ),
    place(
        "single_transformer_blocks.{i}.",
        "single_blocks.{i}.",
        NORMS,
    ),
    place("time_text_embed.timestep_embedder.", "time_in.", EMBEDDER),
    place("time_text_embed.text_embedder.", "vector_in.", EMBEDDER),
    place(
        "time_text_embed.guidance_embedder.",
        "guidance_in.",
        EMBEDDER,
    ),
    place("", "", ENDS),
    place("", "", &[layer("controlnet_x_embedder", "pos_embed_input")]),
])
.counted_in(WIDTH);

/// The same for the second version.
pub(crate) static DIFFUSERS_2: NameTable = NameTable::new(&[
    place("transformer_blocks.{i}.", "double_blocks.{i}.", STREAMS),
    place(
        "transformer_blocks.{i}.",
        "double_blocks.{i}.",
        &[
            layer("ff.linear_in", "img_mlp.0"),
            layer("ff.linear_out", "img_mlp.2"),
            layer("ff_context.linear_in", "txt_mlp.0"),
            layer("ff_context.linear_out", "txt_mlp.2"),
        ],
    ),
    place(
        "single_transformer_blocks.{i}.",
        "single_blocks.{i}.",
        &[
            layer("attn.to_qkv_mlp_proj", "linear1"),
            layer("attn.to_out", "linear2"),
        ],
    ),
    place(
        "single_transformer_blocks.{i}.",
        "single_blocks.{i}.",
        NORMS,
    ),
    place(
        "time_guidance_embed.timestep_embedder.",
        "time_in.",
        EMBEDDER,
    ),
    place(
        "time_guidance_embed.guidance_embedder.",
        "guidance_in.",
        EMBEDDER,
    ),
    place(
        "",
        "",
        &[
            layer(
                "double_stream_modulation_img.linear",
                "double_stream_modulation_img.lin",
            ),
            layer(
                "double_stream_modulation_txt.linear",
                "double_stream_modulation_txt.lin",
            ),
            layer(
                "single_stream_modulation.linear",
                "single_stream_modulation.lin",
            ),
        ],
    ),
    place("", "", ENDS),
])
.counted_in(WIDTH);

/// Queries, keys and values in one matrix, which the model has together with the feed-forward part.
pub(crate) static JOINT: NameTable = NameTable::new(&[place(
    "single_blocks.{i}.",
    "single_blocks.{i}.",
    &[rows("linear1_qkv", "linear1", 0, 3)],
)])
.counted_in(WIDTH);

/// What USO calls its changes.
pub(crate) static SUBJECT: NameTable = NameTable::new(&[
    place(
        "single_blocks.{i}.processor.",
        "single_blocks.{i}.",
        &[
            rows("qkv_lora", "linear1", 0, 3),
            layer("proj_lora", "linear2"),
        ],
    ),
    place(
        "double_blocks.{i}.processor.",
        "double_blocks.{i}.",
        &[
            layer("qkv_lora1", "img_attn.qkv"),
            layer("qkv_lora2", "txt_attn.qkv"),
            layer("proj_lora1", "img_attn.proj"),
            layer("proj_lora2", "txt_attn.proj"),
        ],
    ),
])
.counted_in(WIDTH);

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["double_blocks.0.img_attn.qkv.weight"],
    layouts: &[
        (
            LoraLayout::Table(&DIFFUSERS),
            &[
                Spelling::dots("transformer."),
                Spelling::underscores("lycoris_"),
                Spelling::underscores("lora_transformer_"),
            ],
        ),
        (
            LoraLayout::Table(&JOINT),
            &[Spelling::dots("diffusion_model.")],
        ),
        (LoraLayout::Table(&SUBJECT), &[Spelling::dots("")]),
    ],
};

/// Whether a file has the names of diffusers.
pub(super) fn is_diffusers(keys: &FileKeys<'_>) -> bool {
    keys.has("transformer_blocks.0.attn.norm_added_k.weight")
        && keys.any_inside("single_transformer_blocks.0.")
        && keys.has("x_embedder.weight")
}

/// Where our keys are in such a file, of either version.
pub(super) fn origins(keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
    let mut origins = keys.origins_by(&DIFFUSERS);
    origins.append(&mut keys.origins_by(&DIFFUSERS_2));
    origins
}
