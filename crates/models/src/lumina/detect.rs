//! How files of this family are recognised.

use super::config::LuminaConfig;
use super::model::NextDit;
use super::names;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, UnitOrder};
use crate::text::TextStack;

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "x_embedder",
        "noise_refiner",
        "context_refiner",
        "t_embedder",
        "cap_embedder",
        "clip_text_pooled_proj",
        "time_text_embed",
        "layers",
        "final_layer",
    ],
    &[
        Blocks::List("context_refiner"),
        Blocks::List("noise_refiner"),
        Blocks::List("layers"),
    ],
);

/// Lumina 2, Z-Image and NewBie.
pub struct Lumina;

impl Family for Lumina {
    fn names(&self) -> &'static [&'static str] {
        &["Lumina 2", "Z-Image", "NewBie"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        // Others have a prompt's embedder, and refiners, but no blocks with these names.
        let native = keys.has("cap_embedder.1.weight") && keys.any_inside("noise_refiner.");
        let diffusers = keys.has("time_caption_embed.caption_embedder.1.weight")
            && keys.has("layers.0.attn.to_q.weight")
            && keys.has("layers.0.norm1.linear.weight")
            && !keys.any_inside("ref_image_patch_embedder.");
        if !native && !diffusers {
            return Ok(None);
        }
        let origins = names::origins(keys);
        let config = LuminaConfig::detect(&keys.store(&origins))?;
        let family = config.name();
        let text: &TextStack = match family {
            "Z-Image" => &stacks::Z_IMAGE,
            "NewBie" => &stacks::NEWBIE,
            _ => &stacks::LUMINA2,
        };
        Ok(Some(keys.checkpoint::<NextDit>(
            family,
            config,
            origins,
            &UNITS,
            Some(text),
        )))
    }
}
