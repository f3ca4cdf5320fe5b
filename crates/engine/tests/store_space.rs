//! What the store does with outcomes of any size: cut, refused, dropped, and the space given back.
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test may panic"
)]

mod store_support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fresco_engine::store::*;
use fresco_engine::{JobEnd, JobOutcome};
use fresco_graph::{Value, map};
use store_support::*;

fn with_text(text: &str) -> JobOutcome {
    JobOutcome {
        outputs: map! {"9" => map! {"text" => vec![Value::from(text)]}},
        ..success()
    }
}

/// Runs a job to an end that shows this text.
#[track_caller]
fn run(store: &JobStore, id: &str, text: &str) {
    put(store, id, Priority::Auto);
    let job = take(store);
    store
        .finish(job.task, with_text(text))
        .wait()
        .unwrap()
        .unwrap();
}

fn size(path: &Path) -> u64 {
    let wal = path.with_file_name("fresco.db-wal");
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |m| m.len());
    bytes(path) + bytes(&wal)
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_long_output_is_kept_as_its_beginning_with_its_length() {
    let store = memory();
    run(&store, "long", &"x".repeat(80 << 20));
    let entry = store.history_get("long").wait().unwrap().unwrap().unwrap();
    assert_eq!(entry.end, JobEnd::Finished);
    assert!(entry.outputs.len() < 2 << 20, "{}", entry.outputs.len());
    assert!(entry.outputs.contains("(cut: 83886080 bytes in all)"));
}

#[test]
fn a_refused_outcome_fails_no_other_and_is_recorded_as_far_as_possible() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    drop(open(&path).unwrap());
    // A database that takes no outputs over a thousand bytes stands for one that takes none over a thousand million.
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(
        "CREATE TRIGGER small BEFORE INSERT ON results WHEN length(NEW.outputs) > 1000
            BEGIN SELECT RAISE(ABORT, 'too large'); END",
    )
    .unwrap();
    drop(db);
    let store = open(&path).unwrap();
    for id in ["a", "large", "b"] {
        put(&store, id, Priority::Auto);
    }
    let jobs = [take(&store), take(&store), take(&store)];
    // Sent together, so that they may share a transaction.
    let replies = [
        store.finish(jobs[0].task, success()),
        store.finish(jobs[1].task, with_text(&"x".repeat(5000))),
        store.finish(jobs[2].task, success()),
    ];
    let later = store.enqueue(job("later", Priority::Auto));
    let [a, large, b] = replies.map(|reply| reply.wait().unwrap());
    assert!(a.is_ok() && large.is_err() && b.is_ok());
    assert!(later.wait().unwrap().is_ok());
    assert_eq!(history_ids(&store), ["a", "b"]);
    wait_until("the rest of the outcome is recorded", || {
        history_ids(&store) == ["a", "b", "large"]
    });
    let job = store.job("large").wait().unwrap().unwrap().unwrap().job;
    assert_eq!(job.status, JobStatus::Completed);
    assert_eq!(store.remaining(), 1);
}

#[test]
fn the_history_has_a_size() {
    let limits = Limits {
        history_bytes: 100_000,
        ..Limits::default()
    };
    let store = JobStore::open(&StorePath::Memory, limits).unwrap();
    for id in ["a", "b", "c", "d"] {
        run(&store, id, &"x".repeat(40_000));
    }
    assert_eq!(history_ids(&store), ["c", "d"]);
    // One that is larger than all of it is kept alone.
    run(&store, "e", &"x".repeat(150_000));
    assert_eq!(history_ids(&store), ["e"]);
    run(&store, "f", "short");
    assert_eq!(history_ids(&store), ["f"]);
}

#[test]
fn clearing_gives_the_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    let store = open(&path).unwrap();
    let text = "x".repeat(900_000);
    for i in 0..40 {
        run(&store, &i.to_string(), &text);
    }
    assert!(size(&path) > 30_000_000);
    store.history_clear().wait().unwrap().unwrap();
    wait_until("the files get small again", || size(&path) < 1_000_000);
    for i in 0..40 {
        run(&store, &i.to_string(), &text);
    }
    let ids = (0..40).map(|i| i.to_string().into()).collect();
    store.history_delete(ids).wait().unwrap().unwrap();
    wait_until("the files get small again", || size(&path) < 1_000_000);
}

#[test]
fn databases_from_before_shrink_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(include_str!("data/store-v2.sql")).unwrap();
    let mut insert = |seq: i64| {
        db.execute_batch(&format!(
            "INSERT INTO bodies VALUES ({seq}, '{{}}', '{{}}', '[]', NULL);
             INSERT INTO history VALUES ({seq}, {seq}, 1, 'old-{seq}', 'completed', 1, 1, 1, NULL, 0, 0, 1, NULL, NULL);
             INSERT INTO results VALUES ({seq}, 'success', 1, printf('{{\"9\":\"%.*c\"}}', 1000000, 'x'), '{{}}', '[]');"
        ))
        .unwrap();
    };
    (100..120).for_each(&mut insert);
    drop(db);
    assert!(size(&path) > 20_000_000);
    let limits = Limits {
        history_bytes: 5_500_000,
        ..Limits::default()
    };
    let store = JobStore::open(&StorePath::File(path.clone()), limits).unwrap();
    assert_eq!(history_ids(&store).len(), 20);
    // The bytes of old entries are known: the next outcome drops those that are too many.
    let change = QueueChange {
        paused: Some(false),
        ..QueueChange::default()
    };
    store.change_queue(change).wait().unwrap().unwrap();
    let job = take(&store);
    end(&store, job.task);
    assert_eq!(history_ids(&store).len(), 6);
    store.history_clear().wait().unwrap().unwrap();
    wait_until("the files get small again", || size(&path) < 1_000_000);
}
