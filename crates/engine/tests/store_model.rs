//! Random operations against a model that fits on a page: the store must agree after each, through crashes and restarts.
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test may panic"
)]

mod store_support;

use std::path::PathBuf;
use std::time::Duration;

use fresco_engine::store::*;
use fresco_graph::{Value, json};
use proptest::prelude::*;
use store_support::*;

const HISTORY: usize = 4;
const PENDING: usize = 6;

#[derive(Clone, Debug)]
enum Op {
    Put(u8, Priority),
    Take,
    Finish(usize),
    Delete(u8),
    Cancel(u8),
    Clear,
    Forget(u8),
    ForgetAll,
    Pause(bool),
    Hold(u8),
    Release(u8),
    Order(Vec<u8>),
    Close,
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    let priority = prop_oneof![
        3 => Just(Priority::Auto),
        1 => Just(Priority::Front),
        1 => (-2..3i8).prop_map(|n| Priority::Explicit(f64::from(n) / 2.0)),
    ];
    prop_oneof![
        8 => (0..5u8, priority).prop_map(|(id, p)| Op::Put(id, p)),
        5 => Just(Op::Take),
        5 => (0..3usize).prop_map(Op::Finish),
        1 => (0..5u8).prop_map(Op::Delete),
        1 => (0..5u8).prop_map(Op::Cancel),
        1 => Just(Op::Clear),
        1 => (0..5u8).prop_map(Op::Forget),
        1 => Just(Op::ForgetAll),
        1 => any::<bool>().prop_map(Op::Pause),
        1 => Just(Op::Pause(false)),
        2 => (0..5u8).prop_map(Op::Hold),
        2 => (0..5u8).prop_map(Op::Release),
        3 => prop::collection::vec(0..7u8, 0..5).prop_map(Op::Order),
        1 => Just(Op::Close),
        2 => Just(Op::Crash),
    ]
}

#[derive(Clone, Debug)]
struct Entry {
    number: Value,
    id: String,
    age: usize,
    attempts: u32,
    task: u64,
    place: Option<usize>,
    held: bool,
}

#[derive(Default)]
struct Model {
    counter: i64,
    age: usize,
    pending: Vec<Entry>,
    running: Vec<Entry>,
    history: Vec<String>,
    paused: bool,
}

impl Model {
    fn sort(&mut self) {
        self.pending.sort_by(|a, b| {
            let number = |e: &Entry| e.number.as_f64().unwrap();
            number(a)
                .total_cmp(&number(b))
                .then((a.place.is_none(), a.place).cmp(&(b.place.is_none(), b.place)))
                .then(a.id.cmp(&b.id))
                .then(a.age.cmp(&b.age))
        });
    }

    /// Numbers stay where they are, jobs move; among equal numbers around a move the places decide from then on.
    fn order(&mut self, ids: &[String]) {
        let numbers: Vec<Value> = self.pending.iter().map(|e| e.number.clone()).collect();
        let before: Vec<usize> = self.pending.iter().map(|e| e.age).collect();
        let rank = |e: &Entry| ids.iter().position(|id| *id == e.id).unwrap_or(ids.len());
        self.pending.sort_by_key(rank);
        let moved = |at: &usize| self.pending[*at].age != before[*at];
        let Some(first) = (0..before.len()).find(moved) else {
            return;
        };
        let last = (0..before.len()).rfind(moved).unwrap();
        let number = |at: usize| numbers[at].as_f64().unwrap() + 0.0;
        let touched = number(first)..=number(last);
        for (at, entry) in self.pending.iter_mut().enumerate() {
            if touched.contains(&number(at)) {
                entry.number = numbers[at].clone();
                entry.place = Some(at);
            }
        }
    }

    /// Those whose process died go first.
    fn in_line(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.pending.iter().collect();
        entries.sort_by_key(|e| e.held || e.attempts == 0);
        entries
    }

    fn record(&mut self, id: &str) {
        if self.history.len() > HISTORY {
            self.history.remove(0);
        }
        if !self.history.iter().any(|h| h == id) {
            self.history.push(id.into());
        }
    }

    fn restart(&mut self, crashed: bool) {
        let mut running = std::mem::take(&mut self.running);
        running.sort_by_key(|e| e.age);
        for mut entry in running {
            if crashed && entry.attempts >= 2 {
                entry.held = true;
            }
            if !crashed {
                entry.attempts -= 1;
            }
            self.pending.push(entry);
        }
        self.sort();
        let largest = self
            .pending
            .iter()
            .filter_map(|e| e.number.as_int())
            .map(i128::abs)
            .max();
        self.counter = largest.map_or(0, |n| n as i64 + 1);
    }
}

struct World {
    dir: tempfile::TempDir,
    path: PathBuf,
    store: Option<JobStore>,
    model: Model,
    crashes: usize,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fresco.db");
        let mut world = Self {
            dir,
            path,
            store: None,
            model: Model::default(),
            crashes: 0,
        };
        world.reopen();
        world
    }

    fn reopen(&mut self) {
        let limits = Limits {
            max_pending: PENDING,
            history: HISTORY,
            ..Limits::default()
        };
        self.store = Some(JobStore::open(&StorePath::File(self.path.clone()), limits).unwrap());
    }

    fn apply(&mut self, op: Op) {
        let store = self.store.clone().unwrap();
        let model = &mut self.model;
        let find =
            |model: &Model, id: u8| model.pending.iter().position(|e| e.id == id.to_string());
        match op {
            Op::Put(id, priority) => {
                let number = match priority {
                    Priority::Explicit(f) => Value::Float(f),
                    other => {
                        model.counter += 1;
                        let n = model.counter - 1;
                        Value::from(if other == Priority::Front { -n } else { n })
                    }
                };
                let id = id.to_string();
                let answer = store.enqueue(job(&id, priority)).wait().unwrap();
                if model.pending.len() >= PENDING {
                    assert!(matches!(answer, Err(StoreError::QueueFull { .. })));
                    return;
                }
                assert_eq!(
                    json::to_string(&answer.unwrap().number),
                    json::to_string(&number)
                );
                model.age += 1;
                model.pending.push(Entry {
                    number,
                    id,
                    age: model.age,
                    attempts: 0,
                    task: 0,
                    place: None,
                    held: false,
                });
                model.sort();
            }
            Op::Take => match store.next(&here(), Duration::ZERO) {
                Next::Job(job) => {
                    assert!(!model.paused);
                    let first = model.in_line().iter().position(|e| !e.held).unwrap();
                    let first = model.in_line()[first].age;
                    let first = model.pending.iter().position(|e| e.age == first);
                    let mut entry = model.pending.remove(first.unwrap());
                    entry.attempts += 1;
                    entry.task = job.task;
                    assert_eq!((&*job.prompt_id, job.attempt), (&*entry.id, entry.attempts));
                    model.running.push(entry);
                }
                other => assert!(
                    model.paused || model.pending.iter().all(|e| e.held),
                    "{other:?}"
                ),
            },
            Op::Finish(which) => {
                if which < model.running.len() {
                    let entry = model.running.remove(which);
                    model.record(&entry.id);
                    let remaining = store.finish(entry.task, success()).wait().unwrap().unwrap();
                    assert_eq!(remaining, model.pending.len() + model.running.len());
                }
            }
            Op::Delete(id) => {
                let found = find(model, id).map(|i| model.pending.remove(i));
                assert_eq!(
                    store
                        .delete_pending(&id.to_string())
                        .wait()
                        .unwrap()
                        .unwrap(),
                    found.is_some()
                );
            }
            Op::Cancel(id) => {
                let found = find(model, id).map(|i| model.pending.remove(i));
                let answer = store
                    .cancel_pending(&id.to_string(), success())
                    .wait()
                    .unwrap()
                    .unwrap();
                assert_eq!(answer, found.is_some());
                if let Some(entry) = found {
                    model.record(&entry.id);
                }
            }
            Op::Clear => {
                assert_eq!(
                    store.clear_pending().wait().unwrap().unwrap(),
                    model.pending.len()
                );
                model.pending.clear();
            }
            Op::Forget(id) => {
                let id = id.to_string();
                store
                    .history_delete(vec![id.as_str().into()])
                    .wait()
                    .unwrap()
                    .unwrap();
                model.history.retain(|h| *h != id);
            }
            Op::ForgetAll => {
                store.history_clear().wait().unwrap().unwrap();
                model.history.clear();
            }
            Op::Pause(paused) => {
                model.paused = paused;
                change(
                    &store,
                    QueueChange {
                        paused: Some(paused),
                        ..QueueChange::default()
                    },
                );
            }
            Op::Hold(id) | Op::Release(id) => {
                let held = matches!(op, Op::Hold(_));
                let ids = vec![id.to_string().into()];
                let (hold, release) = if held {
                    (ids, Vec::new())
                } else {
                    (Vec::new(), ids)
                };
                for entry in &mut model.pending {
                    if entry.id == id.to_string() {
                        entry.held = held;
                    }
                }
                change(
                    &store,
                    QueueChange {
                        hold,
                        release,
                        ..QueueChange::default()
                    },
                );
            }
            Op::Order(ids) => {
                let ids: Vec<String> = ids.iter().map(u8::to_string).collect();
                model.order(&ids);
                change(
                    &store,
                    QueueChange {
                        order: ids.iter().map(|id| id.as_str().into()).collect(),
                        ..QueueChange::default()
                    },
                );
            }
            Op::Close => {
                store.close().wait().unwrap();
                drop(store);
                self.store = None;
                self.model.restart(false);
                self.reopen();
            }
            Op::Crash => {
                self.crashes += 1;
                let into = self.dir.path().join(self.crashes.to_string());
                self.path = crash_copy(&self.path, &into);
                drop(store);
                self.store = None;
                self.model.restart(true);
                self.reopen();
            }
        }
    }

    fn check(&self) {
        let store = self.store.as_ref().unwrap();
        let queue = store.queue().wait().unwrap().unwrap();
        let line = self.model.in_line();
        let pending: Vec<_> = line.iter().map(|e| &*e.id).collect();
        assert_eq!(ids(&queue.pending), pending);
        let outline = store.outline().wait().unwrap().unwrap();
        let order: Vec<&str> = outline.order.iter().map(|id| &**id).collect();
        assert_eq!(order, pending);
        let held: Vec<&str> = outline.held.iter().map(|id| &**id).collect();
        let expected = line.iter().filter(|e| e.held);
        assert_eq!(held, expected.map(|e| &*e.id).collect::<Vec<_>>());
        assert_eq!(outline.paused, self.model.paused);
        assert_eq!(store.paused(), self.model.paused);
        assert_eq!(queue.running.len(), self.model.running.len());
        assert_eq!(store.remaining(), pending.len() + self.model.running.len());
        assert_eq!(history_ids(store), self.model.history);
        let all = store.jobs(JobQuery::default()).wait().unwrap().unwrap();
        assert_eq!(
            all.total,
            pending.len() + self.model.running.len() + self.model.history.len()
        );
        assert_eq!(all.jobs.len(), all.total);
    }
}

fn change(store: &JobStore, change: QueueChange) {
    store.change_queue(change).wait().unwrap().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.check();
        }
    }
}
