//! Other people's names for the weights.

use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, layer, place, within};

/// Attention, but for the way out.
const ATTENTION: &[Rule] = &[
    layer("attn1.to_q", "self_attn.q_proj"),
    layer("attn1.to_k", "self_attn.k_proj"),
    layer("attn1.to_v", "self_attn.v_proj"),
    layer("attn1.norm_q", "self_attn.q_norm"),
    layer("attn1.norm_k", "self_attn.k_norm"),
    layer("attn2.to_q", "cross_attn.q_proj"),
    layer("attn2.to_k", "cross_attn.k_proj"),
    layer("attn2.to_v", "cross_attn.v_proj"),
    layer("attn2.norm_q", "cross_attn.q_norm"),
    layer("attn2.norm_k", "cross_attn.k_norm"),
];

/// The names that diffusers has.
pub static DIFFUSERS: NameTable = NameTable::new(&[
    place("transformer_blocks.{i}.", "blocks.{i}.", ATTENTION),
    // Of Anima.
    within("llm_adapter.blocks.{i}.", ATTENTION),
    place(
        "transformer_blocks.{i}.",
        "blocks.{i}.",
        &[
            layer("norm1.linear_1", "adaln_modulation_self_attn.1"),
            layer("norm1.linear_2", "adaln_modulation_self_attn.2"),
            layer("norm2.linear_1", "adaln_modulation_cross_attn.1"),
            layer("norm2.linear_2", "adaln_modulation_cross_attn.2"),
            layer("norm3.linear_1", "adaln_modulation_mlp.1"),
            layer("norm3.linear_2", "adaln_modulation_mlp.2"),
            layer("attn1.to_out.0", "self_attn.output_proj"),
            layer("attn2.to_out.0", "cross_attn.output_proj"),
            layer("ff.net.0.proj", "mlp.layer1"),
            layer("ff.net.2", "mlp.layer2"),
        ],
    ),
    place(
        "",
        "",
        &[
            layer("patch_embed.proj", "x_embedder.proj.1"),
            layer("time_embed.t_embedder.linear_1", "t_embedder.1.linear_1"),
            layer("time_embed.t_embedder.linear_2", "t_embedder.1.linear_2"),
            layer("time_embed.norm", "t_embedding_norm"),
            layer("norm_out.linear_1", "final_layer.adaln_modulation.1"),
            layer("norm_out.linear_2", "final_layer.adaln_modulation.2"),
            layer("proj_out", "final_layer.linear"),
        ],
    ),
])
.keeping_others();

/// The names of the first release: each part of a block is a block of its own.
pub static FIRST: NameTable = NameTable::new(&[
    place(
        "blocks.block{i}.blocks.",
        "blocks.{i}.",
        &[
            layer("0.block.attn.to_q.0", "self_attn.q_proj"),
            layer("0.block.attn.to_k.0", "self_attn.k_proj"),
            layer("0.block.attn.to_v.0", "self_attn.v_proj"),
            layer("0.block.attn.to_out.0", "self_attn.output_proj"),
            layer("0.block.attn.to_q.1", "self_attn.q_norm"),
            layer("0.block.attn.to_k.1", "self_attn.k_norm"),
            layer("1.block.attn.to_q.0", "cross_attn.q_proj"),
            layer("1.block.attn.to_k.0", "cross_attn.k_proj"),
            layer("1.block.attn.to_v.0", "cross_attn.v_proj"),
            layer("1.block.attn.to_out.0", "cross_attn.output_proj"),
            layer("1.block.attn.to_q.1", "cross_attn.q_norm"),
            layer("1.block.attn.to_k.1", "cross_attn.k_norm"),
            layer("2.block.layer1", "mlp.layer1"),
            layer("2.block.layer2", "mlp.layer2"),
            layer("0.adaLN_modulation.1", "adaln_modulation_self_attn.1"),
            layer("0.adaLN_modulation.2", "adaln_modulation_self_attn.2"),
            layer("1.adaLN_modulation.1", "adaln_modulation_cross_attn.1"),
            layer("1.adaLN_modulation.2", "adaln_modulation_cross_attn.2"),
            layer("2.adaLN_modulation.1", "adaln_modulation_mlp.1"),
            layer("2.adaLN_modulation.2", "adaln_modulation_mlp.2"),
        ],
    ),
    place(
        "",
        "",
        &[
            layer("affline_norm", "t_embedding_norm"),
            layer(
                "final_layer.adaLN_modulation.1",
                "final_layer.adaln_modulation.1",
            ),
            layer(
                "final_layer.adaLN_modulation.2",
                "final_layer.adaln_modulation.2",
            ),
        ],
    ),
])
.keeping_others();

/// Networks with tables of positions are those of the first release.
pub(crate) static LORA_FIRST: LoraNames = LoraNames {
    signs: &["extra_pos_embedder.pos_emb_t"],
    layouts: &[(
        LoraLayout::Table(&FIRST),
        &[
            Spelling::dots("diffusion_model."),
            Spelling::underscores("lora_unet_"),
        ],
    )],
};

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["blocks.0.adaln_modulation_self_attn.1.weight"],
    layouts: &[(LoraLayout::Table(&DIFFUSERS), Spelling::DIFFUSERS)],
};
