//! Files that are deleted, replaced or overwritten while the store uses them.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test may panic"
)]

mod store_support;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fresco_engine::store::*;
use store_support::*;

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A store with an ended, a running and two waiting jobs, one of them held.
fn busy(dir: &Path) -> (PathBuf, JobStore, TakenJob) {
    let path = dir.join("user/fresco.db");
    let store = open(&path).unwrap();
    put(&store, "done", Priority::Auto);
    let done = take(&store);
    end(&store, done.task);
    for id in ["running", "held", "waiting"] {
        put(&store, id, Priority::Auto);
    }
    let hold = QueueChange {
        hold: vec!["held".into()],
        ..QueueChange::default()
    };
    store.change_queue(hold).wait().unwrap().unwrap();
    let running = take(&store);
    assert_eq!(&*running.prompt_id, "running");
    (path, store, running)
}

/// The store works on, and the next process finds everything.
#[track_caller]
fn check_kept(path: &Path, store: JobStore, running: &TakenJob) {
    put(&store, "new", Priority::Auto);
    end(&store, running.task);
    assert_eq!(pending_ids(&store), ["held", "waiting", "new"]);
    drop(store);
    let store = open(path).unwrap();
    assert_eq!(pending_ids(&store), ["held", "waiting", "new"]);
    assert_eq!(history_ids(&store), ["done", "running"]);
    assert_eq!(
        store.outline().wait().unwrap().unwrap().held,
        ["held".into()]
    );
    let job = take(&store);
    assert_eq!((&*job.prompt_id, job.attempt), ("waiting", 1));
    assert_eq!(job.outputs, ["1".into()]);
}

fn wal(path: &Path) -> PathBuf {
    path.with_file_name("fresco.db-wal")
}

#[test]
fn deleted_files_are_written_anew_also_when_nothing_happens() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store, running) = busy(dir.path());
    fs::remove_file(&path).unwrap();
    fs::remove_file(wal(&path)).unwrap();
    wait_until("the file is back", || path.exists());
    check_kept(&path, store, &running);
}

#[test]
fn a_deleted_folder_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store, running) = busy(dir.path());
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    put(&store, "at once", Priority::Auto);
    assert!(path.exists());
    assert!(store.delete_pending("at once").wait().unwrap().unwrap());
    check_kept(&path, store, &running);
    let path = dir.path().join("user/fresco.db");
    assert!(path.exists());
}

#[test]
fn a_deleted_log_alone_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store, running) = busy(dir.path());
    fs::remove_file(wal(&path)).unwrap();
    put(&store, "x", Priority::Auto);
    assert!(store.delete_pending("x").wait().unwrap().unwrap());
    check_kept(&path, store, &running);
}

#[test]
fn an_overwritten_file_is_put_aside_and_the_queue_written_anew() {
    for garbage in ["", "not a database\n", &"garbage".repeat(100_000)] {
        let dir = tempfile::tempdir().unwrap();
        let (path, store, running) = busy(dir.path());
        // In place, as a shell redirection does it.
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.write_all(garbage.as_bytes()).unwrap();
        drop(file);
        put(&store, "x", Priority::Auto);
        assert!(store.delete_pending("x").wait().unwrap().unwrap());
        let folder = fs::read_dir(path.parent().unwrap()).unwrap();
        let aside: Vec<String> = folder
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.contains(".damaged-") && !name.ends_with("-wal"))
            .collect();
        assert_eq!(aside.len(), 1, "{aside:?}");
        let kept = fs::read(path.with_file_name(&aside[0])).unwrap();
        assert_eq!(kept, garbage.as_bytes());
        check_kept(&path, store, &running);
    }
}

#[test]
fn an_overwritten_log_loses_nothing_that_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store, running) = busy(dir.path());
    fs::write(wal(&path), "garbage").unwrap();
    put(&store, "x", Priority::Auto);
    assert!(store.delete_pending("x").wait().unwrap().unwrap());
    check_kept(&path, store, &running);
}

#[test]
fn a_file_that_was_put_in_its_place_is_left_alone_and_prompts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store, running) = busy(dir.path());
    let other = dir.path().join("other.db");
    let others = open(&other).unwrap();
    put(&others, "theirs", Priority::Auto);
    others.close().wait().unwrap();
    drop(others);
    for content in [fs::read(&other).unwrap(), b"something else".to_vec()] {
        fs::write(dir.path().join("new"), &content).unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        let refused = store.enqueue(job("x", Priority::Auto)).wait().unwrap();
        let error = refused.unwrap_err();
        assert!(matches!(error, StoreError::Lost { .. }), "{error}");
        assert!(error.to_string().contains("was replaced"), "{error}");
        // What is known can still be read.
        assert_eq!(pending_ids(&store), ["held", "waiting"]);
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    // No job is given out, and outcomes wait.
    assert!(matches!(store.next(&here(), Duration::ZERO), Next::Timeout));
    assert!(
        store
            .finish(running.task, success())
            .wait()
            .unwrap()
            .is_err()
    );
    fs::remove_file(&path).unwrap();
    wait_until("the database is back", || {
        store
            .enqueue(job("new", Priority::Auto))
            .wait()
            .unwrap()
            .is_ok()
    });
    wait_until("the outcome is recorded", || {
        history_ids(&store) == ["done", "running"]
    });
    assert_eq!(pending_ids(&store), ["held", "waiting", "new"]);
}

#[test]
fn another_database_of_ours_in_the_same_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.db");
    let others = open(&other).unwrap();
    put(&others, "theirs", Priority::Auto);
    put(&others, "theirs too", Priority::Auto);
    others.close().wait().unwrap();
    drop(others);
    let (path, store, _running) = busy(dir.path());
    fs::copy(&other, &path).unwrap();
    let refused = store.enqueue(job("x", Priority::Auto)).wait().unwrap();
    let error = refused.unwrap_err();
    assert!(error.to_string().contains("was overwritten"), "{error}");
    assert!(error.to_string().contains("restart Fresco"), "{error}");
    assert!(store.queue().wait().unwrap().is_err());
    assert_eq!(fs::read(&path).unwrap(), fs::read(&other).unwrap());
}

#[test]
fn a_changed_time_alone_is_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store, running) = busy(dir.path());
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    check_kept(&path, store, &running);
}

/// Opening after a crash writes, and may move a long log into the database; that is no stranger's doing.
#[test]
fn recovering_a_long_log_is_not_taken_for_a_stranger() {
    /// A page and its head in the log.
    const FRAME: u64 = 4096 + 24;
    /// SQLite moves the log when it has so many.
    const MOVED: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    let store = open(&path).unwrap();
    let frames = || fs::metadata(wal(&path)).unwrap().len() / FRAME;
    for i in 0.. {
        if frames() > MOVED - 12 {
            break;
        }
        put(&store, &i.to_string(), Priority::Auto);
    }
    // One of these logs is so long that the write on opening is the last it takes.
    let mut before = 0;
    for i in 0..12 {
        if frames() < before {
            break;
        }
        before = frames();
        let copy = crash_copy(&path, &dir.path().join(format!("crash-{i}")));
        let again = open(&copy).unwrap();
        put(&again, "next", Priority::Auto);
        store
            .set("k", Some(&i.to_string()))
            .wait()
            .unwrap()
            .unwrap();
    }
    assert!(before > MOVED - 4, "{before}");
}
