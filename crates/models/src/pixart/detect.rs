//! How files of this family are recognised.

use std::collections::BTreeMap;

use super::config::PixArtConfig;
use super::model::PixArtNetwork;
use super::names;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "x_embedder",
        "t_embedder",
        "csize_embedder",
        "ar_embedder",
        "t_block",
        "y_embedder",
        "blocks",
        "final_layer",
    ],
    &[Blocks::List("blocks")],
);

/// PixArt Alpha and Sigma.
pub struct PixArt;

impl Family for PixArt {
    fn names(&self) -> &'static [&'static str] {
        &["PixArt"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let Some(origins) = origins(keys) else {
            return Ok(None);
        };
        let config = PixArtConfig::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<PixArtNetwork>(
            match config.size {
                Some(_) => "PixArt Alpha",
                None => "PixArt Sigma",
            },
            config,
            origins,
            &UNITS,
            Some(&stacks::CHROMA),
        )))
    }
}

/// Where the network's keys are in the file; none if it is of another family.
fn origins(keys: &FileKeys<'_>) -> Option<BTreeMap<String, Origin>> {
    if keys.has("t_block.1.weight") && keys.has("y_embedder.y_proj.fc1.weight") {
        return Some(keys.own());
    }
    // The names of diffusers.
    let theirs = keys.has("adaln_single.emb.timestep_embedder.linear_1.bias")
        && keys.has("pos_embed.proj.bias")
        && keys.has("caption_projection.linear_1.weight");
    theirs.then(|| keys.origins_by(&names::DIFFUSERS))
}
