//! How files of this family are recognised.

use super::config::OmniGenConfig;
use super::model::OmniGenNetwork;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "x_embedder",
        "ref_image_patch_embedder",
        "image_index_embedding",
        "time_caption_embed",
        "noise_refiner",
        "ref_image_refiner",
        "context_refiner",
        "layers",
        "norm_out",
    ],
    &[
        Blocks::List("context_refiner"),
        Blocks::List("noise_refiner"),
        Blocks::List("ref_image_refiner"),
        Blocks::List("layers"),
    ],
);

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &["time_caption_embed.timestep_embedder.linear_1.bias"],
    layouts: &[(LoraLayout::Own, &[Spelling::dots("")])],
};

/// OmniGen 2.
pub struct OmniGen2;

impl Family for OmniGen2 {
    fn names(&self) -> &'static [&'static str] {
        &["OmniGen 2"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let embed = "time_caption_embed.timestep_embedder.linear_1.bias";
        if !keys.has(embed) || !keys.has("ref_image_patch_embedder.weight") {
            return Ok(None);
        }
        let origins = keys.own();
        let config = OmniGenConfig::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<OmniGenNetwork>(
            "OmniGen 2",
            config,
            origins,
            &UNITS,
            Some(&stacks::OMNIGEN2),
        )))
    }
}
