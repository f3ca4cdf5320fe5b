//! Wan in LoRA files.

use super::config::DIFFUSERS;
use crate::lora::{NameMap, NetworkKeys};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("head.modulation") {
        return false;
    }
    DIFFUSERS.add_names(keys, "", map);
    true
}
