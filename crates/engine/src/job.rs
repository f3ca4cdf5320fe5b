//! A job on its way through a worker: what is to be run, how it is stopped, how it ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fresco_graph::{CancelToken, Map, Value, lock};
use serde::{Deserialize, Serialize};

use crate::event::Failure;
use crate::messages::{self, now_ms};

/// A prompt to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunJob {
    pub prompt_id: Arc<str>,
    /// As validated.
    pub prompt: Arc<Map>,
    pub extra_data: Map,
    pub outputs: Vec<Arc<str>>,
    /// Secrets that no record shows.
    pub sensitive: Map,
    pub client: Option<Arc<str>>,
}

/// Between two renewals of a lease, at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How one run is stopped. Clones are the same run.
#[derive(Clone, Default)]
pub struct RunControl {
    /// Raised when somebody asks the run to stop, and until it ends.
    pub cancel: CancelToken,
    given_up: Arc<AtomicBool>,
    /// Where the job is leased beyond the life of this process.
    lease: Option<RunLease>,
}

#[derive(Clone)]
struct RunLease {
    task: u64,
    adopted: bool,
    renew: Arc<dyn Fn() + Send + Sync>,
    /// Between two renewals that reach the store, at least.
    pause: Duration,
    renewed: Arc<Mutex<Instant>>,
}

impl RunControl {
    /// For a job that was leased just now, for `term`.
    pub(crate) fn with_lease(
        task: u64,
        adopted: bool,
        term: Duration,
        renew: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            lease: Some(RunLease {
                task,
                adopted,
                renew: Arc::new(renew),
                pause: (term / 16).min(LONGEST_PAUSE),
                renewed: Arc::new(Mutex::new(Instant::now())),
            }),
            ..Self::default()
        }
    }

    /// The number of the run, which no other run has, also after this process began anew. None for a worker of this process.
    pub fn task(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| lease.task)
    }

    /// Whether it began before this process did: it is to be followed, not begun.
    pub fn is_adopted(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.adopted)
    }

    /// The run goes on: its job is this worker's for another term. A worker in another process calls this for each sign of
    /// life, more often than its term is long; a job whose lease ends is given to another.
    pub fn renew_lease(&self) {
        let Some(lease) = &self.lease else { return };
        let mut renewed = lock(&lease.renewed);
        if renewed.elapsed() >= lease.pause {
            *renewed = Instant::now();
            drop(renewed);
            (lease.renew)();
        }
    }

    /// It was asked to stop and did not: whatever it still does is for nobody. Also raises the token.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        self.cancel.raise();
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }
}

/// How a job ended: the one shape of it, from the executor to the store, the messages between processes, the history and
/// the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEnd {
    /// All its outputs were made.
    Finished,
    /// A node failed, or the job could not run as it is; its messages say why.
    Failed,
    /// Somebody asked it to stop.
    Interrupted,
    /// A worker did not begin it, for this reason: the job goes back into the queue.
    Refused(String),
    /// Its worker went down with it: the job goes back into the queue, and this run counts as an attempt.
    Lost(String),
}

impl JobEnd {
    /// Why the job goes back into the queue. None: the history keeps this end.
    pub fn goes_back(&self) -> Option<&str> {
        match self {
            Self::Finished | Self::Failed | Self::Interrupted => None,
            Self::Refused(why) | Self::Lost(why) => Some(why),
        }
    }

    pub fn is_finished(&self) -> bool {
        *self == Self::Finished
    }

    /// The reference's word for it, which knows two ends only: `status_str` of the history.
    pub fn status_str(&self) -> &'static str {
        if self.is_finished() {
            "success"
        } else {
            "error"
        }
    }
}

/// What became of a job, in the form history keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobOutcome {
    pub end: JobEnd,
    /// UI output by node id.
    pub outputs: Map,
    pub meta: Map,
    /// `[event, data]` pairs.
    pub messages: Vec<Value>,
}

impl From<JobEnd> for JobOutcome {
    fn from(end: JobEnd) -> Self {
        Self {
            end,
            outputs: Map::new(),
            meta: Map::new(),
            messages: Vec::new(),
        }
    }
}

impl JobOutcome {
    /// The outcome of a job that failed before a node could say so.
    pub fn failed(prompt_id: &Arc<str>, failure: &Failure) -> Self {
        Self {
            messages: vec![
                messages::started(prompt_id, failure.timestamp),
                messages::failed(prompt_id, failure),
            ],
            ..JobEnd::Failed.into()
        }
    }

    /// The outcome of a job that was stopped before a node ran.
    pub fn interrupted(prompt_id: &str) -> Self {
        Self {
            messages: vec![messages::interrupted(prompt_id, "", "", &[], now_ms())],
            ..JobEnd::Interrupted.into()
        }
    }
}
