//! How files of this family are recognised.

use super::config::HiDreamConfig;
use super::model::HiDreamNetwork;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "t_embedder",
        "p_embedder",
        "x_embedder",
        "caption_projection",
        "double_stream_blocks",
        "single_stream_blocks",
        "final_layer",
    ],
    &[
        Blocks::List("double_stream_blocks"),
        Blocks::List("single_stream_blocks"),
    ],
);

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &["caption_projection.0.linear.weight"],
    layouts: &[(
        LoraLayout::Own,
        &[
            Spelling::underscores("lycoris_"),
            Spelling::dots("transformer."),
        ],
    )],
};

/// HiDream I1 and E1.
pub struct HiDream;

impl Family for HiDream {
    fn names(&self) -> &'static [&'static str] {
        &["HiDream"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let mark = "caption_projection.0.linear.weight";
        if !keys.has(mark) || !keys.any_inside("double_stream_blocks.") {
            return Ok(None);
        }
        let origins = keys.own();
        let config = HiDreamConfig::detect(&keys.store(&origins))?;
        let head: usize = config.axes.iter().sum();
        if config.heads * head != config.dim {
            return Err(keys.refused(format!(
                "it looks like HiDream, but is {} channels wide: its heads have {head} channels, so a whole multiple of \
                 that is needed",
                config.dim
            )));
        }
        Ok(Some(keys.checkpoint::<HiDreamNetwork>(
            "HiDream",
            config,
            origins,
            &UNITS,
            Some(&stacks::HIDREAM),
        )))
    }
}
