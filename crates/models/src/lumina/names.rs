//! Other people's names for the weights.

use std::collections::BTreeMap;

use crate::detect::FileKeys;
use crate::store::Origin;

/// The parts of a network of this family; files may have more, for training or for other uses.
const OWN: &[&str] = &[
    "x_embedder",
    "x_pad_token",
    "cap_pad_token",
    "noise_refiner",
    "context_refiner",
    "t_embedder",
    "cap_embedder",
    "clip_text_pooled_proj",
    "time_text_embed",
    "layers",
    "final_layer",
];

fn is_own(key: &str) -> bool {
    OWN.contains(&key.split('.').next().unwrap_or(key))
}

/// The three parts of a weight that is kept as one here.
const PARTS: [&str; 3] = ["to_q", "to_k", "to_v"];

/// The names that diffusers has for Z-Image, and ours. Both are starts or parts of keys.
const DIFFUSERS_Z: &[(&str, &str)] = &[
    ("all_x_embedder.2-1", "x_embedder"),
    ("all_final_layer.2-1", "final_layer"),
    ("attention.to_out.0", "attention.out"),
    ("attention.norm_q", "attention.q_norm"),
    ("attention.norm_k", "attention.k_norm"),
];

/// The same for Lumina 2.
const DIFFUSERS_LUMINA: &[(&str, &str)] = &[
    ("time_caption_embed.caption_embedder", "cap_embedder"),
    (
        "time_caption_embed.timestep_embedder.linear_1",
        "t_embedder.mlp.0",
    ),
    (
        "time_caption_embed.timestep_embedder.linear_2",
        "t_embedder.mlp.2",
    ),
    ("norm_out.linear_1", "final_layer.adaLN_modulation.1"),
    ("norm_out.linear_2", "final_layer.linear"),
    ("attn.to_out.0", "attention.out"),
    ("attn.norm_q", "attention.q_norm"),
    ("attn.norm_k", "attention.k_norm"),
    ("attn.to_", "attention.to_"),
    ("feed_forward.linear_1", "feed_forward.w1"),
    ("feed_forward.linear_2", "feed_forward.w2"),
    ("feed_forward.linear_3", "feed_forward.w3"),
    ("norm1.linear", "adaLN_modulation.1"),
    ("norm1.norm", "attention_norm1"),
    (".norm1.", ".attention_norm1."),
    (".norm2.", ".attention_norm2."),
];

/// A name with the first of the table's parts that it has replaced. No name has two of them.
fn renamed(name: &str, table: &[(&str, &str)]) -> String {
    let found = table.iter().find(|(theirs, _)| at(name, theirs).is_some());
    match found.and_then(|(theirs, ours)| Some((at(name, theirs)?, theirs, ours))) {
        Some((at, theirs, ours)) => format!("{}{ours}{}", &name[..at], &name[at + theirs.len()..]),
        None => name.to_owned(),
    }
}

/// Where a part of a name begins: only at its start or after a dot.
fn at(name: &str, part: &str) -> Option<usize> {
    let found = name.find(part)?;
    let starts = found == 0 || part.starts_with('.') || name.as_bytes()[found - 1] == b'.';
    starts.then_some(found)
}

/// The key here for a name of diffusers, and which third of it the name is.
fn diffusers_key(name: &str, table: &[(&str, &str)]) -> (String, Option<usize>) {
    let key = renamed(name, table);
    let third = PARTS
        .iter()
        .position(|part| key.contains(&format!(".attention.{part}.")));
    match third {
        Some(third) => {
            let part = format!(".{}.", PARTS[third]);
            (key.replacen(&part, ".qkv.", 1), Some(third))
        }
        None => (key, None),
    }
}

/// Keys of the network with where they are in a file of any naming.
pub(super) fn origins(keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
    let table = if keys.any_inside("time_caption_embed.") {
        DIFFUSERS_LUMINA
    } else if keys.any_inside("all_x_embedder.") {
        DIFFUSERS_Z
    } else {
        let own = keys.inside.iter().filter(|key| is_own(key));
        return keys.origins(own.map(|key| ((*key).to_owned(), *key)));
    };
    let names = keys.inside.iter().copied();
    joined(names, |name| diffusers_key(name, table), keys.prefix)
}

/// Origins of keys whose thirds a file keeps by themselves.
pub(super) fn joined<'a>(
    names: impl Iterator<Item = &'a str>,
    key: impl Fn(&str) -> (String, Option<usize>),
    prefix: &str,
) -> BTreeMap<String, Origin> {
    let mut whole = BTreeMap::new();
    let mut thirds: BTreeMap<String, [Option<Origin>; 3]> = BTreeMap::new();
    for name in names {
        let (key, third) = key(name);
        let origin = Origin::Whole(format!("{prefix}{name}"));
        match third {
            None if is_own(&key) || key.starts_with("control_") => {
                whole.insert(key, origin);
            }
            None => {}
            Some(third) => thirds.entry(key).or_default()[third] = Some(origin),
        }
    }
    for (key, parts) in thirds {
        // With a part missing the key is, and the message names it.
        if let [Some(q), Some(k), Some(v)] = parts {
            whole.insert(key, Origin::Joined(vec![q, k, v]));
        }
    }
    whole
}

/// Keys of a control net of Z-Image, which comes in both namings.
pub(super) fn control_origins(names: &[String]) -> BTreeMap<String, Origin> {
    let names = names.iter().map(String::as_str);
    joined(names, |name| diffusers_key(name, &DIFFUSERS_Z[2..]), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_diffusers_become_ours() {
        let z = |name| diffusers_key(name, DIFFUSERS_Z);
        let whole = |key: &str| (key.to_owned(), None);
        assert_eq!(
            z("layers.3.attention.to_k.weight"),
            ("layers.3.attention.qkv.weight".to_owned(), Some(1))
        );
        assert_eq!(
            z("layers.3.attention.to_out.0.weight"),
            whole("layers.3.attention.out.weight")
        );
        assert_eq!(
            z("all_final_layer.2-1.adaLN_modulation.1.bias"),
            whole("final_layer.adaLN_modulation.1.bias")
        );
        assert_eq!(z("cap_pad_token"), whole("cap_pad_token"));
        let lumina = |name| diffusers_key(name, DIFFUSERS_LUMINA);
        assert_eq!(
            lumina("context_refiner.1.attn.to_v.weight"),
            ("context_refiner.1.attention.qkv.weight".to_owned(), Some(2))
        );
        let pairs = [
            (
                "layers.0.norm1.linear.bias",
                "layers.0.adaLN_modulation.1.bias",
            ),
            (
                "layers.0.norm1.norm.weight",
                "layers.0.attention_norm1.weight",
            ),
            (
                "context_refiner.0.norm1.weight",
                "context_refiner.0.attention_norm1.weight",
            ),
            ("layers.0.norm2.weight", "layers.0.attention_norm2.weight"),
            ("layers.0.ffn_norm1.weight", "layers.0.ffn_norm1.weight"),
            (
                "layers.0.attn.norm_q.weight",
                "layers.0.attention.q_norm.weight",
            ),
            (
                "layers.0.feed_forward.linear_3.weight",
                "layers.0.feed_forward.w3.weight",
            ),
            (
                "norm_out.linear_1.weight",
                "final_layer.adaLN_modulation.1.weight",
            ),
            (
                "time_caption_embed.caption_embedder.0.weight",
                "cap_embedder.0.weight",
            ),
            ("x_embedder.weight", "x_embedder.weight"),
        ];
        for (theirs, ours) in pairs {
            assert_eq!(lumina(theirs), whole(ours));
        }
    }
}
