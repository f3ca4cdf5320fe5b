//! The store thread: the only owner of the database and of the queue.
//!
//! It wakes for a command or for the deadline of a waiting worker. All commands that are there by then make one batch:
//! their writes share one transaction, and nobody hears an answer before that is committed. A write that the database
//! refuses is undone alone, behind a savepoint, and the others go on. A batch that cannot be committed (a full disk) is
//! undone as a whole and answered with the error; outcomes of jobs are kept and tried again (`outcomes`), because the work
//! behind them is done and must not be lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fresco_graph::lock;
use fresco_placement::WorkerView;
use rusqlite::{OptionalExtension, params};

use super::bodies::{self, EncodedJob, read_number, text};
use super::error::StoreError;
use super::file_watch::FileWatch;
use super::handout::{Placement, client_id};
use super::history::{self, EncodedOutcome, Totals};
use super::leases::{GRACE, Leased, hold_reason, task_number};
use super::outcomes::Unsaved;
use super::pending::{Facts, Key, Pending, QueuedJob};
use super::record::*;
use super::restore::Lost;
use super::schema::Database;
use super::shadow::Shadow;
use super::{Limits, Published, listing, now};
use crate::event::Failure;
use crate::job::JobOutcome;
use crate::reply::Sender;

/// A job whose process dies this often while running it is held: the second time nothing ran before it.
pub(super) const MAX_ATTEMPTS: u32 = 2;
/// Commands in one transaction, so that the first of a flood does not wait for the last.
const MAX_BATCH: usize = 512;
/// Key under which the last run whose marks were counted is kept.
const RECOVERED: &str = "store.recovered_run";
/// Key that is there while the queue is paused.
pub(super) const PAUSED: &str = "queue.paused";
/// How soon a failed write is tried again when nothing else happens.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// An outcome of more bytes has a transaction of its own: if there is no room for it, there may be for the others.
const LARGE: usize = 1 << 20;

type Answer<T> = Sender<Result<T, StoreError>>;

/// Everything that can be asked of the store.
pub(super) enum Command {
    Enqueue(Box<EncodedJob>, Answer<Accepted>),
    Next(Instant, Claim, Option<Arc<WorkerView>>, Sender<Next>),
    Renew(u64, Duration),
    Leases(Sender<Vec<LeaseRecord>>),
    LeasedJob(u64, Sender<Option<Box<TakenJob>>>),
    GiveBack(u64, Attempt, Answer<bool>),
    WorkerGone(Arc<str>),
    /// Makes the workers look around.
    Wake,
    Finish(u64, Arc<EncodedOutcome>, Answer<usize>),
    CancelPending(Arc<str>, Arc<EncodedOutcome>, Answer<bool>),
    DeletePending(Arc<str>, Answer<bool>),
    ClearPending(Answer<usize>),
    Queue(Answer<QueueState>),
    Outline(Answer<QueueOutline>),
    ChangeQueue(Box<QueueChange>, Answer<QueueOutline>),
    History(Option<i64>, i64, Answer<Vec<HistoryRecord>>),
    HistoryGet(Arc<str>, Answer<Option<HistoryRecord>>),
    HistoryDelete(Vec<Arc<str>>, Answer<usize>),
    HistoryClear(Answer<()>),
    Jobs(Box<JobQuery>, Answer<JobPage>),
    Job(Arc<str>, Answer<Option<JobDetail>>),
    Get(String, Answer<Option<String>>),
    Set(String, Option<String>, Answer<()>),
    Drain(Sender<()>),
    Stopping(Sender<()>),
    Close(Sender<()>),
}

impl Command {
    fn is_large(&self) -> bool {
        matches!(self, Self::Finish(_, outcome, _) if outcome.bytes() > LARGE)
    }
}

pub(super) type Afterwards = Box<dyn FnOnce(Option<&StoreError>) + Send>;

/// What one transaction is about to make true.
#[derive(Default)]
pub(super) struct Batch {
    /// Said once the batch is committed, or has failed.
    pub(super) answers: Vec<Afterwards>,
    pub(super) outcomes: Vec<(u64, Arc<EncodedOutcome>)>,
    pub(super) handouts: Vec<(Waiter, Box<TakenJob>)>,
    /// How many jobs there are after each that was accepted.
    pub(super) accepted: Vec<usize>,
}

pub(super) struct Waiter {
    pub(super) deadline: Instant,
    pub(super) claim: Claim,
    /// What it has, where there are several to choose from.
    pub(super) view: Option<Arc<WorkerView>>,
    pub(super) sender: Sender<Next>,
}

/// The jobs that have not ended: what `jobs` in the database has, in the order in which it is handed out.
#[derive(Default)]
pub(super) struct JobQueue {
    pub(super) pending: Pending,
    /// By the number of the run.
    pub(super) running: BTreeMap<u64, Leased>,
    /// Nothing is handed out.
    pub(super) paused: bool,
    /// Nor is anything until the process ends, which nobody is told.
    pub(super) draining: bool,
    pub(super) next_seq: i64,
}

/// The workers that ask for jobs.
#[derive(Default)]
pub(super) struct AskingWorkers {
    pub(super) waiters: VecDeque<Waiter>,
    /// All are to look around once.
    pub(super) woken: bool,
    /// Who works, where there are several.
    pub(super) placement: Placement,
}

/// The transaction at work.
#[derive(Default)]
pub(super) struct OpenChange {
    pub(super) batch: Batch,
    /// Something was written since the files were last noted.
    pub(super) wrote: bool,
    /// The command at work has a savepoint to go back to.
    pub(super) saved: bool,
}

/// Outcomes that were refused, or whose transaction failed.
#[derive(Default)]
pub(super) struct UnsavedOutcomes {
    pub(super) outcomes: VecDeque<Unsaved>,
    pub(super) retry_at: Option<Instant>,
}

/// What is known for the case that somebody damages the files.
#[derive(Default)]
pub(super) struct FileCare {
    /// Why nothing can be written, while that is so.
    pub(super) lost: Option<Lost>,
    pub(super) shadow: Shadow,
}

pub(super) struct StoreThread {
    pub(super) database: Database,
    pub(super) limits: Limits,
    pub(super) published: Arc<Published>,
    pub(super) queue: JobQueue,
    /// What the history holds.
    pub(super) totals: Totals,
    pub(super) workers: AskingWorkers,
    pub(super) change: OpenChange,
    pub(super) unsaved: UnsavedOutcomes,
    pub(super) files: FileCare,
    /// Free space is being given back to the file system.
    pub(super) shrinking: bool,
    pub(super) closing: Option<Sender<()>>,
}

impl StoreThread {
    /// Reads the queue and puts back the jobs that died with an earlier process. Also gives the first free number of
    /// the priority counter.
    pub(super) fn recover(
        database: Database,
        limits: Limits,
        published: Arc<Published>,
    ) -> Result<(Self, i64), StoreError> {
        let mut state = Self {
            database,
            limits,
            published,
            queue: JobQueue::default(),
            totals: Totals::default(),
            workers: AskingWorkers::default(),
            change: OpenChange {
                wrote: true,
                ..OpenChange::default()
            },
            unsaved: UnsavedOutcomes::default(),
            files: FileCare::default(),
            shrinking: false,
            closing: None,
        };
        state.totals = history::totals(&state.database.connection)?;
        state.begin()?;
        state.release_dead()?;
        state.commit()?;
        state.take_up_leases()?;
        state.begin_marks();
        state.reload()?;
        state.fill_shadow();
        // Recovery has written, and may have moved the log into the database.
        state.note_files();
        let db = &state.database.connection;
        let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
        state.queue.next_seq = number("SELECT MAX(seq) FROM bodies")
            .map_err(StoreError::sql("read the queue"))?
            .map_or(0, |seq| seq + 1);
        // Old jobs keep their numbers, so new ones must count on from there to queue behind (or, negated, before) them.
        let counter = number("SELECT MAX(ABS(number)) FROM jobs WHERE typeof(number) = 'integer'")
            .map_err(StoreError::sql("read the queue"))?
            .map_or(0, |n| n + 1);
        state.publish();
        Ok((state, counter))
    }

    /// Leases with a deadline belong to workers that go on. Whether they still do, nobody could hear meanwhile.
    fn take_up_leases(&mut self) -> Result<(), StoreError> {
        let grace = now() + GRACE.as_millis() as i64;
        let read = |row: &rusqlite::Row| {
            let waiting = read_waiting(row)?;
            Ok(Leased {
                key: waiting.key,
                attempts: waiting.attempts,
                owner: text(row, 7)?,
                deadline: row.get::<_, Option<i64>>(8)?.map(|at| at.max(grace)),
                facts: Facts::default(),
                sensitive: fresco_graph::Map::new(),
            })
        };
        let leased: Vec<Leased> = self
            .database
            .connection
            .prepare(&format!(
                "SELECT {WAITING}, lease_owner, deadline FROM jobs WHERE deadline IS NOT NULL"
            ))
            .and_then(|mut s| s.query_map([], read)?.collect())
            .map_err(StoreError::sql("recover the queue"))?;
        for one in leased {
            tracing::info!(prompt_id = %one.key.prompt_id, worker = %one.owner, "still leased");
            let task = task_number(one.key.seq, one.attempts);
            self.queue.running.insert(task, one);
        }
        Ok(())
    }

    /// Other leases found on opening belong to dead processes: we hold the lock.
    fn release_dead(&mut self) -> Result<(), StoreError> {
        let db = &self.database.connection;
        let fail = StoreError::sql("recover the queue");
        let run = self.database.left.run.to_string();
        let done: Option<String> = db
            .query_row("SELECT value FROM kv WHERE key = ?1", [RECOVERED], |row| {
                row.get(0)
            })
            .optional()
            .map_err(&fail)?;
        // Marks that were counted already: the process died between this transaction and clearing them.
        let rows: &[i64] = if done.as_ref() == Some(&run) {
            &[]
        } else {
            &self.database.left.rows
        };
        for row in rows {
            db.execute(
                "UPDATE jobs SET attempt = attempt + 1, lease_owner = ?2 WHERE seq = ?1",
                params![row, run],
            )
            .map_err(&fail)?;
        }
        db.execute(
            "INSERT INTO kv (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2",
            [RECOVERED, &run],
        )
        .map_err(&fail)?;
        let dead: Vec<QueuedJob> = db
            .prepare(&format!(
                "SELECT {WAITING} FROM jobs WHERE lease_owner IS NOT NULL AND deadline IS NULL ORDER BY seq"
            ))
            .and_then(|mut s| s.query_map([], read_waiting)?.collect())
            .map_err(&fail)?;
        for QueuedJob { key, attempts, .. } in dead {
            let reason = hold_reason(attempts);
            match &reason {
                None => {
                    tracing::warn!(prompt_id = %key.prompt_id, "the last process died running this job; it is tried once more, before all others");
                }
                Some(reason) => tracing::error!(prompt_id = %key.prompt_id, "{reason}"),
            }
            db.execute(
                "UPDATE jobs SET lease_owner = NULL, deadline = NULL, held = held OR ?2,
                    held_reason = coalesce(?3, held_reason) WHERE seq = ?1",
                params![key.seq, reason.is_some(), reason],
            )
            .map_err(&fail)?;
        }
        Ok(())
    }

    /// Starts counting for this run of the program.
    pub(super) fn begin_marks(&mut self) {
        // Milliseconds and process make a name that no earlier run had.
        let run = ((now() as u64) << 16) ^ u64::from(std::process::id());
        if let Err(error) = self.database.marks.begin(run) {
            tracing::warn!(%error, "attempts of jobs cannot be counted");
        }
    }

    /// Reads the waiting jobs from the database; the truth after opening and after a failed batch.
    pub(super) fn reload(&mut self) -> Result<(), StoreError> {
        let db = &self.database.connection;
        let mut jobs: Vec<QueuedJob> = db
            .prepare_cached(&format!("SELECT {WAITING} FROM jobs"))
            .and_then(|mut s| s.query_map([], read_waiting)?.collect())
            .map_err(StoreError::sql("read the queue"))?;
        jobs.retain(|job| {
            !self
                .queue
                .running
                .values()
                .any(|r| r.key.seq == job.key.seq)
        });
        self.totals = history::totals(db)?;
        self.queue.pending.replace(jobs);
        self.queue.paused = self.get(PAUSED)?.is_some();
        Ok(())
    }

    /// Serves commands until the store is closed or its last handle is gone.
    pub(super) fn run(mut self, commands: Receiver<Command>) {
        let mut batch = VecDeque::new();
        loop {
            let received = match self.deadline() {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => commands.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match received {
                Ok(first) => {
                    batch.push_back(first);
                    while batch.len() < MAX_BATCH
                        && let Ok(more) = commands.try_recv()
                    {
                        batch.push_back(more);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.expire(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.process(&mut batch);
            self.give_back();
            if let Some(closed) = self.closing.take() {
                self.close();
                drop(self);
                closed.send(());
                return;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.workers
            .waiters
            .iter()
            .map(|w| w.deadline)
            .chain(self.unsaved.retry_at)
            .chain(self.workers.placement.look_again)
            .chain(self.first_deadline())
            .chain(self.shrinking.then(Instant::now))
            .chain(self.database.watch.as_ref().map(FileWatch::next_look))
            .min()
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let (late, waiting) = self
            .workers
            .waiters
            .drain(..)
            .partition(|w: &Waiter| w.deadline <= now);
        self.workers.waiters = waiting;
        for waiter in late {
            let waiter: Waiter = waiter;
            self.workers.placement.rests(&waiter);
            waiter.sender.send(Next::Timeout);
        }
    }

    pub(super) fn process(&mut self, commands: &mut VecDeque<Command>) {
        self.unsaved.retry_at = None;
        self.look_after_files();
        self.save_unsaved();
        if self.files.lost.is_none() {
            self.end_leases();
        }
        loop {
            let result = self
                .apply_all(commands)
                .and_then(|()| self.serve_waiters())
                .and_then(|()| self.commit());
            self.settle(result.err());
            self.note_files();
            if commands.is_empty() || self.closing.is_some() {
                return;
            }
        }
    }

    fn apply_all(&mut self, commands: &mut VecDeque<Command>) -> Result<(), StoreError> {
        let mut applied = 0;
        while self.closing.is_none()
            && let Some(command) = commands.front()
        {
            let alone = command.is_large();
            if alone && applied > 0 {
                break;
            }
            let command = commands.pop_front().expect("it was just looked at");
            self.apply(command)?;
            applied += 1;
            if alone {
                break;
            }
        }
        Ok(())
    }

    /// Errors are those of the whole transaction; what concerns one command alone goes into its answer.
    fn apply(&mut self, command: Command) -> Result<(), StoreError> {
        match command {
            Command::Enqueue(job, to) => return self.write(to, |s| s.enqueue(*job)),
            Command::Next(deadline, claim, view, sender) => self.wait_for_job(Waiter {
                deadline,
                claim,
                view,
                sender,
            }),
            Command::Renew(task, term) => self.renew(task, term),
            Command::LeasedJob(task, to) => to.send(self.leased_job(task).map(Box::new)),
            Command::GiveBack(task, attempt, to) => {
                return self.write(to, |s| s.give_job_back(task, attempt));
            }
            Command::WorkerGone(name) => self.worker_gone(&name),
            Command::Leases(to) => to.send(self.leases()),
            Command::Wake => self.workers.woken = true,
            Command::Finish(task, outcome, to) => {
                if self.files.lost.is_some() && self.queue.running.contains_key(&task) {
                    self.keep_unsaved(task, outcome.clone());
                }
                return self.write(to, |s| s.finish(task, &outcome));
            }
            Command::CancelPending(id, outcome, to) => {
                return self.write(to, |s| s.cancel_pending(&id, &outcome));
            }
            Command::DeletePending(id, to) => return self.write(to, |s| s.delete_pending(&id)),
            Command::ClearPending(to) => return self.write(to, Self::clear_pending),
            Command::HistoryDelete(ids, to) => return self.write(to, |s| s.history_delete(&ids)),
            Command::HistoryClear(to) => return self.write(to, Self::history_clear),
            Command::Set(key, value, to) => {
                return self.write(to, |s| s.set(&key, value.as_deref()));
            }
            Command::ChangeQueue(change, to) => {
                return self.write(to, |s| s.change_queue(&change));
            }
            Command::Outline(to) => {
                let outline = self.outline();
                self.say(to, Ok(outline));
            }
            Command::Queue(to) => {
                let result = listing::queue(
                    &self.database.connection,
                    &self.running_rows(),
                    &self.queue.pending.first_rows(),
                );
                self.say(to, result);
            }
            Command::History(max_items, offset, to) => {
                let result = history::page(
                    &self.database.connection,
                    self.totals.entries,
                    max_items,
                    offset,
                );
                self.say(to, result);
            }
            Command::HistoryGet(id, to) => {
                let result = history::get(&self.database.connection, &id);
                self.say(to, result);
            }
            Command::Jobs(query, to) => {
                let result = listing::jobs(&self.database.connection, &self.running_rows(), &query);
                self.say(to, result);
            }
            Command::Job(id, to) => {
                let result = self.job(&id);
                self.say(to, result);
            }
            Command::Get(key, to) => {
                let result = self.get(&key);
                self.say(to, result);
            }
            Command::Drain(to) => {
                self.queue.draining = true;
                to.send(());
            }
            Command::Stopping(to) => {
                self.clear_marks();
                to.send(());
            }
            Command::Close(closed) => self.closing = Some(closed),
        }
        Ok(())
    }

    /// Queues an answer for after the commit.
    fn say<T: Send + 'static>(&mut self, to: Answer<T>, result: Result<T, StoreError>) {
        let result = match &self.files.lost {
            // What is in the file is not what was written.
            Some(lost) if !lost.readable => Err(lost.error.clone()),
            _ => result,
        };
        self.change.batch.answers.push(Box::new(move |failed| {
            to.send(match failed {
                Some(error) => Err(error.clone()),
                None => result,
            });
        }));
    }

    /// Makes a change and answers. What the database refuses is undone alone; an error is one of the whole transaction.
    fn write<T: Send + 'static>(
        &mut self,
        to: Answer<T>,
        change: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<(), StoreError> {
        let result = match &self.files.lost {
            Some(lost) => Err(lost.error.clone()),
            None => change(self),
        };
        let saved = std::mem::take(&mut self.change.saved);
        let failed = matches!(&result, Err(StoreError::Sql { .. }));
        let gone = self.database.connection.is_autocommit();
        let ended = match &result {
            Err(error) if failed && (gone || !saved) => Err(error.clone()),
            Err(error) if failed => self.undo_one(error),
            _ if saved => self.savepoint("RELEASE change"),
            _ => Ok(()),
        };
        self.say(to, result);
        ended
    }

    /// Goes back to before the change that was refused.
    pub(super) fn undo_one(&mut self, error: &StoreError) -> Result<(), StoreError> {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "a change was refused"
        );
        self.savepoint("ROLLBACK TO change")?;
        self.savepoint("RELEASE change")?;
        self.reload()
    }

    fn savepoint(&self, sql: &str) -> Result<(), StoreError> {
        let db = &self.database.connection;
        db.prepare_cached(sql)
            .and_then(|mut s| s.execute([]))
            .map(drop)
            .map_err(StoreError::sql("begin a change"))
    }

    /// Before each write: begins the transaction, and a savepoint for the change at work.
    pub(super) fn begin(&mut self) -> Result<(), StoreError> {
        self.change.wrote = true;
        if self.database.connection.is_autocommit() {
            self.savepoint("BEGIN IMMEDIATE")?;
        }
        if !self.change.saved {
            self.savepoint("SAVEPOINT change")?;
            self.change.saved = true;
        }
        Ok(())
    }

    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        self.change.saved = false;
        let db = &self.database.connection;
        if !db.is_autocommit() {
            db.prepare_cached("COMMIT")
                .and_then(|mut s| s.execute([]))
                .map_err(StoreError::sql("save a change"))?;
        }
        Ok(())
    }

    pub(super) fn roll_back(&mut self) {
        self.change.saved = false;
        let db = &self.database.connection;
        if !db.is_autocommit()
            && let Err(error) = db.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "cannot undo a failed change");
        }
    }

    fn settle(&mut self, failed: Option<StoreError>) {
        let batch = std::mem::take(&mut self.change.batch);
        if let Some(error) = &failed {
            tracing::error!(
                error = error as &dyn std::error::Error,
                "a change was not saved"
            );
            self.roll_back();
            for (task, outcome) in batch.outcomes {
                self.keep_unsaved(task, outcome);
            }
            for (waiter, job) in batch.handouts {
                if let Some(leased) = self.queue.running.remove(&job.task) {
                    let client = job.client_id.unwrap_or_default();
                    self.queue.pending.describe(
                        leased.key.seq,
                        Facts {
                            client,
                            needs: None,
                        },
                    );
                    self.queue
                        .pending
                        .keep_secret(leased.key.seq, job.sensitive);
                }
                self.workers.placement.asks(&waiter);
                self.workers.waiters.push_front(waiter);
            }
            if let Err(error) = self.reload() {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot read the queue back"
                );
            }
            self.unsaved.retry_at = Instant::now().checked_add(RETRY);
            self.publish();
            for answer in batch.answers {
                answer(failed.as_ref());
            }
            return;
        }
        if !batch.outcomes.is_empty() {
            self.notice_free_space();
        }
        for (task, outcome) in batch.outcomes {
            self.ended(task, Some(outcome));
        }
        self.publish();
        if !batch.accepted.is_empty()
            && let Some(tell) = &*lock(&self.published.accepted)
        {
            for remaining in batch.accepted {
                tell(remaining);
            }
        }
        for answer in batch.answers {
            answer(None);
        }
        for (waiter, job) in batch.handouts {
            if let Some(leased) = self.queue.running.get(&job.task)
                && leased.deadline.is_none()
                && let Err(error) = self.database.marks.set(leased.key.seq)
            {
                tracing::warn!(%error, "this run of a job will not count as an attempt");
            }
            waiter.sender.send(Next::Job(job));
        }
    }

    /// A job is in the history now.
    pub(super) fn ended(&mut self, task: u64, outcome: Option<Arc<EncodedOutcome>>) {
        if let Some(Leased { key, .. }) = self.queue.running.remove(&task) {
            self.database.marks.forget(key.seq);
            if let Some(outcome) = outcome {
                self.files.shadow.ended(&key, outcome);
            }
        }
    }

    pub(super) fn publish(&self) {
        self.published
            .remaining
            .store(self.remaining(), Ordering::Release);
        self.published
            .paused
            .store(self.queue.paused, Ordering::Release);
        self.published
            .waiting
            .store(self.queue.pending.ready(), Ordering::Release);
        let running = self.queue.running.iter();
        let running = running.map(|(task, leased)| (*task, leased.key.prompt_id.clone()));
        *lock(&self.published.handed_out) = running.collect();
    }

    pub(super) fn remaining(&self) -> usize {
        self.queue.pending.len() + self.queue.running.len() - self.change.batch.outcomes.len()
    }

    fn enqueue(&mut self, job: EncodedJob) -> Result<Accepted, StoreError> {
        if self.queue.pending.len() >= self.limits.max_pending {
            return Err(StoreError::QueueFull {
                limit: self.limits.max_pending,
            });
        }
        self.begin()?;
        let seq = self.queue.next_seq;
        self.queue.next_seq += 1;
        let EncodedJob {
            prompt_id,
            number,
            body,
            sensitive,
            texts,
            needs,
        } = job;
        texts.insert(&self.database.connection, seq, &number, &prompt_id)?;
        if self.database.watch.is_some() {
            self.files.shadow.keep_job(seq, texts);
        }
        if self.queue.pending.has_lines() {
            let client = client_id(&body).unwrap_or_default();
            self.queue.pending.describe(seq, Facts { client, needs });
        }
        self.queue.pending.insert(
            Key {
                number: number.clone(),
                place: None,
                prompt_id,
                seq,
            },
            0,
            false,
        );
        self.queue.pending.warm(seq, body);
        self.queue.pending.keep_secret(seq, sensitive);
        let remaining = self.remaining();
        self.change.batch.accepted.push(remaining);
        Ok(Accepted { number, remaining })
    }

    /// A stored body that does not parse would block the queue for ever; it ends as a failed job instead.
    pub(super) fn reject_unreadable(&mut self, key: &Key) -> Result<(), StoreError> {
        let message = "The stored prompt is damaged and cannot be read back.".to_owned();
        tracing::error!(prompt_id = %key.prompt_id, "{message}");
        let failure = Failure::of_job("StoredPromptDamaged", message);
        let outcome = EncodedOutcome::new(JobOutcome::failed(&key.prompt_id, &failure));
        self.change.saved = false;
        self.begin()?;
        self.move_to_history(key, &outcome)?;
        self.end_change()
    }

    /// A change that no command asked for is made.
    pub(super) fn end_change(&mut self) -> Result<(), StoreError> {
        if std::mem::take(&mut self.change.saved) {
            self.savepoint("RELEASE change")?;
        }
        Ok(())
    }

    fn cancel_pending(
        &mut self,
        id: &str,
        outcome: &Arc<EncodedOutcome>,
    ) -> Result<bool, StoreError> {
        let Some(key) = self.queue.pending.find(id).cloned() else {
            return Ok(false);
        };
        self.begin()?;
        self.move_to_history(&key, outcome)?;
        self.queue.pending.remove(&key);
        self.files.shadow.ended(&key, outcome.clone());
        Ok(true)
    }

    fn delete_pending(&mut self, id: &str) -> Result<bool, StoreError> {
        let Some(key) = self.queue.pending.find(id).cloned() else {
            return Ok(false);
        };
        self.begin()?;
        let db = &self.database.connection;
        db.prepare_cached("DELETE FROM jobs WHERE seq = ?1")
            .and_then(|mut s| s.execute([key.seq]))
            .and_then(|_| bodies::delete(db, key.seq))
            .map_err(StoreError::sql("delete a job"))?;
        self.queue.pending.remove(&key);
        self.files.shadow.forget_job(key.seq);
        Ok(true)
    }

    fn clear_pending(&mut self) -> Result<usize, StoreError> {
        let count = self.queue.pending.len();
        if count > 0 {
            self.begin()?;
            let running = self
                .running_rows()
                .iter()
                .map(i64::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            self.database
                .connection
                .execute_batch(&format!(
                    "DELETE FROM bodies WHERE seq IN (SELECT seq FROM jobs WHERE seq NOT IN ({running}));
                     DELETE FROM jobs WHERE seq NOT IN ({running});"
                ))
                .map_err(StoreError::sql("clear the queue"))?;
            for row in self.queue.pending.rows() {
                self.files.shadow.forget_job(row);
            }
            self.queue.pending.clear();
            self.shrinking = true;
        }
        Ok(count)
    }

    fn history_delete(&mut self, ids: &[Arc<str>]) -> Result<usize, StoreError> {
        self.begin()?;
        let mut deleted = 0;
        for id in ids {
            let db = &self.database.connection;
            deleted += usize::from(history::delete(db, id, &mut self.totals)?);
            self.files.shadow.forget_ended(id);
        }
        self.shrinking |= deleted > 0;
        Ok(deleted)
    }

    fn history_clear(&mut self) -> Result<(), StoreError> {
        self.begin()?;
        history::clear(&self.database.connection)?;
        self.totals = Totals::default();
        self.files.shadow.forget_history();
        self.shrinking = true;
        Ok(())
    }

    /// History first, then running, then pending.
    fn job(&self, id: &str) -> Result<Option<JobDetail>, StoreError> {
        let db = &self.database.connection;
        if let Some(job) = listing::finished_job(db, id)?
            && let Some(body) = history::get(db, id)?
        {
            return Ok(Some(JobDetail {
                job,
                body: JobBody::Finished(body),
            }));
        }
        let mut running = self.queue.running.values().map(|leased| &leased.key);
        let running = running.find(|key| &*key.prompt_id == id);
        let Some(key) = running.or_else(|| self.queue.pending.find(id)) else {
            return Ok(None);
        };
        let (job, body) = listing::queued_job(db, key.seq, running.is_some())?;
        Ok(Some(JobDetail {
            job,
            body: JobBody::Queued(body),
        }))
    }

    fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.database
            .connection
            .prepare_cached("SELECT value FROM kv WHERE key = ?1")
            .and_then(|mut s| s.query_row([key], |row| row.get(0)).optional())
            .map_err(StoreError::sql("read a setting"))
    }

    pub(super) fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), StoreError> {
        self.begin()?;
        let db = &self.database.connection;
        match value {
            Some(value) => db
                .prepare_cached("INSERT INTO kv (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2")
                .and_then(|mut s| s.execute([key, value])),
            None => db.prepare_cached("DELETE FROM kv WHERE key = ?1").and_then(|mut s| s.execute([key])),
        }
        .map_err(StoreError::sql("save a setting"))?;
        Ok(())
    }

    /// An orderly end: what still runs goes back to the queue, and this run does not count as an attempt.
    fn close(&mut self) {
        self.save_unsaved();
        for waiter in self.workers.waiters.drain(..) {
            waiter.sender.send(Next::Closed);
        }
        self.clear_marks();
    }

    /// What runs now does not count as an attempt.
    fn clear_marks(&mut self) {
        if let Err(error) = self.database.marks.begin(0) {
            tracing::error!(%error, "the running job will count as interrupted by a crash");
        }
    }

    /// Rows of the jobs that run.
    fn running_rows(&self) -> Vec<i64> {
        self.queue
            .running
            .values()
            .map(|leased| leased.key.seq)
            .collect()
    }
}

/// Columns of `jobs` that make a [`QueuedJob`].
const WAITING: &str = "number, prompt_id, seq, attempt, place, held, held_reason";

fn read_waiting(row: &rusqlite::Row) -> rusqlite::Result<QueuedJob> {
    Ok(QueuedJob {
        key: Key {
            number: read_number(row, 0)?,
            prompt_id: text(row, 1)?,
            seq: row.get(2)?,
            place: row.get(4)?,
        },
        attempts: row.get(3)?,
        held: row.get(5)?,
        reason: row.get(6)?,
    })
}
