//! Other people's names for the weights.

use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, flat, layer, place, value};

const BLOCK: &[Rule] = &[
    layer("attn.to_q", "attn.wq"),
    layer("attn.to_k", "attn.wk"),
    layer("attn.to_v", "attn.wv"),
    layer("attn.to_out.0", "attn.wo"),
    layer("attn.to_gate", "attn.gate"),
    value("attn.norm_q.weight", "attn.qknorm.qnorm.scale"),
    value("attn.norm_k.weight", "attn.qknorm.knorm.scale"),
    layer("ff.gate", "mlp.gate"),
    layer("ff.up", "mlp.up"),
    layer("ff.down", "mlp.down"),
    value("norm1.weight", "prenorm.scale"),
    value("norm2.weight", "postnorm.scale"),
];

/// The names that diffusers has. There each part of a table is a row of its own.
pub(crate) static DIFFUSERS: NameTable = NameTable::new(&[
    place("transformer_blocks.{i}.", "blocks.{i}.", BLOCK),
    place(
        "text_fusion.layerwise_blocks.{i}.",
        "txtfusion.layerwise_blocks.{i}.",
        BLOCK,
    ),
    place(
        "text_fusion.refiner_blocks.{i}.",
        "txtfusion.refiner_blocks.{i}.",
        BLOCK,
    ),
    place(
        "",
        "",
        &[
            layer("img_in", "first"),
            layer("time_embed.linear_1", "tmlp.0"),
            layer("time_embed.linear_2", "tmlp.2"),
            layer("time_mod_proj", "tproj.1"),
            value("txt_in.norm.weight", "txtmlp.0.scale"),
            layer("txt_in.linear_1", "txtmlp.1"),
            layer("txt_in.linear_2", "txtmlp.3"),
            layer("text_fusion.projector", "txtfusion.projector"),
            flat(
                "transformer_blocks.{i}.scale_shift_table",
                "blocks.{i}.mod.lin",
            ),
            layer("final_layer.linear", "last.linear"),
            value("final_layer.norm.weight", "last.norm.scale"),
            value("final_layer.scale_shift_table", "last.modulation.lin"),
        ],
    ),
])
.keeping_others();

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["txtfusion.projector.weight"],
    layouts: &[(LoraLayout::Table(&DIFFUSERS), Spelling::DIFFUSERS)],
};
