//! The durable queue and history: SQLite in WAL mode behind one thread.
//!
//! [`JobStore`] is a handle that sends commands; the thread in `thread` owns the database and the order of the queue.
//! Accepted jobs and outcomes are on disk before anyone hears of them. A job is in the queue or in the history, never in
//! both or neither, because one transaction moves it. What was running when the process died is queued again on opening, to
//! run before anything else; if the process dies again, the job is held until somebody releases it.
//!
//! Secrets of a job (`sensitive`) are never written; a job that runs after a restart runs without them.

mod bodies;
mod error;
mod file_watch;
mod handout;
mod history;
mod leases;
mod listing;
mod marks;
mod ordering;
mod outcomes;
mod pending;
mod record;
mod restore;
mod schema;
mod shadow;
#[cfg(test)]
mod snapshot;
mod space;
mod summary;
mod thread;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use fresco_graph::{Map, Value, lock};
use fresco_placement::{JobNeeds, WorkerView};

pub use error::StoreError;
pub use record::*;
pub use schema::{StoreContents, StorePath};

use crate::job::JobOutcome;
use crate::reply::{Reply, Sender, reply};
pub use crate::source::{JobSource, NextReply};
use bodies::EncodedJob;
use history::EncodedOutcome;
use thread::{Command, StoreThread};

/// How much the store holds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Waiting jobs; more are refused.
    pub max_pending: usize,
    /// Entries of the history; beyond it each new one drops the oldest.
    pub history: usize,
    /// Bytes of the texts in the history; beyond it the oldest entries go.
    pub history_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pending: 100_000,
            history: 10_000,
            history_bytes: 1 << 30,
        }
    }
}

/// Told the number of a run whose lease was not renewed.
type LostLease = Box<dyn Fn(u64) + Send + Sync>;
/// Told how many jobs there are now that one was accepted.
type JobAccepted = Box<dyn Fn(usize) + Send + Sync>;

/// Says what a prompt with these outputs needs.
type NeedsOf = Box<dyn Fn(&Map, &[Arc<str>]) -> JobNeeds + Send + Sync>;

/// What the handles and the thread share.
#[derive(Default)]
struct Published {
    needs: Mutex<Option<NeedsOf>>,
    remaining: AtomicUsize,
    paused: AtomicBool,
    waiting: AtomicUsize,
    /// Prompts that were handed out, by the numbers of their runs.
    handed_out: Mutex<BTreeMap<u64, Arc<str>>>,
    lost_lease: Mutex<Option<LostLease>>,
    accepted: Mutex<Option<JobAccepted>>,
}

struct StoreState {
    /// To the thread that owns the database; none only while this is dropped.
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    counter: AtomicI64,
    published: Arc<Published>,
}

impl Drop for StoreState {
    fn drop(&mut self) {
        self.commands = None;
        // Wait, so that the file is free for the next one who opens it. The thread is never the one that drops us.
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store thread panicked");
        }
    }
}

/// A handle to the store; clones share it. Replies come after the commit; a reply of `None` means that the store was
/// closed.
#[derive(Clone)]
pub struct JobStore(Arc<StoreState>);

impl JobStore {
    /// Opens or creates the database, brings its schema up to date, and queues again what was running when its last
    /// process died. Never overwrites a file it does not understand.
    pub fn open(path: &StorePath, limits: Limits) -> Result<Self, StoreError> {
        let published = Arc::new(Published::default());
        let database = schema::open(path)?;
        let (state, counter) = StoreThread::recover(database, limits, published.clone())?;
        let (commands, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || state.run(receiver))
            .map_err(|source| StoreError::Thread {
                source: Arc::new(source),
            })?;
        Ok(Self(Arc::new(StoreState {
            commands: Some(commands),
            thread: Some(thread),
            counter: AtomicI64::new(counter),
            published,
        })))
    }

    /// What an existing database holds, without changing it; `None` if there is no file. One that another process uses
    /// is not looked into.
    pub fn inspect(path: &Path) -> Result<Option<StoreContents>, StoreError> {
        schema::inspect(path)
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.0.commands {
            // If the thread is gone, the command is dropped and its reply says so.
            drop(commands.send(command));
        }
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Reply<T> {
        let (sender, reply) = reply();
        self.send(command(sender));
        reply
    }

    /// Draws the next priority number; every request without its own number draws one, even if it is then refused.
    pub fn next_number(&self, front: bool) -> i64 {
        let number = self.0.counter.fetch_add(1, Ordering::Relaxed);
        if front { -number } else { number }
    }

    pub fn enqueue(&self, job: NewJob) -> Reply<Result<Accepted, StoreError>> {
        self.enqueue_needing(job, None)
    }

    /// As [`JobStore::enqueue`], with what is known of what it needs.
    pub fn enqueue_needing(
        &self,
        job: NewJob,
        needs: Option<JobNeeds>,
    ) -> Reply<Result<Accepted, StoreError>> {
        let number = match job.priority {
            Priority::Explicit(number) => Value::Float(number),
            Priority::Auto => self.next_number(false).into(),
            Priority::Front => self.next_number(true).into(),
            Priority::Drawn(number) => number.into(),
        };
        let job = Box::new(EncodedJob::new(job, number, needs));
        self.ask(|to| Command::Enqueue(job, to))
    }

    /// Blocks until there is a job, someone calls [`JobSource::wake`], or `timeout` has passed. The job counts as running from
    /// then on. For worker threads.
    pub fn next(&self, claim: &Claim, timeout: Duration) -> Next {
        let next = self.ask_next(claim, None, timeout);
        next.wait().unwrap_or(Next::Closed)
    }

    /// The lease on a running job lasts for this term from now. One that is not renewed in time ends: the job goes back
    /// into the queue as if its process had died, and [`JobSource::finish`] for that run changes nothing.
    pub fn renew(&self, task: u64, term: Duration) {
        self.send(Command::Renew(task, term));
    }

    /// Has it told, by the store's thread, that a job is on disk and how many there are: before the submitter hears of it
    /// and before a worker gets it.
    pub fn on_accepted(&self, tell: impl Fn(usize) + Send + Sync + 'static) {
        *lock(&self.0.published.accepted) = Some(Box::new(tell));
    }

    /// Has jobs that were accepted without it, or before the program started, looked at for what they need, by the store's
    /// thread.
    pub fn on_needs(&self, tell: impl Fn(&Map, &[Arc<str>]) -> JobNeeds + Send + Sync + 'static) {
        *lock(&self.0.published.needs) = Some(Box::new(tell));
    }

    /// Has the number of each run told whose lease was not renewed, by the store's thread.
    pub fn on_lost_lease(&self, tell: impl Fn(u64) + Send + Sync + 'static) {
        *lock(&self.0.published.lost_lease) = Some(Box::new(tell));
    }

    /// The jobs that are leased beyond the life of this process.
    pub fn leases(&self) -> Reply<Vec<LeaseRecord>> {
        self.ask(Command::Leases)
    }

    /// One of them, for whoever takes up a run that began before this process.
    pub fn leased_job(&self, task: u64) -> Reply<Option<Box<TakenJob>>> {
        self.ask(|to| Command::LeasedJob(task, to))
    }

    /// A worker is there no more: no job waits for it.
    pub fn worker_gone(&self, name: &Arc<str>) {
        self.send(Command::WorkerGone(name.clone()));
    }

    /// Jobs that wait and may run.
    pub fn waiting(&self) -> usize {
        self.0.published.waiting.load(Ordering::Acquire)
    }

    /// Whether jobs are held back.
    pub fn paused(&self) -> bool {
        self.0.published.paused.load(Ordering::Acquire)
    }

    /// The order of the waiting jobs.
    pub fn outline(&self) -> Reply<Result<QueueOutline, StoreError>> {
        self.ask(Command::Outline)
    }

    /// Pauses, holds, releases and orders, all in one step; answers how the queue stands then.
    pub fn change_queue(&self, change: QueueChange) -> Reply<Result<QueueOutline, StoreError>> {
        self.ask(|to| Command::ChangeQueue(Box::new(change), to))
    }

    /// Removes all waiting jobs; answers how many.
    pub fn clear_pending(&self) -> Reply<Result<usize, StoreError>> {
        self.ask(Command::ClearPending)
    }

    /// Removes the first waiting job with this id; answers whether there was one.
    pub fn delete_pending(&self, prompt_id: &str) -> Reply<Result<bool, StoreError>> {
        self.ask(|to| Command::DeletePending(prompt_id.into(), to))
    }

    /// Like [`JobStore::delete_pending`], but leaves a history entry with the given outcome.
    pub fn cancel_pending(
        &self,
        prompt_id: &str,
        outcome: JobOutcome,
    ) -> Reply<Result<bool, StoreError>> {
        let outcome = Arc::new(EncodedOutcome::new(outcome));
        self.ask(|to| Command::CancelPending(prompt_id.into(), outcome, to))
    }

    /// History entries, oldest first. A negative `offset` with `max_items` means the newest ones.
    pub fn history(
        &self,
        max_items: Option<i64>,
        offset: i64,
    ) -> Reply<Result<Vec<HistoryRecord>, StoreError>> {
        self.ask(|to| Command::History(max_items, offset, to))
    }

    pub fn history_get(&self, prompt_id: &str) -> Reply<Result<Option<HistoryRecord>, StoreError>> {
        self.ask(|to| Command::HistoryGet(prompt_id.into(), to))
    }

    /// Removes entries; unknown ids are ignored. Answers how many went.
    pub fn history_delete(&self, prompt_ids: Vec<Arc<str>>) -> Reply<Result<usize, StoreError>> {
        self.ask(|to| Command::HistoryDelete(prompt_ids, to))
    }

    pub fn history_clear(&self) -> Reply<Result<(), StoreError>> {
        self.ask(Command::HistoryClear)
    }

    pub fn jobs(&self, query: JobQuery) -> Reply<Result<JobPage, StoreError>> {
        self.ask(|to| Command::Jobs(Box::new(query), to))
    }

    /// One job by its prompt id, from the history, the running ones or the queue, in this order.
    pub fn job(&self, prompt_id: &str) -> Reply<Result<Option<JobDetail>, StoreError>> {
        self.ask(|to| Command::Job(prompt_id.into(), to))
    }

    /// One of our own settings.
    pub fn get(&self, key: &str) -> Reply<Result<Option<String>, StoreError>> {
        self.ask(|to| Command::Get(key.into(), to))
    }

    /// Saves or, with `None`, removes one of our own settings.
    pub fn set(&self, key: &str, value: Option<&str>) -> Reply<Result<(), StoreError>> {
        self.ask(|to| Command::Set(key.into(), value.map(Into::into), to))
    }
}

impl JobSource for JobStore {
    fn ask_next(
        &self,
        claim: &Claim,
        view: Option<Arc<WorkerView>>,
        timeout: Duration,
    ) -> NextReply {
        let now = Instant::now();
        // A year stands for "too long to count".
        let deadline = now
            .checked_add(timeout)
            .unwrap_or(now + Duration::from_hours(365 * 24));
        NextReply::new(self.ask(|to| Command::Next(deadline, claim.clone(), view, to)))
    }

    fn wake(&self) {
        self.send(Command::Wake);
    }

    /// Ends a lease: the job is queued again.
    fn give_back(&self, task: u64, attempt: Attempt) -> Reply<Result<bool, StoreError>> {
        self.ask(|to| Command::GiveBack(task, attempt, to))
    }

    /// The job leaves the queue and enters the history in one step. If the disk refuses, the answer is an error and the store goes on
    /// trying.
    fn finish(&self, task: u64, outcome: JobOutcome) -> Reply<Result<usize, StoreError>> {
        let outcome = Arc::new(EncodedOutcome::new(outcome));
        self.ask(|to| Command::Finish(task, outcome, to))
    }

    fn remaining(&self) -> usize {
        self.0.published.remaining.load(Ordering::Acquire)
    }

    fn handed_out(&self) -> BTreeMap<u64, Arc<str>> {
        lock(&self.0.published.handed_out).clone()
    }

    fn queue(&self) -> Reply<Result<QueueState, StoreError>> {
        self.ask(Command::Queue)
    }

    /// What is accepted meanwhile waits for the next start.
    fn drain(&self) -> Reply<()> {
        self.ask(Command::Drain)
    }

    /// A job that runs now is not to blame, even if the end comes before [`JobSource::close`].
    fn stopping(&self) -> Reply<()> {
        self.ask(Command::Stopping)
    }

    /// A job that still runs is queued again without counting the run as an attempt. Dropping the last handle instead leaves it as a crash
    /// would.
    fn close(&self) -> Reply<()> {
        self.ask(Command::Close)
    }

    fn store(&self) -> Option<&JobStore> {
        Some(self)
    }
}

/// Milliseconds since the epoch.
fn now() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}
