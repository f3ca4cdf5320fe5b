//! How files of this family are recognised.

use super::config::{CascadeConfig, CascadeStage};
use super::model::CascadeNetwork;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::name_table::{NameTable, Rule, cut, within};
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "clip_txt_mapper",
        "clip_txt_pooled_mapper",
        "clip_img_mapper",
        "effnet_mapper",
        "pixels_mapper",
        "clip_mapper",
        "embedding",
        "down_blocks",
        "down_downscalers",
        "down_repeat_mappers",
        "up_blocks",
        "up_upscalers",
        "up_repeat_mappers",
        "clf",
    ],
    &[Blocks::List("down_blocks"), Blocks::List("up_blocks")],
);

const ATTENTION: &[Rule] = &[
    cut("in_proj_", "to_q", 0, 3),
    cut("in_proj_", "to_k", 1, 3),
    cut("in_proj_", "to_v", 2, 3),
];

/// The names of the first release, which keeps queries, keys and values in one.
pub static FIRST_RELEASE: NameTable = NameTable::new(&[
    within("down_blocks.{i}.{j}.attention.attn.", ATTENTION),
    within("up_blocks.{i}.{j}.attention.attn.", ATTENTION),
])
.keeping_others();

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &["clip_txt_mapper.weight"],
    layouts: &[(
        LoraLayout::Own,
        &[Spelling::underscores("lora_prior_unet_")],
    )],
};

/// Stages B and C of Stable Cascade.
pub struct Cascade;

impl Family for Cascade {
    fn names(&self) -> &'static [&'static str] {
        &["Stable Cascade"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let known = keys.has("clip_txt_mapper.weight") || keys.has("clip_mapper.weight");
        if !keys.has("clf.1.weight") || !known {
            return Ok(None);
        }
        let origins = keys.origins_by(&FIRST_RELEASE);
        let config = CascadeConfig::detect(&keys.store(&origins))?;
        let family = match config.stage {
            CascadeStage::B { .. } => "Stable Cascade B",
            CascadeStage::C { .. } => "Stable Cascade C",
        };
        Ok(Some(keys.checkpoint::<CascadeNetwork>(
            family,
            config,
            origins,
            &UNITS,
            Some(&stacks::CASCADE),
        )))
    }
}
