//! How files of this family are recognised.

use super::config::{Qwen21Config, SIGN};
use super::model::Qwen21Network;
use crate::detect::{Checkpoint, Family, FileKeys};
use crate::error::Result;
use crate::lora::{LoraLayout, LoraNames, Spelling};
use crate::store::{Blocks, UnitOrder, WeightStore};

/// The order of the parts of the network.
pub static UNITS: UnitOrder = UnitOrder::of(
    &[
        "time_text_embed",
        "txt_in",
        "img_in",
        "modulation",
        "transformer_blocks",
        "norm_out",
        "proj_out",
    ],
    &[Blocks::List("transformer_blocks")],
);

/// Whether a network is one that a [`PrefixCache`](super::PrefixCache) serves.
pub fn runs_with_cache(store: &WeightStore) -> bool {
    store.has(SIGN)
}

/// LoRA files have the network's own names.
pub static LORA: LoraNames = LoraNames {
    signs: &[SIGN],
    layouts: &[(
        LoraLayout::Own,
        &[
            Spelling::dots(""),
            Spelling::dots("transformer."),
            Spelling::underscores("lycoris_"),
        ],
    )],
};

/// Qwen-Image 2.1.
pub struct QwenImage21;

impl Family for QwenImage21 {
    fn names(&self) -> &'static [&'static str] {
        &["Qwen-Image 2.1"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        if !keys.has(SIGN) {
            return Ok(None);
        }
        let own = keys.inside.iter().copied().filter(|key| {
            let part = key.split('.').next().unwrap_or(key);
            UNITS.parts.contains(&part)
        });
        let origins = keys.origins(own.map(|key| (key.to_owned(), key)));
        let config = Qwen21Config::detect(&keys.store(&origins))?;
        Ok(Some(keys.checkpoint::<Qwen21Network>(
            "Qwen-Image 2.1",
            config,
            origins,
            &UNITS,
            None,
        )))
    }
}
