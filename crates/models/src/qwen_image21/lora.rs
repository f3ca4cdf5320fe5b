//! Qwen-Image 2.1 in LoRA files: its own names are those of diffusers.

use super::config::SIGN;
use crate::lora::{NameMap, NetworkKeys, Spelling};

const SPELLINGS: [Spelling; 3] = [
    Spelling::dots(""),
    Spelling::dots("transformer."),
    Spelling::underscores("lycoris_"),
];

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    let known = keys.has(SIGN);
    if known {
        map.add_own(keys, &SPELLINGS);
    }
    known
}
