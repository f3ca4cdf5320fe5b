//! Hunyuan-DiT in LoRA files.

use crate::lora::{NameMap, NetworkKeys, Spelling};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    let known = keys.has("mlp_t5.0.weight");
    if known {
        map.add_own(keys, &[Spelling::dots("base_model.model.")]);
    }
    known
}
