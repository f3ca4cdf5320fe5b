//! Kandinsky 5 in LoRA files.

use crate::lora::{NameMap, NetworkKeys, Spelling};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    let known = keys.has("visual_transformer_blocks.0.cross_attention.key_norm.weight");
    if known {
        map.add_own(keys, &["", "transformer."].map(Spelling::dots));
    }
    known
}
