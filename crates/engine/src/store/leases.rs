//! Who runs which job, and until when.
//!
//! A worker of this process has its jobs as long as the process lives: that is noted in `marks`, not here. A lease with a
//! deadline is in the database, because the worker goes on when this process is away; it has to be renewed. Renewals are not
//! written down: whoever opens the database heard none meanwhile, so every lease found there gets another [`GRACE`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_graph::{Map, lock};
use rusqlite::params;

use super::bodies;
use super::error::StoreError;
use super::handout::client_id;
use super::now;
use super::pending::{Facts, Key};
use super::record::{Attempt, Claim, LeaseRecord, TakenJob};
use super::thread::{MAX_ATTEMPTS, RETRY, StoreThread};

/// A job that loses its worker so often is held: workers come and go, and only a job that takes them down loses so many.
const MAX_LOST: u32 = 5;
/// How long a lease from before waits for a sign of life.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// A job that runs.
#[derive(Clone, Debug)]
pub(super) struct Leased {
    pub(super) key: Key,
    pub(super) attempts: u32,
    pub(super) owner: Arc<str>,
    /// Milliseconds since the epoch; none for a worker of this process.
    pub(super) deadline: Option<i64>,
    /// For when it has to go back into the queue.
    pub(super) facts: Facts,
    pub(super) sensitive: Map,
}

impl Leased {
    /// How many runs of the job count when this one is over, and why it is held then.
    fn attempts_after(&self, attempt: Attempt) -> (u32, Option<String>) {
        match attempt {
            Attempt::NotMade => (self.attempts, None),
            Attempt::Made => (self.attempts + 1, lost_reason(self.attempts + 1)),
        }
    }
}

/// The number of a run, which stays the same when the program starts again: one job is run once per attempt.
pub(super) fn task_number(seq: i64, attempts: u32) -> u64 {
    ((seq as u64) << 16) | u64::from(attempts & 0xffff)
}

fn from_now(term: Duration) -> i64 {
    now().saturating_add(i64::try_from(term.as_millis()).unwrap_or(i64::MAX))
}

impl StoreThread {
    /// Notes who has a job. In the transaction that hands it out if the lease is to outlive the process.
    pub(super) fn lease(
        &mut self,
        key: &Key,
        attempts: u32,
        claim: &Claim,
        facts: Facts,
        sensitive: Map,
    ) -> Result<u64, StoreError> {
        let deadline = claim.term.map(from_now);
        if let Some(deadline) = deadline {
            self.begin()?;
            self.database
                .connection
                .prepare_cached("UPDATE jobs SET lease_owner = ?2, deadline = ?3 WHERE seq = ?1")
                .and_then(|mut s| s.execute(params![key.seq, &*claim.owner, deadline]))
                .map_err(StoreError::sql("lease a job"))?;
        }
        let task = task_number(key.seq, attempts);
        let leased = Leased {
            key: key.clone(),
            attempts,
            owner: claim.owner.clone(),
            deadline,
            facts,
            // A worker of this process takes its secrets with it.
            sensitive: if deadline.is_some() {
                sensitive
            } else {
                Map::new()
            },
        };
        self.queue.running.insert(task, leased);
        Ok(task)
    }

    pub(super) fn renew(&mut self, task: u64, term: Duration) {
        let leased = self.queue.running.get_mut(&task);
        if let Some(deadline) = leased.and_then(|leased| leased.deadline.as_mut()) {
            *deadline = from_now(term);
        }
    }

    /// A job that is leased, for somebody who takes up where a process before this one left off.
    pub(super) fn leased_job(&mut self, task: u64) -> Option<TakenJob> {
        let leased = self.queue.running.get(&task)?;
        leased.deadline?;
        let body = match bodies::load(&self.database.connection, leased.key.seq) {
            Ok(body) => body,
            Err(error) => {
                tracing::error!(
                    prompt_id = %leased.key.prompt_id,
                    error = &error as &dyn std::error::Error,
                    "a job that runs elsewhere cannot be read"
                );
                return None;
            }
        };
        Some(TakenJob {
            task,
            attempt: leased.attempts + 1,
            number: leased.key.number.clone(),
            prompt_id: leased.key.prompt_id.clone(),
            client_id: client_id(&body),
            prompt: body.prompt,
            extra_data: body.extra_data,
            outputs: body.outputs,
            sensitive: leased.sensitive.clone(),
            remaining: self.remaining(),
        })
    }

    /// A worker elsewhere does not run a job: it never began, or its worker went down with it, which is an attempt.
    pub(super) fn give_job_back(
        &mut self,
        task: u64,
        attempt: Attempt,
    ) -> Result<bool, StoreError> {
        if !self.queue.running.contains_key(&task) || self.is_unsaved(task) {
            return Ok(false);
        }
        self.end_lease(task, attempt)?;
        if let Some(leased) = self.queue.running.remove(&task) {
            self.put_back(leased, attempt);
        }
        Ok(true)
    }

    pub(super) fn leases(&self) -> Vec<LeaseRecord> {
        let record = |(task, leased): (&u64, &Leased)| {
            Some(LeaseRecord {
                task: *task,
                prompt_id: leased.key.prompt_id.clone(),
                owner: leased.owner.clone(),
                deadline: leased.deadline?,
            })
        };
        self.queue.running.iter().filter_map(record).collect()
    }

    /// When the first lease ends.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        let first = self
            .queue
            .running
            .values()
            .filter_map(|l| l.deadline)
            .min()?;
        let left = Duration::from_millis(u64::try_from(first - now()).unwrap_or(0));
        Instant::now().checked_add(left)
    }

    /// Puts jobs back whose leases were not renewed, each in a transaction of its own.
    pub(super) fn end_leases(&mut self) {
        let now = now();
        let is_late = |leased: &Leased| leased.deadline.is_some_and(|at| at <= now);
        let late: Vec<u64> = self
            .queue
            .running
            .iter()
            .filter(|(_, leased)| is_late(leased))
            .map(|(task, _)| *task)
            .collect();
        for task in late {
            // Its end is known and waits for the disk.
            if self.is_unsaved(task) {
                continue;
            }
            let ended = self
                .end_lease(task, Attempt::Made)
                .and_then(|()| self.commit());
            if let Err(error) = ended {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a lease that ended is not recorded yet"
                );
                self.roll_back();
                if let Some(leased) = self.queue.running.get_mut(&task) {
                    leased.deadline = Some(now + RETRY.as_millis() as i64);
                }
                continue;
            }
            if let Some(leased) = self.queue.running.remove(&task) {
                tracing::warn!(
                    prompt_id = %leased.key.prompt_id,
                    worker = %leased.owner,
                    "a worker did not renew its lease; its job is queued again"
                );
                self.put_back(leased, Attempt::Made);
            }
            self.publish();
            if let Some(tell) = &*lock(&self.published.lost_lease) {
                tell(task);
            }
        }
    }

    fn end_lease(&mut self, task: u64, attempt: Attempt) -> Result<(), StoreError> {
        let Some(leased) = self.queue.running.get(&task).cloned() else {
            return Ok(());
        };
        let (attempts, reason) = leased.attempts_after(attempt);
        self.begin()?;
        self.database
            .connection
            .prepare_cached(
                "UPDATE jobs SET attempt = ?2, lease_owner = NULL, deadline = NULL, held = held OR ?3,
                    held_reason = coalesce(?4, held_reason) WHERE seq = ?1",
            )
            .and_then(|mut s| {
                s.execute(params![leased.key.seq, attempts, reason.is_some(), reason])
            })
            .map(drop)
            .map_err(StoreError::sql("end a lease"))
    }

    fn put_back(&mut self, leased: Leased, attempt: Attempt) {
        let (attempts, reason) = leased.attempts_after(attempt);
        let held = reason.is_some();
        self.queue.pending.describe(leased.key.seq, leased.facts);
        self.queue
            .pending
            .keep_secret(leased.key.seq, leased.sensitive);
        self.queue
            .pending
            .insert(leased.key.clone(), attempts, held);
        if let Some(reason) = reason {
            self.queue.pending.set_reason(&leased.key, reason.into());
        }
    }
}

/// Why a job whose workers were lost so often is held.
fn lost_reason(attempts: u32) -> Option<String> {
    (attempts >= MAX_LOST).then(|| {
        format!(
            "The worker or the server went down {attempts} times while running this prompt, so it is held. Release it to \
             run it once more, or delete it."
        )
    })
}

/// Why a job whose process went down so often is held.
pub(super) fn hold_reason(attempts: u32) -> Option<String> {
    (attempts >= MAX_ATTEMPTS).then(|| {
        format!(
            "The server went down {attempts} times while running this prompt, the last time with nothing else \
             before it, so it is held. Release it to run it once more, or delete it."
        )
    })
}
