//! How files of this family are recognised.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::PixArtConfig;
use super::lora;
use super::model::PixArtNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "x_embedder",
        "t_embedder",
        "csize_embedder",
        "ar_embedder",
        "t_block",
        "y_embedder",
        "blocks",
        "final_layer",
    ],
    blocks: &[Blocks::List("blocks")],
    values: &["scale_shift_table"],
};

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
        Ok(Some(Checkpoint {
            family: match config.size {
                Some(_) => "PixArt Alpha",
                None => "PixArt Sigma",
            },
            network: Arc::new(Found::<PixArtNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::CHROMA),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}

/// Where the network's keys are in the file; none if it is of another family.
fn origins(keys: &FileKeys<'_>) -> Option<BTreeMap<String, Origin>> {
    if keys.has("t_block.1.weight") && keys.has("y_embedder.y_proj.fc1.weight") {
        let own = keys.inside.iter().map(|key| ((*key).to_owned(), *key));
        return Some(keys.origins(own));
    }
    // The names of diffusers.
    let theirs = keys.has("adaln_single.emb.timestep_embedder.linear_1.bias")
        && keys.has("pos_embed.proj.bias")
        && keys.has("caption_projection.linear_1.weight");
    theirs.then(|| {
        let width = keys.rows("transformer_blocks.0.attn1.to_q.weight");
        let blocks = keys.blocks("transformer_blocks.");
        let mut origins = keys.origins_by(lora::table(blocks, width).rows());
        let mut table = |theirs: String, ours: String| {
            if keys.has(&theirs) {
                let name = format!("{}{theirs}", keys.prefix);
                origins.insert(ours, Origin::Whole(name));
            }
        };
        for block in 0..blocks {
            let theirs = format!("transformer_blocks.{block}.scale_shift_table");
            table(theirs, format!("blocks.{block}.scale_shift_table"));
        }
        let last = "scale_shift_table";
        table(last.to_owned(), format!("final_layer.{last}"));
        origins
    })
}
