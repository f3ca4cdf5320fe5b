//! Other people's names for the weights.

use std::collections::BTreeMap;

use crate::detect::FileKeys;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, layer, place, rows, within};
use crate::store::Origin;

/// The parts of a network of this family; files may have more, for training or for other uses.
const OWN: &[&str] = &[
    "x_embedder",
    "x_pad_token",
    "cap_pad_token",
    "noise_refiner",
    "context_refiner",
    "t_embedder",
    "cap_embedder",
    "clip_text_pooled_proj",
    "time_text_embed",
    "layers",
    "final_layer",
];

pub(super) fn is_own(key: &str) -> bool {
    OWN.contains(&key.split('.').next().unwrap_or(key))
}

/// What diffusers calls the attention of Z-Image.
const ATTENTION: &[Rule] = &[
    rows("attention.to_q", "attention.qkv", 0, 1),
    rows("attention.to_k", "attention.qkv", 1, 1),
    rows("attention.to_v", "attention.qkv", 2, 1),
    layer("attention.to_out.0", "attention.out"),
    layer("attention.norm_q", "attention.q_norm"),
    layer("attention.norm_k", "attention.k_norm"),
];

/// The names that diffusers has for Z-Image.
pub(crate) static DIFFUSERS_Z: NameTable = NameTable::new(&[
    within("layers.{i}.", ATTENTION),
    within("context_refiner.{i}.", ATTENTION),
    within("noise_refiner.{i}.", ATTENTION),
    place(
        "",
        "",
        &[
            layer("all_x_embedder.2-1", "x_embedder"),
            layer("all_final_layer.2-1.linear", "final_layer.linear"),
            layer(
                "all_final_layer.2-1.adaLN_modulation.1",
                "final_layer.adaLN_modulation.1",
            ),
        ],
    ),
])
.keeping_others()
.counted_in(WIDTH);

/// The same for its control nets.
pub(crate) static CONTROL: NameTable = NameTable::new(&[
    within("control_layers.{i}.", ATTENTION),
    within("control_noise_refiner.{i}.", ATTENTION),
])
.keeping_others()
.counted_in(&["control_layers.0.attention.out.weight"]);

/// A block of Lumina 2, but for its first norm.
const BLOCK: &[Rule] = &[
    rows("attn.to_q", "attention.qkv", 0, 1),
    rows("attn.to_k", "attention.qkv", 1, 1),
    rows("attn.to_v", "attention.qkv", 2, 1),
    layer("attn.to_out.0", "attention.out"),
    layer("attn.norm_q", "attention.q_norm"),
    layer("attn.norm_k", "attention.k_norm"),
    layer("feed_forward.linear_1", "feed_forward.w1"),
    layer("feed_forward.linear_2", "feed_forward.w2"),
    layer("feed_forward.linear_3", "feed_forward.w3"),
    layer("norm2", "attention_norm2"),
];

const MODULATED: &[Rule] = &[
    layer("norm1.linear", "adaLN_modulation.1"),
    layer("norm1.norm", "attention_norm1"),
];

/// The names that diffusers has for Lumina 2.
pub(crate) static DIFFUSERS_LUMINA: NameTable = NameTable::new(&[
    within("layers.{i}.", BLOCK),
    within("layers.{i}.", MODULATED),
    within("noise_refiner.{i}.", BLOCK),
    within("noise_refiner.{i}.", MODULATED),
    within("context_refiner.{i}.", BLOCK),
    within("context_refiner.{i}.", &[layer("norm1", "attention_norm1")]),
    place(
        "time_caption_embed.",
        "",
        &[
            layer("caption_embedder.0", "cap_embedder.0"),
            layer("caption_embedder.1", "cap_embedder.1"),
            layer("timestep_embedder.linear_1", "t_embedder.mlp.0"),
            layer("timestep_embedder.linear_2", "t_embedder.mlp.2"),
        ],
    ),
    place(
        "norm_out.",
        "final_layer.",
        &[
            layer("linear_1", "adaLN_modulation.1"),
            layer("linear_2", "linear"),
        ],
    ),
])
.keeping_others()
.counted_in(WIDTH);

const WIDTH: &[&str] = &["cap_embedder.1.weight"];

pub(crate) static LORA: LoraNames = LoraNames {
    signs: WIDTH,
    layouts: &[(
        LoraLayout::Table(&DIFFUSERS_Z),
        &[
            Spelling::dots("diffusion_model."),
            Spelling::dots("transformer."),
            Spelling::underscores("lycoris_"),
        ],
    )],
};

/// Keys of the network with where they are in a file of any naming.
pub(super) fn origins(keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
    let mut origins = if keys.any_inside("time_caption_embed.") {
        keys.origins_by(&DIFFUSERS_LUMINA)
    } else if keys.any_inside("all_x_embedder.") {
        keys.origins_by(&DIFFUSERS_Z)
    } else {
        keys.own()
    };
    origins.retain(|key, _| is_own(key));
    origins
}
