//! How files of this family are recognised.

use super::model::{Anima, AnimaConfig};
use crate::cosmos::DIFFUSERS;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
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
static UNITS: UnitOrder =
    UnitOrder::of(&OWN, &[Blocks::One("llm_adapter"), Blocks::List("blocks")]);

/// The names of the transformer are those of Cosmos-Predict2.
pub static LORA: LoraNames = LoraNames {
    signs: &["llm_adapter.out_proj.weight"],
    layouts: &[(LoraLayout::Table(&DIFFUSERS), Spelling::DIFFUSERS)],
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
            keys.origins_by(&DIFFUSERS)
        } else {
            return Ok(None);
        };
        let config = AnimaConfig::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<Anima>(
            "Anima",
            config,
            origins,
            &UNITS,
            Some(&stacks::ANIMA),
        )))
    }
}
