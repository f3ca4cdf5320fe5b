//! CLIP text encoders in LoRA files.

use crate::lora::{NameMap, Spelling, TextKeys};

const LAYERS: [&str; 6] = [
    "mlp.fc1",
    "mlp.fc2",
    "self_attn.k_proj",
    "self_attn.q_proj",
    "self_attn.v_proj",
    "self_attn.out_proj",
];

/// Of the encoder that is the first, or the only one.
const FIRST: [Spelling; 3] = [
    Spelling::underscores("lora_te_"),
    Spelling::underscores("lora_te1_"),
    Spelling::dots("text_encoder."),
];
const SECOND: [Spelling; 2] = [
    Spelling::underscores("lora_te2_"),
    Spelling::dots("text_encoder_2."),
];
/// Of the larger one without the smaller one.
const ALONE: [Spelling; 3] = [
    Spelling::underscores("lora_te_"),
    Spelling::dots("text_encoder."),
    Spelling::underscores("lora_prior_te_"),
];

const PROJECTIONS: [(&str, &[&str]); 2] = [
    ("clip_g.", &["lora_prior_te_", "lora_te2_"]),
    ("clip_l.", &["lora_te1_"]),
];

pub(crate) fn names(keys: &TextKeys<'_>, map: &mut NameMap) {
    let second = if keys.has_encoder("clip_l") {
        &SECOND[..]
    } else {
        &ALONE
    };
    for (encoder, spellings) in [
        ("clip_h", &FIRST[..]),
        ("clip_l", &FIRST),
        ("clip_g", second),
    ] {
        for (path, inner) in keys.inside(&format!("{encoder}.transformer.")) {
            let block = inner.strip_prefix("text_model.encoder.layers.");
            let layer = block.and_then(|rest| rest.split_once('.'));
            if layer.is_some_and(|(_, layer)| LAYERS.contains(&layer)) {
                map.add_text(path, inner, spellings);
            }
        }
    }
    for (encoder, prefixes) in PROJECTIONS {
        for (path, inner) in keys.inside(&format!("{encoder}transformer.")) {
            if inner == "text_projection" {
                let spellings: Vec<Spelling<'_>> =
                    prefixes.iter().map(|p| Spelling::underscores(p)).collect();
                map.add_text(path, inner, &spellings);
            }
        }
    }
}
