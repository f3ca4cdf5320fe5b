//! AuraFlow in LoRA files.

use crate::lora::Part::{Swapped, Whole};
use crate::lora::{LayerTable, NameMap, NetworkKeys, Row, Spelling};

const DOUBLE: [Row; 16] = [
    ("attn.to_q", "attn.w2q", Whole),
    ("attn.to_k", "attn.w2k", Whole),
    ("attn.to_v", "attn.w2v", Whole),
    ("attn.to_out.0", "attn.w2o", Whole),
    ("attn.add_q_proj", "attn.w1q", Whole),
    ("attn.add_k_proj", "attn.w1k", Whole),
    ("attn.add_v_proj", "attn.w1v", Whole),
    ("attn.to_add_out", "attn.w1o", Whole),
    ("ff.linear_1", "mlpX.c_fc1", Whole),
    ("ff.linear_2", "mlpX.c_fc2", Whole),
    ("ff.out_projection", "mlpX.c_proj", Whole),
    ("ff_context.linear_1", "mlpC.c_fc1", Whole),
    ("ff_context.linear_2", "mlpC.c_fc2", Whole),
    ("ff_context.out_projection", "mlpC.c_proj", Whole),
    ("norm1.linear", "modX.1", Whole),
    ("norm1_context.linear", "modC.1", Whole),
];

const SINGLE: [Row; 8] = [
    ("attn.to_q", "attn.w1q", Whole),
    ("attn.to_k", "attn.w1k", Whole),
    ("attn.to_v", "attn.w1v", Whole),
    ("attn.to_out.0", "attn.w1o", Whole),
    ("ff.linear_1", "mlp.c_fc1", Whole),
    ("ff.linear_2", "mlp.c_fc2", Whole),
    ("ff.out_projection", "mlp.c_proj", Whole),
    ("norm1.linear", "modCX.1", Whole),
];

const BASE: [Row; 6] = [
    ("time_step_proj.linear_1", "t_embedder.mlp.0", Whole),
    ("time_step_proj.linear_2", "t_embedder.mlp.2", Whole),
    ("context_embedder", "cond_seq_linear", Whole),
    ("pos_embed.proj", "init_x_linear", Whole),
    ("norm_out.linear", "modF.1", Swapped),
    ("proj_out", "final_linear", Whole),
];

/// Their layers, and which of ours each is.
pub(super) fn table(joint: usize, single: usize) -> LayerTable {
    let mut table = LayerTable::new(0);
    for i in 0..joint {
        let theirs = format!("joint_transformer_blocks.{i}.");
        table.add_block(&theirs, &format!("double_layers.{i}."), &DOUBLE);
    }
    for i in 0..single {
        let theirs = format!("single_transformer_blocks.{i}.");
        table.add_block(&theirs, &format!("single_layers.{i}."), &SINGLE);
    }
    table.add_block("", "", &BASE);
    table
}

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("double_layers.0.attn.w1q.weight") {
        return false;
    }
    let table = table(keys.count("double_layers."), keys.count("single_layers."));
    map.add_table(&table, &[Spelling::dots("transformer.")]);
    true
}
