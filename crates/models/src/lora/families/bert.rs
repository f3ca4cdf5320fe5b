//! The BERT of Hunyuan-DiT in LoRA files.

use crate::lora::{NameMap, Spelling, TextKeys};

pub(crate) fn names(keys: &TextKeys<'_>, map: &mut NameMap) {
    for (path, inner) in keys.inside("hydit_clip.transformer.bert.") {
        map.add_text(path, inner, &[Spelling::underscores("lora_te1_")]);
    }
}
