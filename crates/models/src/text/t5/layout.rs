//! Where the weights of a T5 encoder are in the files that bring one, and under which names.

use std::collections::BTreeMap;

use fresco_tensor::WeightFile;

use super::WORDS_KEY;
use crate::name_table::{NameTable, layer, place};
use crate::store::Origin;
use crate::text::network::words_origin;

/// The names of GGUF files.
pub static GGUF: NameTable = NameTable::new(&[
    place(
        "enc.blk.{i}.",
        "encoder.block.{i}.layer.",
        &[
            layer("attn_q", "0.SelfAttention.q"),
            layer("attn_k", "0.SelfAttention.k"),
            layer("attn_v", "0.SelfAttention.v"),
            layer("attn_o", "0.SelfAttention.o"),
            layer("attn_norm", "0.layer_norm"),
            layer("attn_rel_b", "0.SelfAttention.relative_attention_bias"),
            layer("ffn_gate", "1.DenseReluDense.wi_0"),
            layer("ffn_up", "1.DenseReluDense.wi_1"),
            layer("ffn_down", "1.DenseReluDense.wo"),
            layer("ffn_norm", "1.layer_norm"),
        ],
    ),
    place(
        "",
        "",
        &[
            layer("enc.output_norm", "encoder.final_layer_norm"),
            layer("token_embd", "shared"),
        ],
    ),
])
.keeping_others();

/// Internal names of the tensors under `prefix`; empty if there is no such encoder. The decoder of a whole T5 is left out.
pub(super) fn keys(file: &dyn WeightFile, prefix: &str) -> BTreeMap<String, Origin> {
    let names = file.names();
    let inside = names.iter().filter_map(|name| name.strip_prefix(prefix));
    let mut keys = GGUF.origins(file, prefix, &inside.collect::<Vec<_>>());
    keys.retain(|key, _| key.starts_with("encoder.") || key.starts_with("shared."));
    // Some files have the table of tokens only where the encoder uses it.
    if let Some(table) = keys.remove("encoder.embed_tokens.weight") {
        keys.entry("shared.weight".to_owned()).or_insert(table);
    }
    if let Some(words) = words_origin(file, prefix, WORDS_KEY) {
        keys.insert(WORDS_KEY.to_owned(), words);
    }
    let first = "encoder.block.0.layer.0.SelfAttention.q.weight";
    if !keys.contains_key(first) || !keys.contains_key("shared.weight") {
        keys.clear();
    }
    keys
}
