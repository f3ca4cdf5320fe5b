//! How files of this family are recognised.

use std::sync::Arc;

use super::config::Ltx2Config;
use super::model::Ltx2Network;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, UnitOrder};
use crate::transformer::Renames;

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
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
    blocks: &[
        Blocks::Within("transformer_1d_blocks"),
        Blocks::List("transformer_blocks"),
    ],
    values: &[
        "scale_shift_table",
        "audio_scale_shift_table",
        "prompt_scale_shift_table",
        "audio_prompt_scale_shift_table",
        "scale_shift_table_a2v_ca_video",
        "scale_shift_table_a2v_ca_audio",
        "keyframes_abs_pos_embedding",
        "learnable_registers",
    ],
};

/// The names that diffusers has.
pub const DIFFUSERS: Renames = Renames {
    parts: &[
        (".norm_q.", ".q_norm."),
        (".norm_k.", ".k_norm."),
        (
            ".video_a2v_cross_attn_scale_shift_table",
            ".scale_shift_table_a2v_ca_video",
        ),
        (
            ".audio_a2v_cross_attn_scale_shift_table",
            ".scale_shift_table_a2v_ca_audio",
        ),
    ],
    starts: &[
        ("proj_in.", "patchify_proj."),
        ("audio_proj_in.", "audio_patchify_proj."),
        ("time_embed.", "adaln_single."),
        ("audio_time_embed.", "audio_adaln_single."),
        (
            "av_cross_attn_video_scale_shift.",
            "av_ca_video_scale_shift_adaln_single.",
        ),
        (
            "av_cross_attn_audio_scale_shift.",
            "av_ca_audio_scale_shift_adaln_single.",
        ),
        (
            "av_cross_attn_video_a2v_gate.",
            "av_ca_a2v_gate_adaln_single.",
        ),
        (
            "av_cross_attn_audio_v2a_gate.",
            "av_ca_v2a_gate_adaln_single.",
        ),
        ("prompt_adaln.", "prompt_adaln_single."),
        ("audio_prompt_adaln.", "audio_prompt_adaln_single."),
        (
            "video_connector.transformer_blocks.",
            "video_embeddings_connector.transformer_1d_blocks.",
        ),
        (
            "audio_connector.transformer_blocks.",
            "audio_embeddings_connector.transformer_1d_blocks.",
        ),
        ("video_connector.", "video_embeddings_connector."),
        ("audio_connector.", "audio_embeddings_connector."),
        (
            "text_proj_in.",
            "text_embedding_projection.aggregate_embed.",
        ),
        (
            "video_text_proj_in.",
            "text_embedding_projection.video_aggregate_embed.",
        ),
        (
            "audio_text_proj_in.",
            "text_embedding_projection.audio_aggregate_embed.",
        ),
    ],
};

/// LTX-2, 2.3 and 2.5.
pub struct Ltx2;

impl Family for Ltx2 {
    fn names(&self) -> &'static [&'static str] {
        &["LTX-2", "LTX-2.3"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let origins = if keys.has("audio_adaln_single.linear.weight") {
            keys.origins(keys.inside.iter().map(|key| ((*key).to_owned(), *key)))
        } else if keys.has("audio_time_embed.linear.weight") {
            DIFFUSERS.origins(keys)
        } else {
            return Ok(None);
        };
        let metadata = keys.file.metadata();
        let text = metadata.iter().find(|(name, _)| name == "config");
        let config = Ltx2Config::detect(&keys.store(&origins))?;
        let config = config.with_text(text.map(|(_, text)| text.as_str()));
        Ok(Some(Checkpoint {
            family: "LTX-2",
            network: Arc::new(Found::<Ltx2Network>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::LTX2),
            preview: PreviewHints::of(metadata),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_diffusers_become_ours() {
        let pairs = [
            ("proj_in.bias", "patchify_proj.bias"),
            ("audio_proj_in.bias", "audio_patchify_proj.bias"),
            (
                "audio_time_embed.linear.weight",
                "audio_adaln_single.linear.weight",
            ),
            (
                "transformer_blocks.3.audio_attn1.norm_q.weight",
                "transformer_blocks.3.audio_attn1.q_norm.weight",
            ),
            (
                "transformer_blocks.3.video_a2v_cross_attn_scale_shift_table",
                "transformer_blocks.3.scale_shift_table_a2v_ca_video",
            ),
            (
                "video_connector.transformer_blocks.0.attn1.to_q.weight",
                "video_embeddings_connector.transformer_1d_blocks.0.attn1.to_q.weight",
            ),
            (
                "audio_connector.learnable_registers",
                "audio_embeddings_connector.learnable_registers",
            ),
            ("scale_shift_table", "scale_shift_table"),
        ];
        for (theirs, ours) in pairs {
            assert_eq!(DIFFUSERS.key(theirs), ours);
            assert_eq!(DIFFUSERS.name(ours), theirs);
        }
    }
}
