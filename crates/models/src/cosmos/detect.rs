//! How files of this family are recognised.

use super::config::CosmosConfig;
use super::film::CosmosNetwork;
use super::names::{DIFFUSERS, FIRST};
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, UnitOrder};

/// What of a file is the network; training leaves counters beside it.
const OWN: [&str; 6] = [
    "x_embedder",
    "extra_pos_embedder",
    "t_embedder",
    "t_embedding_norm",
    "blocks",
    "final_layer",
];

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(&OWN, &[Blocks::List("blocks")]);

/// Cosmos 1 and Cosmos-Predict2.
pub struct Cosmos;

impl Family for Cosmos {
    fn names(&self) -> &'static [&'static str] {
        &["Cosmos 1 and Cosmos-Predict2"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let mut origins = if keys.has("blocks.block0.blocks.0.block.attn.to_q.0.weight") {
            keys.origins_by(&FIRST)
        } else if keys.has("blocks.0.adaln_modulation_self_attn.1.weight") {
            keys.own()
        } else if keys.has("transformer_blocks.0.norm1.linear_1.weight")
            && keys.has("patch_embed.proj.weight")
            && keys.has("time_embed.t_embedder.linear_1.weight")
        {
            keys.origins_by(&DIFFUSERS)
        } else {
            return Ok(None);
        };
        origins.retain(|key, _| OWN.contains(&key.split('.').next().unwrap_or(key)));
        let config = CosmosConfig::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<CosmosNetwork>(
            if config.places.is_some() {
                "Cosmos"
            } else {
                "Cosmos-Predict2"
            },
            config,
            origins,
            &UNITS,
            Some(&stacks::COSMOS),
        )))
    }
}
