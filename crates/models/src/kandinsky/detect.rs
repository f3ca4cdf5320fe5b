//! How files of this family are recognised.

use super::config::KandinskyConfig;
use super::model::KandinskyNetwork;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "time_embeddings",
        "text_embeddings",
        "pooled_text_embeddings",
        "visual_embeddings",
        "text_transformer_blocks",
        "visual_transformer_blocks",
        "out_layer",
    ],
    &[
        Blocks::List("text_transformer_blocks"),
        Blocks::List("visual_transformer_blocks"),
    ],
);

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &["visual_transformer_blocks.0.cross_attention.key_norm.weight"],
    layouts: &[(
        LoraLayout::Own,
        &[Spelling::dots(""), Spelling::dots("transformer.")],
    )],
};

/// Kandinsky 5.
pub struct Kandinsky;

impl Family for Kandinsky {
    fn names(&self) -> &'static [&'static str] {
        &["Kandinsky 5"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.has("visual_transformer_blocks.0.cross_attention.key_norm.weight") {
            return Ok(None);
        }
        let origins = keys.own();
        let store = keys.store(&origins);
        let config = KandinskyConfig::detect(&store)?;
        let (family, text) = if config.moves() {
            ("Kandinsky 5 video", &stacks::KANDINSKY5)
        } else {
            ("Kandinsky 5", &stacks::KANDINSKY5_IMAGE)
        };
        Ok(Some(keys.checkpoint::<KandinskyNetwork>(
            family,
            config,
            origins,
            &UNITS,
            Some(text),
        )))
    }
}
