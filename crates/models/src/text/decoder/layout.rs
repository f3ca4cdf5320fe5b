//! Where the weights of a decoder are in the files that bring one, and under which names.

use std::collections::BTreeMap;

use fresco_tensor::WeightFile;

use super::{JSON_KEY, PIECES_KEY, TEKKEN_KEY};
use crate::name_table::{NameTable, Rule, layer, place, value};
use crate::store::{Origin, flat_length};
use crate::text::network::words_origin;

/// The table of tokens.
pub(super) const TABLE: &str = "model.embed_tokens.weight";
/// What layers that remember have, after the number of the layer.
pub(super) const REMEMBERS: &str = "linear_attn.in_proj_qkv.weight";
/// The table that tells each layer of every token by itself.
pub(super) const PER_LAYER_TABLE: &str = "model.embed_tokens_per_layer.weight";
/// The number that what the first layer gives is multiplied with.
pub(super) const SCALAR: &str = "model.layers.0.layer_scalar";
/// What chooses among the experts of the first layer.
pub(super) const EXPERTS: &str = "model.layers.0.router.proj.weight";
/// The first layer of a network for pictures whose squares keep a picture's shape.
pub(super) const SQUARES: &str = "vision_tower.patch_embedder.input_proj.weight";
/// The first layer of a network for sound.
pub(super) const SOUNDS: &str = "audio_tower.subsample_conv_projection.layer0.conv.weight";
/// The first layer of another network for pictures: a convolution whose squares do not overlap, which is a matrix.
const PATCHES: &str = "visual.patch_embed.proj.weight";

/// The matrix between a network for pictures and the text, one row for each channel of a picture's: turned, it is a layer.
const PROJECTED: &str = "multi_modal_projector.mm_input_projection_weight";
pub(super) const PROJECTION: &str = "multi_modal_projector.mm_input_projection.weight";

/// What stands before names in files that bring more than the decoder. Longer ones first.
const PREFIXES: [(&str, &str); 12] = [
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.", "model."),
    ("model.visual.", "visual."),
    ("model.vision_tower.vision_model.", "vision_model."),
    ("vision_tower.vision_model.", "vision_model."),
    ("model.vision_tower.", "vision_tower."),
    ("model.embed_vision.", "embed_vision."),
    ("model.audio_tower.", "audio_tower."),
    ("model.embed_audio.", "embed_audio."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
];

/// A layer in GGUF files, but for the norm before its feed-forward part.
const LAYER: &[Rule] = &[
    layer("attn_q_norm", "self_attn.q_norm"),
    layer("attn_k_norm", "self_attn.k_norm"),
    layer("attn_norm", "input_layernorm"),
    layer("attn_q", "self_attn.q_proj"),
    layer("attn_k", "self_attn.k_proj"),
    layer("attn_v", "self_attn.v_proj"),
    layer("attn_output", "self_attn.o_proj"),
    layer("ffn_gate", "mlp.gate_proj"),
    layer("ffn_up", "mlp.up_proj"),
    layer("ffn_down", "mlp.down_proj"),
    layer("inp_gate", "per_layer_input_gate"),
    layer("proj", "per_layer_projection"),
    layer("post_norm", "post_per_layer_input_norm"),
    value("layer_output_scale.weight", "layer_scalar"),
];

const OUTSIDE: &[Rule] = &[
    layer("token_embd", "model.embed_tokens"),
    layer("per_layer_token_embd", "model.embed_tokens_per_layer"),
    layer("per_layer_model_proj", "model.per_layer_model_projection"),
    layer("per_layer_proj_norm", "model.per_layer_projection_norm"),
    layer("output_norm", "model.norm"),
    layer("output", "lm_head"),
];

const AFTER_ATTENTION: Rule = layer("post_attention_norm", "post_attention_layernorm");

/// The names of GGUF files.
pub static GGUF: NameTable = NameTable::new(&[
    place("blk.{i}.", "model.layers.{i}.", LAYER),
    place(
        "blk.{i}.",
        "model.layers.{i}.",
        &[layer("ffn_norm", "post_attention_layernorm")],
    ),
    place("", "", OUTSIDE),
])
.keeping_others();

/// The same where the norm is called after what is before it.
pub static GGUF_AFTER: NameTable = NameTable::new(&[
    place("blk.{i}.", "model.layers.{i}.", LAYER),
    place("blk.{i}.", "model.layers.{i}.", &[AFTER_ATTENTION]),
    place("", "", OUTSIDE),
])
.keeping_others();

/// The same with a norm after each part: the one that GGUF calls the feed-forward's stands before it.
pub static GGUF_SANDWICHED: NameTable = NameTable::new(&[
    place("blk.{i}.", "model.layers.{i}.", LAYER),
    place(
        "blk.{i}.",
        "model.layers.{i}.",
        &[
            layer("ffn_norm", "pre_feedforward_layernorm"),
            AFTER_ATTENTION,
            layer("post_ffw_norm", "post_feedforward_layernorm"),
        ],
    ),
    place("", "", OUTSIDE),
])
.keeping_others();

/// What turns states back into words, where that is not the table of tokens. No layer takes it before somebody writes.
pub(super) const WORDS: &str = "lm_head.weight";

/// Internal names of the tensors under `prefix`; empty if there is no decoder.
pub(super) fn keys(file: &dyn WeightFile, prefix: &str) -> BTreeMap<String, Origin> {
    let names = file.names();
    let inside = names.iter().filter_map(|name| name.strip_prefix(prefix));
    let inside: Vec<&str> = inside.collect();
    let has = |norm: &str| inside.iter().any(|name| name.ends_with(norm));
    let table = if has(".post_ffw_norm.weight") {
        &GGUF_SANDWICHED
    } else if has(".post_attention_norm.weight") {
        &GGUF_AFTER
    } else {
        &GGUF
    };
    let mut keys = BTreeMap::new();
    for (name, origin) in table.origins(file, prefix, &inside) {
        if let Some(key) = named(&name) {
            let (key, origin) = made(file, key, origin);
            keys.insert(key, origin);
        }
    }
    for key in [PIECES_KEY, TEKKEN_KEY, JSON_KEY] {
        if let Some(words) = words_origin(file, prefix, key) {
            keys.insert(key.to_owned(), words);
        }
    }
    let layer = |name: &str| keys.contains_key(&format!("model.layers.0.{name}"));
    let layer = layer("self_attn.q_proj.weight") || layer(REMEMBERS);
    if !keys.contains_key(TABLE) || !layer {
        keys.clear();
    }
    keys
}

/// What is kept otherwise than in files.
fn made(file: &dyn WeightFile, key: String, origin: Origin) -> (String, Origin) {
    let Origin::Whole(name) = &origin else {
        return (key, origin);
    };
    if key == PROJECTED {
        return (PROJECTION.to_owned(), Origin::Transposed(name.clone()));
    }
    let shape = (key == PATCHES).then(|| file.info(name)).flatten();
    match shape.map(|info| info.shape) {
        Some(shape) if shape.len() > 2 => {
            let shape = vec![shape[0], flat_length(&shape[1..])];
            let name = name.clone();
            (key, Origin::Shaped { name, shape })
        }
        _ => (key, origin),
    }
}

/// A key without what other files have before it; none if it is of no use.
fn named(name: &str) -> Option<String> {
    if [PIECES_KEY, TEKKEN_KEY, JSON_KEY].contains(&name) {
        return Some(name.to_owned());
    }
    let stripped = PREFIXES.iter().find_map(|(from, to)| {
        let rest = name.strip_prefix(from)?;
        Some(format!("{to}{rest}"))
    });
    let key = stripped.unwrap_or_else(|| name.to_owned());
    let own = [
        "model.layers.",
        "model.embed_tokens.",
        "model.embed_tokens_per_layer.",
        "model.per_layer_model_projection.",
        "model.per_layer_projection_norm.",
        "model.norm.",
        "lm_head.",
        "visual.",
        "vision_model.",
        "vision_tower.patch_embedder.",
        "vision_tower.encoder.layers.",
        "vision_tower.std_",
        "embed_vision.embedding_projection.",
        "audio_tower.subsample_conv_projection.",
        "audio_tower.layers.",
        "audio_tower.output_proj.",
        "embed_audio.embedding_projection.",
        "multi_modal_projector.mm_",
    ];
    own.iter()
        .any(|start| key.starts_with(start))
        .then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_what_stands_before_them() {
        let same = "model.layers.3.self_attn.q_proj.weight";
        for (name, key) in [
            (same, Some(same)),
            (
                "model.language_model.layers.3.self_attn.q_proj.weight",
                Some(same),
            ),
            (
                "language_model.model.layers.3.self_attn.q_proj.weight",
                Some(same),
            ),
            (
                "language_model.layers.3.self_attn.q_proj.weight",
                Some(same),
            ),
            (
                "model.visual.merger.norm.bias",
                Some("visual.merger.norm.bias"),
            ),
            (
                "model.vision_tower.vision_model.post_layernorm.bias",
                Some("vision_model.post_layernorm.bias"),
            ),
            (
                "model.multi_modal_projector.mm_soft_emb_norm.weight",
                Some("multi_modal_projector.mm_soft_emb_norm.weight"),
            ),
            (
                "model.language_model.embed_tokens_per_layer.weight",
                Some(PER_LAYER_TABLE),
            ),
            ("model.language_model.layers.0.layer_scalar", Some(SCALAR)),
            (
                "vision_tower.patch_embedder.input_proj.weight",
                Some(SQUARES),
            ),
            ("vision_tower.patch_conv.weight", None),
            (
                "model.audio_tower.subsample_conv_projection.layer0.conv.weight",
                Some(SOUNDS),
            ),
            ("audio_tower.conv1.weight", None),
            ("lm_head.weight", Some(WORDS)),
            ("language_model.lm_head.weight", Some(WORDS)),
            ("logit_scale", None),
            ("tekken_model", Some("tekken_model")),
        ] {
            assert_eq!(named(name).as_deref(), key, "{name}");
        }
    }
}
