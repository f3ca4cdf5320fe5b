//! The whole state of the store's thread as text, and the moves that a job may make. Only for tests.
//!
//! No struct is taken apart with `..`: who adds a field shows it here, or says why it is left out.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use expect_test::{Expect, expect};
use fresco_graph::{Map, Value, map};
use proptest::prelude::*;

use super::bodies::EncodedJob;
use super::history::EncodedOutcome;
use super::leases::Leased;
use super::outcomes::Unsaved;
use super::pending::{Key, Pending};
use super::record::*;
use super::restore::Lost;
use super::schema;
use super::shadow::Shadow;
use super::thread::*;
use super::{Limits, Published, StorePath};
use crate::job::{JobEnd, JobOutcome};
use crate::reply::{Reply, Sender, reply};

fn key(key: &Key) -> String {
    let Key {
        number,
        place,
        prompt_id,
        seq,
    } = key;
    let place = place.map_or(String::new(), |place| format!("/{place}"));
    let number = number.as_f64().unwrap_or(f64::NAN);
    format!("{prompt_id}#{seq}({number}{place})")
}

fn keys<'a>(all: impl IntoIterator<Item = (&'a Key, &'a u32)>) -> String {
    let one = |(job, attempts): (&Key, &u32)| match attempts {
        0 => key(job),
        attempts => format!("{}x{attempts}", key(job)),
    };
    all.into_iter().map(one).collect::<Vec<_>>().join(" ")
}

fn pending(out: &mut String, pending: &Pending) {
    let Pending {
        order,
        retries,
        held,
        by_id,
        reasons,
        warm,
        sensitive,
        // There only where several workers take jobs; its order has tests of its own.
        lines: _,
    } = pending;
    let _ = writeln!(out, "waiting: {}", keys(order));
    if !held.is_empty() {
        let _ = writeln!(out, "held: {}", keys(held));
    }
    for (seq, reason) in reasons {
        let _ = writeln!(out, "  #{seq} {reason}");
    }
    let known = |job: &Key| by_id.get(&(job.prompt_id.clone(), job.seq)) == Some(job);
    assert!(order.keys().chain(held.keys()).all(known), "{by_id:?}");
    assert_eq!(by_id.len(), order.len() + held.len());
    let again: Vec<&Key> = order.iter().filter(|(_, n)| **n > 0).map(|o| o.0).collect();
    assert_eq!(retries.iter().collect::<Vec<_>>(), again);
    let rows: Vec<i64> = by_id.keys().map(|(_, seq)| *seq).collect();
    assert!(
        warm.keys()
            .chain(sensitive.keys())
            .all(|seq| rows.contains(seq))
    );
    let _ = writeln!(out, "bodies {} secrets {}", warm.len(), sensitive.len());
}

fn snapshot(store: &StoreThread) -> String {
    let StoreThread {
        database,
        // Set once, when the store is opened.
        limits: _,
        // Compared with what it is made of.
        published,
        queue:
            JobQueue {
                pending: waiting,
                running,
                paused,
                draining,
                next_seq,
            },
        totals,
        workers:
            AskingWorkers {
                waiters,
                woken,
                // What each worker has: `fresco_placement` has the tests.
                placement: _,
            },
        change:
            OpenChange {
                batch:
                    Batch {
                        answers,
                        outcomes,
                        handouts,
                        accepted,
                    },
                wrote,
                saved,
            },
        unsaved: UnsavedOutcomes {
            outcomes: refused,
            retry_at,
        },
        files: FileCare { lost, shadow },
        shrinking,
        closing,
    } = store;
    let mut out = String::new();
    pending(&mut out, waiting);
    for (task, leased) in running {
        let Leased {
            key: job,
            attempts,
            owner,
            deadline,
            // Needed only when it goes back.
            facts: _,
            sensitive,
        } = leased;
        let (job, secrets) = (key(job), sensitive.len());
        let until = deadline.map_or("the end", |_| "a deadline");
        let _ = writeln!(
            out,
            "running {task}: {job}x{attempts} by {owner} until {until}, secrets {secrets}"
        );
    }
    let _ = writeln!(out, "history: {} next #{next_seq}", totals.entries);
    for (is, word) in [
        (*paused, "paused"),
        (*draining, "draining"),
        (*woken, "woken"),
        (*wrote, "wrote"),
        (*saved, "saved"),
        (*shrinking, "shrinking"),
        (closing.is_some(), "closing"),
        (retry_at.is_some(), "retries"),
        (!database.connection.is_autocommit(), "in a transaction"),
    ] {
        if is {
            let _ = writeln!(out, "{word}");
        }
    }
    for waiter in waiters {
        let Waiter {
            deadline: _,
            claim,
            view,
            sender: _,
        } = waiter;
        let knows = if view.is_some() { " with a view" } else { "" };
        let _ = writeln!(out, "{} asks{knows}", claim.owner);
    }
    // Between two batches nothing is open.
    assert!(
        answers.is_empty() && outcomes.is_empty() && handouts.is_empty() && accepted.is_empty()
    );
    for unsaved in refused {
        let Unsaved {
            task,
            outcome: _,
            since: _,
            tries,
            bare,
        } = unsaved;
        let _ = writeln!(out, "unsaved {task}: {tries} tries, bare {bare}");
    }
    if let Some(lost) = lost {
        let Lost {
            error,
            readable,
            trouble: _,
            tried: _,
        } = lost;
        let _ = writeln!(out, "lost: {error}, readable {readable}");
    }
    let Shadow {
        jobs,
        job_bytes,
        ended,
        ended_bytes,
    } = shadow;
    assert_eq!(*job_bytes == 0, jobs.is_empty());
    assert_eq!(*ended_bytes == 0, ended.is_empty());
    if !jobs.is_empty() || !ended.is_empty() {
        let _ = writeln!(out, "shadow: {} jobs, {} ends", jobs.len(), ended.len());
    }
    let Published {
        needs: _,
        remaining,
        paused: shown_paused,
        waiting: shown_waiting,
        handed_out,
        lost_lease: _,
        accepted: _,
    } = &**published;
    assert_eq!(remaining.load(Acquire), waiting.len() + running.len());
    assert_eq!(shown_paused.load(Acquire), *paused);
    assert_eq!(shown_waiting.load(Acquire), waiting.ready());
    assert!(handed_out.lock().unwrap().keys().eq(running.keys()));
    out
}

/// A thread's state without a thread.
fn store(limits: Limits) -> StoreThread {
    let database = schema::open(&StorePath::Memory).unwrap();
    let (store, _) = StoreThread::recover(database, limits, Arc::default()).unwrap();
    store
}

/// Carries one command out, as a batch of its own.
fn tell<T>(store: &mut StoreThread, command: impl FnOnce(Sender<T>) -> Command) -> Reply<T> {
    let (sender, answer) = reply();
    store.process(&mut VecDeque::from([command(sender)]));
    answer
}

fn put(store: &mut StoreThread, id: &str, number: i64) -> bool {
    let job = NewJob {
        prompt_id: id.into(),
        priority: Priority::Drawn(number),
        prompt: Arc::new(map! {"1" => map! {"class_type" => "X", "inputs" => Map::new()}}),
        extra_data: Map::new(),
        outputs: vec!["1".into()],
        sensitive: map! {"api_key_comfy_org" => "secret"},
    };
    let job = Box::new(EncodedJob::new(job, number.into(), None));
    tell(store, |to| Command::Enqueue(job, to))
        .wait()
        .unwrap()
        .is_ok()
}

/// A worker elsewhere asks for a job; one that gets none does not wait.
fn take(store: &mut StoreThread) -> Option<u64> {
    let claim = Claim {
        owner: "w".into(),
        term: Some(Duration::from_mins(10)),
    };
    let soon = Instant::now() + Duration::from_mins(10);
    let (sender, answer) = reply();
    store.process(&mut VecDeque::from([Command::Next(
        soon, claim, None, sender,
    )]));
    store.workers.waiters.clear();
    match answer.wait() {
        Some(Next::Job(job)) => Some(job.task),
        _ => None,
    }
}

fn finish(store: &mut StoreThread, task: u64, end: JobEnd) {
    let outcome = Arc::new(EncodedOutcome::new(JobOutcome {
        outputs: map! {"9" => map! {"text" => vec![Value::from("a")]}},
        ..end.into()
    }));
    let answer = tell(store, |to| Command::Finish(task, outcome, to));
    answer.wait().unwrap().unwrap();
}

fn change(store: &mut StoreThread, change: QueueChange) {
    let answer = tell(store, |to| Command::ChangeQueue(Box::new(change), to));
    answer.wait().unwrap().unwrap();
}

#[test]
fn the_whole_state_after_each_step() {
    #[track_caller]
    fn check(store: &StoreThread, expected: Expect) {
        expected.assert_eq(&snapshot(store));
    }
    let mut store = store(Limits::default());
    check(
        &store,
        expect![[r"
            waiting: 
            bodies 0 secrets 0
            history: 0 next #0
        "]],
    );
    for (number, id) in ["a", "b", "c"].into_iter().enumerate() {
        assert!(put(&mut store, id, number as i64));
    }
    let hold = QueueChange {
        hold: vec!["b".into()],
        paused: Some(true),
        ..QueueChange::default()
    };
    change(&mut store, hold);
    assert_eq!(take(&mut store), None, "it is paused");
    check(
        &store,
        expect![[r"
            waiting: a#0(0) c#2(2)
            held: b#1(1)
            bodies 3 secrets 3
            history: 0 next #3
            paused
        "]],
    );
    let go_on = QueueChange {
        paused: Some(false),
        ..QueueChange::default()
    };
    change(&mut store, go_on);
    let task = take(&mut store).unwrap();
    check(
        &store,
        expect![[r"
            waiting: c#2(2)
            held: b#1(1)
            bodies 2 secrets 2
            running 0: a#0(0)x0 by w until a deadline, secrets 1
            history: 0 next #3
        "]],
    );
    let back = tell(&mut store, |to| Command::GiveBack(task, Attempt::Made, to));
    assert!(back.wait().unwrap().unwrap());
    let task = take(&mut store).unwrap();
    finish(&mut store, task, JobEnd::Finished);
    check(
        &store,
        expect![[r"
            waiting: c#2(2)
            held: b#1(1)
            bodies 2 secrets 2
            history: 1 next #3
        "]],
    );
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum JobState {
    /// Not accepted yet.
    New,
    Waiting,
    Held,
    Running,
    /// In the history.
    Ended,
    /// Deleted, from the queue or from the history.
    Gone,
}

/// All moves that a job may make, with what makes it.
const MOVES: &[(JobState, JobState, &str)] = &[
    (JobState::New, JobState::Waiting, "it is accepted"),
    (JobState::Waiting, JobState::Running, "a worker takes it"),
    (JobState::Waiting, JobState::Held, "somebody holds it"),
    (JobState::Waiting, JobState::Ended, "somebody cancels it"),
    (JobState::Waiting, JobState::Gone, "somebody deletes it"),
    (JobState::Held, JobState::Waiting, "somebody releases it"),
    (JobState::Held, JobState::Ended, "somebody cancels it"),
    (JobState::Held, JobState::Gone, "somebody deletes it"),
    (JobState::Running, JobState::Ended, "it ends"),
    (
        JobState::Running,
        JobState::Waiting,
        "its worker gives it back",
    ),
    (
        JobState::Running,
        JobState::Held,
        "it lost too many workers",
    ),
    (JobState::Ended, JobState::Gone, "its entry goes"),
];

fn states(store: &StoreThread) -> BTreeMap<i64, JobState> {
    let Pending { order, held, .. } = &store.queue.pending;
    let db = &store.database.connection;
    let ended = db
        .prepare("SELECT seq FROM history")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .unwrap();
    let ended: Vec<i64> = ended;
    let running = store.queue.running.values();
    let all = (order.keys().map(|key| (key.seq, JobState::Waiting)))
        .chain(held.keys().map(|key| (key.seq, JobState::Held)))
        .chain(running.map(|leased| (leased.key.seq, JobState::Running)))
        .chain(ended.into_iter().map(|seq| (seq, JobState::Ended)));
    let mut found = BTreeMap::new();
    for (seq, state) in all {
        let other = found.insert(seq, state);
        assert_eq!(other, None, "job {seq} is in two places");
    }
    found
}

#[derive(Debug, Clone)]
enum Op {
    Put(u8),
    Take,
    Finish(u8, JobEnd),
    GiveBack(u8, Attempt),
    Hold(u8),
    Release(u8),
    Order(Vec<u8>),
    Cancel(u8),
    Delete(u8),
    Clear,
    Forget(u8),
    ForgetAll,
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..4u8;
    let end = prop_oneof![
        Just(JobEnd::Finished),
        Just(JobEnd::Failed),
        Just(JobEnd::Interrupted)
    ];
    let attempt = prop_oneof![1 => Just(Attempt::NotMade), 3 => Just(Attempt::Made)];
    prop_oneof![
        6 => id.clone().prop_map(Op::Put),
        8 => Just(Op::Take),
        3 => (0..3u8, end).prop_map(|(at, end)| Op::Finish(at, end)),
        6 => (0..3u8, attempt).prop_map(|(at, attempt)| Op::GiveBack(at, attempt)),
        2 => id.clone().prop_map(Op::Hold),
        2 => id.clone().prop_map(Op::Release),
        1 => prop::collection::vec(0..4u8, 0..4).prop_map(Op::Order),
        1 => id.clone().prop_map(Op::Cancel),
        1 => id.clone().prop_map(Op::Delete),
        1 => Just(Op::Clear),
        1 => id.prop_map(Op::Forget),
        1 => Just(Op::ForgetAll),
    ]
}

fn carry_out(store: &mut StoreThread, op: &Op, number: i64) {
    let name = |id: &u8| -> Arc<str> { format!("j{id}").into() };
    let task = |store: &StoreThread, at: u8| {
        let running: Vec<u64> = store.queue.running.keys().copied().collect();
        (!running.is_empty()).then(|| running[usize::from(at) % running.len()])
    };
    match op {
        Op::Put(id) => drop(put(store, &name(id), number)),
        Op::Take => drop(take(store)),
        Op::Finish(at, end) => {
            if let Some(task) = task(store, *at) {
                finish(store, task, end.clone());
            }
        }
        Op::GiveBack(at, attempt) => {
            if let Some(task) = task(store, *at) {
                drop(tell(store, |to| Command::GiveBack(task, *attempt, to)));
            }
        }
        Op::Hold(id) => change(
            store,
            QueueChange {
                hold: vec![name(id)],
                ..QueueChange::default()
            },
        ),
        Op::Release(id) => change(
            store,
            QueueChange {
                release: vec![name(id)],
                ..QueueChange::default()
            },
        ),
        Op::Order(ids) => change(
            store,
            QueueChange {
                order: ids.iter().map(name).collect(),
                ..QueueChange::default()
            },
        ),
        Op::Cancel(id) => {
            let outcome = Arc::new(EncodedOutcome::new(JobOutcome::interrupted(&name(id))));
            drop(tell(store, |to| {
                Command::CancelPending(name(id), outcome, to)
            }));
        }
        Op::Delete(id) => drop(tell(store, |to| Command::DeletePending(name(id), to))),
        Op::Clear => drop(tell(store, Command::ClearPending)),
        Op::Forget(id) => drop(tell(store, |to| Command::HistoryDelete(vec![name(id)], to))),
        Op::ForgetAll => drop(tell(store, Command::HistoryClear)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn jobs_move_as_the_table_says(ops in prop::collection::vec(op(), 1..60)) {
        let mut store = store(Limits { max_pending: 6, history: 3, ..Limits::default() });
        let mut before: BTreeMap<i64, JobState> = BTreeMap::new();
        for (number, op) in ops.iter().enumerate() {
            carry_out(&mut store, op, number as i64);
            snapshot(&store);
            let mut now = states(&store);
            for seq in before.keys() {
                now.entry(*seq).or_insert(JobState::Gone);
            }
            for (seq, state) in &now {
                let was = before.get(seq).copied().unwrap_or(JobState::New);
                let allowed = was == *state || MOVES.iter().any(|(from, to, _)| (*from, *to) == (was, *state));
                prop_assert!(allowed, "job {seq} went from {was:?} to {state:?} by {op:?}");
            }
            before = now;
        }
    }
}

/// Every move of the table happens, so that it says no more than what is true.
#[test]
fn all_moves_of_the_table_are_made() {
    use JobState::*;
    let mut seen: Vec<(JobState, JobState)> = Vec::new();
    let mut store = store(Limits {
        history: 1,
        ..Limits::default()
    });
    let mut before = BTreeMap::new();
    let mut step = |store: &mut StoreThread, op: Op, number: i64| {
        carry_out(store, &op, number);
        let mut now = states(store);
        for seq in before.keys() {
            now.entry(*seq).or_insert(Gone);
        }
        for (seq, state) in &now {
            let was = before.get(seq).copied().unwrap_or(New);
            if was != *state {
                seen.push((was, *state));
            }
        }
        before = now;
    };
    let mut ops = vec![
        Op::Put(0),
        Op::Hold(0),
        Op::Release(0),
        Op::Cancel(0),
        Op::ForgetAll,
        Op::Put(0),
        Op::Delete(0),
        Op::Put(0),
        Op::Hold(0),
        Op::Cancel(0),
        Op::Put(1),
        Op::Hold(1),
        Op::Delete(1),
        Op::Put(2),
        Op::Take,
        Op::Finish(0, JobEnd::Failed),
        Op::Put(3),
    ];
    for _ in 0..5 {
        ops.extend([Op::Take, Op::GiveBack(0, Attempt::Made)]);
    }
    for (number, op) in ops.into_iter().enumerate() {
        step(&mut store, op, number as i64);
    }
    for (from, to, why) in MOVES {
        assert!(seen.contains(&(*from, *to)), "{from:?} to {to:?}: {why}");
    }
}
