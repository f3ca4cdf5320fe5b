//! How files of this family are recognised.

use super::config::MiniMaxConfig;
use super::model::MiniMaxNetwork;
use super::names::DIFFUSERS;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "video_patch_proj",
        "audio_patch_proj",
        "condition_proj",
        "time_embedder",
        "adaln_t_table",
        "token_refiner",
        "blocks",
        "final_layer",
    ],
    &[Blocks::List("blocks")],
);

/// MiniMax H3.
pub struct MiniMax;

impl Family for MiniMax {
    fn names(&self) -> &'static [&'static str] {
        &["MiniMax H3"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let origins = if keys.has("token_refiner.blocks.0.attn.qkv_proj.weight") {
            keys.own()
        } else if keys.has("token_refiner.refiner_blocks.0.attn.to_q.weight")
            && keys.has("audio_proj_in.weight")
        {
            keys.origins_by(&DIFFUSERS)
        } else {
            return Ok(None);
        };
        let config = MiniMaxConfig::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<MiniMaxNetwork>(
            "MiniMax H3",
            config,
            origins,
            &UNITS,
            Some(&stacks::MINIMAX),
        )))
    }
}
