//! How files of this family are recognised.

use std::collections::BTreeMap;

use super::config::AceConfig;
use super::model::AceNetwork;
use super::v15::{Ace15Config, Ace15Network};
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::store::{Blocks, Origin, UnitOrder};

/// The order of the parts.
static UNITS: UnitOrder = UnitOrder::of(
    &[
        "lyric_embs",
        "lyric_encoder",
        "lyric_proj",
        "genre_embedder",
        "speaker_embedder",
        "timestep_embedder",
        "t_block",
        "proj_in",
        "encoder",
        "tokenizer",
        "detokenizer",
        "condition_embedder",
        "time_embed",
        "time_embed_r",
        "proj_in_conv",
        "transformer_blocks",
        "layers",
        "final_layer",
    ],
    &[Blocks::List("transformer_blocks"), Blocks::List("layers")],
);

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &["genre_embedder.weight", "time_embed_r.linear_1.weight"],
    layouts: &[(LoraLayout::Own, &[Spelling::dots("")])],
};

pub struct AceStep;

impl Family for AceStep {
    fn names(&self) -> &'static [&'static str] {
        &["ACE-Step", "ACE-Step 1.5"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if keys.has("genre_embedder.weight") && keys.any_inside("lyric_encoder.") {
            let origins = keys.own();
            let config = AceConfig::detect(&keys.store(&origins))?;
            return Ok(Some(keys.checkpoint::<AceNetwork>(
                "ACE-Step",
                config,
                origins,
                &UNITS,
                Some(&stacks::ACE),
            )));
        }
        let signs = [
            "time_embed_r.linear_1.weight",
            "decoder.time_embed_r.linear_1.weight",
        ];
        if !signs.iter().any(|sign| keys.has(sign)) {
            return Ok(None);
        }
        let origins = renamed(keys);
        let config = Ace15Config::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<Ace15Network>(
            "ACE-Step 1.5",
            config,
            origins,
            &UNITS,
            Some(&stacks::ACE15),
        )))
    }
}

/// Names that the authors' files have for parts of a layer.
const NAMES: [(&str, &str); 8] = [
    (".q_proj.", ".to_q."),
    (".k_proj.", ".to_k."),
    (".v_proj.", ".to_v."),
    (".o_proj.", ".to_out.0."),
    (".q_norm.", ".norm_q."),
    (".k_norm.", ".norm_k."),
    ("proj_in.1.", "proj_in_conv."),
    ("proj_out.1.", "proj_out_conv."),
];

/// What is used of the authors' files besides the transformer.
const USED: [&str; 5] = [
    "encoder.",
    "silence_latent",
    "null_condition_emb",
    "detokenizer.",
    "tokenizer.quantizer.project_out.",
];

/// Keys of version 1.5 under the names of diffusers, with the parts that make tokens under `encoder`. What turns sound into
/// codes is not used.
fn renamed(keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
    let whole = keys.any_inside("decoder.");
    let pairs = keys.inside.iter().filter_map(|name| {
        let mut key = match name.strip_prefix("decoder.") {
            Some(inner) => inner.to_owned(),
            None if !whole => (*name).to_owned(),
            None => {
                USED.iter().find(|start| name.starts_with(*start))?;
                (*name).to_owned()
            }
        };
        for (theirs, ours) in NAMES {
            key = key.replace(theirs, ours);
        }
        let key = key.replacen("condition_encoder.", "encoder.", 1);
        let key = match key.strip_prefix("encoder.") {
            Some(value @ ("silence_latent" | "null_condition_emb")) => value.to_owned(),
            _ => key,
        };
        Some((key, *name))
    });
    keys.origins(pairs)
}
