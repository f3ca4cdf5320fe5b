//! Where the workers of an engine get jobs, and where the ends of those go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_placement::WorkerView;

use crate::job::JobOutcome;
use crate::reply::Reply;
use crate::store::{Attempt, Claim, JobStore, Next, QueueState, StoreError};

/// The database of a server ([`JobStore`]), or the [`JobPasser`](crate::JobPasser) of a process whose jobs are kept elsewhere.
///
/// A reply of `None` means that the source was closed.
pub trait JobSource: Send + Sync {
    /// Asks for the next job for a worker; one of several says what it has, and is given what suits it. The job counts as running from the
    /// answer on.
    fn ask_next(
        &self,
        claim: &Claim,
        view: Option<Arc<WorkerView>>,
        timeout: Duration,
    ) -> NextReply;

    /// Makes workers that wait for a job, now or next time, return.
    fn wake(&self);

    /// A run did not come to an end. False if there was no such run.
    fn give_back(&self, task: u64, attempt: Attempt) -> Reply<Result<bool, StoreError>>;

    /// A run has ended. Answers how many jobs remain. A second report changes nothing.
    fn finish(&self, task: u64, outcome: JobOutcome) -> Reply<Result<usize, StoreError>>;

    /// Jobs that wait or run.
    fn remaining(&self) -> usize;

    /// Prompts that were handed out and have not ended, by the numbers of their runs.
    fn handed_out(&self) -> BTreeMap<u64, Arc<str>>;

    /// What runs and what waits.
    fn queue(&self) -> Reply<Result<QueueState, StoreError>>;

    /// Hands out no more jobs until the process ends.
    fn drain(&self) -> Reply<()>;

    /// The process is about to end because a user or the system stops it.
    fn stopping(&self) -> Reply<()>;

    /// Ends in order: workers that wait get [`Next::Closed`].
    fn close(&self) -> Reply<()>;

    /// The database, where jobs are kept by this process.
    fn store(&self) -> Option<&JobStore> {
        None
    }
}

/// The question for the next job, on its way.
pub struct NextReply {
    reply: Reply<Next>,
    /// When the caller stops waiting, where the source that answers does not look at the clock itself.
    deadline: Option<Instant>,
}

impl NextReply {
    pub(crate) fn new(reply: Reply<Next>) -> Self {
        Self {
            reply,
            deadline: None,
        }
    }

    pub(crate) fn within(reply: Reply<Next>, timeout: Duration) -> Self {
        Self {
            reply,
            // A timeout that is too long to count has no end.
            deadline: Instant::now().checked_add(timeout),
        }
    }

    /// Blocks until there is an answer. None: the source is closed.
    pub fn wait(self) -> Option<Next> {
        match self.deadline {
            None => self.reply.wait(),
            Some(deadline) => self
                .reply
                .wait_until(deadline)
                .unwrap_or(Some(Next::Timeout)),
        }
    }
}
