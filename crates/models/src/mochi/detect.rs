//! How files of this family are recognised.

use super::config::{MochiConfig, flattened};
use super::model::MochiNetwork;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "pos_frequencies",
        "x_embedder",
        "t_embedder",
        "t5_y_embedder",
        "t5_yproj",
        "blocks",
        "final_layer",
    ],
    &[Blocks::List("blocks")],
);

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &["t5_yproj.weight"],
    layouts: &[(LoraLayout::Own, &[Spelling::dots("")])],
};

/// Mochi 1.
pub struct Mochi;

impl Family for Mochi {
    fn names(&self) -> &'static [&'static str] {
        &["Mochi"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.has("t5_yproj.weight") || !keys.has("pos_frequencies") {
            return Ok(None);
        }
        let mut origins = keys.own();
        for (key, origin) in &mut origins {
            let Origin::Whole(name) = origin else {
                continue;
            };
            let info = keys.file.info(name);
            if let Some(shape) = info.and_then(|info| flattened(key, &info.shape)) {
                let name = name.clone();
                *origin = Origin::Shaped { name, shape };
            }
        }
        let config = MochiConfig::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<MochiNetwork>(
            "Mochi",
            config,
            origins,
            &UNITS,
            Some(&stacks::MOCHI),
        )))
    }
}
