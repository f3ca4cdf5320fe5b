//! HiDream in LoRA files.

use crate::lora::{NameMap, NetworkKeys, Spelling};

const SPELLINGS: [Spelling; 2] = [
    Spelling::underscores("lycoris_"),
    Spelling::dots("transformer."),
];

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    let known = keys.has("caption_projection.0.linear.weight");
    if known {
        map.add_own(keys, &SPELLINGS);
    }
    known
}
