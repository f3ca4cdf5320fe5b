//! Where the weights of a T5 encoder are in the files that bring one, and under which names.

use std::collections::BTreeMap;

use fresco_tensor::WeightFile;

use super::WORDS_KEY;
use crate::store::Origin;
use crate::text::network::words_origin;

/// Names of parts in GGUF files, and what they are called here.
const GGUF: [(&str, &str); 12] = [
    ("attn_q.", "layer.0.SelfAttention.q."),
    ("attn_k.", "layer.0.SelfAttention.k."),
    ("attn_v.", "layer.0.SelfAttention.v."),
    ("attn_o.", "layer.0.SelfAttention.o."),
    ("attn_norm.", "layer.0.layer_norm."),
    (
        "attn_rel_b.",
        "layer.0.SelfAttention.relative_attention_bias.",
    ),
    ("ffn_gate.", "layer.1.DenseReluDense.wi_0."),
    ("ffn_up.", "layer.1.DenseReluDense.wi_1."),
    ("ffn_down.", "layer.1.DenseReluDense.wo."),
    ("ffn_norm.", "layer.1.layer_norm."),
    ("output_norm.", "final_layer_norm."),
    ("token_embd.", "shared."),
];

/// Internal names of the tensors under `prefix`; empty if there is no such encoder. The decoder of a whole T5 is left out.
pub(super) fn keys(file: &dyn WeightFile, prefix: &str) -> BTreeMap<String, Origin> {
    let names = file.names();
    let inside = names.iter().filter_map(|name| {
        let key = name.strip_prefix(prefix)?;
        Some((named(key)?, Origin::Whole(name.clone())))
    });
    let mut keys: BTreeMap<String, Origin> = inside.collect();
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

/// What a tensor is called here; none if it is of no use.
fn named(name: &str) -> Option<String> {
    if name == WORDS_KEY || name.starts_with("encoder.") || name.starts_with("shared.") {
        return Some(name.to_owned());
    }
    let part = |rest: &str| {
        let (from, to) = GGUF.iter().find(|(from, _)| rest.starts_with(from))?;
        Some(format!("{to}{}", &rest[from.len()..]))
    };
    if let Some(block) = name.strip_prefix("enc.blk.") {
        let (number, rest) = block.split_once('.')?;
        return Some(format!("encoder.block.{number}.{}", part(rest)?));
    }
    match name.strip_prefix("enc.") {
        Some(rest) => Some(format!("encoder.{}", part(rest)?)),
        None => part(name).filter(|key| key.starts_with("shared.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_layouts() {
        let same = "encoder.block.3.layer.1.DenseReluDense.wi_0.weight";
        for (name, key) in [
            (same, Some(same)),
            ("enc.blk.3.ffn_gate.weight", Some(same)),
            (
                "enc.blk.0.attn_rel_b.weight",
                Some("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
            ),
            (
                "enc.output_norm.weight",
                Some("encoder.final_layer_norm.weight"),
            ),
            ("token_embd.weight", Some("shared.weight")),
            ("decoder.block.0.layer.0.layer_norm.weight", None),
            ("dec.blk.0.attn_q.weight", None),
            ("attn_q.weight", None),
        ] {
            assert_eq!(named(name).as_deref(), key, "{name}");
        }
    }
}
