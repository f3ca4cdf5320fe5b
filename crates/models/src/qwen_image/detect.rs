//! How files of this family are recognised.

use super::config::{KINDS, QwenConfig, SIGN, TIMESTEP_ZERO};
use super::control::MARK;
use super::model::QwenNetwork;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::store::{Blocks, UnitOrder};

/// The order of the parts of the network and of its control nets.
pub static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "time_text_embed",
        "txt_norm",
        "img_in",
        "txt_in",
        "transformer_blocks",
        "norm_out",
        "proj_out",
        "controlnet_blocks",
        "controlnet_x_embedder",
    ],
    blocks: &[Blocks::List("transformer_blocks")],
    values: UnitOrder::NORMS,
};

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &["txt_norm.weight"],
    layouts: &[(
        LoraLayout::Own,
        &[
            Spelling::dots(""),
            Spelling::dots("transformer."),
            Spelling::underscores("lycoris_"),
        ],
    )],
};

/// Qwen-Image and its variants.
pub struct QwenImage;

impl Family for QwenImage {
    fn names(&self) -> &'static [&'static str] {
        &["Qwen-Image"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        // Control nets have the same layers, and more.
        let block = "transformer_blocks.0.img_mod.1.weight";
        if !keys.has(SIGN) || !keys.has(block) || keys.has(MARK) {
            return Ok(None);
        }
        let own = keys.inside.iter().copied().filter(|key| {
            let part = key.split('.').next().unwrap_or(key);
            UNITS.parts.contains(&part) || *key == TIMESTEP_ZERO
        });
        let origins = keys.origins(own.map(|key| (key.to_owned(), key)));
        let config = QwenConfig::detect(&keys.store(&origins))?;
        let family = if keys.has(&format!("{KINDS}.weight")) {
            "Qwen-Image Layered"
        } else if keys.has(TIMESTEP_ZERO) {
            "Qwen-Image Edit 2511"
        } else {
            "Qwen-Image"
        };
        Ok(Some(keys.checkpoint::<QwenNetwork>(
            family,
            config,
            origins,
            &UNITS,
            Some(&stacks::QWEN_IMAGE),
        )))
    }
}
