//! How files of this family are recognised.

use std::collections::BTreeMap;

use super::config::Sd3Config;
use super::model::Mmdit;
use super::names;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
pub(super) static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "pos_embed",
        "x_embedder",
        "t_embedder",
        "y_embedder",
        "context_embedder",
        "joint_blocks",
        "final_layer",
        "context_block",
        "x_block",
        "attn",
        "attn2",
        "mlp",
        "adaLN_modulation",
        "qkv",
        "proj",
        "ln_q",
        "ln_k",
    ],
    blocks: &[Blocks::List("joint_blocks")],
    values: &["pos_embed"],
};

/// What the keys of the network begin with.
const OWN: [&str; 7] = [
    "pos_embed",
    "x_embedder.",
    "t_embedder.",
    "y_embedder.",
    "context_embedder.",
    "joint_blocks.",
    "final_layer.",
];

/// Stable Diffusion 3 and 3.5.
pub struct Sd3;

impl Family for Sd3 {
    fn names(&self) -> &'static [&'static str] {
        &["SD3", "SD3.5"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let Some(origins) = origins(keys) else {
            return Ok(None);
        };
        let config = Sd3Config::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<Mmdit>(
            if config.qk_norm { "SD3.5" } else { "SD3" },
            config,
            origins,
            &UNITS,
            Some(&stacks::SD3),
        )))
    }
}

/// Where the network's keys are in the file; none if it is of another family.
fn origins(keys: &FileKeys<'_>) -> Option<BTreeMap<String, Origin>> {
    if keys.has("joint_blocks.0.context_block.attn.qkv.weight") {
        let own = keys.inside.iter().copied();
        let own = own.filter(|key| OWN.iter().any(|start| key.starts_with(start)));
        return Some(keys.origins(own.map(|key| (key.to_owned(), key))));
    }
    let diffusers = keys.has("transformer_blocks.0.attn.add_q_proj.weight")
        && keys.has("pos_embed.proj.weight")
        && keys.has("time_text_embed.text_embedder.linear_1.weight")
        && !keys.any_inside("controlnet_blocks.");
    diffusers.then(|| keys.origins_by(&names::DIFFUSERS))
}
