//! Short forms that the store tests share.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "each test file uses its own part; a test may panic"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fresco_engine::store::*;
use fresco_engine::{JobEnd, JobOutcome};
use fresco_graph::{Map, map};

pub(crate) fn memory() -> JobStore {
    JobStore::open(&StorePath::Memory, Limits::default()).unwrap()
}

pub(crate) fn open(path: &Path) -> Result<JobStore, StoreError> {
    JobStore::open(&StorePath::File(path.into()), Limits::default())
}

pub(crate) fn job(id: &str, priority: Priority) -> NewJob {
    NewJob {
        prompt_id: id.into(),
        priority,
        prompt: Arc::new(
            map! { "1" => map! { "class_type" => "Nothing", "inputs" => Map::new() } },
        ),
        extra_data: map! { "create_time" => 1 },
        outputs: vec!["1".into()],
        sensitive: Map::new(),
    }
}

#[track_caller]
pub(crate) fn enqueue(store: &JobStore, job: NewJob) -> Accepted {
    store.enqueue(job).wait().unwrap().unwrap()
}

#[track_caller]
pub(crate) fn put(store: &JobStore, id: &str, priority: Priority) -> Accepted {
    enqueue(store, job(id, priority))
}

/// A worker of this process.
pub(crate) fn here() -> Claim {
    Claim::local("here")
}

pub(crate) fn next(jobs: &impl JobSource, timeout: Duration) -> Next {
    let next = jobs.ask_next(&here(), None, timeout);
    next.wait().unwrap_or(Next::Closed)
}

#[track_caller]
pub(crate) fn take(jobs: &impl JobSource) -> TakenJob {
    match next(jobs, Duration::from_mins(1)) {
        Next::Job(job) => *job,
        other => panic!("no job but {other:?}"),
    }
}

pub(crate) fn success() -> JobOutcome {
    JobEnd::Finished.into()
}

/// Finishes a task and says what remains.
#[track_caller]
pub(crate) fn end(jobs: &impl JobSource, task: u64) -> usize {
    jobs.finish(task, success()).wait().unwrap().unwrap()
}

pub(crate) fn ids(records: &[QueueRecord]) -> Vec<&str> {
    records.iter().map(|r| &*r.prompt_id).collect()
}

#[track_caller]
pub(crate) fn pending_ids(store: &JobStore) -> Vec<String> {
    let queue = store.queue().wait().unwrap().unwrap();
    queue
        .pending
        .iter()
        .map(|r| r.prompt_id.to_string())
        .collect()
}

#[track_caller]
pub(crate) fn history_ids(store: &JobStore) -> Vec<String> {
    let history = store.history(None, -1).wait().unwrap().unwrap();
    history.iter().map(|h| h.prompt_id.to_string()).collect()
}

/// What a killed process leaves behind: the files as they are now, elsewhere.
pub(crate) fn crash_copy(database: &Path, into: &Path) -> PathBuf {
    std::fs::create_dir_all(into).unwrap();
    let name = database.file_name().unwrap().to_str().unwrap();
    for end in ["", "-wal", ".running"] {
        let from = database.with_file_name(format!("{name}{end}"));
        if from.exists() {
            std::fs::copy(from, into.join(format!("{name}{end}"))).unwrap();
        }
    }
    into.join(name)
}
