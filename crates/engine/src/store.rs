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
mod passing;
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
pub use passing::Passer;
pub use record::*;
pub use schema::{StoreContents, StorePath};

use crate::job::JobOutcome;
use crate::reply::{Reply, Sender, reply};
use bodies::EncodedJob;
use history::EncodedOutcome;
use passing::Passing;
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

/// Who carries commands out.
enum Commands {
    /// The thread that owns the database.
    Thread(mpsc::Sender<Command>),
    /// Nobody but the caller: nothing is kept.
    Passing(Arc<Passing>),
    /// Only while being dropped.
    Nobody,
}

struct StoreState {
    commands: Commands,
    thread: Option<JoinHandle<()>>,
    counter: AtomicI64,
    published: Arc<Published>,
}

impl Drop for StoreState {
    fn drop(&mut self) {
        self.commands = Commands::Nobody;
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
            commands: Commands::Thread(commands),
            thread: Some(thread),
            counter: AtomicI64::new(counter),
            published,
        })))
    }

    /// A store that keeps nothing, for a process whose jobs are kept elsewhere: what is given to the [`Passer`] goes straight to a
    /// worker that waits, and its end straight back. Its queue shows what runs and takes nothing; its history is empty.
    pub fn passing() -> (Self, Passer) {
        let published = Arc::new(Published::default());
        let passing = Arc::new(Passing::new(published.clone()));
        let store = Self(Arc::new(StoreState {
            commands: Commands::Passing(passing.clone()),
            thread: None,
            counter: AtomicI64::new(0),
            published,
        }));
        (store, Passer::new(passing))
    }

    /// What an existing database holds, without changing it; `None` if there is no file. One that another process uses
    /// is not looked into.
    pub fn inspect(path: &Path) -> Result<Option<StoreContents>, StoreError> {
        schema::inspect(path)
    }

    fn send(&self, command: Command) {
        match &self.0.commands {
            // If the thread is gone, the command is dropped and its reply says so.
            Commands::Thread(commands) => drop(commands.send(command)),
            Commands::Passing(passing) => passing.carry_out(command),
            Commands::Nobody => {}
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

    /// Blocks until there is a job, someone calls [`JobStore::wake`], or `timeout` has passed. The job counts as running from
    /// then on. For worker threads.
    pub fn next(&self, claim: &Claim, timeout: Duration) -> Next {
        self.ask_next(claim, timeout).wait().unwrap_or(Next::Closed)
    }

    /// As [`JobStore::next`], to be waited for later; no answer means that the store is closed.
    pub fn ask_next(&self, claim: &Claim, timeout: Duration) -> NextReply {
        self.ask_next_for(claim, None, timeout)
    }

    /// As [`JobStore::ask_next`], for one of several workers: it says what it has, and is given what suits it.
    pub fn ask_next_for(
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
        let reply = self.ask(|to| Command::Next(deadline, claim.clone(), view, to));
        // The thread of the database says itself that it took too long.
        let deadline = matches!(self.0.commands, Commands::Passing(_)).then_some(deadline);
        NextReply { reply, deadline }
    }

    /// Makes workers that wait in [`JobStore::next`], now or next time, return.
    pub fn wake(&self) {
        self.send(Command::Wake);
    }

    /// The lease on a running job lasts for this term from now. One that is not renewed in time ends: the job goes back
    /// into the queue as if its process had died, and [`JobStore::finish`] for that run changes nothing.
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

    /// Ends a lease: the job is queued again. False if there was no such lease.
    pub fn give_back(&self, task: u64, attempt: Attempt) -> Reply<Result<bool, StoreError>> {
        self.ask(|to| Command::GiveBack(task, attempt, to))
    }

    /// A worker is there no more: no job waits for it.
    pub fn worker_gone(&self, name: &Arc<str>) {
        self.send(Command::WorkerGone(name.clone()));
    }

    /// Jobs that wait and may run.
    pub fn waiting(&self) -> usize {
        self.0.published.waiting.load(Ordering::Acquire)
    }

    /// Records the outcome of a taken job: it leaves the queue and enters the history in one step. A second report for
    /// the same task changes nothing. Answers what remains in the queue. If the disk refuses, the answer is an error and
    /// the store goes on trying.
    pub fn finish(&self, task: u64, outcome: JobOutcome) -> Reply<Result<usize, StoreError>> {
        if let Commands::Passing(passing) = &self.0.commands {
            return passing.finish(task, outcome);
        }
        let outcome = Arc::new(EncodedOutcome::new(outcome));
        self.ask(|to| Command::Finish(task, outcome, to))
    }

    /// Pending plus running.
    pub fn remaining(&self) -> usize {
        self.0.published.remaining.load(Ordering::Acquire)
    }

    /// Prompts that were handed out and have not ended, by the numbers of their runs.
    pub(crate) fn handed_out(&self) -> BTreeMap<u64, Arc<str>> {
        lock(&self.0.published.handed_out).clone()
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

    /// Hands out no more jobs until the process ends. What is accepted meanwhile waits for the next start.
    pub fn drain(&self) -> Reply<()> {
        self.ask(Command::Drain)
    }

    /// The process is about to end because somebody wants that: a job that runs now is not to blame, even if the end
    /// comes before [`JobStore::close`].
    pub fn stopping(&self) -> Reply<()> {
        self.ask(Command::Stopping)
    }

    /// Ends in order: workers get [`Next::Closed`], and a job that still runs is queued again without counting the run
    /// as an attempt. Dropping the last handle instead leaves it as a crash would.
    pub fn close(&self) -> Reply<()> {
        self.ask(Command::Close)
    }
}

/// The question for the next job, on its way.
pub struct NextReply {
    reply: Reply<Next>,
    deadline: Option<Instant>,
}

impl NextReply {
    /// Blocks until there is an answer. None: the store is closed.
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

/// Milliseconds since the epoch.
fn now() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}
