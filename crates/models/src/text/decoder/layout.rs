//! Where the weights of a decoder are in the files that bring one, and under which names.

use std::collections::BTreeMap;

use fresco_tensor::WeightFile;

use super::{JSON_KEY, PIECES_KEY, TEKKEN_KEY};
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
const PREFIXES: [(&str, &str); 11] = [
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

/// Names of parts of a layer in GGUF files.
const GGUF: [(&str, &str); 17] = [
    ("attn_q_norm.", "self_attn.q_norm."),
    ("attn_k_norm.", "self_attn.k_norm."),
    ("attn_norm.", "input_layernorm."),
    ("attn_q.", "self_attn.q_proj."),
    ("attn_k.", "self_attn.k_proj."),
    ("attn_v.", "self_attn.v_proj."),
    ("attn_output.", "self_attn.o_proj."),
    ("ffn_gate.", "mlp.gate_proj."),
    ("ffn_up.", "mlp.up_proj."),
    ("ffn_down.", "mlp.down_proj."),
    ("post_attention_norm.", "post_attention_layernorm."),
    ("post_ffw_norm.", "post_feedforward_layernorm."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("inp_gate.", "per_layer_input_gate."),
    ("proj.", "per_layer_projection."),
    ("post_norm.", "post_per_layer_input_norm."),
    ("layer_output_scale.weight", "layer_scalar"),
];

/// What turns states back into words, where that is not the table of tokens. No layer takes it before somebody writes.
pub(super) const WORDS: &str = "lm_head.weight";

/// Internal names of the tensors under `prefix`; empty if there is no decoder.
pub(super) fn keys(file: &dyn WeightFile, prefix: &str) -> BTreeMap<String, Origin> {
    let names = file.names();
    let inside = || {
        names
            .iter()
            .filter_map(|name| Some((name.strip_prefix(prefix)?, name)))
    };
    // With a norm after each part, the one that GGUF calls the feed-forward's stands before it.
    let sandwiched = inside().any(|(key, _)| key.ends_with(".post_ffw_norm.weight"));
    let mut keys = BTreeMap::new();
    for (key, name) in inside() {
        if let Some(key) = named(key, sandwiched) {
            if key == PROJECTED {
                let turned = Origin::Transposed((*name).clone());
                keys.insert(PROJECTION.to_owned(), turned);
                continue;
            }
            let origin = origin(file, &key, name);
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

fn origin(file: &dyn WeightFile, key: &str, name: &str) -> Origin {
    let shape = (key == PATCHES).then(|| file.info(name)).flatten();
    match shape.map(|info| info.shape) {
        Some(shape) if shape.len() > 2 => Origin::Shaped {
            name: name.to_owned(),
            shape: vec![shape[0], flat_length(&shape[1..])],
        },
        _ => Origin::Whole(name.to_owned()),
    }
}

/// What a tensor is called here; none if it is of no use.
fn named(name: &str, sandwiched: bool) -> Option<String> {
    if [PIECES_KEY, TEKKEN_KEY, JSON_KEY].contains(&name) {
        return Some(name.to_owned());
    }
    if let Some(block) = name.strip_prefix("blk.") {
        let (number, rest) = block.split_once('.')?;
        let (from, to) = GGUF.iter().find(|(from, _)| rest.starts_with(from))?;
        let to = if sandwiched && *from == "ffn_norm." {
            "pre_feedforward_layernorm."
        } else {
            to
        };
        return Some(format!("model.layers.{number}.{to}{}", &rest[from.len()..]));
    }
    for (from, to) in [
        ("token_embd.", "model.embed_tokens."),
        ("per_layer_token_embd.", "model.embed_tokens_per_layer."),
        ("per_layer_model_proj.", "model.per_layer_model_projection."),
        ("per_layer_proj_norm.", "model.per_layer_projection_norm."),
        ("output_norm.", "model.norm."),
        ("output.", "lm_head."),
        ("language_model.lm_head.", "lm_head."),
    ] {
        if let Some(rest) = name.strip_prefix(from) {
            return Some(format!("{to}{rest}"));
        }
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
    fn names_of_all_layouts() {
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
            ("blk.3.attn_q.weight", Some(same)),
            (
                "blk.3.ffn_norm.weight",
                Some("model.layers.3.post_attention_layernorm.weight"),
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
            ("per_layer_token_embd.weight", Some(PER_LAYER_TABLE)),
            ("model.language_model.layers.0.layer_scalar", Some(SCALAR)),
            ("blk.0.layer_output_scale.weight", Some(SCALAR)),
            (
                "model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight",
                Some("vision_tower.encoder.layers.0.mlp.up_proj.linear.weight"),
            ),
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
            ("token_embd.weight", Some(TABLE)),
            ("output_norm.weight", Some("model.norm.weight")),
            ("lm_head.weight", Some(WORDS)),
            ("output.weight", Some(WORDS)),
            ("language_model.lm_head.weight", Some(WORDS)),
            ("logit_scale", None),
            ("tekken_model", Some("tekken_model")),
        ] {
            assert_eq!(named(name, false).as_deref(), key, "{name}");
        }
        let before = named("blk.0.ffn_norm.weight", true);
        assert_eq!(
            before.as_deref(),
            Some("model.layers.0.pre_feedforward_layernorm.weight")
        );
    }
}
