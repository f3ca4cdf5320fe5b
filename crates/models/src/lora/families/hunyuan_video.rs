//! Hunyuan Video in LoRA files: the names of its first release.

use crate::lora::Part::Whole;
use crate::lora::{LayerTable, NameMap, NetworkKeys, Spelling};

/// In our keys, and in that release.
const PARTS: [(&str, &str); 6] = [
    ("_mod.lin.", "_mod.linear."),
    ("_attn.qkv.", "_attn_qkv."),
    ("_attn.proj.", "_attn_proj."),
    ("mlp.0.", "mlp.fc1."),
    ("mlp.2.", "mlp.fc2."),
    (".modulation.lin.", ".modulation.linear."),
];

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("txt_in.individual_token_refiner.blocks.0.norm1.weight") {
        return false;
    }
    let mut table = LayerTable::new(0);
    for path in keys.layers() {
        let old = PARTS
            .into_iter()
            .fold(format!("{path}."), |k, (from, to)| k.replace(from, to));
        table.add(old.trim_end_matches('.'), path, Whole);
    }
    let spellings = ["transformer.", "diffusion_model."].map(Spelling::dots);
    map.add_table(&table, &spellings);
    true
}
