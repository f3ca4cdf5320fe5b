//! Stable Diffusion 3 in LoRA files, and the names that diffusers has for its layers.

use crate::lora::Part::{Rows, Swapped, Whole};
use crate::lora::{LayerTable, NameMap, NetworkKeys, Row, Spelling};

const SPELLINGS: [Spelling; 4] = [
    Spelling::dots("transformer."),
    Spelling::dots("base_model.model."),
    Spelling::underscores("lora_transformer_"),
    Spelling::underscores("lycoris_"),
];

const BLOCK: [Row; 25] = [
    ("attn.to_q", "x_block.attn.qkv", Rows(0, 1)),
    ("attn.to_k", "x_block.attn.qkv", Rows(1, 1)),
    ("attn.to_v", "x_block.attn.qkv", Rows(2, 1)),
    ("attn.add_q_proj", "context_block.attn.qkv", Rows(0, 1)),
    ("attn.add_k_proj", "context_block.attn.qkv", Rows(1, 1)),
    ("attn.add_v_proj", "context_block.attn.qkv", Rows(2, 1)),
    ("attn2.to_q", "x_block.attn2.qkv", Rows(0, 1)),
    ("attn2.to_k", "x_block.attn2.qkv", Rows(1, 1)),
    ("attn2.to_v", "x_block.attn2.qkv", Rows(2, 1)),
    ("attn2.to_out.0", "x_block.attn2.proj", Whole),
    ("attn2.norm_q", "x_block.attn2.ln_q", Whole),
    ("attn2.norm_k", "x_block.attn2.ln_k", Whole),
    ("attn.to_out.0", "x_block.attn.proj", Whole),
    ("attn.to_add_out", "context_block.attn.proj", Whole),
    ("attn.norm_q", "x_block.attn.ln_q", Whole),
    ("attn.norm_k", "x_block.attn.ln_k", Whole),
    ("attn.norm_added_q", "context_block.attn.ln_q", Whole),
    ("attn.norm_added_k", "context_block.attn.ln_k", Whole),
    ("ff.net.0.proj", "x_block.mlp.fc1", Whole),
    ("ff.net.2", "x_block.mlp.fc2", Whole),
    ("ff_context.net.0.proj", "context_block.mlp.fc1", Whole),
    ("ff_context.net.2", "context_block.mlp.fc2", Whole),
    ("norm1.linear", "x_block.adaLN_modulation.1", Whole),
    (
        "norm1_context.linear",
        "context_block.adaLN_modulation.1",
        Whole,
    ),
    (
        "norm1_context.linear",
        "context_block.adaLN_modulation.1",
        Swapped,
    ),
];

const BASE: [Row; 9] = [
    (
        "time_text_embed.timestep_embedder.linear_1",
        "t_embedder.mlp.0",
        Whole,
    ),
    (
        "time_text_embed.timestep_embedder.linear_2",
        "t_embedder.mlp.2",
        Whole,
    ),
    (
        "time_text_embed.text_embedder.linear_1",
        "y_embedder.mlp.0",
        Whole,
    ),
    (
        "time_text_embed.text_embedder.linear_2",
        "y_embedder.mlp.2",
        Whole,
    ),
    ("context_embedder", "context_embedder", Whole),
    ("pos_embed.proj", "x_embedder.proj", Whole),
    ("pos_embed.pos_embed", "pos_embed", Whole),
    ("norm_out.linear", "final_layer.adaLN_modulation.1", Swapped),
    ("proj_out", "final_layer.linear", Whole),
];

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("joint_blocks.0.context_block.attn.qkv.weight") {
        return false;
    }
    let blocks = keys.count("joint_blocks.");
    let width = keys.outputs("joint_blocks.0.x_block.attn.proj.weight");
    let table = table(blocks, width.unwrap_or(64 * blocks));
    map.add_table(&table, &SPELLINGS);
    true
}

/// All names of a network with so many blocks.
pub(crate) fn table(blocks: usize, width: usize) -> LayerTable {
    let (plain, last) = BLOCK.split_at(24);
    let mut table = LayerTable::new(width);
    for i in 0..blocks {
        let (theirs, ours) = (
            format!("transformer_blocks.{i}."),
            format!("joint_blocks.{i}."),
        );
        if i + 1 == blocks {
            // The last block's context has no gate, and its two halves are the other way round.
            table.add_block(&theirs, &ours, &plain[..23]);
            table.add_block(&theirs, &ours, last);
        } else {
            table.add_block(&theirs, &ours, plain);
        }
    }
    table.add_block("", "", &BASE);
    table
}
