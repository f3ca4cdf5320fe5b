//! The decoders of language models, run as text encoders: Llama's network (Touvron et al. 2023) with what Qwen, Gemma and
//! Mistral change in it. Files of some bring a network that sees pictures.

mod attention;
mod clipped;
mod config;
mod delta;
mod ears;
mod eyes;
mod layout;
mod network;
mod per_layer;
mod positions;
mod spectrum;
mod tiles;
mod turns;
mod uneven;

use std::sync::Arc;

use fresco_tensor::WeightFile;

use super::sequence::{RowEncoder, RowKind};
use super::vocabulary::{BytePairs, SentencePiece, Tekken, Vocabulary, json};
use super::{KeptIn, TextKind};
use crate::error::{ModelError, Result};
use crate::store::{Blocks, UnitOrder, WeightStore};

pub use config::{
    DecoderConfig, Flavour, LayerSizes, PerLayer, Remembering, RopeRule, Sections, Sliding,
};
pub use ears::{Ears, EarsConfig};
pub use layout::{GGUF, GGUF_AFTER, GGUF_SANDWICHED};
pub use network::{Decoder, Eyes};
pub use spectrum::{RATE as HEARD_RATE, bands as heard_bands};
pub use tiles::{Tiles, TilesConfig};
pub(super) use turns::{PICTURE, SOUND, TURNS, Turns};

/// Where files have their vocabulary.
const PIECES_KEY: &str = "spiece_model";
const TEKKEN_KEY: &str = "tekken_model";
const JSON_KEY: &str = "tokenizer_json";

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident, $label:literal, $flavour:ident, $words:expr;)*) => {$(
        $(#[$doc])*
        pub static $name: TextKind = TextKind {
            name: $label,
            keys: layout::keys,
            units: &UNITS,
            kept_in: KeptIn::Short,
            open: |store| {
                let row = RowKind {
                    kind: &$name,
                    build: |store| {
                        Decoder::new(store, &DecoderConfig::detect(store, Flavour::$flavour)?)
                    },
                    words: $words,
                    width,
                };
                Ok(RowEncoder::open(row, store))
            },
        };
    )*};
}

kinds! {
    /// Qwen 2.5, with a network for pictures or without.
    QWEN25, "Qwen 2.5", Qwen25, |_| Ok(BytePairs::qwen2());
    /// Qwen 3 of any size.
    QWEN3, "Qwen 3", Qwen3, |_| Ok(BytePairs::qwen2());
    /// Qwen 3 whose vocabulary goes on with codes that stand for sound.
    QWEN3_CODES, "Qwen 3 with audio codes", Qwen3, |_| Ok(BytePairs::qwen2());
    /// Qwen 3 with a network for pictures.
    QWEN3_VL, "Qwen 3 VL", Qwen3Vl, |_| Ok(BytePairs::qwen2());
    /// Qwen 3.5, most of whose layers remember instead of looking at everything.
    QWEN35, "Qwen 3.5", Qwen35, only_beside;
    GEMMA2, "Gemma 2", Gemma2, pieces;
    GEMMA3, "Gemma 3", Gemma3, pieces;
    /// Gemma 4 of any size without experts.
    GEMMA4, "Gemma 4", Gemma4, pieces;
    MISTRAL, "Mistral", Mistral, tekken;
    LLAMA, "Llama", Llama, from_json;
}

static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "model",
        "embed_tokens",
        "embed_tokens_per_layer",
        "per_layer_model_projection",
        "per_layer_projection_norm",
        "layers",
        "norm",
        "visual",
        "vision_model",
        "vision_tower",
        "multi_modal_projector",
        "embed_vision",
        "audio_tower",
        "embed_audio",
    ],
    blocks: &[Blocks::Within("layers")],
    values: &[
        "layer_scalar",
        "position_embedding_table",
        "input_min",
        "input_max",
        "output_min",
        "output_max",
        "std_bias",
        "std_scale",
        "per_dim_scale",
    ],
};

fn width(store: &WeightStore) -> usize {
    let table = store.shape(layout::TABLE);
    table.and_then(|shape| shape.get(1)).copied().unwrap_or(0)
}

fn pieces(store: &WeightStore) -> Result<Arc<dyn Vocabulary>> {
    if store.has(JSON_KEY) {
        return json::parse(store.raw(JSON_KEY)?.bytes(), store.file());
    }
    if !store.has(PIECES_KEY) {
        return beside(store, PIECES_KEY);
    }
    let model = store.raw(PIECES_KEY)?;
    Ok(Arc::new(SentencePiece::parse(model.bytes(), store.file())?))
}

fn tekken(store: &WeightStore) -> Result<Arc<dyn Vocabulary>> {
    if !store.has(TEKKEN_KEY) {
        return beside(store, TEKKEN_KEY);
    }
    let model = store.raw(TEKKEN_KEY)?;
    Ok(Arc::new(Tekken::parse(model.bytes(), store.file())?))
}

fn from_json(store: &WeightStore) -> Result<Arc<dyn Vocabulary>> {
    if store.has(TEKKEN_KEY) {
        return tekken(store);
    }
    beside(store, TEKKEN_KEY)
}

/// The vocabulary beside the file, or an error that says where one could be.
fn beside(store: &WeightStore, key: &str) -> Result<Arc<dyn Vocabulary>> {
    json::beside(store)?.ok_or_else(|| ModelError::unsupported(store.file(), json::missing(key)))
}

/// A vocabulary that files never have in a tensor.
fn only_beside(store: &WeightStore) -> Result<Arc<dyn Vocabulary>> {
    json::beside(store)?.ok_or_else(|| {
        let reason = format!(
            "its vocabulary is not part of this program: put the model's {file} beside it (model.{file} where several models \
             share a folder)",
            file = json::FILE
        );
        ModelError::unsupported(store.file(), reason)
    })
}

/// Which of them a file of its own holds.
pub(crate) fn find(file: &dyn WeightFile) -> Option<&'static TextKind> {
    let keys = layout::keys(file, "");
    let has = |key: &str| keys.contains_key(key);
    let layer = |name: &str| has(&format!("model.layers.0.{name}"));
    let rows = |key: &str| {
        let origin = keys.get(key)?.names().first().map(|n| (*n).to_owned())?;
        file.info(&origin)?.shape.get(1).copied()
    };
    if keys.is_empty() || !layer("post_attention_layernorm.weight") {
        return None;
    }
    let (normed, sandwiched) = (
        layer("self_attn.q_norm.weight"),
        layer("post_feedforward_layernorm.weight"),
    );
    Some(match (normed, sandwiched) {
        _ if layer(layout::REMEMBERS) => &QWEN35,
        (true, true) if has(layout::SCALAR) || has(layout::PER_LAYER_TABLE) => &GEMMA4,
        (true, true) => &GEMMA3,
        (false, true) => &GEMMA2,
        (true, false) if has("visual.pos_embed.weight") => &QWEN3_VL,
        (true, false) => &QWEN3,
        (false, false) if layer("self_attn.k_proj.bias") => &QWEN25,
        (false, false) if has(TEKKEN_KEY) || rows(layout::TABLE) == Some(5120) => &MISTRAL,
        (false, false) => &LLAMA,
    })
}
