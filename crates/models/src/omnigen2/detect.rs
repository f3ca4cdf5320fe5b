//! How files of this family are recognised.

use std::sync::Arc;

use super::config::OmniGenConfig;
use super::model::OmniGenNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
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
    blocks: &[
        Blocks::List("context_refiner"),
        Blocks::List("noise_refiner"),
        Blocks::List("ref_image_refiner"),
        Blocks::List("layers"),
    ],
    values: &["image_index_embedding"],
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
        let own = keys.inside.iter().map(|key| ((*key).to_owned(), *key));
        let origins = keys.origins(own);
        let config = OmniGenConfig::detect(&keys.store(&origins))?;
        Ok(Some(Checkpoint {
            family: "OmniGen 2",
            network: Arc::new(Found::<OmniGenNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::OMNIGEN2),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}
