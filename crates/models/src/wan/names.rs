//! Other people's names for the weights.

use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, layer, place, value};

const BLOCK: &[Rule] = &[
    layer("attn1.to_q", "self_attn.q"),
    layer("attn1.to_k", "self_attn.k"),
    layer("attn1.to_v", "self_attn.v"),
    layer("attn1.to_out.0", "self_attn.o"),
    layer("attn1.norm_q", "self_attn.norm_q"),
    layer("attn1.norm_k", "self_attn.norm_k"),
    layer("attn2.to_q", "cross_attn.q"),
    layer("attn2.to_k", "cross_attn.k"),
    layer("attn2.to_v", "cross_attn.v"),
    layer("attn2.to_out.0", "cross_attn.o"),
    layer("attn2.norm_q", "cross_attn.norm_q"),
    layer("attn2.norm_k", "cross_attn.norm_k"),
    layer("attn2.norm_added_k", "cross_attn.norm_k_img"),
    layer("attn2.add_k_proj", "cross_attn.k_img"),
    layer("attn2.add_v_proj", "cross_attn.v_img"),
    layer("norm2", "norm3"),
    layer("ffn.net.0.proj", "ffn.0"),
    layer("ffn.net.2", "ffn.2"),
    value("scale_shift_table", "modulation"),
];

/// The names that diffusers has.
pub(crate) static DIFFUSERS: NameTable = NameTable::new(&[
    place("blocks.{i}.", "blocks.{i}.", BLOCK),
    place("vace_blocks.{i}.", "vace_blocks.{i}.", BLOCK),
    place(
        "condition_embedder.",
        "",
        &[
            layer("time_embedder.linear_1", "time_embedding.0"),
            layer("time_embedder.linear_2", "time_embedding.2"),
            layer("time_proj", "time_projection.1"),
            layer("text_embedder.linear_1", "text_embedding.0"),
            layer("text_embedder.linear_2", "text_embedding.2"),
            value("image_embedder.pos_embed", "img_emb.emb_pos"),
            layer("image_embedder.norm1", "img_emb.proj.0"),
            layer("image_embedder.ff.net.0.proj", "img_emb.proj.1"),
            layer("image_embedder.ff.net.2", "img_emb.proj.3"),
            layer("image_embedder.norm2", "img_emb.proj.4"),
        ],
    ),
    place(
        "",
        "",
        &[
            value("scale_shift_table", "head.modulation"),
            layer("proj_out", "head.head"),
        ],
    ),
])
.keeping_others();

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["head.modulation"],
    layouts: &[
        (LoraLayout::Table(&DIFFUSERS), Spelling::DIFFUSERS),
        // The files of Wan Fun have one line too many.
        (LoraLayout::Own, &[Spelling::underscores("lora_unet__")]),
    ],
};
