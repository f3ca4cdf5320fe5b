//! How files of this family are recognised.

use std::collections::BTreeMap;

use super::config::AuraFlowConfig;
use super::model::AuraFlowNetwork;
use super::names;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
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
    &[Blocks::List("double_layers"), Blocks::List("single_layers")],
);

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
        Ok(Some(keys.checkpoint::<AuraFlowNetwork>(
            "AuraFlow",
            config,
            origins,
            &UNITS,
            Some(&stacks::AURA_FLOW),
        )))
    }
}

/// Where the network's keys are in the file; none if it is of another family.
fn origins(keys: &FileKeys<'_>) -> Option<BTreeMap<String, Origin>> {
    if keys.has("double_layers.0.attn.w1q.weight") {
        return Some(keys.own());
    }
    // The names of diffusers.
    let theirs = keys.has("joint_transformer_blocks.0.attn.add_k_proj.weight")
        && keys.has("register_tokens");
    theirs.then(|| keys.origins_by(&names::DIFFUSERS))
}
