//! The waiting jobs in memory: their order and the bodies of the first few. Everything else stays in the database, so a
//! queue of ten thousand costs what its keys cost.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fresco_graph::{Map, Value};
use fresco_placement::{FairQueue, InLine, JobNeeds};

/// Bodies kept in memory, so that a short queue never reads back and parses what it just wrote.
const WARM_BODIES: usize = 64;

/// Where a job stands: number, then place, then id, then age.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) number: Value,
    /// Set where somebody put jobs into an order: it decides between equal numbers. Those without come after.
    pub(super) place: Option<i64>,
    pub(super) prompt_id: Arc<str>,
    pub(super) seq: i64,
}

impl Key {
    pub(super) fn order(&self) -> f64 {
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
        let place = |key: &Self| (key.place.is_none(), key.place);
        self.order()
            .total_cmp(&other.order())
            .then_with(|| place(self).cmp(&place(other)))
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

/// A waiting job as its row says it.
#[derive(Clone, Debug)]
pub(super) struct QueuedJob {
    pub(super) key: Key,
    /// Runs in which the process died.
    pub(super) attempts: u32,
    pub(super) held: bool,
    /// Why the program itself holds it.
    pub(super) reason: Option<Arc<str>>,
}

/// What decides who runs a job, beside its place.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) client: Arc<str>,
    /// None: nobody has looked yet.
    pub(super) needs: Option<Arc<JobNeeds>>,
}

/// The same jobs as several workers see them, those left out that are held or tried again.
#[derive(Default)]
pub(super) struct Lines {
    queue: FairQueue<Key>,
    facts: BTreeMap<i64, Facts>,
}

impl Lines {
    fn client(&self, key: &Key) -> Arc<str> {
        let facts = self.facts.get(&key.seq);
        facts.map(|facts| facts.client.clone()).unwrap_or_default()
    }

    fn insert(&mut self, key: &Key) {
        let client = self.client(key);
        self.queue.insert(&client, key.clone(), key.order() < 0.0);
    }

    fn remove(&mut self, key: &Key) {
        let client = self.client(key);
        self.queue.remove(&client, key);
    }
}

#[derive(Default)]
pub(super) struct Pending {
    /// Those that may run. Value: runs begun so far.
    pub(super) order: BTreeMap<Key, u32>,
    /// Those of them in whose last run the process died. They go before all others, first thing after the start, so
    /// that no other job can be what takes the process down again.
    pub(super) retries: BTreeSet<Key>,
    /// Those that wait until they are released, kept apart so that finding the next one to run does not pass over them.
    pub(super) held: BTreeMap<Key, u32>,
    /// The same jobs by id and age.
    pub(super) by_id: BTreeMap<(Arc<str>, i64), Key>,
    pub(super) reasons: BTreeMap<i64, Arc<str>>,
    pub(super) warm: BTreeMap<i64, Body>,
    /// Secrets of waiting jobs; never written.
    pub(super) sensitive: BTreeMap<i64, Map>,
    /// There only where several workers take jobs.
    pub(super) lines: Option<Lines>,
}

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Those that may run.
    pub(super) fn ready(&self) -> usize {
        self.order.len()
    }

    pub(super) fn insert(&mut self, key: Key, attempts: u32, held: bool) {
        self.by_id
            .insert((key.prompt_id.clone(), key.seq), key.clone());
        if held {
            self.held.insert(key, attempts);
            return;
        }
        if attempts > 0 {
            self.retries.insert(key.clone());
        } else if let Some(lines) = &mut self.lines {
            lines.insert(&key);
        }
        self.order.insert(key, attempts);
    }

    pub(super) fn has_lines(&self) -> bool {
        self.lines.is_some()
    }

    /// From now on several workers take jobs. `clients`: who submitted the jobs that wait already.
    pub(super) fn form_lines(&mut self, clients: Vec<(i64, Arc<str>)>) {
        let mut lines = Lines::default();
        for (seq, client) in clients {
            let facts = Facts {
                client,
                needs: None,
            };
            lines.facts.insert(seq, facts);
        }
        for (key, _) in self.order.iter().filter(|(_, attempts)| **attempts == 0) {
            lines.insert(key);
        }
        self.lines = Some(lines);
    }

    /// Says who submitted a job and what it needs, before it is inserted.
    pub(super) fn describe(&mut self, seq: i64, facts: Facts) {
        if let Some(lines) = &mut self.lines {
            lines.facts.insert(seq, facts);
        }
    }

    pub(super) fn facts(&self, key: &Key) -> Facts {
        let lines = self.lines.as_ref();
        lines
            .and_then(|lines| lines.facts.get(&key.seq).cloned())
            .unwrap_or_default()
    }

    /// The first jobs in the order in which several workers take them.
    pub(super) fn window(&self, most: usize) -> Vec<InLine<Key>> {
        let lines = self.lines.as_ref();
        lines.map(|l| l.queue.window(most)).unwrap_or_default()
    }

    /// A job is taken by one of several workers; those before it were passed over.
    pub(super) fn take_turn(&mut self, key: &Key, passed: &[InLine<Key>]) {
        if let Some(lines) = &mut self.lines {
            let client = lines.client(key);
            let passed: Vec<_> = passed
                .iter()
                .map(|job| (lines.client(&job.key), job.key.clone()))
                .collect();
            lines.queue.take(&client, key, passed);
        }
    }

    /// The body of a job, if it is in memory.
    pub(super) fn body(&self, seq: i64) -> Option<&Body> {
        self.warm.get(&seq)
    }

    /// Rows of the jobs that run before all others.
    pub(super) fn first_rows(&self) -> BTreeSet<i64> {
        self.retries.iter().map(|key| key.seq).collect()
    }

    /// Why the program itself holds a job.
    pub(super) fn reason(&self, key: &Key) -> Option<&Arc<str>> {
        self.reasons.get(&key.seq)
    }

    pub(super) fn set_reason(&mut self, key: &Key, reason: Arc<str>) {
        self.reasons.insert(key.seq, reason);
    }

    fn take_out(&mut self, key: &Key) -> Option<u32> {
        self.retries.remove(key);
        if let Some(lines) = &mut self.lines {
            lines.remove(key);
        }
        self.order.remove(key).or_else(|| self.held.remove(key))
    }

    pub(super) fn is_held(&self, key: &Key) -> bool {
        self.held.contains_key(key)
    }

    /// Moves a job to those that wait for a release, or back.
    pub(super) fn set_held(&mut self, key: &Key, held: bool) {
        self.reasons.remove(&key.seq);
        if let Some(attempts) = self.take_out(key) {
            self.insert(key.clone(), attempts, held);
        }
    }

    /// Gives a job another number and place.
    pub(super) fn rename(&mut self, old: &Key, number: Value, place: i64) {
        let held = self.is_held(old);
        if let Some(attempts) = self.take_out(old) {
            let key = Key {
                number,
                place: Some(place),
                ..old.clone()
            };
            self.insert(key, attempts, held);
        }
    }

    /// All jobs by number, place, id and age.
    pub(super) fn by_key(&self) -> Vec<&Key> {
        let mut keys: Vec<&Key> = self.order.keys().chain(self.held.keys()).collect();
        keys.sort_unstable();
        keys
    }

    /// All jobs in the order in which they run, held ones where they would.
    pub(super) fn sorted(&self) -> Vec<&Key> {
        let mut keys: Vec<&Key> = self.order.keys().chain(self.held.keys()).collect();
        keys.sort_unstable_by_key(|key| (!self.retries.contains(*key), *key));
        keys
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

    pub(super) fn rows(&self) -> Vec<i64> {
        self.by_id.keys().map(|(_, row)| *row).collect()
    }

    /// Runs begun so far.
    pub(super) fn attempts(&self, key: &Key) -> u32 {
        let found = self.order.get(key).or_else(|| self.held.get(key));
        found.copied().unwrap_or(0)
    }

    pub(super) fn first(&self) -> Option<(&Key, u32)> {
        match self.retries.first() {
            Some(key) => self.order.get_key_value(key),
            None => self.order.first_key_value(),
        }
        .map(|(key, attempts)| (key, *attempts))
    }

    /// Those in whose last run the process or the worker died.
    pub(super) fn retries(&self) -> Vec<(Key, u32)> {
        let attempts = |key: &Key| (key.clone(), self.attempts(key));
        self.retries.iter().map(attempts).collect()
    }

    /// The first in line among those with this id.
    pub(super) fn find(&self, prompt_id: &str) -> Option<&Key> {
        self.named(prompt_id).into_iter().next()
    }

    /// Those with this id, first in line first; a submitter may use one twice.
    pub(super) fn named(&self, prompt_id: &str) -> Vec<&Key> {
        let from = (Arc::<str>::from(prompt_id), i64::MIN);
        let mut keys: Vec<&Key> = self
            .by_id
            .range(from..)
            .take_while(|((id, _), _)| &**id == prompt_id)
            .map(|(_, key)| key)
            .collect();
        keys.sort_unstable();
        keys
    }

    /// Takes a job out; its body if it was in memory, and its secrets.
    pub(super) fn remove(&mut self, key: &Key) -> (Option<Body>, Map) {
        self.take_out(key);
        self.reasons.remove(&key.seq);
        self.by_id.remove(&(key.prompt_id.clone(), key.seq));
        if let Some(lines) = &mut self.lines {
            lines.facts.remove(&key.seq);
        }
        (
            self.warm.remove(&key.seq),
            self.sensitive.remove(&key.seq).unwrap_or_default(),
        )
    }

    /// Takes the waiting jobs as the database has them. Bodies and secrets of those that stayed are kept: the secrets
    /// exist nowhere else.
    pub(super) fn replace(&mut self, waiting: Vec<QueuedJob>) {
        self.order.clear();
        self.retries.clear();
        self.held.clear();
        self.by_id.clear();
        self.reasons.clear();
        if let Some(lines) = &mut self.lines {
            lines.queue = FairQueue::default();
        }
        for job in waiting {
            if let Some(reason) = job.reason {
                self.reasons.insert(job.key.seq, reason);
            }
            self.insert(job.key, job.attempts, job.held);
        }
        let stays: BTreeSet<i64> = self.by_id.keys().map(|(_, seq)| *seq).collect();
        self.warm.retain(|seq, _| stays.contains(seq));
        self.sensitive.retain(|seq, _| stays.contains(seq));
        if let Some(lines) = &mut self.lines {
            lines.facts.retain(|seq, _| stays.contains(seq));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self {
            lines: self.lines.as_ref().map(|_| Lines::default()),
            ..Self::default()
        };
    }
}
