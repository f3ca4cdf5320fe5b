//! The waiting jobs in memory: their order and the bodies of the first few. Everything else stays in the database, so a
//! queue of ten thousand costs what its keys cost.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fresco_graph::{Map, Value};

/// Bodies kept in memory, so that a short queue never reads back and parses what it just wrote.
const WARM_BODIES: usize = 64;

/// Where a job stands: number, then id, then age.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) number: Value,
    pub(super) prompt_id: Arc<str>,
    pub(super) seq: i64,
}

impl Key {
    fn order(&self) -> f64 {
        // Adding zero makes -0.0 equal to 0.0; not-a-number sorts last.
        self.number.as_f64().unwrap_or(f64::NAN) + 0.0
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order()
            .total_cmp(&other.order())
            .then_with(|| self.prompt_id.cmp(&other.prompt_id))
            .then_with(|| self.seq.cmp(&other.seq))
    }
}

/// What a run needs, parsed.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) prompt: Arc<Map>,
    pub(super) extra_data: Map,
    pub(super) outputs: Vec<Arc<str>>,
}

#[derive(Default)]
pub(super) struct Pending {
    /// Value: runs begun so far.
    order: BTreeMap<Key, u32>,
    /// The same jobs by id and age.
    by_id: BTreeMap<(Arc<str>, i64), Key>,
    warm: BTreeMap<i64, Body>,
    /// Secrets of waiting jobs; never written.
    sensitive: BTreeMap<i64, Map>,
}

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn insert(&mut self, key: Key, attempts: u32) {
        self.by_id
            .insert((key.prompt_id.clone(), key.seq), key.clone());
        self.order.insert(key, attempts);
    }

    /// Keeps a body in memory if there is room for it.
    pub(super) fn warm(&mut self, seq: i64, body: Body) {
        if self.warm.len() < WARM_BODIES {
            self.warm.insert(seq, body);
        }
    }

    pub(super) fn keep_secret(&mut self, seq: i64, sensitive: Map) {
        if !sensitive.is_empty() {
            self.sensitive.insert(seq, sensitive);
        }
    }

    pub(super) fn first(&self) -> Option<(&Key, u32)> {
        self.order
            .first_key_value()
            .map(|(key, attempts)| (key, *attempts))
    }

    /// The first in line among those with this id.
    pub(super) fn find(&self, prompt_id: &str) -> Option<&Key> {
        let from = (Arc::<str>::from(prompt_id), i64::MIN);
        self.by_id
            .range(from..)
            .take_while(|((id, _), _)| &**id == prompt_id)
            .map(|(_, key)| key)
            .min()
    }

    /// Takes a job out; its body if it was in memory, and its secrets.
    pub(super) fn remove(&mut self, key: &Key) -> (Option<Body>, Map) {
        self.order.remove(key);
        self.by_id.remove(&(key.prompt_id.clone(), key.seq));
        (
            self.warm.remove(&key.seq),
            self.sensitive.remove(&key.seq).unwrap_or_default(),
        )
    }

    /// Takes the waiting jobs as the database has them. Bodies and secrets of those that stayed are kept: the secrets
    /// exist nowhere else.
    pub(super) fn replace(&mut self, waiting: Vec<(Key, u32)>) {
        self.order.clear();
        self.by_id.clear();
        for (key, attempts) in waiting {
            self.insert(key, attempts);
        }
        let stays: BTreeSet<i64> = self.by_id.keys().map(|(_, seq)| *seq).collect();
        self.warm.retain(|seq, _| stays.contains(seq));
        self.sensitive.retain(|seq, _| stays.contains(seq));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
