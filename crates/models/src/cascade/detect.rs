//! How files of this family are recognised.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::{CascadeConfig, CascadeStage};
use super::model::CascadeNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
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
    blocks: &[Blocks::List("down_blocks"), Blocks::List("up_blocks")],
    values: &["gamma", "beta"],
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
        let origins = origins(keys);
        let config = CascadeConfig::detect(&keys.store(&origins))?;
        let family = match config.stage {
            CascadeStage::B { .. } => "Stable Cascade B",
            CascadeStage::C { .. } => "Stable Cascade C",
        };
        Ok(Some(Checkpoint {
            family,
            network: Arc::new(Found::<CascadeNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::CASCADE),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}

/// Where the network's keys are. Files of the first release keep queries, keys and values in one.
fn origins(keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
    let mut origins = BTreeMap::new();
    for key in &keys.inside {
        let name = format!("{}{key}", keys.prefix);
        let Some((attention, part)) = key.split_once("in_proj_") else {
            origins.insert((*key).to_owned(), Origin::Whole(name));
            continue;
        };
        let count = keys.rows(key) / 3;
        for (third, letter) in ["q", "k", "v"].into_iter().enumerate() {
            let rows = Origin::Rows {
                name: name.clone(),
                start: third * count,
                count,
            };
            origins.insert(format!("{attention}to_{letter}.{part}"), rows);
        }
    }
    origins
}
