//! How files of this family are recognised.

use std::collections::BTreeMap;

use super::config::HunyuanConfig;
use super::model::HunyuanNetwork;
use super::names::AUTHORS;
use super::video::{HunyuanVideoConfig, HunyuanVideoNetwork};
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, Origin, UnitOrder};
use crate::text::TextStack;

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "img_in",
        "time_in",
        "time_r_in",
        "vector_in",
        "guidance_in",
        "txt_in",
        "byt5_in",
        "vision_in",
        "cond_type_embedding",
        "double_blocks",
        "single_blocks",
        "final_layer",
    ],
    &[Blocks::List("double_blocks"), Blocks::List("single_blocks")],
);

/// HunyuanImage 2.1, base and distilled.
pub struct Hunyuan;

impl Family for Hunyuan {
    fn names(&self) -> &'static [&'static str] {
        &["HunyuanImage 2.1", "Hunyuan Video 1 and 1.5"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.has("txt_in.individual_token_refiner.blocks.0.norm1.weight") {
            return Ok(None);
        }
        let mut origins = keys.origins_by(&AUTHORS);
        let store = keys.store(&origins);
        // Tokens of videos have a time.
        if let Some(&[rows, channels, time, side, _]) = store.shape(CELLS) {
            let shape = vec![rows, channels * time * side * side];
            if let Some(Origin::Whole(name)) = origins.get(CELLS) {
                let name = name.clone();
                origins.insert(CELLS.to_owned(), Origin::Shaped { name, shape });
            }
            if let Some(found) = refiner(keys, &origins, side)? {
                return Ok(Some(found));
            }
            return video(keys, origins, side).map(Some);
        }
        let config = HunyuanConfig::detect(&store)?;
        Ok(Some(keys.checkpoint::<HunyuanNetwork>(
            if config.looks_ahead {
                "HunyuanImage 2.1 distilled"
            } else {
                "HunyuanImage 2.1"
            },
            config,
            origins,
            &UNITS,
            Some(&stacks::HUNYUAN_IMAGE),
        )))
    }
}

/// The first layer.
const CELLS: &str = "img_in.proj.weight";

/// The network that goes over pictures of another; none if it is for videos.
fn refiner(
    keys: &FileKeys<'_>,
    origins: &BTreeMap<String, Origin>,
    patch: usize,
) -> Result<Option<Checkpoint>> {
    let config = HunyuanVideoConfig::detect(&keys.store(origins), patch)?;
    Ok(config.refines().then(|| {
        keys.checkpoint::<HunyuanVideoNetwork>(
            "HunyuanImage 2.1 refiner",
            config,
            origins.clone(),
            &UNITS,
            Some(&stacks::HUNYUAN_IMAGE),
        )
    }))
}

/// Networks of videos, with so many cells along a side of a token.
fn video(
    keys: &FileKeys<'_>,
    origins: BTreeMap<String, Origin>,
    patch: usize,
) -> Result<Checkpoint> {
    let config = HunyuanVideoConfig::detect(&keys.store(&origins), patch)?;
    let newer = config.vision.is_some();
    if config.pooled.is_none() && !newer {
        return Err(keys.not_run("HunyuanImage 2.1 refiner"));
    }
    let text: &TextStack = if newer {
        &stacks::HUNYUAN_VIDEO_15
    } else {
        &stacks::HUNYUAN_VIDEO
    };
    Ok(keys.checkpoint::<HunyuanVideoNetwork>(
        if config.enlarges() {
            "Hunyuan Video 1.5 for larger videos"
        } else if newer {
            "Hunyuan Video 1.5"
        } else {
            "Hunyuan Video"
        },
        config,
        origins,
        &UNITS,
        Some(text),
    ))
}
