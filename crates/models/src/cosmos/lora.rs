//! Cosmos in LoRA files.

use super::config::{DIFFUSERS, FIRST};
use crate::lora::{LayerTable, NameMap, NetworkKeys, Part, Spelling};

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("blocks.0.adaln_modulation_self_attn.1.weight") {
        return false;
    }
    if keys.has("extra_pos_embedder.pos_emb_t") {
        let mut table = LayerTable::new(0);
        for path in keys.layers() {
            let name = FIRST.name(&format!("{path}.weight"));
            let name = name.strip_suffix(".weight").unwrap_or(&name);
            table.add(name, path, Part::Whole);
        }
        let spellings = [
            Spelling::dots("diffusion_model."),
            Spelling::underscores("lora_unet_"),
        ];
        map.add_table(&table, &spellings);
        return true;
    }
    DIFFUSERS.add_names(keys, "", map);
    true
}
