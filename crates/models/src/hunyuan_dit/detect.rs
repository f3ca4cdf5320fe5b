//! How files of this family are recognised.

use super::config::HunyuanDitConfig;
use super::model::HunyuanDitNetwork;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "text_embedding_padding",
        "mlp_t5",
        "pooler",
        "style_embedder",
        "x_embedder",
        "t_embedder",
        "extra_embedder",
        "blocks",
        "final_layer",
    ],
    &[Blocks::List("blocks")],
);

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &["mlp_t5.0.weight"],
    layouts: &[(LoraLayout::Own, &[Spelling::dots("base_model.model.")])],
};

pub struct HunyuanDit;

impl Family for HunyuanDit {
    fn names(&self) -> &'static [&'static str] {
        &["HunyuanDiT"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.has("mlp_t5.0.weight") || !keys.has("text_embedding_padding") {
            return Ok(None);
        }
        // A control net has the blocks of the network it steers.
        if keys.any_inside("after_proj_list.") {
            return Ok(None);
        }
        let origins = keys.own();
        let config = HunyuanDitConfig::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<HunyuanDitNetwork>(
            if config.size {
                "HunyuanDiT 1.1"
            } else {
                "HunyuanDiT 1.2"
            },
            config,
            origins,
            &UNITS,
            Some(&stacks::HUNYUAN_DIT),
        )))
    }
}
