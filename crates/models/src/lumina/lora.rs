//! Lumina 2 and Z-Image in LoRA files.

use crate::lora::Part::{Rows, Whole};
use crate::lora::{LayerTable, NameMap, NetworkKeys, Row, Spelling};

const SPELLINGS: [Spelling; 3] = [
    Spelling::dots("diffusion_model."),
    Spelling::dots("transformer."),
    Spelling::underscores("lycoris_"),
];

const ATTENTION: [Row; 6] = [
    ("attention.to_q", "attention.qkv", Rows(0, 1)),
    ("attention.to_k", "attention.qkv", Rows(1, 1)),
    ("attention.to_v", "attention.qkv", Rows(2, 1)),
    ("attention.to_out.0", "attention.out", Whole),
    ("attention.norm_q", "attention.q_norm", Whole),
    ("attention.norm_k", "attention.k_norm", Whole),
];

pub(crate) fn names(keys: &NetworkKeys<'_>, map: &mut NameMap) -> bool {
    if !keys.has("cap_embedder.1.weight") {
        return false;
    }
    let width = keys.outputs("cap_embedder.1.weight").unwrap_or(3840);
    let mut table = LayerTable::new(width);
    for stack in ["layers", "context_refiner", "noise_refiner"] {
        for i in 0..keys.count(&format!("{stack}.")) {
            let block = format!("{stack}.{i}.");
            table.add_block(&block, &block, &ATTENTION);
        }
    }
    // Everything else has the same name, but for the two ends.
    for path in keys.layers().filter(|path| !path.contains(".attention.")) {
        let theirs = match path.split_once('.').unwrap_or((path, "")) {
            ("final_layer", rest) => format!("all_final_layer.2-1.{rest}"),
            ("x_embedder", _) => "all_x_embedder.2-1".to_owned(),
            _ => path.to_owned(),
        };
        table.add(theirs, path, Whole);
    }
    map.add_table(&table, &SPELLINGS);
    true
}
