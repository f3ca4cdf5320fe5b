//! Recording how jobs ended, whatever the database says to it.
//!
//! An outcome that is not taken is kept in memory and tried again, alone, with every batch and at least once a second. If
//! it is the outcome itself that is refused, less and less of it is kept, and at last the job is held with the reason: no
//! outcome is tried for ever, and none stands in the way of another. A disk that refuses everything is another matter:
//! then the outcome waits for the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{ErrorCode, params};

use super::error::StoreError;
use super::history::{self, EncodedOutcome};
use super::leases::Leased;
use super::pending::Key;
use super::thread::{RETRY, StoreThread};

/// A refused outcome is shortened after this time; one that is too long for the database at once.
const PATIENCE: Duration = Duration::from_secs(3);
/// The job of an outcome that is refused in every form is held after this time.
const GIVE_UP: Duration = Duration::from_mins(1);

pub(super) struct Unsaved {
    pub(super) task: u64,
    pub(super) outcome: Arc<EncodedOutcome>,
    pub(super) since: Instant,
    pub(super) tries: u32,
    pub(super) bare: bool,
}

/// Whether it is the outcome that was refused, not everything by a disk in trouble.
fn refused_itself(error: &StoreError) -> bool {
    let StoreError::Sql { source, .. } = error else {
        return false;
    };
    matches!(
        source.sqlite_error_code(),
        Some(
            ErrorCode::TooBig
                | ErrorCode::ConstraintViolation
                | ErrorCode::TypeMismatch
                | ErrorCode::ParameterOutOfRange
                | ErrorCode::OutOfMemory
        )
    )
}

impl StoreThread {
    pub(super) fn finish(
        &mut self,
        task: u64,
        outcome: &Arc<EncodedOutcome>,
    ) -> Result<usize, StoreError> {
        let in_batch = self.change.batch.outcomes.iter().any(|(t, _)| *t == task);
        let waits = self.is_unsaved(task);
        if self.queue.running.contains_key(&task) && !in_batch && !waits {
            if let Err(error) = self.record(task, outcome) {
                self.keep_unsaved(task, outcome.clone());
                return Err(error);
            }
            self.change.batch.outcomes.push((task, outcome.clone()));
        }
        Ok(self.remaining())
    }

    /// Whether the end of a run is known and could not be written yet.
    pub(super) fn is_unsaved(&self, task: u64) -> bool {
        self.unsaved
            .outcomes
            .iter()
            .any(|unsaved| unsaved.task == task)
    }

    fn record(&mut self, task: u64, outcome: &EncodedOutcome) -> Result<(), StoreError> {
        self.begin()?;
        match self.queue.running.get(&task).cloned() {
            Some(leased) => self.move_to_history(&leased.key, outcome),
            None => Ok(()),
        }
    }

    pub(super) fn move_to_history(
        &mut self,
        key: &Key,
        outcome: &EncodedOutcome,
    ) -> Result<(), StoreError> {
        let db = &self.database.connection;
        self.totals = history::record(db, key, outcome, self.totals, &self.limits)?;
        Ok(())
    }

    /// Puts an outcome among those that are tried again.
    pub(super) fn keep_unsaved(&mut self, task: u64, outcome: Arc<EncodedOutcome>) {
        self.unsaved.outcomes.push_back(Unsaved {
            task,
            outcome,
            since: Instant::now(),
            tries: 0,
            bare: false,
        });
        self.unsaved.retry_at = Instant::now().checked_add(RETRY);
    }

    /// Tries those again that could not be saved, each in a transaction of its own, until one is refused: that one goes to
    /// the end of the line.
    pub(super) fn save_unsaved(&mut self) {
        while self.files.lost.is_none()
            && let Some(mut unsaved) = self.unsaved.outcomes.pop_front()
        {
            let saved = self
                .record(unsaved.task, &unsaved.outcome)
                .and_then(|()| self.commit());
            let Err(error) = saved else {
                self.ended(unsaved.task, Some(unsaved.outcome));
                self.publish();
                continue;
            };
            self.roll_back();
            unsaved.tries += 1;
            self.refused(unsaved, &error);
            self.unsaved.retry_at = Instant::now().checked_add(RETRY);
            return;
        }
    }

    /// Keeps less of an outcome, or gives it up.
    fn refused(&mut self, mut unsaved: Unsaved, error: &StoreError) {
        let waited = unsaved.since.elapsed();
        let itself = refused_itself(error);
        let prompt_id = self
            .queue
            .running
            .get(&unsaved.task)
            .map(|leased| leased.key.prompt_id.clone());
        let prompt_id = prompt_id.unwrap_or_default();
        // A second apart at most; said often at first and rarely later.
        if unsaved.tries.is_power_of_two() {
            tracing::error!(
                %prompt_id,
                error = error as &dyn std::error::Error,
                "the outcome of a job is not saved yet; it will be tried again"
            );
        }
        if itself && unsaved.bare && waited >= GIVE_UP {
            self.hold_unrecorded(unsaved.task, error);
            return;
        }
        let too_big = matches!(error, StoreError::Sql { source, .. }
            if source.sqlite_error_code() == Some(ErrorCode::TooBig));
        if too_big || waited >= PATIENCE {
            if let Some(short) = unsaved.outcome.shortened() {
                tracing::warn!(%prompt_id, "only the beginning of long outputs of this job will be kept");
                unsaved.outcome = Arc::new(short);
            } else if itself && !unsaved.bare {
                tracing::warn!(%prompt_id, "only the end itself of this job will be kept, not its outputs");
                unsaved.outcome = Arc::new(unsaved.outcome.bare());
                unsaved.bare = true;
            }
        }
        self.unsaved.outcomes.push_back(unsaved);
    }

    /// The job is done and its end cannot be written down. Run again it would do its work twice, so it waits for somebody
    /// to decide.
    fn hold_unrecorded(&mut self, task: u64, error: &StoreError) {
        let Some(Leased { key, .. }) = self.queue.running.get(&task).cloned() else {
            return;
        };
        let cause = std::error::Error::source(error)
            .map(|cause| format!(": {cause}"))
            .unwrap_or_default();
        let reason = format!(
            "This prompt was run, but how it ended could not be recorded ({error}{cause}). Release it to run it again, \
             or delete it."
        );
        tracing::error!(prompt_id = %key.prompt_id, "{reason}");
        self.ended(task, None);
        let held = self.begin().and_then(|()| {
            self.database
                .connection
                .execute(
                    "UPDATE jobs SET held = 1, held_reason = ?2 WHERE seq = ?1",
                    params![key.seq, reason],
                )
                .map_err(StoreError::sql("hold a job"))?;
            self.commit()
        });
        if let Err(error) = held {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "cannot hold a job"
            );
            self.roll_back();
        }
        if let Err(error) = self.reload() {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "cannot read the queue back"
            );
        }
        self.publish();
    }
}
