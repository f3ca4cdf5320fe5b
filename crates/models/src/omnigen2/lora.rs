//! OmniGen 2 in LoRA files: its names as they are.

use crate::lora::{NameMap, NetworkKeys, Spelling};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    let known = keys.has("time_caption_embed.timestep_embedder.linear_1.bias");
    if known {
        map.add_own(keys, &[Spelling::dots("")]);
    }
    known
}
