//! How files of this family are recognised.

use std::sync::Arc;

use super::config::KreaConfig;
use super::model::KreaNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};
use crate::transformer::Renames;

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "first",
        "tmlp",
        "tproj",
        "txtfusion",
        "txtmlp",
        "blocks",
        "last",
    ],
    blocks: &[
        Blocks::Within("layerwise_blocks"),
        Blocks::Within("refiner_blocks"),
        Blocks::List("blocks"),
    ],
    values: &["scale", "lin"],
};

/// The names that diffusers has.
pub(super) const DIFFUSERS: Renames = Renames {
    parts: &[
        (".attn.to_q.", ".attn.wq."),
        (".attn.to_k.", ".attn.wk."),
        (".attn.to_v.", ".attn.wv."),
        (".attn.to_out.0.", ".attn.wo."),
        (".attn.to_gate.", ".attn.gate."),
        (".attn.norm_q.weight", ".attn.qknorm.qnorm.scale"),
        (".attn.norm_k.weight", ".attn.qknorm.knorm.scale"),
        (".ff.", ".mlp."),
        (".norm1.weight", ".prenorm.scale"),
        (".norm2.weight", ".postnorm.scale"),
        (".scale_shift_table", ".mod.lin"),
    ],
    starts: &[
        ("img_in.", "first."),
        ("time_embed.linear_1.", "tmlp.0."),
        ("time_embed.linear_2.", "tmlp.2."),
        ("time_mod_proj.", "tproj.1."),
        ("txt_in.norm.weight", "txtmlp.0.scale"),
        ("txt_in.linear_1.", "txtmlp.1."),
        ("txt_in.linear_2.", "txtmlp.3."),
        ("text_fusion.", "txtfusion."),
        ("transformer_blocks.", "blocks."),
        ("final_layer.linear.", "last.linear."),
        ("final_layer.norm.weight", "last.norm.scale"),
        ("final_layer.mod.lin", "last.modulation.lin"),
    ],
};

/// Krea 2.
pub struct Krea;

impl Family for Krea {
    fn names(&self) -> &'static [&'static str] {
        &["Krea 2"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let origins = if keys.has("txtfusion.projector.weight") {
            keys.origins(keys.inside.iter().map(|key| ((*key).to_owned(), *key)))
        } else if keys.has("text_fusion.projector.weight") {
            let mut origins = DIFFUSERS.origins(keys);
            // There each part of a table is a row of its own.
            for (key, origin) in &mut origins {
                if let Origin::Whole(name) = &*origin
                    && key.ends_with(".mod.lin")
                    && let Some([rows, width]) = keys.file.info(name).map(|i| i.shape).as_deref()
                {
                    *origin = Origin::Shaped {
                        name: name.clone(),
                        shape: vec![rows * width],
                    };
                }
            }
            origins
        } else {
            return Ok(None);
        };
        let config = KreaConfig::detect(&keys.store(&origins))?;
        Ok(Some(Checkpoint {
            family: "Krea 2",
            network: Arc::new(Found::<KreaNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::KREA2),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_diffusers_become_ours() {
        let pairs = [
            ("img_in.bias", "first.bias"),
            (
                "transformer_blocks.3.attn.to_out.0.weight",
                "blocks.3.attn.wo.weight",
            ),
            ("transformer_blocks.3.scale_shift_table", "blocks.3.mod.lin"),
            (
                "transformer_blocks.3.norm2.weight",
                "blocks.3.postnorm.scale",
            ),
            (
                "text_fusion.refiner_blocks.1.ff.gate.weight",
                "txtfusion.refiner_blocks.1.mlp.gate.weight",
            ),
            (
                "text_fusion.layerwise_blocks.0.attn.norm_q.weight",
                "txtfusion.layerwise_blocks.0.attn.qknorm.qnorm.scale",
            ),
            ("txt_in.norm.weight", "txtmlp.0.scale"),
            ("final_layer.scale_shift_table", "last.modulation.lin"),
            ("final_layer.norm.weight", "last.norm.scale"),
        ];
        for (theirs, ours) in pairs {
            assert_eq!(DIFFUSERS.key(theirs), ours);
        }
    }
}
