//! How files of this family are recognised.

use super::config::LtxvConfig;
use super::model::LtxvNetwork;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "patchify_proj",
        "adaln_single",
        "caption_projection",
        "transformer_blocks",
        "scale_shift_table",
        "proj_out",
    ],
    &[Blocks::List("transformer_blocks")],
);

/// LTX-Video 0.9.
pub struct Ltxv;

impl Family for Ltxv {
    fn names(&self) -> &'static [&'static str] {
        &["LTX-Video 0.9"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let sign = "adaln_single.emb.timestep_embedder.linear_1.bias";
        // PixArt tells the noise level alike.
        if !keys.has(sign) || keys.has("pos_embed.proj.bias") {
            return Ok(None);
        }
        let origins = keys.own();
        let metadata = keys.file.metadata();
        let text = metadata.iter().find(|(name, _)| name == "config");
        let config = LtxvConfig::detect(&keys.store(&origins))?;
        let config = config.with_text(text.map(|(_, text)| text.as_str()));
        Ok(Some(keys.checkpoint::<LtxvNetwork>(
            "LTX-Video",
            config,
            origins,
            &UNITS,
            Some(&stacks::LTXV),
        )))
    }
}
