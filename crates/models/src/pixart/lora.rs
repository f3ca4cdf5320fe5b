//! PixArt in LoRA files.

use crate::lora::Part::{Rows, Whole};
use crate::lora::{LayerTable, NameMap, NetworkKeys, Row, Spelling};

const SPELLINGS: [Spelling; 3] = [
    Spelling::dots("transformer."),
    Spelling::dots("base_model.model."),
    Spelling::dots("unet.base_model.model."),
];

const BLOCK: [Row; 10] = [
    ("attn1.to_q", "attn.qkv", Rows(0, 1)),
    ("attn1.to_k", "attn.qkv", Rows(1, 1)),
    ("attn1.to_v", "attn.qkv", Rows(2, 1)),
    ("attn1.to_out.0", "attn.proj", Whole),
    ("attn2.to_q", "cross_attn.q_linear", Whole),
    ("attn2.to_k", "cross_attn.kv_linear", Rows(0, 1)),
    ("attn2.to_v", "cross_attn.kv_linear", Rows(1, 1)),
    ("attn2.to_out.0", "cross_attn.proj", Whole),
    ("ff.net.0.proj", "mlp.fc1", Whole),
    ("ff.net.2", "mlp.fc2", Whole),
];

const BASE: [Row; 11] = [
    ("pos_embed.proj", "x_embedder.proj", Whole),
    (
        "adaln_single.emb.timestep_embedder.linear_1",
        "t_embedder.mlp.0",
        Whole,
    ),
    (
        "adaln_single.emb.timestep_embedder.linear_2",
        "t_embedder.mlp.2",
        Whole,
    ),
    (
        "adaln_single.emb.resolution_embedder.linear_1",
        "csize_embedder.mlp.0",
        Whole,
    ),
    (
        "adaln_single.emb.resolution_embedder.linear_2",
        "csize_embedder.mlp.2",
        Whole,
    ),
    (
        "adaln_single.emb.aspect_ratio_embedder.linear_1",
        "ar_embedder.mlp.0",
        Whole,
    ),
    (
        "adaln_single.emb.aspect_ratio_embedder.linear_2",
        "ar_embedder.mlp.2",
        Whole,
    ),
    ("adaln_single.linear", "t_block.1", Whole),
    (
        "caption_projection.linear_1",
        "y_embedder.y_proj.fc1",
        Whole,
    ),
    (
        "caption_projection.linear_2",
        "y_embedder.y_proj.fc2",
        Whole,
    ),
    ("proj_out", "final_layer.linear", Whole),
];

/// Their layers, and which of ours each is.
pub(super) fn table(blocks: usize, width: usize) -> LayerTable {
    let mut table = LayerTable::new(width);
    for i in 0..blocks {
        let theirs = format!("transformer_blocks.{i}.");
        table.add_block(&theirs, &format!("blocks.{i}."), &BLOCK);
    }
    table.add_block("", "", &BASE);
    table
}

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("t_block.1.weight") {
        return false;
    }
    let width = keys.outputs("blocks.0.attn.proj.weight").unwrap_or(1152);
    let table = table(keys.count("blocks."), width);
    map.add_table(&table, &SPELLINGS);
    true
}
