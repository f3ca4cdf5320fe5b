//! The units of a network: what is placed on devices, one layer's weights each, told from the keys of a store.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use fresco_tensor::Dtype;

use super::Store;

/// What can be known about a unit without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitInfo {
    /// Its weights' keys without `.weight` and `.bias`.
    pub name: String,
    /// As in the file.
    pub bytes: u64,
    /// A table of which only some rows are used at a time.
    pub embedding: bool,
    /// Whether layers of its kind can have a bias: all but tables and norms without one.
    pub biased: bool,
    /// Whether it can be kept elsewhere than where the network computes.
    pub castable: bool,
    /// For a patched store, whether it has changed weights of its own here.
    pub own: bool,
    /// Number of the block it is in, counted through the whole network.
    pub block: Option<u32>,
}

/// Values that networks take as they are.
const VALUES: [&str; 1] = ["class_embedding"];

/// Names of parts whose order in the definition of their network is not that of the alphabet. Only those next to each
/// other are ever compared.
const ORDER: [&str; 30] = [
    // UNets and control nets
    "time_embed",
    "label_emb",
    "input_blocks",
    "zero_convs",
    "input_hint_block",
    "middle_block",
    "middle_block_out",
    "output_blocks",
    "out",
    // text and vision encoders
    "text_model",
    "vision_model",
    "embeddings",
    "class_embedding",
    "patch_embedding",
    "token_embedding",
    "position_embedding",
    "pre_layrnorm",
    // and autoencoders
    "encoder",
    "decoder",
    "conv_in",
    "down",
    "mid",
    "up",
    "norm_out",
    "conv_out",
    "post_layernorm",
    "final_layer_norm",
    "text_projection",
    "visual_projection",
    "quant_conv",
];

/// The unit that a key belongs to, and which part of it the key is.
pub(super) fn unit_of(key: &str) -> (&str, &str) {
    for part in [".weight", ".bias"] {
        if let Some(unit) = key.strip_suffix(part) {
            return (unit, &part[1..]);
        }
    }
    (key, "")
}

/// Bytes of a tensor in a file.
pub(super) fn bytes(shape: &[usize], dtype: Dtype) -> Option<u64> {
    dtype.bytes_for(shape.iter().product()).map(|n| n as u64)
}

/// Whether a weight with so many dimensions is a table of rows.
pub(super) fn is_embedding(unit: &str, rank: usize) -> bool {
    let last = unit.rsplit('.').next().unwrap_or(unit);
    let named =
        last.contains("embedding") || matches!(last, "embed_tokens" | "shared" | "wte" | "wpe");
    named && rank == 2
}

/// All units of a store in the order of definition.
pub(super) fn units(store: &Store) -> Vec<UnitInfo> {
    let mut found: BTreeMap<&str, (u64, [Option<usize>; 2])> = BTreeMap::new();
    for key in store.keys() {
        let (unit, part) = unit_of(key);
        let last = key.rsplit('.').next().unwrap_or(key);
        let (Some(shape), Some(dtype)) = (store.shape(key), store.dtype(key)) else {
            continue;
        };
        // Numbers that describe a network, and counters, are no weights.
        if part.is_empty() && !VALUES.contains(&last) {
            continue;
        }
        let entry = found.entry(unit).or_default();
        entry.0 += bytes(shape, dtype).unwrap_or(0);
        match part {
            "weight" => entry.1[0] = Some(shape.len()),
            "bias" => entry.1[1] = Some(shape.len()),
            _ => {}
        }
    }
    let inputs = found
        .keys()
        .filter_map(|name| number_after(name, "input_blocks"))
        .max()
        .map_or(0, |last| last.saturating_add(1));
    let mut units: Vec<UnitInfo> = found
        .into_iter()
        .map(|(name, (bytes, [weight, bias]))| {
            let embedding = bias.is_none() && is_embedding(name, weight.unwrap_or(0));
            UnitInfo {
                name: name.to_owned(),
                bytes,
                embedding,
                // Layers of several dimensions have a place for one even where it is empty.
                biased: bias.is_some() || (weight.is_some_and(|rank| rank > 1) && !embedding),
                castable: weight.is_some(),
                own: false,
                block: block(name, inputs),
            }
        })
        .collect();
    units.sort_by(|a, b| compare(&a.name, &b.name));
    units
}

/// The number that follows a part of a name.
fn number_after(name: &str, part: &str) -> Option<u32> {
    let mut parts = name.split('.');
    parts.find(|p| *p == part)?;
    parts.next()?.parse().ok()
}

/// Input blocks, the middle, output blocks; or the layers of an encoder.
fn block(name: &str, inputs: u32) -> Option<u32> {
    match name.split('.').next()? {
        "input_blocks" => number_after(name, "input_blocks"),
        "middle_block" => Some(inputs),
        "output_blocks" => {
            let number = number_after(name, "output_blocks")?;
            number.checked_add(inputs)?.checked_add(1)
        }
        _ => number_after(name, "layers"),
    }
}

/// By definition where that is known, then by number, then by letter.
fn compare(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.split('.'), b.split('.'));
    loop {
        match (left.next(), right.next()) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => {
                let rank = |part: &str| {
                    let known = ORDER.iter().position(|name| *name == part);
                    known.unwrap_or(ORDER.len())
                };
                let by_rank = rank(a).cmp(&rank(b));
                return by_rank.then_with(|| natural(a, b)).then_with(|| a.cmp(b));
            }
            (a, b) => return a.is_some().cmp(&b.is_some()),
        }
    }
}

/// Compares runs of digits as numbers.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let run = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit());
            end.unwrap_or(text.len())
        };
        let (x, y) = (run(a), run(b));
        if x > 0 && y > 0 {
            let (left, right) = (
                a[..x].trim_start_matches('0'),
                b[..y].trim_start_matches('0'),
            );
            let order = left.len().cmp(&right.len()).then_with(|| left.cmp(right));
            if order.is_ne() {
                return order;
            }
            (a, b) = (&a[x..], &b[y..]);
            continue;
        }
        let (mut left, mut right) = (a.chars(), b.chars());
        match (left.next(), right.next()) {
            (Some(x), Some(y)) if x == y => (a, b) = (left.as_str(), right.as_str()),
            (x, y) => return x.cmp(&y),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_natural_order() {
        let sorted = [
            "time_embed.0",
            "time_embed.2",
            "label_emb.0.0",
            "input_blocks.0.0",
            "input_blocks.2.1.transformer_blocks.2.attn1",
            "input_blocks.2.1.transformer_blocks.10.attn1",
            "input_blocks.2.1.transformer_blocks.10.attn2",
            "input_blocks.10.0",
            "middle_block.0",
            "output_blocks.0.0",
            "out.0",
        ];
        for pair in sorted.windows(2) {
            assert_eq!(compare(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(compare("a.1", "a.1"), Ordering::Equal);
        assert_eq!(compare("a.01", "a.1"), Ordering::Less);
        assert_eq!(natural("x9y", "x10"), Ordering::Less);
    }

    #[test]
    fn keys_belong_to_units() {
        assert_eq!(unit_of("a.b.weight"), ("a.b", "weight"));
        assert_eq!(unit_of("a.b.bias"), ("a.b", "bias"));
        assert_eq!(unit_of("a.class_embedding"), ("a.class_embedding", ""));
        assert_eq!(unit_of("weight"), ("weight", ""));
    }
}
