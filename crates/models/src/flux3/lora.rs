//! FLUX.3 in LoRA files.

use crate::lora::{NameMap, NetworkKeys};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("early_stream_modulations.image.lin.weight") {
        return false;
    }
    super::detect::DIFFUSERS.add_names(keys, "final_layer.image.adaLN_modulation.1", map);
    true
}
