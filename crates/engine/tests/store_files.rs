//! The store and its file: crashes, recovery, damage, versions, two processes.
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test may panic"
)]

mod store_support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use fresco_engine::store::*;
use fresco_graph::{Value, map};
use store_support::*;

#[test]
fn everything_accepted_survives_a_crash_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/fresco.db");
    let store = open(&path).unwrap();
    for (id, priority) in [
        ("a", Priority::Auto),
        ("b", Priority::Auto),
        ("front", Priority::Front),
        ("c", Priority::Explicit(0.5)),
    ] {
        put(&store, id, priority);
    }
    let front = take(&store);
    end(&store, front.task);
    let mut secret = job("a2", Priority::Auto);
    secret.sensitive = map! { "api_key_comfy_org" => "open sesame" };
    secret.extra_data = map! { "auth_token_comfy_org" => "open sesame" };
    enqueue(&store, secret);
    store.set("k", Some("v")).wait().unwrap().unwrap();
    let running = take(&store);
    assert_eq!((&*running.prompt_id, running.attempt), ("a", 1));

    let copy = crash_copy(&path, &dir.path().join("crash"));
    for file in [&copy, &copy.with_file_name("fresco.db-wal")] {
        let bytes = fs::read(file).unwrap_or_default();
        assert!(
            !bytes.windows(11).any(|w| w == b"open sesame"),
            "a secret reached the disk"
        );
    }
    let again = open(&copy).unwrap();
    assert_eq!(pending_ids(&again), ["a", "c", "b", "a2"]);
    assert_eq!(history_ids(&again), ["front"]);
    assert_eq!(
        again.get("k").wait().unwrap().unwrap().as_deref(),
        Some("v")
    );
    assert_eq!(again.remaining(), 4);
    let retried = take(&again);
    assert_eq!((&*retried.prompt_id, retried.attempt), ("a", 2));
    // New jobs count on behind the old ones.
    assert_eq!(put(&again, "new", Priority::Auto).number, Value::Int(4));
    assert_eq!(pending_ids(&again), ["c", "b", "a2", "new"]);
    for _ in 0..4 {
        let job = take(&again);
        assert!(job.sensitive.is_empty());
        end(&again, job.task);
    }
    assert_eq!(history_ids(&again), ["front", "c", "b", "a2", "new"]);
}

#[test]
fn a_job_that_kills_its_process_is_tried_once_more_alone_and_then_held() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    let store = open(&path).unwrap();
    put(&store, "killer", Priority::Auto);
    put(&store, "next", Priority::Auto);
    assert_eq!(&*take(&store).prompt_id, "killer");
    put(&store, "front", Priority::Front);
    // Dropping without closing leaves the lease, as a crash does.
    drop(store);

    let store = open(&path).unwrap();
    // Before everything else, also what was put to the front meanwhile.
    assert_eq!(pending_ids(&store), ["killer", "front", "next"]);
    assert_eq!(
        store.outline().wait().unwrap().unwrap().order[0],
        "killer".into()
    );
    let retried = take(&store);
    assert_eq!((&*retried.prompt_id, retried.attempt), ("killer", 2));
    drop(store);

    let store = open(&path).unwrap();
    assert_eq!(pending_ids(&store), ["front", "killer", "next"]);
    assert!(history_ids(&store).is_empty());
    let outline = store.outline().wait().unwrap().unwrap();
    assert_eq!(outline.held, ["killer".into()]);
    let [(id, reason)] = &outline.reasons[..] else {
        panic!("{outline:?}")
    };
    assert_eq!(&**id, "killer");
    assert!(reason.contains("went down 2 times"), "{reason}");
    let job = store.job("killer").wait().unwrap().unwrap().unwrap().job;
    assert_eq!((job.status, job.held), (JobStatus::Pending, true));
    assert_eq!(job.held_reason.as_ref(), Some(reason));
    for id in ["front", "next"] {
        let job = take(&store);
        assert_eq!(&*job.prompt_id, id);
        end(&store, job.task);
    }
    assert!(matches!(store.next(&here(), Duration::ZERO), Next::Timeout));

    let release = QueueChange {
        release: vec!["killer".into()],
        ..QueueChange::default()
    };
    let outline = store.change_queue(release).wait().unwrap().unwrap();
    assert!(outline.held.is_empty() && outline.reasons.is_empty());
    let job = take(&store);
    assert_eq!((&*job.prompt_id, job.attempt), ("killer", 3));
    drop(store);
    // Released for one run, and that ended in the same way.
    let store = open(&path).unwrap();
    let outline = store.outline().wait().unwrap().unwrap();
    assert!(outline.reasons[0].1.contains("went down 3 times"));
}

#[test]
fn a_stop_that_was_asked_for_is_not_an_attempt_even_if_it_is_cut_short() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    for _ in 0..4 {
        let store = open(&path).unwrap();
        if store.remaining() == 0 {
            put(&store, "long", Priority::Auto);
        }
        assert_eq!(take(&store).attempt, 1);
        store.stopping().wait().unwrap();
        // And then killed, without closing.
    }
}

#[test]
fn closing_in_order_is_not_an_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    for _ in 0..5 {
        let store = open(&path).unwrap();
        if store.remaining() == 0 {
            put(&store, "long", Priority::Auto);
        }
        assert_eq!(take(&store).attempt, 1);
        store.close().wait().unwrap();
    }
}

#[test]
fn a_second_store_on_the_same_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    let first = open(&path).unwrap();
    let error = open(&path).err().unwrap();
    assert!(
        matches!(error, StoreError::InUse { pid: Some(pid), .. } if pid == std::process::id()),
        "{error}"
    );
    assert!(
        error.to_string().contains("in use by another Fresco"),
        "{error}"
    );
    put(&first, "still works", Priority::Auto);
    drop(first);
    assert_eq!(open(&path).unwrap().remaining(), 1);
}

/// Opening must fail with a message that has `expected` in it and must leave the file alone.
#[track_caller]
fn refuses(path: &Path, expected: &str) {
    let before = fs::read(path).unwrap();
    let error = open(path)
        .err()
        .unwrap_or_else(|| panic!("{} was opened", path.display()));
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(fs::read(path).unwrap(), before, "the file was changed");
}

/// A database with some jobs in it, closed.
fn filled(path: &Path) {
    let store = open(path).unwrap();
    for i in 0..100 {
        put(&store, &i.to_string(), Priority::Auto);
    }
    let job = take(&store);
    end(&store, job.task);
    store.close().wait().unwrap();
}

#[test]
fn files_that_are_no_database_of_ours_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    // Fixed noise: a linear congruence.
    let mut state = 1u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(20_000)
    .collect();
    refuses(&file("noise.db", &noise), "not a database");
    refuses(&file("short.db", b"x"), "not a database");
    refuses(&file("text.db", b"{\"json\": true}\n"), "not a database");
    let mut magic = b"SQLite format 3\0".to_vec();
    refuses(&file("cut.db", &magic), "damaged");
    magic.extend(&noise);
    let path = file("magic.db", &magic);
    let before = fs::read(&path).unwrap();
    assert!(open(&path).is_err());
    assert_eq!(fs::read(&path).unwrap(), before);

    fs::create_dir(dir.path().join("folder.db")).unwrap();
    let error = open(&dir.path().join("folder.db")).err().unwrap();
    assert!(error.to_string().contains("is a directory"), "{error}");
    let error = open(&file("f", b"").join("below.db")).err().unwrap();
    assert!(error.to_string().contains("cannot prepare"), "{error}");

    // An empty file is what `touch` leaves; nothing is lost by using it.
    let empty = file("empty.db", b"");
    assert_eq!(open(&empty).unwrap().remaining(), 0);
}

#[test]
fn damaged_newer_and_foreign_databases_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("good.db");
    filled(&good);
    let bytes = fs::read(&good).unwrap();
    assert!(bytes.len() > 20_000);

    let cut = dir.path().join("cut.db");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    refuses(&cut, "damaged");
    let ragged = dir.path().join("ragged.db");
    fs::write(&ragged, &bytes[..5000]).unwrap();
    refuses(&ragged, "damaged");

    let mut holes = bytes.clone();
    for byte in &mut holes[8192..16384] {
        *byte = 0xa5;
    }
    let holed = dir.path().join("holed.db");
    fs::write(&holed, &holes).unwrap();
    refuses(&holed, "damaged");

    let newer = dir.path().join("newer.db");
    fs::copy(&good, &newer).unwrap();
    let db = rusqlite::Connection::open(&newer).unwrap();
    db.execute_batch("PRAGMA user_version = 999; PRAGMA wal_checkpoint(TRUNCATE);")
        .unwrap();
    drop(db);
    refuses(&newer, "format 999");

    let foreign = dir.path().join("comfyui.db");
    let db = rusqlite::Connection::open(&foreign).unwrap();
    db.execute_batch("CREATE TABLE alembic_version (version_num TEXT)")
        .unwrap();
    drop(db);
    refuses(&foreign, "another program");

    assert_eq!(open(&good).unwrap().remaining(), 99);
}

#[test]
fn an_unreadable_body_fails_its_own_job_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    let store = open(&path).unwrap();
    put(&store, "broken", Priority::Auto);
    put(&store, "sound", Priority::Auto);
    store.close().wait().unwrap();
    drop(store);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute("UPDATE bodies SET prompt = '{' WHERE seq = 0", [])
        .unwrap();
    drop(db);
    let store = open(&path).unwrap();
    assert_eq!(&*take(&store).prompt_id, "sound");
    let job = store.job("broken").wait().unwrap().unwrap().unwrap().job;
    assert_eq!(job.status, JobStatus::Failed);
}

#[test]
fn a_refusing_disk_loses_no_outcome_and_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    drop(open(&path).unwrap());
    // Triggers that refuse while a setting says so stand for a full disk.
    let db = rusqlite::Connection::open(&path).unwrap();
    let refuse =
        "WHEN EXISTS (SELECT 1 FROM kv WHERE key = 'full') BEGIN SELECT RAISE(ABORT, 'full'); END";
    db.execute_batch(&format!(
        "CREATE TRIGGER full1 BEFORE INSERT ON history {refuse}; CREATE TRIGGER full2 BEFORE INSERT ON jobs {refuse};"
    ))
    .unwrap();
    drop(db);
    let store = open(&path).unwrap();
    put(&store, "a", Priority::Auto);
    let a = take(&store);
    store.set("full", Some("yes")).wait().unwrap().unwrap();
    assert!(store.finish(a.task, success()).wait().unwrap().is_err());
    assert!(
        store
            .enqueue(job("b", Priority::Auto))
            .wait()
            .unwrap()
            .is_err()
    );
    assert_eq!(store.remaining(), 1);
    assert!(history_ids(&store).is_empty());
    store.set("full", None).wait().unwrap().unwrap();
    put(&store, "c", Priority::Auto);
    assert_eq!(history_ids(&store), ["a"]);
    assert_eq!(pending_ids(&store), ["c"]);
    assert_eq!(store.remaining(), 1);
}

/// The fixture of schema version 1 opens in every later version with its contents.
#[test]
fn version_1_databases_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v1.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(include_str!("data/store-v1.sql")).unwrap();
    drop(db);
    let store = open(&path).unwrap();
    assert_eq!(
        pending_ids(&store),
        ["was-running", "front", "plain", "exhausted", "float"]
    );
    assert_eq!(
        store.outline().wait().unwrap().unwrap().held,
        ["exhausted".into()]
    );
    assert_eq!(history_ids(&store), ["done"]);
    assert_eq!(
        store.get("colour").wait().unwrap().unwrap().as_deref(),
        Some("blue")
    );
    assert_eq!(take(&store).attempt, 2);
    let front = take(&store);
    assert!(
        front.prompt["1"]
            .get("inputs")
            .unwrap()
            .get("x")
            .unwrap()
            .as_f64()
            .unwrap()
            .is_nan()
    );
    let done = store.history_get("done").wait().unwrap().unwrap().unwrap();
    assert_eq!(&*done.outputs, r#"{"9":{"images":[]}}"#);
}

#[test]
fn version_2_databases_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v2.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(include_str!("data/store-v2.sql")).unwrap();
    drop(db);
    let store = open(&path).unwrap();
    assert_eq!(pending_ids(&store), ["c", "b", "a", "d"]);
    let outline = store.outline().wait().unwrap().unwrap();
    assert!(outline.paused && store.paused());
    assert_eq!(outline.held, ["c".into()]);
    assert!(matches!(store.next(&here(), Duration::ZERO), Next::Timeout));
    let change = QueueChange {
        paused: Some(false),
        ..QueueChange::default()
    };
    store.change_queue(change).wait().unwrap().unwrap();
    assert_eq!(&*take(&store).prompt_id, "b");
}

#[test]
fn looking_into_a_database_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    assert_eq!(JobStore::inspect(&path).unwrap(), None);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    filled(&path);
    let before = fs::read(&path).unwrap();
    assert_eq!(
        JobStore::inspect(&path).unwrap(),
        Some(StoreContents {
            jobs: 99,
            history: 1
        })
    );
    assert_eq!(fs::read(&path).unwrap(), before);
    let store = open(&path).unwrap();
    assert!(matches!(
        JobStore::inspect(&path),
        Err(StoreError::InUse { .. })
    ));
    drop(store);
    fs::write(&path, "no database").unwrap();
    assert!(matches!(
        JobStore::inspect(&path),
        Err(StoreError::NotADatabase { .. })
    ));
}

#[test]
#[cfg(unix)]
fn a_socket_in_place_of_the_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fresco.db");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = open(&path).err().unwrap();
    assert!(matches!(error, StoreError::NoFile { .. }), "{error}");
}
