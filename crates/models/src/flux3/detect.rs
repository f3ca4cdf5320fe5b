//! How files of this family are recognised.

use super::config::Flux3Config;
use super::model::Flux3Network;
use super::names::DIFFUSERS;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "emb_in",
        "txt_in",
        "time_in",
        "ref_time_in",
        "early_stream_modulations",
        "txt_mode_blocks",
        "content_mode_blocks",
        "single_stream_modulations",
        "single_blocks",
        "final_layer",
    ],
    &[
        Blocks::List("txt_mode_blocks"),
        Blocks::Within("image"),
        Blocks::Within("image_cond"),
        Blocks::List("single_blocks"),
    ],
);

/// FLUX.3 klein.
pub struct Flux3;

impl Family for Flux3 {
    fn names(&self) -> &'static [&'static str] {
        &["FLUX.3 klein"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let origins = if keys.has("early_stream_modulations.image.lin.weight") {
            // Training leaves layers behind that nothing uses.
            let mut own = keys.own();
            own.retain(|key, _| !key.starts_with("repa_projectors."));
            own
        } else if keys.has("early_stream_modulations.image.linear.weight") {
            keys.origins_by(&DIFFUSERS)
        } else {
            return Ok(None);
        };
        let config = Flux3Config::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<Flux3Network>(
            if config.looks_ahead {
                "FLUX.3 klein"
            } else {
                "FLUX.3 klein base"
            },
            config,
            origins,
            &UNITS,
            Some(&stacks::FLUX3),
        )))
    }
}
