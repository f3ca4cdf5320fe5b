//! The durable queue and history: SQLite in WAL mode behind one thread.
//!
//! [`Store`] is a handle that sends commands; the thread in `thread` owns the database and the order of the queue.
//! Accepted jobs and outcomes are on disk before anyone hears of them. A job is in the queue or in the history, never in
//! both or neither, because one transaction moves it. What was running when the process died is queued again on opening, to
//! run before anything else; if the process dies again, the job is held until somebody releases it.
//!
//! Secrets of a job (`sensitive`) are never written; a job that runs after a restart runs without them.

mod bodies;
mod error;
mod file_watch;
mod history;
mod listing;
mod marks;
mod ordering;
mod outcomes;
mod pending;
mod record;
mod restore;
mod schema;
mod shadow;
mod space;
mod summary;
mod thread;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use fresco_graph::{Map, Value};

pub use error::StoreError;
pub use record::*;
pub use schema::{StoreContents, StorePath};

use crate::reply::{Reply, Sender, reply};
use bodies::EncodedJob;
use history::EncodedOutcome;
use thread::{Command, State};

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

/// What can be read without asking the thread.
#[derive(Default)]
struct Published {
    remaining: AtomicUsize,
    paused: AtomicBool,
    flags: Mutex<Map>,
}

impl Published {
    fn flags(&self) -> MutexGuard<'_, Map> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_flags(&self) -> bool {
        !self.flags().is_empty()
    }
}

struct Shared {
    /// `None` only while being dropped.
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    counter: AtomicI64,
    published: Arc<Published>,
}

impl Drop for Shared {
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
pub struct Store(Arc<Shared>);

impl Store {
    /// Opens or creates the database, brings its schema up to date, and queues again what was running when its last
    /// process died. Never overwrites a file it does not understand.
    pub fn open(path: &StorePath, limits: Limits) -> Result<Self, StoreError> {
        let published = Arc::new(Published::default());
        let database = schema::open(path)?;
        let (state, counter) = State::recover(database, limits, published.clone())?;
        let (commands, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || state.run(receiver))
            .map_err(|source| StoreError::Thread {
                source: Arc::new(source),
            })?;
        Ok(Self(Arc::new(Shared {
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
            let _ = commands.send(command);
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
        let number = match job.priority {
            Priority::Explicit(number) => Value::Float(number),
            Priority::Auto => self.next_number(false).into(),
            Priority::Front => self.next_number(true).into(),
            Priority::Drawn(number) => number.into(),
        };
        let job = Box::new(EncodedJob::new(job, number));
        self.ask(|to| Command::Enqueue(job, to))
    }

    /// Blocks until there is a job, a flag is set, someone calls [`Store::wake`], or `timeout` has passed. The job counts
    /// as running from then on. For worker threads.
    pub fn next(&self, timeout: Duration) -> Next {
        self.ask_next(timeout).wait().unwrap_or(Next::Closed)
    }

    /// As [`Store::next`], to be waited for later; no answer means that the store is closed.
    pub fn ask_next(&self, timeout: Duration) -> Reply<Next> {
        let now = Instant::now();
        // A year stands for "too long to count".
        let deadline = now
            .checked_add(timeout)
            .unwrap_or(now + Duration::from_hours(365 * 24));
        self.ask(|to| Command::Next(deadline, to))
    }

    /// Makes a worker that waits in [`Store::next`], now or next time, return.
    pub fn wake(&self) {
        self.send(Command::Wake);
    }

    /// Leaves a message for the worker and wakes it.
    pub fn set_flag(&self, name: &str, value: Value) {
        self.0.published.flags().insert(name.into(), value);
        self.wake();
    }

    /// The flags set so far; `reset` takes them away.
    pub fn flags(&self, reset: bool) -> Map {
        let mut flags = self.0.published.flags();
        if reset {
            std::mem::take(&mut *flags)
        } else {
            flags.clone()
        }
    }

    /// Records the outcome of a taken job: it leaves the queue and enters the history in one step. A second report for
    /// the same task changes nothing. Answers what remains in the queue. If the disk refuses, the answer is an error and
    /// the store goes on trying.
    pub fn finish(&self, task: u64, finished: Finished) -> Reply<Result<usize, StoreError>> {
        let outcome = Arc::new(EncodedOutcome::new(finished));
        self.ask(|to| Command::Finish(task, outcome, to))
    }

    /// Pending plus running.
    pub fn remaining(&self) -> usize {
        self.0.published.remaining.load(Ordering::Acquire)
    }

    pub fn queue(&self) -> Reply<Result<QueueState, StoreError>> {
        self.ask(Command::Queue)
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

    /// Like [`Store::delete_pending`], but leaves a history entry with the given outcome.
    pub fn cancel_pending(
        &self,
        prompt_id: &str,
        finished: Finished,
    ) -> Reply<Result<bool, StoreError>> {
        let outcome = Arc::new(EncodedOutcome::new(finished));
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

    /// The process is about to end because somebody wants that: a job that runs now is not to blame, even if the end
    /// comes before [`Store::close`].
    pub fn stopping(&self) -> Reply<()> {
        self.ask(Command::Stopping)
    }

    /// Ends in order: workers get [`Next::Closed`], and a job that still runs is queued again without counting the run
    /// as an attempt. Dropping the last handle instead leaves it as a crash would.
    pub fn close(&self) -> Reply<()> {
        self.ask(Command::Close)
    }
}

/// Milliseconds since the epoch.
fn now() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}
