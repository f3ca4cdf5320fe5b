//! Stage C of Stable Cascade in LoRA files.

use crate::lora::{NameMap, NetworkKeys, Spelling};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    let known = keys.has("clf.1.weight") && keys.has("clip_txt_mapper.weight");
    if known {
        map.add_own(keys, &[Spelling::underscores("lora_prior_unet_")]);
    }
    known
}
