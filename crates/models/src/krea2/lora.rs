//! Krea 2 in LoRA files.

use crate::lora::{NameMap, NetworkKeys};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("txtfusion.projector.weight") {
        return false;
    }
    super::detect::DIFFUSERS.add_names(keys, "", map);
    true
}
