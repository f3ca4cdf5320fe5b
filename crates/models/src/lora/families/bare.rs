//! Mochi and ACE-Step in LoRA files: their names as they are.

use crate::lora::{NameMap, NetworkKeys, Spelling};

/// Keys that tell one of them.
const SIGNS: [&str; 3] = [
    "t5_yproj.weight",
    "genre_embedder.weight",
    "time_embed_r.linear_1.weight",
];

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    let known = SIGNS.iter().any(|sign| keys.has(sign));
    if known {
        map.add_own(keys, &[Spelling::dots("")]);
    }
    known
}
