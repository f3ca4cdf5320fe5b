//! Node outputs kept between prompts: the reference's four strategies.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fresco_graph::{CacheKey, InstanceState, Map, Value};
use indexmap::IndexMap;

use crate::dynprompt::Owners;
use crate::ledger::HeldBytes;

/// What a finished node left.
#[derive(Debug, Default)]
pub(crate) struct CachedOutput {
    /// One list of values per slot.
    pub(crate) outputs: Vec<Vec<Value>>,
    pub(crate) ui: Option<Map>,
    /// Counts both as long as they are held.
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) held: HeldBytes,
}

impl CachedOutput {
    fn bytes(&self) -> u64 {
        self.outputs.iter().flatten().map(Value::bytes).sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strategy {
    /// Keep what the current prompt contains.
    Classic,
    /// Keep this many entries, oldest prompts dropped first.
    Lru(usize),
    /// Keep all until less than this many GiB of main memory are free.
    RamPressure(f64),
    None,
}

/// Entries of the prompt itself or of one expanding node, and of the nodes that expand inside it.
#[derive(Default)]
struct Level {
    entries: HashMap<CacheKey, Arc<CachedOutput>>,
    inner: IndexMap<(Arc<str>, Arc<str>), Level>,
}

impl Level {
    fn at(&self, owners: &Owners) -> Option<&Level> {
        owners
            .iter()
            .try_fold(self, |level, owner| level.inner.get(owner))
    }

    fn at_mut(&mut self, owners: &Owners) -> &mut Level {
        owners.iter().fold(self, |level, owner| {
            level.inner.entry(owner.clone()).or_default()
        })
    }

    /// Keeps the entries that pass a test, here and inside.
    fn retain(&mut self, keep: &impl Fn(&CachedOutput) -> bool) {
        self.entries.retain(|_, entry| keep(entry));
        for level in self.inner.values_mut() {
            level.retain(keep);
        }
    }

    fn len(&self) -> usize {
        self.entries.len() + self.inner.values().map(Level::len).sum::<usize>()
    }

    fn keep(&mut self, keys: &HashSet<CacheKey>, nodes: &HashSet<(Arc<str>, Arc<str>)>) {
        self.entries.retain(|k, _| keys.contains(k));
        self.inner.retain(|owner, _| nodes.contains(owner));
    }
}

struct Aged {
    entry: Arc<CachedOutput>,
    used: u64,
    /// Order of last use, for ties.
    stamp: u64,
}

#[derive(Default)]
struct Flat {
    entries: HashMap<CacheKey, Aged>,
    generation: u64,
    oldest: u64,
    clock: u64,
}

impl Flat {
    fn get(&mut self, key: CacheKey) -> Option<Arc<CachedOutput>> {
        self.clock += 1;
        let aged = self.entries.get_mut(&key)?;
        aged.used = self.generation;
        aged.stamp = self.clock;
        Some(aged.entry.clone())
    }

    fn set(&mut self, key: CacheKey, entry: Arc<CachedOutput>) {
        self.clock += 1;
        self.entries.insert(
            key,
            Aged {
                entry,
                used: self.generation,
                stamp: self.clock,
            },
        );
    }

    fn begin(&mut self, keys: &HashSet<CacheKey>) {
        self.generation += 1;
        for aged in self
            .entries
            .iter_mut()
            .filter(|(k, _)| keys.contains(k))
            .map(|(_, a)| a)
        {
            aged.used = self.generation;
        }
    }
}

/// The output cache.
pub struct OutputCache {
    strategy: Strategy,
    classic: Level,
    flat: Flat,
}

impl OutputCache {
    pub fn new(strategy: Strategy) -> Self {
        let strategy = if strategy == Strategy::Lru(0) {
            Strategy::Classic
        } else {
            strategy
        };
        Self {
            strategy,
            classic: Level::default(),
            flat: Flat::default(),
        }
    }

    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// How many results are kept.
    pub fn len(&self) -> usize {
        self.classic.len() + self.flat.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the results whose outputs pass a test.
    pub(crate) fn retain(&mut self, keep: impl Fn(&[Vec<Value>]) -> bool) {
        self.classic.retain(&|entry| keep(&entry.outputs));
        self.flat
            .entries
            .retain(|_, aged| keep(&aged.entry.outputs));
    }

    /// A prompt begins with these keys; `nodes` are its `(id, class)` pairs.
    pub(crate) fn begin(
        &mut self,
        keys: &HashSet<CacheKey>,
        nodes: &HashSet<(Arc<str>, Arc<str>)>,
    ) {
        match self.strategy {
            Strategy::None => {}
            Strategy::Classic => self.classic.keep(keys, nodes),
            Strategy::RamPressure(_) => self.flat.begin(keys),
            Strategy::Lru(capacity) => {
                self.flat.begin(keys);
                while self.flat.entries.len() > capacity && self.flat.oldest < self.flat.generation
                {
                    self.flat.oldest += 1;
                    let oldest = self.flat.oldest;
                    self.flat.entries.retain(|_, a| a.used >= oldest);
                }
            }
        }
    }

    /// A node expanded into nodes with these keys.
    pub(crate) fn expand(
        &mut self,
        owners: &Owners,
        keys: &HashSet<CacheKey>,
        nodes: &HashSet<(Arc<str>, Arc<str>)>,
    ) {
        match self.strategy {
            Strategy::Classic => self.classic.at_mut(owners).keep(keys, nodes),
            Strategy::Lru(_) | Strategy::RamPressure(_) => {
                let generation = self.flat.generation;
                for aged in self
                    .flat
                    .entries
                    .iter_mut()
                    .filter(|(k, _)| keys.contains(k))
                    .map(|(_, a)| a)
                {
                    aged.used = generation;
                }
            }
            Strategy::None => {}
        }
    }

    pub(crate) fn get(&mut self, owners: &Owners, key: CacheKey) -> Option<Arc<CachedOutput>> {
        match self.strategy {
            Strategy::None => None,
            Strategy::Classic => self.classic.at(owners)?.entries.get(&key).cloned(),
            Strategy::Lru(_) | Strategy::RamPressure(_) => self.flat.get(key),
        }
    }

    /// As [`OutputCache::get`], without counting as a use.
    pub(crate) fn peek(&self, owners: &Owners, key: CacheKey) -> Option<Arc<CachedOutput>> {
        match self.strategy {
            Strategy::None => None,
            Strategy::Classic => self.classic.at(owners)?.entries.get(&key).cloned(),
            Strategy::Lru(_) | Strategy::RamPressure(_) => {
                self.flat.entries.get(&key).map(|a| a.entry.clone())
            }
        }
    }

    pub(crate) fn contains(&self, owners: &Owners, key: CacheKey) -> bool {
        match self.strategy {
            Strategy::None => false,
            Strategy::Classic => self
                .classic
                .at(owners)
                .is_some_and(|l| l.entries.contains_key(&key)),
            Strategy::Lru(_) | Strategy::RamPressure(_) => self.flat.entries.contains_key(&key),
        }
    }

    pub(crate) fn set(&mut self, owners: &Owners, key: CacheKey, entry: Arc<CachedOutput>) {
        match self.strategy {
            Strategy::None => {}
            Strategy::Classic => {
                self.classic.at_mut(owners).entries.insert(key, entry);
            }
            Strategy::Lru(_) | Strategy::RamPressure(_) => self.flat.set(key, entry),
        }
    }

    /// Drops what earlier prompts left.
    pub(crate) fn forget_earlier(&mut self) {
        let generation = self.flat.generation;
        self.flat.entries.retain(|_, a| a.used >= generation);
    }

    /// After each step: with the RAM strategy, drops the least valuable entries while memory is short.
    pub(crate) fn poll(&mut self, available: &mut dyn FnMut() -> Option<u64>) {
        const GIB: f64 = (1u64 << 30) as f64;
        let Strategy::RamPressure(headroom) = self.strategy else {
            return;
        };
        let free = |available: &mut dyn FnMut() -> Option<u64>| {
            available().map_or(f64::MAX, |b| b as f64 / GIB)
        };
        if free(available) > headroom {
            return;
        }
        let mut ranked: Vec<(f64, u64, CacheKey)> = self
            .flat
            .entries
            .iter()
            .map(|(k, a)| {
                let age = (self.flat.generation - a.used).min(1_000) as i32;
                let cost = 0.5 * a.entry.bytes() as f64 / GIB;
                (1.3f64.powi(age) * (0.1 + cost), a.stamp, *k)
            })
            .collect();
        // Highest score first; among equals the least recently used.
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, _, key) in ranked {
            if free(available) >= headroom * 1.1 {
                break;
            }
            self.flat.entries.remove(&key);
        }
    }
}

/// Id and class of a node.
type InstanceKey = (Arc<str>, Arc<str>);

/// State of node instances, kept while an id keeps its class; with the id of the top-level node it belongs to.
#[derive(Default)]
pub(crate) struct Instances {
    states: HashMap<InstanceKey, (Arc<str>, InstanceState)>,
}

impl Instances {
    /// Keeps what belongs to nodes of this prompt, their expansions included.
    pub(crate) fn begin(&mut self, tops: &HashMap<Arc<str>, Arc<str>>) {
        self.states.retain(|(id, class), (real, _)| {
            if id == real {
                tops.get(id) == Some(class)
            } else {
                tops.contains_key(real)
            }
        });
    }

    /// Keeps the states of classes that pass a test.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.states.retain(|(_, class), _| keep(class));
    }

    pub(crate) fn get(
        &mut self,
        id: &Arc<str>,
        class: &Arc<str>,
        real: &Arc<str>,
    ) -> InstanceState {
        let slot = self.states.entry((id.clone(), class.clone()));
        slot.or_insert_with(|| (real.clone(), InstanceState::default()))
            .1
            .clone()
    }
}
