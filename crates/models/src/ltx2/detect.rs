//! How files of this family are recognised.

use super::config::Ltx2Config;
use super::model::Ltx2Network;
use super::names::DIFFUSERS;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "patchify_proj",
        "audio_patchify_proj",
        "adaln_single",
        "audio_adaln_single",
        "av_ca_video_scale_shift_adaln_single",
        "av_ca_audio_scale_shift_adaln_single",
        "av_ca_a2v_gate_adaln_single",
        "av_ca_v2a_gate_adaln_single",
        "prompt_adaln_single",
        "audio_prompt_adaln_single",
        "caption_projection",
        "audio_caption_projection",
        "video_embeddings_connector",
        "audio_embeddings_connector",
        "keyframes_abs_pos_embedding",
        "transformer_blocks",
        "scale_shift_table",
        "audio_scale_shift_table",
        "proj_out",
        "audio_proj_out",
    ],
    &[
        Blocks::Within("transformer_1d_blocks"),
        Blocks::List("transformer_blocks"),
    ],
);

/// LTX-2, 2.3 and 2.5.
pub struct Ltx2;

impl Family for Ltx2 {
    fn names(&self) -> &'static [&'static str] {
        &["LTX-2", "LTX-2.3"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let origins = if keys.has("audio_adaln_single.linear.weight") {
            keys.own()
        } else if keys.has("audio_time_embed.linear.weight") {
            keys.origins_by(&DIFFUSERS)
        } else {
            return Ok(None);
        };
        let metadata = keys.file.metadata();
        let text = metadata.iter().find(|(name, _)| name == "config");
        let config = Ltx2Config::detect(&keys.store(&origins))?;
        let config = config.with_text(text.map(|(_, text)| text.as_str()));
        Ok(Some(keys.checkpoint::<Ltx2Network>(
            "LTX-2",
            config,
            origins,
            &UNITS,
            Some(&stacks::LTX2),
        )))
    }
}
