//! Other people's names for the weights.

use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, layer, value, within};

const TIME: &[Rule] = &[layer("mlp.0", "in_layer"), layer("mlp.2", "out_layer")];

/// The names that the authors have. Those that are ours already stay.
pub(crate) static AUTHORS: NameTable = NameTable::new(&[
    within("double_blocks.{i}.img_", STREAM),
    within("double_blocks.{i}.txt_", STREAM),
    within(
        "single_blocks.{i}.",
        &[
            layer("modulation.linear", "modulation.lin"),
            value("q_norm.weight", "norm.query_norm.scale"),
            value("k_norm.weight", "norm.key_norm.scale"),
        ],
    ),
    within(
        "txt_in.individual_token_refiner.blocks.{i}.",
        &[
            layer("self_attn_qkv", "self_attn.qkv"),
            layer("self_attn_proj", "self_attn.proj"),
            value("self_attn_q_norm.weight", "self_attn.norm.query_norm.scale"),
            value("self_attn_k_norm.weight", "self_attn.norm.key_norm.scale"),
            layer("mlp.fc1", "mlp.0"),
            layer("mlp.fc2", "mlp.2"),
        ],
    ),
    within("time_in.", TIME),
    within("time_r_in.", TIME),
    within("guidance_in.", TIME),
    within("vector_in.", TIME),
    within("txt_in.t_embedder.", TIME),
    within(
        "txt_in.c_embedder.",
        &[
            layer("linear_1", "in_layer"),
            layer("linear_2", "out_layer"),
        ],
    ),
])
.keeping_others();

/// One stream of a block.
const STREAM: &[Rule] = &[
    layer("mod.linear", "mod.lin"),
    layer("attn_qkv", "attn.qkv"),
    layer("attn_proj", "attn.proj"),
    value("attn_q_norm.weight", "attn.norm.query_norm.scale"),
    value("attn_k_norm.weight", "attn.norm.key_norm.scale"),
    layer("mlp.fc1", "mlp.0"),
    layer("mlp.fc2", "mlp.2"),
];

const SPELLINGS: &[Spelling<'static>] = &[
    Spelling::dots("transformer."),
    Spelling::dots("diffusion_model."),
];

pub(crate) static LORA: LoraNames = LoraNames {
    signs: &["txt_in.individual_token_refiner.blocks.0.norm1.weight"],
    layouts: &[
        (LoraLayout::Own, SPELLINGS),
        (LoraLayout::Table(&AUTHORS), SPELLINGS),
    ],
};
