//! How files of this family are recognised.

use std::sync::Arc;

use super::config::HiDreamConfig;
use super::model::HiDreamNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "t_embedder",
        "p_embedder",
        "x_embedder",
        "caption_projection",
        "double_stream_blocks",
        "single_stream_blocks",
        "final_layer",
    ],
    blocks: &[
        Blocks::List("double_stream_blocks"),
        Blocks::List("single_stream_blocks"),
    ],
    values: &[],
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
        let own = keys.inside.iter().map(|key| ((*key).to_owned(), *key));
        let origins = keys.origins(own);
        let config = HiDreamConfig::detect(&keys.store(&origins))?;
        let head: usize = config.axes.iter().sum();
        if config.heads * head != config.dim {
            return Err(keys.refused(format!(
                "it looks like HiDream, but is {} channels wide: its heads have {head} channels, so a whole multiple of \
                 that is needed",
                config.dim
            )));
        }
        Ok(Some(Checkpoint {
            family: "HiDream",
            network: Arc::new(Found::<HiDreamNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::HIDREAM),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}
