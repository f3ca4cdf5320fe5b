//! Who runs which job, and until when.
//!
//! A worker of this process has its jobs as long as the process lives: that is noted in `marks`, not here. A lease with a
//! deadline is in the database, because the worker goes on when this process is away; it has to be renewed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_graph::lock;
use rusqlite::params;

use super::error::StoreError;
use super::now;
use super::pending::Key;
use super::record::{Claim, LeaseRecord};
use super::thread::{MAX_ATTEMPTS, RETRY, State};

/// A job that runs.
#[derive(Clone, Debug)]
pub(super) struct Leased {
    pub(super) key: Key,
    pub(super) attempts: u32,
    pub(super) owner: Arc<str>,
    /// Milliseconds since the epoch; none for a worker of this process.
    pub(super) deadline: Option<i64>,
}

/// The number of a run, which stays the same when the program starts again: one job is run once per attempt.
pub(super) fn task_number(seq: i64, attempts: u32) -> u64 {
    ((seq as u64) << 16) | u64::from(attempts & 0xffff)
}

fn from_now(term: Duration) -> i64 {
    now().saturating_add(i64::try_from(term.as_millis()).unwrap_or(i64::MAX))
}

impl State {
    /// Notes who has a job. In the transaction that hands it out if the lease is to outlive the process.
    pub(super) fn lease(
        &mut self,
        key: &Key,
        attempts: u32,
        claim: &Claim,
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
        };
        self.running.insert(task, leased);
        Ok(task)
    }

    pub(super) fn renew(&mut self, task: u64, term: Duration) -> Result<(), StoreError> {
        let later = from_now(term);
        let Some(leased) = self.running.get_mut(&task) else {
            return Ok(());
        };
        let Some(deadline) = &mut leased.deadline else {
            return Ok(());
        };
        *deadline = later;
        let seq = leased.key.seq;
        self.begin()?;
        self.database
            .connection
            .prepare_cached("UPDATE jobs SET deadline = ?2 WHERE seq = ?1")
            .and_then(|mut s| s.execute(params![seq, later]))
            .map(drop)
            .map_err(StoreError::sql("renew a lease"))
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
        self.running.iter().filter_map(record).collect()
    }

    /// When the first lease ends.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        let first = self.running.values().filter_map(|l| l.deadline).min()?;
        let left = Duration::from_millis(u64::try_from(first - now()).unwrap_or(0));
        Instant::now().checked_add(left)
    }

    /// Puts jobs back whose leases were not renewed, each in a transaction of its own.
    pub(super) fn end_leases(&mut self) {
        let now = now();
        let is_late = |leased: &Leased| leased.deadline.is_some_and(|at| at <= now);
        let late: Vec<u64> = self
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
            let ended = self.end_lease(task).and_then(|()| self.commit());
            if let Err(error) = ended {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a lease that ended is not recorded yet"
                );
                self.roll_back();
                if let Some(leased) = self.running.get_mut(&task) {
                    leased.deadline = Some(now + RETRY.as_millis() as i64);
                }
                continue;
            }
            if let Some(leased) = self.running.remove(&task) {
                self.put_back(leased);
            }
            self.publish();
            if let Some(tell) = &*lock(&self.published.lost_lease) {
                tell(task);
            }
        }
    }

    fn end_lease(&mut self, task: u64) -> Result<(), StoreError> {
        let Some(leased) = self.running.get(&task).cloned() else {
            return Ok(());
        };
        let reason = hold_reason(leased.attempts + 1);
        tracing::warn!(
            prompt_id = %leased.key.prompt_id,
            worker = %leased.owner,
            "a worker did not renew its lease; its job is queued again"
        );
        self.begin()?;
        self.database
            .connection
            .execute(
                "UPDATE jobs SET attempt = ?2, lease_owner = NULL, deadline = NULL, held = held OR ?3,
                    held_reason = coalesce(?4, held_reason) WHERE seq = ?1",
                params![leased.key.seq, leased.attempts + 1, reason.is_some(), reason],
            )
            .map(drop)
            .map_err(StoreError::sql("end a lease"))
    }

    fn put_back(&mut self, leased: Leased) {
        let attempts = leased.attempts + 1;
        let reason = hold_reason(attempts);
        let held = reason.is_some();
        self.pending.insert(leased.key.clone(), attempts, held);
        if let Some(reason) = reason {
            self.pending.set_reason(&leased.key, reason.into());
        }
    }
}

/// Why a job whose worker or process went down so often is held.
pub(super) fn hold_reason(attempts: u32) -> Option<String> {
    (attempts >= MAX_ATTEMPTS).then(|| {
        format!(
            "The server went down {attempts} times while running this prompt, the last time with nothing else \
             before it, so it is held. Release it to run it once more, or delete it."
        )
    })
}
