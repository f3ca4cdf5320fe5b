//! The units of a network: what is placed on devices, one layer's weights each, told from the keys of a store.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use fresco_tensor::Dtype;

use super::WeightStore;

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

/// Blocks of a network that run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Keys begin with this name and the block's number.
    List(&'static str),
    /// All keys that begin with this name are one block.
    One(&'static str),
    /// A number follows this name, wherever in the key it stands.
    Within(&'static str),
}

/// How the parts of a network follow each other. Where nothing is said the alphabet and numbers decide.
#[derive(Debug, PartialEq, Eq)]
pub struct UnitOrder {
    /// Names of parts whose order in the definition of their network is not that of the alphabet. Only those next to
    /// each other are ever compared.
    pub parts: &'static [&'static str],
    /// The blocks in the order they run.
    pub blocks: &'static [Blocks],
    /// Last names of values that the network takes as they are, for stores without a walk that says so
    /// ([`WeightStore::with_values_of`]). Other keys without `.weight` and `.bias` are no units.
    pub values: &'static [&'static str],
}

impl UnitOrder {
    /// For networks that say nothing: a transformer's blocks or layers in the order of their numbers.
    pub const PLAIN: Self = Self {
        parts: &[],
        blocks: &[Blocks::Within("layers"), Blocks::Within("blocks")],
        values: Self::NORMS,
    };

    /// For networks whose walk says which values they take.
    pub const fn of(parts: &'static [&'static str], blocks: &'static [Blocks]) -> Self {
        Self {
            parts,
            blocks,
            values: &[],
        }
    }

    /// What the weights of norms are called besides `weight`.
    pub const NORMS: &'static [&'static str] = &["scale", "gamma"];
}

/// The unit that a key belongs to, and which part of it the key is.
pub(super) fn unit_of(key: &str) -> (&str, &str) {
    for part in [".weight", ".bias", super::INPUT_SCALE] {
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
    let named = last.contains("embedding")
        || last.starts_with("embed_tokens")
        || matches!(last, "shared" | "wte" | "wpe");
    named && rank == 2
}

/// All units of a store in the order of definition.
pub(super) fn units(store: &WeightStore, order: &UnitOrder) -> Vec<UnitInfo> {
    let mut found: BTreeMap<&str, (u64, [Option<usize>; 2])> = BTreeMap::new();
    for key in store.keys() {
        let (unit, part) = unit_of(key);
        let last = key.rsplit('.').next().unwrap_or(key);
        let (Some(shape), Some(dtype)) = (store.shape(key), store.dtype(key)) else {
            continue;
        };
        // Numbers that describe a network, and counters, are no weights.
        if part.is_empty() && !order.values.contains(&last) && !store.weights.values.contains(key) {
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
    let names: Vec<&str> = found.keys().copied().collect();
    let starts = block_starts(&names, order.blocks);
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
                block: block(name, order.blocks, &starts),
            }
        })
        .collect();
    units.sort_by(|a, b| compare(&a.name, &b.name, order.parts));
    units
}

/// The number that follows a part of a name.
fn number_after(name: &str, part: &str) -> Option<u32> {
    let mut parts = name.split('.');
    parts.find(|p| *p == part)?;
    parts.next()?.parse().ok()
}

impl Blocks {
    /// The number of the block that a unit is in, counted from this list's first.
    fn number(self, name: &str) -> Option<u32> {
        let first = name.split('.').next();
        match self {
            Self::List(list) => number_after(name, list).filter(|_| first == Some(list)),
            Self::One(block) => (first == Some(block)).then_some(0),
            Self::Within(list) => number_after(name, list),
        }
    }
}

/// The number of each list's first block: lists run one after the other.
fn block_starts(names: &[&str], blocks: &[Blocks]) -> Vec<u32> {
    let mut starts = Vec::with_capacity(blocks.len());
    let mut next = 0u32;
    for list in blocks {
        starts.push(next);
        let numbers = names.iter().filter_map(|name| list.number(name));
        let count = match list {
            // Counted even where a network has none, so that equal blocks of two networks have equal numbers.
            Blocks::One(_) => 1,
            _ => numbers.max().map_or(0, |last| last.saturating_add(1)),
        };
        next = next.saturating_add(count);
    }
    starts
}

/// Number of the block a unit is in, counted through the whole network.
fn block(name: &str, blocks: &[Blocks], starts: &[u32]) -> Option<u32> {
    let mut lists = blocks.iter().zip(starts);
    lists.find_map(|(list, start)| list.number(name)?.checked_add(*start))
}

/// By definition where that is known, then by number, then by letter.
fn compare(a: &str, b: &str, parts: &[&str]) -> Ordering {
    let (mut left, mut right) = (a.split('.'), b.split('.'));
    loop {
        match (left.next(), right.next()) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => {
                let rank = |part: &str| {
                    let known = parts.iter().position(|name| *name == part);
                    known.unwrap_or(parts.len())
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
    fn names_are_in_the_order_of_definition_and_then_natural() {
        let parts = ["stem", "rising", "head"];
        let compare = |a: &str, b: &str| compare(a, b, &parts);
        let sorted = [
            "stem.0",
            "stem.2",
            "rising.0.0",
            "rising.2.1.inner.2.attn1",
            "rising.2.1.inner.10.attn1",
            "rising.2.1.inner.10.attn2",
            "rising.10.0",
            "head.0",
            "another.0",
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
    fn blocks_are_counted_through_the_network() {
        let blocks = [
            Blocks::List("down"),
            Blocks::One("bottom"),
            Blocks::List("up"),
        ];
        let names = [
            "down.0.a",
            "down.1.a",
            "bottom.5.a",
            "up.0.a",
            "up.1.a",
            "head",
            "x.down.1",
        ];
        let starts = block_starts(&names, &blocks);
        let found = names.map(|name| block(name, &blocks, &starts));
        assert_eq!(
            found,
            [Some(0), Some(1), Some(2), Some(3), Some(4), None, None]
        );
        let layers = UnitOrder::PLAIN.blocks;
        let starts = block_starts(&["model.layers.7.a"], layers);
        assert_eq!(block("model.layers.7.a", layers, &starts), Some(7));
    }

    #[test]
    fn keys_belong_to_units() {
        assert_eq!(unit_of("a.b.weight"), ("a.b", "weight"));
        assert_eq!(unit_of("a.b.bias"), ("a.b", "bias"));
        assert_eq!(unit_of("a.class_embedding"), ("a.class_embedding", ""));
        assert_eq!(unit_of("weight"), ("weight", ""));
    }
}
