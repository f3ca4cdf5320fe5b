//! How files of this family are recognised.

use std::sync::Arc;

use super::config::LtxvConfig;
use super::model::LtxvNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "patchify_proj",
        "adaln_single",
        "caption_projection",
        "transformer_blocks",
        "scale_shift_table",
        "proj_out",
    ],
    blocks: &[Blocks::List("transformer_blocks")],
    values: &["scale_shift_table"],
};

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
        let own = keys.inside.iter().map(|key| ((*key).to_owned(), *key));
        let origins = keys.origins(own);
        let metadata = keys.file.metadata();
        let text = metadata.iter().find(|(name, _)| name == "config");
        let config = LtxvConfig::detect(&keys.store(&origins))?;
        let config = config.with_text(text.map(|(_, text)| text.as_str()));
        Ok(Some(Checkpoint {
            family: "LTX-Video",
            network: Arc::new(Found::<LtxvNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::LTXV),
            preview: PreviewHints::of(metadata),
        }))
    }
}
