//! How files of this family are recognised.

use std::sync::Arc;

use super::model::{Anima, AnimaConfig};
use crate::cosmos::DIFFUSERS;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, UnitOrder};

/// What of a file is the network; training leaves counters beside it.
const OWN: [&str; 6] = [
    "llm_adapter",
    "x_embedder",
    "t_embedder",
    "t_embedding_norm",
    "blocks",
    "final_layer",
];

/// The order of the parts. What makes the prompt runs first.
static UNITS: UnitOrder = UnitOrder {
    parts: &OWN,
    blocks: &[Blocks::One("llm_adapter"), Blocks::List("blocks")],
    values: &[],
};

/// Anima.
pub struct AnimaFamily;

impl Family for AnimaFamily {
    fn names(&self) -> &'static [&'static str] {
        &["Anima"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.any_inside("llm_adapter.blocks.") {
            return Ok(None);
        }
        let origins = if keys.has("blocks.0.mlp.layer1.weight") {
            let own = keys.inside.iter().copied();
            let own = own.filter(|key| OWN.contains(&key.split('.').next().unwrap_or(key)));
            keys.origins(own.map(|key| (key.to_owned(), key)))
        } else if keys.has("transformer_blocks.0.ff.net.0.proj.weight") {
            DIFFUSERS.origins(keys)
        } else {
            return Ok(None);
        };
        let config = AnimaConfig::detect(&keys.store(&origins))?;
        Ok(Some(Checkpoint {
            family: "Anima",
            network: Arc::new(Found::<Anima>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::ANIMA),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}
