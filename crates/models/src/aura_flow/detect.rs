//! How files of this family are recognised.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::AuraFlowConfig;
use super::lora;
use super::model::AuraFlowNetwork;
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "t_embedder",
        "cond_seq_linear",
        "init_x_linear",
        "positional_encoding",
        "register_tokens",
        "double_layers",
        "single_layers",
        "final_linear",
        "modF",
    ],
    blocks: &[Blocks::List("double_layers"), Blocks::List("single_layers")],
    values: &["positional_encoding", "register_tokens"],
};

pub struct AuraFlow;

impl Family for AuraFlow {
    fn names(&self) -> &'static [&'static str] {
        &["AuraFlow"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let Some(origins) = origins(keys) else {
            return Ok(None);
        };
        let config = AuraFlowConfig::detect(&keys.store(&origins))?;
        Ok(Some(Checkpoint {
            family: "AuraFlow",
            network: Arc::new(Found::<AuraFlowNetwork>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: keys.vae_prefix(),
            text: keys.has_text().then_some(&stacks::AURA_FLOW),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}

/// Where the network's keys are in the file; none if it is of another family.
fn origins(keys: &FileKeys<'_>) -> Option<BTreeMap<String, Origin>> {
    if keys.has("double_layers.0.attn.w1q.weight") {
        let own = keys.inside.iter().map(|key| ((*key).to_owned(), *key));
        return Some(keys.origins(own));
    }
    // The names of diffusers.
    let theirs = keys.has("joint_transformer_blocks.0.attn.add_k_proj.weight")
        && keys.has("register_tokens");
    theirs.then(|| {
        let joint = keys.blocks("joint_transformer_blocks.");
        let single = keys.blocks("single_transformer_blocks.");
        let mut origins = keys.origins_by(lora::table(joint, single).rows());
        for (theirs, ours) in [
            ("register_tokens", "register_tokens"),
            ("pos_embed.pos_embed", "positional_encoding"),
        ] {
            if keys.has(theirs) {
                let name = format!("{}{theirs}", keys.prefix);
                origins.insert(ours.to_owned(), Origin::Whole(name));
            }
        }
        origins
    })
}
