//! How files of this family are recognised.

use std::sync::Arc;

use super::config::{MochiConfig, flattened};
use super::model::MochiNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "pos_frequencies",
        "x_embedder",
        "t_embedder",
        "t5_y_embedder",
        "t5_yproj",
        "blocks",
        "final_layer",
    ],
    blocks: &[Blocks::List("blocks")],
    values: &["pos_frequencies"],
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
        let own = keys.inside.iter().map(|key| ((*key).to_owned(), *key));
        let mut origins = keys.origins(own);
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
        Ok(Some(Checkpoint {
            family: "Mochi",
            network: Arc::new(Found::<MochiNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::MOCHI),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}
