//! Anima in LoRA files.

use crate::lora::{NameMap, NetworkKeys};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("llm_adapter.out_proj.weight") {
        return false;
    }
    crate::cosmos::DIFFUSERS.add_names(keys, "", map);
    true
}
