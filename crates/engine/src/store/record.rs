//! What goes into the store and what comes out of it.
//!
//! Records carry the JSON they were stored with as text, so that the server can copy it into an answer without parsing.
//! That text is always strict JSON: numbers that JSON cannot say are `null` in it.

use std::sync::Arc;
use std::time::Duration;

use fresco_graph::{Map, Value};

use crate::job::JobEnd;

/// Where a new job goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Priority {
    /// The submitter's own number; lower runs first.
    Explicit(f64),
    /// After everything submitted so far.
    Auto,
    /// Before everything submitted so far.
    Front,
    /// A number drawn before with [`JobStore::next_number`](super::JobStore::next_number).
    Drawn(i64),
}

/// A job to accept.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub prompt_id: Arc<str>,
    pub priority: Priority,
    /// After validation.
    pub prompt: Arc<Map>,
    /// With `create_time` and `client_id`.
    pub extra_data: Map,
    /// Ids of the output nodes to run.
    pub outputs: Vec<Arc<str>>,
    /// Secrets. They stay in memory: after a restart the job runs without them.
    pub sensitive: Map,
}

/// The answer to an accepted job; it is on disk by then.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// An integer from the counter, or the submitter's float.
    pub number: Value,
    /// Pending plus running.
    pub remaining: usize,
}

/// Who takes jobs, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub owner: Arc<str>,
    /// A job is the owner's for so long, and longer if that is renewed, also while this process is away. None: as long as
    /// this process lives.
    pub term: Option<Duration>,
}

impl Claim {
    /// For a worker that lives and dies with this process.
    pub fn local(owner: &str) -> Self {
        Self {
            owner: owner.into(),
            term: None,
        }
    }
}

/// A job that is leased beyond the life of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Names the run, also after a restart.
    pub task: u64,
    pub prompt_id: Arc<str>,
    pub owner: Arc<str>,
    /// Milliseconds since the epoch.
    pub deadline: i64,
}

/// A job handed to the worker.
#[derive(Clone, Debug)]
pub struct TakenJob {
    /// Names this run in [`JobSource::finish`](super::JobSource::finish).
    pub task: u64,
    /// 1 for the first run; more when the process died while running it. Such a job runs before all others, so that
    /// nothing but itself can be to blame if that happens again.
    pub attempt: u32,
    pub number: Value,
    pub prompt_id: Arc<str>,
    pub prompt: Arc<Map>,
    pub extra_data: Map,
    pub outputs: Vec<Arc<str>>,
    pub sensitive: Map,
    pub client_id: Option<Arc<str>>,
    /// Pending plus running, this one included.
    pub remaining: usize,
}

/// What [`JobStore::next`](super::JobStore::next) woke up for.
#[derive(Debug)]
pub enum Next {
    Job(Box<TakenJob>),
    /// Someone asked for a look around.
    Woken,
    Timeout,
    /// The store is closed; no job will ever come.
    Closed,
}

/// Whether a run that did not come to its end counts: a job that took its workers down too often is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Made,
    NotMade,
}

/// A job in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueRecord {
    pub number: Value,
    pub prompt_id: Arc<str>,
    pub prompt: Arc<str>,
    pub extra_data: Arc<str>,
    /// JSON array of node ids.
    pub outputs: Arc<str>,
}

/// The whole queue, in the order in which it will run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueState {
    pub running: Vec<QueueRecord>,
    pub pending: Vec<QueueRecord>,
}

/// What somebody wants changed about the waiting jobs. Ids that do not wait (any more) are passed over: between looking
/// and asking, a job may have begun. An id that several jobs share means all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueChange {
    /// A paused queue accepts jobs and hands out none; what runs goes on.
    pub paused: Option<bool>,
    /// These wait until they are released.
    pub hold: Vec<Arc<str>>,
    /// After `hold`, so it wins where both name a job.
    pub release: Vec<Arc<str>>,
    /// These run first, in this order; the others keep theirs.
    pub order: Vec<Arc<str>>,
}

/// The waiting jobs without their bodies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueOutline {
    pub paused: bool,
    /// In the order in which they will run, held ones where they would.
    pub order: Vec<Arc<str>>,
    /// The held ones among them.
    pub held: Vec<Arc<str>>,
    /// Why the program itself holds some of those, by id.
    pub reasons: Vec<(Arc<str>, Arc<str>)>,
    /// Why some of the first wait although nobody holds them: what each worker lacks for them.
    pub waiting: Vec<(Arc<str>, Arc<str>)>,
}

/// A finished job.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryRecord {
    pub number: Value,
    pub prompt_id: Arc<str>,
    pub prompt: Arc<str>,
    pub extra_data: Arc<str>,
    /// JSON array of node ids.
    pub outputs_to_execute: Arc<str>,
    /// UI outputs by node id.
    pub outputs: Arc<str>,
    pub meta: Arc<str>,
    pub end: JobEnd,
    pub messages: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobStatus {
    Pending,
    InProgress,
    Completed,
    Failed,
    Cancelled,
}

impl JobStatus {
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::InProgress,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// How a job ended that has this status; None while it has not.
    pub fn end(self) -> Option<JobEnd> {
        match self {
            Self::Pending | Self::InProgress => None,
            Self::Completed => Some(JobEnd::Finished),
            Self::Failed => Some(JobEnd::Failed),
            Self::Cancelled => Some(JobEnd::Interrupted),
        }
    }
}

impl From<&JobEnd> for JobStatus {
    fn from(end: &JobEnd) -> Self {
        match end {
            JobEnd::Finished => Self::Completed,
            JobEnd::Failed => Self::Failed,
            JobEnd::Interrupted => Self::Cancelled,
            JobEnd::Refused(_) | JobEnd::Lost(_) => Self::Pending,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobSort {
    #[default]
    Created,
    Duration,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    /// Empty: all.
    pub statuses: Vec<JobStatus>,
    pub workflow_id: Option<String>,
    /// Only jobs whose workflow has an id that begins so.
    pub workflow_prefix: Option<String>,
    pub sort_by: JobSort,
    pub descending: bool,
    pub limit: Option<usize>,
    pub offset: usize,
}

/// One line of a job list.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    pub id: Arc<str>,
    pub status: JobStatus,
    pub number: Value,
    /// Times are milliseconds since the epoch.
    pub create_time: Option<i64>,
    pub start_time: Option<i64>,
    pub end_time: Option<i64>,
    /// Data of `execution_error`, JSON.
    pub error: Option<Arc<str>>,
    pub outputs_count: i64,
    pub previewable_count: i64,
    /// JSON object.
    pub preview_output: Option<Arc<str>>,
    /// JSON value, nearly always a string in quotes.
    pub workflow_id: Option<Arc<str>>,
    /// Waits until it is released.
    pub held: bool,
    /// Why, where the program itself holds it.
    pub held_reason: Option<Arc<str>>,
}

/// A page of jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPage {
    pub jobs: Vec<JobRecord>,
    /// Matching jobs on all pages.
    pub total: usize,
}

/// One job with everything known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDetail {
    pub job: JobRecord,
    pub body: JobBody,
}

#[derive(Clone, Debug, PartialEq)]
pub enum JobBody {
    Queued(QueueRecord),
    Finished(HistoryRecord),
}
