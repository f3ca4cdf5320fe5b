//! How files of this family are recognised.

use super::config::KreaConfig;
use super::model::KreaNetwork;
use super::names::DIFFUSERS;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "first",
        "tmlp",
        "tproj",
        "txtfusion",
        "txtmlp",
        "blocks",
        "last",
    ],
    &[
        Blocks::Within("layerwise_blocks"),
        Blocks::Within("refiner_blocks"),
        Blocks::List("blocks"),
    ],
);

/// Krea 2.
pub struct Krea;

impl Family for Krea {
    fn names(&self) -> &'static [&'static str] {
        &["Krea 2"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let origins = if keys.has("txtfusion.projector.weight") {
            keys.own()
        } else if keys.has("text_fusion.projector.weight") {
            keys.origins_by(&DIFFUSERS)
        } else {
            return Ok(None);
        };
        let config = KreaConfig::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<KreaNetwork>(
            "Krea 2",
            config,
            origins,
            &UNITS,
            Some(&stacks::KREA2),
        )))
    }
}
