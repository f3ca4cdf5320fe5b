//! How files of this family are recognised.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::MiniMaxConfig;
use super::model::MiniMaxNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};
use crate::transformer::{Renames, swapped_halves};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "video_patch_proj",
        "audio_patch_proj",
        "condition_proj",
        "time_embedder",
        "adaln_t_table",
        "token_refiner",
        "blocks",
        "final_layer",
    ],
    blocks: &[Blocks::List("blocks")],
    values: &["adaln_t_table"],
};

/// The names that diffusers has, but for those of queries, keys and values.
const DIFFUSERS: Renames = Renames {
    parts: &[
        (".attn.norm_q.", ".attn.q_norm."),
        (".attn.norm_k.", ".attn.k_norm."),
        (".attn.to_out.0.", ".attn.out_proj."),
        (".ff.net.0.proj.", ".mlp.fc1."),
        (".ff.net.2.", ".mlp.fc2."),
        (".refiner_blocks.", ".blocks."),
    ],
    starts: &[
        ("transformer_blocks.", "blocks."),
        ("time_embedder.linear_1.", "time_embedder.proj_in."),
        ("time_embedder.linear_2.", "time_embedder.proj_out."),
        ("proj_in.", "video_patch_proj."),
        ("audio_proj_in.", "audio_patch_proj."),
        ("context_embedder.", "condition_proj."),
        ("norm_out.norm.", "final_layer.norm."),
        ("norm_out.linear.", "final_layer.adaln_proj.linear."),
        ("proj_out.", "final_layer.video_out."),
        ("audio_proj_out.", "final_layer.audio_out."),
    ],
};

/// Where our keys are in a file of diffusers.
fn origins(keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
    let mut found = BTreeMap::new();
    for name in &keys.inside {
        let whole = format!("{}{name}", keys.prefix);
        if let Some(place) = name.strip_suffix(".attn.to_q.weight") {
            let part =
                |part: &str| Origin::Whole(format!("{}{place}.attn.{part}.weight", keys.prefix));
            let key = DIFFUSERS.key(&format!("{place}.attn.qkv_proj.weight"));
            found.insert(
                key,
                Origin::Joined(vec![part("to_q"), part("to_k"), part("to_v")]),
            );
        } else if name.ends_with(".attn.to_k.weight") || name.ends_with(".attn.to_v.weight") {
            // With the queries.
        } else if name.ends_with(".ff.net.0.proj.weight") {
            let rows = keys
                .file
                .info(&whole)
                .map_or(0, |info| info.shape.first().copied().unwrap_or(0));
            found.insert(DIFFUSERS.key(name), swapped_halves(&whole, rows));
        } else {
            found.insert(DIFFUSERS.key(name), Origin::Whole(whole));
        }
    }
    found
}

/// MiniMax H3.
pub struct MiniMax;

impl Family for MiniMax {
    fn names(&self) -> &'static [&'static str] {
        &["MiniMax H3"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let origins = if keys.has("token_refiner.blocks.0.attn.qkv_proj.weight") {
            keys.origins(keys.inside.iter().map(|key| ((*key).to_owned(), *key)))
        } else if keys.has("token_refiner.refiner_blocks.0.attn.to_q.weight")
            && keys.has("audio_proj_in.weight")
        {
            origins(keys)
        } else {
            return Ok(None);
        };
        let config = MiniMaxConfig::detect(&keys.store(&origins))?;
        Ok(Some(Checkpoint {
            family: "MiniMax H3",
            network: Arc::new(Found::<MiniMaxNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::MINIMAX),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_diffusers_become_ours() {
        for (theirs, ours) in [
            ("proj_in.weight", "video_patch_proj.weight"),
            (
                "transformer_blocks.3.attn.to_out.0.weight",
                "blocks.3.attn.out_proj.weight",
            ),
            (
                "token_refiner.refiner_blocks.0.ff.net.2.weight",
                "token_refiner.blocks.0.mlp.fc2.weight",
            ),
            ("norm_out.linear.bias", "final_layer.adaln_proj.linear.bias"),
        ] {
            assert_eq!(DIFFUSERS.key(theirs), ours);
        }
    }
}
