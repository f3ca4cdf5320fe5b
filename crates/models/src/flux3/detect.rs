//! How files of this family are recognised.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::Flux3Config;
use super::model::Flux3Network;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};
use crate::transformer::{Renames, swapped_halves};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
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
    blocks: &[
        Blocks::List("txt_mode_blocks"),
        Blocks::Within("image"),
        Blocks::Within("image_cond"),
        Blocks::List("single_blocks"),
    ],
    values: UnitOrder::NORMS,
};

/// The names that diffusers has.
pub(super) const DIFFUSERS: Renames = Renames {
    parts: &[
        (".attn.to_q.", ".q_proj."),
        (".attn.to_k.", ".k_proj."),
        (".attn.to_v.", ".v_proj."),
        (".attn.to_out.0.", ".attn_out."),
        (".attn.norm_q.weight", ".norm.query_norm.scale"),
        (".attn.norm_k.weight", ".norm.key_norm.scale"),
        (".ff.linear_in.", ".mlp_in."),
        (".ff.linear_out.", ".mlp_out."),
        (".linear.", ".lin."),
    ],
    starts: &[
        ("x_embedders.", "emb_in."),
        ("context_embedder.", "txt_in."),
        ("timestep_embedder.linear_1.", "time_in.in_layer."),
        ("timestep_embedder.linear_2.", "time_in.out_layer."),
        (
            "target_timestep_embedder.linear_1.",
            "ref_time_in.in_layer.",
        ),
        (
            "target_timestep_embedder.linear_2.",
            "ref_time_in.out_layer.",
        ),
        ("mode_blocks.", "content_mode_blocks."),
        ("single_transformer_blocks.", "single_blocks."),
        ("proj_out.", "final_layer.image.linear."),
        ("norm_out.lin.", "final_layer.image.adaLN_modulation.1."),
    ],
};

/// FLUX.3 klein.
pub struct Flux3;

impl Family for Flux3 {
    fn names(&self) -> &'static [&'static str] {
        &["FLUX.3 klein"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let origins = if keys.has("early_stream_modulations.image.lin.weight") {
            // Training leaves layers behind that nothing uses.
            let own = keys
                .inside
                .iter()
                .filter(|key| !key.starts_with("repa_projectors."));
            keys.origins(own.map(|key| ((*key).to_owned(), *key)))
        } else if keys.has("early_stream_modulations.image.linear.weight") {
            diffusers(keys)
        } else {
            return Ok(None);
        };
        let config = Flux3Config::detect(&keys.store(&origins))?;
        Ok(Some(Checkpoint {
            family: if config.looks_ahead {
                "FLUX.3 klein"
            } else {
                "FLUX.3 klein base"
            },
            network: Arc::new(Found::<Flux3Network>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::FLUX3),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}

fn diffusers(keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
    let mut origins = DIFFUSERS.origins(keys);
    // There the scale comes before the shift.
    let key = "final_layer.image.adaLN_modulation.1.weight";
    if let Some(Origin::Whole(name)) = origins.get(key).cloned()
        && let Some([rows, _]) = keys.file.info(&name).map(|info| info.shape).as_deref()
    {
        origins.insert(key.to_owned(), swapped_halves(&name, *rows));
    }
    origins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_diffusers_become_ours() {
        let pairs = [
            ("x_embedders.image_cond.weight", "emb_in.image_cond.weight"),
            (
                "mode_blocks.image.4.attn.to_out.0.weight",
                "content_mode_blocks.image.4.attn_out.weight",
            ),
            (
                "txt_mode_blocks.0.ff.linear_in.weight",
                "txt_mode_blocks.0.mlp_in.weight",
            ),
            (
                "single_transformer_blocks.2.attn.norm_k.weight",
                "single_blocks.2.norm.key_norm.scale",
            ),
            (
                "single_stream_modulations.txt.linear.weight",
                "single_stream_modulations.txt.lin.weight",
            ),
            ("proj_out.weight", "final_layer.image.linear.weight"),
            (
                "norm_out.linear.weight",
                "final_layer.image.adaLN_modulation.1.weight",
            ),
            (
                "target_timestep_embedder.linear_2.weight",
                "ref_time_in.out_layer.weight",
            ),
        ];
        for (theirs, ours) in pairs {
            assert_eq!(DIFFUSERS.key(theirs), ours);
        }
    }
}
