//! Other people's names for the weights.

use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, layer, place, rows, swapped, value};

const BLOCK: &[Rule] = &[
    rows("attn.to_q", "x_block.attn.qkv", 0, 1),
    rows("attn.to_k", "x_block.attn.qkv", 1, 1),
    rows("attn.to_v", "x_block.attn.qkv", 2, 1),
    rows("attn.add_q_proj", "context_block.attn.qkv", 0, 1),
    rows("attn.add_k_proj", "context_block.attn.qkv", 1, 1),
    rows("attn.add_v_proj", "context_block.attn.qkv", 2, 1),
    rows("attn2.to_q", "x_block.attn2.qkv", 0, 1),
    rows("attn2.to_k", "x_block.attn2.qkv", 1, 1),
    rows("attn2.to_v", "x_block.attn2.qkv", 2, 1),
    layer("attn2.to_out.0", "x_block.attn2.proj"),
    layer("attn2.norm_q", "x_block.attn2.ln_q"),
    layer("attn2.norm_k", "x_block.attn2.ln_k"),
    layer("attn.to_out.0", "x_block.attn.proj"),
    layer("attn.to_add_out", "context_block.attn.proj"),
    layer("attn.norm_q", "x_block.attn.ln_q"),
    layer("attn.norm_k", "x_block.attn.ln_k"),
    layer("attn.norm_added_q", "context_block.attn.ln_q"),
    layer("attn.norm_added_k", "context_block.attn.ln_k"),
    layer("ff.net.0.proj", "x_block.mlp.fc1"),
    layer("ff.net.2", "x_block.mlp.fc2"),
    layer("ff_context.net.0.proj", "context_block.mlp.fc1"),
    layer("ff_context.net.2", "context_block.mlp.fc2"),
    layer("norm1.linear", "x_block.adaLN_modulation.1"),
];

const CONTEXT: &[Rule] = &[layer(
    "norm1_context.linear",
    "context_block.adaLN_modulation.1",
)];

const OUTSIDE: &[Rule] = &[
    layer(
        "time_text_embed.timestep_embedder.linear_1",
        "t_embedder.mlp.0",
    ),
    layer(
        "time_text_embed.timestep_embedder.linear_2",
        "t_embedder.mlp.2",
    ),
    layer("time_text_embed.text_embedder.linear_1", "y_embedder.mlp.0"),
    layer("time_text_embed.text_embedder.linear_2", "y_embedder.mlp.2"),
    layer("context_embedder", "context_embedder"),
    layer("pos_embed.proj", "x_embedder.proj"),
    value("pos_embed.pos_embed", "pos_embed"),
    swapped("norm_out.linear", "final_layer.adaLN_modulation.1"),
    layer("proj_out", "final_layer.linear"),
];

const WIDTH: &[&str] = &["joint_blocks.0.x_block.attn.proj.weight"];

/// The names that diffusers has.
pub(crate) static DIFFUSERS: NameTable = NameTable::new(&[
    place("transformer_blocks.{i}.", "joint_blocks.{i}.", BLOCK),
    place(
        "transformer_blocks.{front}.",
        "joint_blocks.{front}.",
        CONTEXT,
    ),
    // The last block's context has no gate, and its two halves are the other way round.
    place(
        "transformer_blocks.{last}.",
        "joint_blocks.{last}.",
        &[swapped(
            "norm1_context.linear",
            "context_block.adaLN_modulation.1",
        )],
    ),
    place("", "", OUTSIDE),
])
.counted_in(WIDTH);

/// The same of control nets. None of their blocks is the last of its model, which is another one.
pub(crate) static CONTROL: NameTable = NameTable::new(&[
    place("transformer_blocks.{i}.", "joint_blocks.{i}.", BLOCK),
    place("transformer_blocks.{i}.", "joint_blocks.{i}.", CONTEXT),
    place("", "", OUTSIDE),
])
.counted_in(WIDTH);

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["joint_blocks.0.context_block.attn.qkv.weight"],
    layouts: &[(
        LoraLayout::Table(&DIFFUSERS),
        &[
            Spelling::dots("transformer."),
            Spelling::dots("base_model.model."),
            Spelling::underscores("lora_transformer_"),
            Spelling::underscores("lycoris_"),
        ],
    )],
};
