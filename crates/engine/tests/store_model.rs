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
}

#[derive(Default)]
struct Model {
    counter: i64,
    age: usize,
    pending: Vec<Entry>,
    running: Vec<Entry>,
    history: Vec<String>,
}

impl Model {
    fn sort(&mut self) {
        self.pending.sort_by(|a, b| {
            let number = |e: &Entry| e.number.as_f64().unwrap();
            number(a)
                .total_cmp(&number(b))
                .then(a.id.cmp(&b.id))
                .then(a.age.cmp(&b.age))
        });
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
            if crashed && entry.attempts >= 3 {
                self.record(&entry.id);
                continue;
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
    store: Option<Store>,
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
        };
        self.store = Some(Store::open(&StorePath::File(self.path.clone()), limits).unwrap());
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
                });
                model.sort();
            }
            Op::Take => match store.next(Duration::ZERO) {
                Next::Job(job) => {
                    let mut entry = model.pending.remove(0);
                    entry.attempts += 1;
                    entry.task = job.task;
                    assert_eq!((&*job.prompt_id, job.attempt), (&*entry.id, entry.attempts));
                    model.running.push(entry);
                }
                other => assert!(model.pending.is_empty(), "{other:?}"),
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
        let pending: Vec<_> = self.model.pending.iter().map(|e| &*e.id).collect();
        assert_eq!(ids(&queue.pending), pending);
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.check();
        }
    }
}
