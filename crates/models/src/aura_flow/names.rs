//! Other people's names for the weights.

use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, layer, place, swapped, value};

/// The names that diffusers has.
pub(crate) static DIFFUSERS: NameTable = NameTable::new(&[
    place(
        "joint_transformer_blocks.{i}.",
        "double_layers.{i}.",
        &[
            layer("attn.to_q", "attn.w2q"),
            layer("attn.to_k", "attn.w2k"),
            layer("attn.to_v", "attn.w2v"),
            layer("attn.to_out.0", "attn.w2o"),
            layer("attn.add_q_proj", "attn.w1q"),
            layer("attn.add_k_proj", "attn.w1k"),
            layer("attn.add_v_proj", "attn.w1v"),
            layer("attn.to_add_out", "attn.w1o"),
            layer("ff.linear_1", "mlpX.c_fc1"),
            layer("ff.linear_2", "mlpX.c_fc2"),
            layer("ff.out_projection", "mlpX.c_proj"),
            layer("ff_context.linear_1", "mlpC.c_fc1"),
            layer("ff_context.linear_2", "mlpC.c_fc2"),
            layer("ff_context.out_projection", "mlpC.c_proj"),
            layer("norm1.linear", "modX.1"),
            layer("norm1_context.linear", "modC.1"),
        ],
    ),
    place(
        "single_transformer_blocks.{i}.",
        "single_layers.{i}.",
        &[
            layer("attn.to_q", "attn.w1q"),
            layer("attn.to_k", "attn.w1k"),
            layer("attn.to_v", "attn.w1v"),
            layer("attn.to_out.0", "attn.w1o"),
            layer("ff.linear_1", "mlp.c_fc1"),
            layer("ff.linear_2", "mlp.c_fc2"),
            layer("ff.out_projection", "mlp.c_proj"),
            layer("norm1.linear", "modCX.1"),
        ],
    ),
    place(
        "",
        "",
        &[
            layer("time_step_proj.linear_1", "t_embedder.mlp.0"),
            layer("time_step_proj.linear_2", "t_embedder.mlp.2"),
            layer("context_embedder", "cond_seq_linear"),
            layer("pos_embed.proj", "init_x_linear"),
            value("pos_embed.pos_embed", "positional_encoding"),
            value("register_tokens", "register_tokens"),
            swapped("norm_out.linear", "modF.1"),
            layer("proj_out", "final_linear"),
        ],
    ),
]);

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["double_layers.0.attn.w1q.weight"],
    layouts: &[(
        LoraLayout::Table(&DIFFUSERS),
        &[Spelling::dots("transformer.")],
    )],
};
