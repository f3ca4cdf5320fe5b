//! The thread of a worker: takes jobs from the store, has them run, records how they ended, frees what was asked for.
//!
//! A node that neither ends nor heeds an interrupt cannot be stopped from outside. Then its thread is given up with its
//! worker, its prompt is recorded as interrupted, and a new worker on a new thread takes the next job: a hung node ends its
//! own prompt only.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fresco_graph::{Map, Value, lock, map};

use crate::event::{Event, EventKind, EventSink, Failure};
use crate::job::{JobEnd, JobOutcome, RunControl, RunJob};
use crate::memory::MemoryRoom;
use crate::messages::{self, now_ms};
use crate::panics::catch_panic;
use crate::requests::FreeRequests;
use crate::source::{JobSource, NextReply};
use crate::store::{Attempt, Claim, JobStore, Next, StoreError, TakenJob};
use crate::worker::Worker;

/// The reference collects garbage at most this often.
const GC_INTERVAL: Duration = Duration::from_secs(10);
/// How long a worker waits when nothing is due.
const LONG: Duration = Duration::from_secs(1000);
/// How long a worker that cannot take a job is waited for before the thread looks around.
const READY_PATIENCE: Duration = Duration::from_millis(500);
/// A memory room that is always due is still not asked more often than this.
const TICK: Duration = Duration::from_millis(20);

/// A prompt that runs now.
#[derive(Clone, Debug)]
pub struct RunningPrompt {
    pub prompt_id: Arc<str>,
    pub client: Option<Arc<str>>,
    /// Who runs it.
    pub worker: Arc<str>,
    /// The node the UI should highlight.
    pub display: Option<Arc<str>>,
}

/// A run in progress. Whoever takes it out of [`EngineShared::running`] records its end.
pub(crate) struct Running {
    pub(crate) current: RunningPrompt,
    worker: Arc<dyn Worker>,
    control: RunControl,
    /// It was asked to stop, and someone watches whether it does.
    watched: bool,
    /// For the class of the node that runs.
    prompt: Arc<Map>,
    started: StartedPrompt,
}

/// A prompt that the memory room knows to run. Dropping it ends that: whoever takes the run out does so, once, and so
/// does an unwinding stack.
struct StartedPrompt {
    memory: Arc<dyn MemoryRoom>,
    prompt_id: Arc<str>,
}

impl StartedPrompt {
    fn new(memory: &Arc<dyn MemoryRoom>, prompt_id: &Arc<str>) -> Self {
        catch_panic("prompt_started", || memory.prompt_started(prompt_id));
        Self {
            memory: memory.clone(),
            prompt_id: prompt_id.clone(),
        }
    }
}

impl Drop for StartedPrompt {
    fn drop(&mut self) {
        catch_panic("after_prompt", || self.memory.after_prompt(&self.prompt_id));
    }
}

/// Makes a worker, at the start and in the place of one that was given up. Its events go to the given sink.
pub type MakeWorker = Arc<dyn Fn(Arc<dyn EventSink>) -> Arc<dyn Worker> + Send + Sync>;

/// One worker of the engine, whichever instance of it works now.
pub(crate) struct WorkerPlace {
    pub(crate) name: Arc<str>,
    pub(crate) make: MakeWorker,
    /// How it takes jobs from the store.
    pub(crate) claim: Claim,
    pub(crate) requests: Arc<FreeRequests>,
    /// Who owns the models that it uses.
    pub(crate) memory: Arc<dyn MemoryRoom>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) worker: Mutex<Option<Arc<dyn Worker>>>,
    /// Its thread ends as soon as it looks.
    pub(crate) gone: AtomicBool,
}

impl WorkerPlace {
    /// Whether its jobs run in another process.
    pub(crate) fn is_remote(&self) -> bool {
        self.claim.term.is_some()
    }
}

/// What the engine's handle and its threads share.
pub(crate) struct EngineShared {
    pub(crate) jobs: Arc<dyn JobSource>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) memory: Arc<dyn MemoryRoom>,
    /// Workers elsewhere come and go.
    pub(crate) places: RwLock<Vec<Arc<WorkerPlace>>>,
    /// How long a node may ignore an interrupt before its thread is given up.
    pub(crate) hang_grace: Duration,
    /// By the number the store gave each run.
    pub(crate) running: Mutex<BTreeMap<u64, Running>>,
    /// Runs that were asked to stop after their jobs were handed out and before they began.
    pub(crate) stopped_early: Mutex<BTreeSet<u64>>,
    /// Rung when a run is taken out.
    pub(crate) ended: Condvar,
    /// Held while the state of the queue is read and told, so that what is told last is what is true.
    pub(crate) telling: Mutex<()>,
    /// The process is going down: what runs is put back, not recorded.
    pub(crate) stopping: AtomicBool,
    /// It is about to: nothing more is begun.
    pub(crate) draining: AtomicBool,
}

impl EngineShared {
    fn emit(&self, kind: EventKind) {
        self.sink.emit(Event {
            prompt_id: None,
            client: None,
            worker: None,
            kind,
        });
    }

    fn emit_of(&self, current: &RunningPrompt, kind: EventKind) {
        self.sink.emit(Event {
            prompt_id: Some(current.prompt_id.clone()),
            client: current.client.clone(),
            worker: Some(current.worker.clone()),
            kind,
        });
    }

    /// Hears from the database what becomes of its jobs.
    pub(crate) fn listen_to(self: &Arc<Self>, store: &JobStore) {
        let sink = self.sink.clone();
        store.on_accepted(move |remaining| {
            sink.emit(Event {
                prompt_id: None,
                client: None,
                worker: None,
                kind: EventKind::Status { remaining },
            });
        });
        let weak = Arc::downgrade(self);
        store.on_lost_lease(move |task| {
            let Some(shared) = weak.upgrade() else { return };
            // The store's thread has other things to do.
            let spawned = std::thread::Builder::new()
                .name("lease".into())
                .spawn(move || shared.lease_lost(task));
            if let Err(error) = spawned {
                tracing::error!("cannot look after a lost lease: {error}");
            }
        });
        let memory = self.memory.clone();
        store.on_needs(move |prompt, outputs| {
            catch_panic("needs", || memory.needs(prompt, outputs))
        });
    }

    /// The places as they are now.
    pub(crate) fn places(&self) -> Vec<Arc<WorkerPlace>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.clone()
    }

    pub(crate) fn place(&self, name: &str) -> Option<Arc<WorkerPlace>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.iter().find(|place| &*place.name == name).cloned()
    }

    /// Whether there is a choice who runs a job. One worker of this process takes what comes.
    pub(crate) fn chooses(&self) -> bool {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.len() != 1 || places.iter().any(|place| place.is_remote())
    }

    /// The process ends: those that run elsewhere go on without it, and are taken up again.
    pub(crate) fn leave_remote(&self) {
        for run in lock(&self.running).values() {
            if run.control.task().is_some() {
                run.control.give_up();
            }
        }
    }

    pub(crate) fn status(&self, remaining: usize) {
        self.emit(EventKind::Status { remaining });
    }

    /// The waiting prompts are in another order, or may or may not run.
    pub(crate) fn queue_changed(&self) {
        let _telling = lock(&self.telling);
        let paused = self.jobs.store().is_some_and(JobStore::paused);
        self.emit(EventKind::Queue { paused });
        self.status(self.jobs.remaining());
    }

    /// Asks running prompts to stop: those with this id, or all.
    pub(crate) fn interrupt(self: &Arc<Self>, prompt_id: Option<&str>) -> bool {
        let meant = |id: &Arc<str>| prompt_id.is_none_or(|wanted| wanted == &**id);
        let mut asked = Vec::new();
        let early = {
            let mut running = lock(&self.running);
            for (task, run) in running.iter_mut() {
                if meant(&run.current.prompt_id) {
                    let first = !std::mem::replace(&mut run.watched, true);
                    asked.push((*task, first, run.worker.clone(), run.control.clone()));
                }
            }
            // Whoever looks at the queue sees these run already.
            let mut handed_out = self.jobs.handed_out();
            handed_out.retain(|task, _| !running.contains_key(task));
            let mut stopped = lock(&self.stopped_early);
            stopped.retain(|task| handed_out.contains_key(task));
            let before = stopped.len();
            let now = handed_out.into_iter().filter(|(_, id)| meant(id));
            stopped.extend(now.map(|(task, _)| task));
            stopped.len() > before
        };
        // Without the lock: a worker tells whoever works for it.
        for (task, first, worker, control) in &asked {
            worker.interrupt(control);
            if *first {
                let (me, task) = (self.clone(), *task);
                let watch = std::thread::Builder::new().name("watchdog".into());
                if let Err(error) = watch.spawn(move || me.watch(task)) {
                    tracing::error!("cannot watch whether the prompt stops: {error}");
                }
            }
        }
        early || !asked.is_empty()
    }

    /// The program ends and some runs do not: their prompts are queued again, what they hold in memory is given back.
    pub(crate) fn abandon(&self) {
        let runs = std::mem::take(&mut *lock(&self.running));
        drop(runs);
    }

    /// Takes a run out, if it is still there.
    fn take(&self, task: u64) -> Option<Running> {
        let run = lock(&self.running).remove(&task);
        self.ended.notify_all();
        run
    }

    /// Waits for a run that was asked to stop, and gives it up if it does not.
    fn watch(self: Arc<Self>, task: u64) {
        let there = |running: &mut BTreeMap<u64, Running>| running.contains_key(&task);
        let (running, waited) = self
            .ended
            .wait_timeout_while(lock(&self.running), self.hang_grace, there)
            .unwrap_or_else(PoisonError::into_inner);
        drop(running);
        if !waited.timed_out() {
            return;
        }
        if self.stopping.load(Ordering::SeqCst) {
            // The job stays in the database and runs again next time.
            return;
        }
        let Some(run) = self.take(task) else { return };
        run.control.give_up();
        tracing::warn!(
            prompt = %run.current.prompt_id,
            node = run.current.display.as_deref().unwrap_or_default(),
            "the running node did not stop within {:.0} s of being interrupted; its thread was abandoned and the node caches were cleared",
            self.hang_grace.as_secs_f64()
        );
        let outcome = self.given_up(&run);
        let Running {
            current, started, ..
        } = run;
        drop(started);
        let recorded = self.jobs.finish(task, outcome).wait();
        self.report_end(&current, recorded);
        if let Some(place) = self.place(&current.worker) {
            self.start(&place);
        }
    }

    /// Nobody renewed the lease on a run: its job is in the queue again, and whatever the run still does is for nobody.
    pub(crate) fn lease_lost(self: &Arc<Self>, task: u64) {
        let Some(run) = self.take(task) else { return };
        run.control.give_up();
        let current = run.current.clone();
        drop(run);
        tracing::warn!(prompt = %current.prompt_id, worker = %current.worker, "no sign of life; the job goes to another worker");
        self.status(self.jobs.remaining());
        if let Some(place) = self.place(&current.worker) {
            self.start(&place);
        }
        // The store calls this, and cannot be asked meanwhile.
        let me = self.clone();
        let tell = std::thread::Builder::new().name("held".into());
        if let Err(error) = tell.spawn(move || me.tell_if_held(&current)) {
            tracing::warn!("a client is not told that its prompt may be held: {error}");
        }
    }

    /// Tells the client of a prompt that was given back too often that it will not run by itself any more.
    fn tell_if_held(&self, current: &RunningPrompt) {
        let Some(client) = &current.client else {
            return;
        };
        let Some(store) = self.jobs.store() else {
            return;
        };
        let Some(Ok(outline)) = store.outline().wait() else {
            return;
        };
        let mut reasons = outline.reasons.into_iter();
        let reason = reasons.find(|(id, _)| *id == current.prompt_id);
        let held = reason.filter(|(id, _)| outline.held.contains(id));
        if let Some((prompt_id, reason)) = held {
            let kind = EventKind::Custom {
                event: "fresco_held".into(),
                data: map! {"prompt_id" => prompt_id, "reason" => reason}.into(),
                client: Some(client.clone()),
            };
            self.emit_of(current, kind);
        }
    }

    /// Starts a worker on a thread of its own.
    pub(crate) fn start(self: &Arc<Self>, place: &Arc<WorkerPlace>) {
        let sink = Arc::new(Tracker {
            shared: self.clone(),
            worker: place.name.clone(),
        });
        let worker = (place.make)(sink);
        *lock(&place.worker) = Some(worker.clone());
        let feeder = Feeder {
            shared: self.clone(),
            place: place.clone(),
            worker,
        };
        let spawned = std::thread::Builder::new()
            .name("executor".into())
            .stack_size(16 << 20)
            .spawn(move || feeder.work());
        match spawned {
            Ok(thread) => *lock(&place.thread) = Some(thread),
            Err(error) => tracing::error!("cannot start an executor thread: {error}"),
        }
    }

    /// Tells the world that a prompt was recorded.
    fn report_end(
        &self,
        current: &RunningPrompt,
        recorded: Option<Result<usize, StoreError>>,
    ) -> bool {
        match recorded {
            Some(Ok(remaining)) => self.status(remaining),
            Some(Err(error)) => {
                tracing::error!(prompt = %current.prompt_id, "cannot record the outcome: {error}");
            }
            None => return false,
        }
        self.emit_of(current, EventKind::Ended);
        true
    }

    /// The outcome of a run that was interrupted and did not stop.
    fn given_up(&self, run: &Running) -> JobOutcome {
        let current = &run.current;
        let node = current.display.clone().unwrap_or_default();
        let class = run.prompt.get(&node).and_then(|n| n.get("class_type"));
        let class: Arc<str> = class.and_then(Value::as_str).unwrap_or_default().into();
        let (id, timestamp) = (&current.prompt_id, now_ms());
        let messages = vec![
            messages::started(id, timestamp),
            messages::interrupted(id, &node, &class, &[], timestamp),
        ];
        let kind = EventKind::Interrupted {
            node,
            class,
            executed: Vec::new(),
            timestamp,
        };
        self.emit_of(current, kind);
        JobOutcome {
            messages,
            ..JobEnd::Interrupted.into()
        }
    }

    /// The outcome of a run that did not come to an end of its own.
    fn broken(&self, current: &RunningPrompt, kind: &str, message: String) -> JobOutcome {
        let failure = Failure::of_job(kind, message);
        let outcome = JobOutcome::failed(&current.prompt_id, &failure);
        self.emit_of(current, EventKind::Error(Arc::new(failure)));
        outcome
    }
}

/// Passes a worker's events on with its name, and remembers which node runs.
struct Tracker {
    shared: Arc<EngineShared>,
    worker: Arc<str>,
}

impl EventSink for Tracker {
    fn emit(&self, mut event: Event) {
        if let EventKind::Executing { display, .. } = &event.kind {
            let mut running = lock(&self.shared.running);
            let mut runs = running.values_mut();
            if let Some(run) = runs.find(|run| run.current.worker == self.worker) {
                run.current.display = Some(display.clone());
            }
        }
        event.worker = Some(self.worker.clone());
        self.shared.sink.emit(event);
    }
}

struct Feeder {
    shared: Arc<EngineShared>,
    place: Arc<WorkerPlace>,
    worker: Arc<dyn Worker>,
}

impl Feeder {
    /// The thread's body.
    fn work(mut self) {
        let shared = self.shared.clone();
        let memory = self.place.memory.clone();
        let stopping = || shared.stopping.load(Ordering::SeqCst);
        let mut question: Option<NextReply> = None;
        let mut need_gc = false;
        let mut last_gc: Option<Instant> = None;
        if self.place.is_remote() && !self.take_up() {
            return;
        }
        loop {
            let timeout = match (need_gc, last_gc) {
                (true, Some(at)) => GC_INTERVAL.saturating_sub(at.elapsed()),
                (true, None) => Duration::ZERO,
                (false, _) => LONG,
            };
            let next = match question.take() {
                Some(reply) => reply,
                None if self.worker.wait_ready(READY_PATIENCE) => self.ask_next(timeout),
                None => {
                    if stopping() || self.place.gone.load(Ordering::SeqCst) {
                        return;
                    }
                    self.free();
                    continue;
                }
            };
            match next.wait().unwrap_or(Next::Closed) {
                Next::Closed => return,
                Next::Woken | Next::Timeout => {}
                // Taken while the program ends: closing the store puts it back.
                Next::Job(_) if stopping() => return,
                Next::Job(job) => match self.run(*job, false) {
                    AfterRun::Stop => return,
                    AfterRun::Asked(reply) => {
                        question = Some(reply);
                        need_gc = true;
                    }
                    AfterRun::GoOn => need_gc = true,
                },
            }
            if stopping() || self.place.gone.load(Ordering::SeqCst) {
                // A question that was asked may be answered with a job.
                if let Some(Next::Job(job)) = question.take().and_then(NextReply::wait)
                    && !stopping()
                {
                    shared.jobs.give_back(job.task, Attempt::NotMade).wait();
                }
                return;
            }
            if self.free() {
                (need_gc, last_gc) = (false, Some(Instant::now()));
            }
            if due(memory.next_tick()) {
                catch_panic("tick", || memory.tick());
            }
            if need_gc && last_gc.is_none_or(|at| at.elapsed() > GC_INTERVAL) {
                catch_panic("release_caches", || memory.release_caches());
                last_gc = Some(Instant::now());
                need_gc = false;
            }
        }
    }

    /// Asks for a job within `timeout`, less if the memory room has something to do before.
    fn ask_next(&self, timeout: Duration) -> NextReply {
        let timeout = match self.place.memory.next_tick() {
            None => timeout,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now()).max(TICK);
                timeout.min(left)
            }
        };
        // With nobody else there is nothing to choose.
        let view = self.shared.chooses().then(|| Arc::new(self.worker.view()));
        self.shared.jobs.ask_next(&self.place.claim, view, timeout)
    }

    /// Carries out what was asked for meanwhile, by requests and by nodes. True if there was something.
    fn free(&self) -> bool {
        let taken = self.place.requests.take();
        for owner in &taken.owners {
            self.worker.drop_owned(owner);
        }
        let Some(request) = taken.request else {
            return false;
        };
        let report = self.worker.free(&request);
        for waiter in taken.waiters {
            waiter.send(report.clone());
        }
        true
    }

    /// Follows what this worker has run since before this process began. False if this thread should end.
    fn take_up(&mut self) -> bool {
        let shared = self.shared.clone();
        let Some(store) = shared.jobs.store() else {
            return true;
        };
        let leases = store.leases().wait().unwrap_or_default();
        let name = self.place.name.clone();
        for lease in leases.iter().filter(|lease| lease.owner == name) {
            if lock(&self.shared.running).contains_key(&lease.task) {
                continue;
            }
            let job = store.leased_job(lease.task).wait().flatten();
            let Some(job) = job else { continue };
            if matches!(self.run(*job, true), AfterRun::Stop) {
                return false;
            }
        }
        true
    }

    /// Runs one job and records its end. The question for the next job travels with the record, so that both share a commit.
    fn run(&mut self, job: TakenJob, adopted: bool) -> AfterRun {
        let shared = &self.shared;
        shared.status(job.remaining);
        let task = job.task;
        let control = match (self.place.claim.term, shared.jobs.store().cloned()) {
            (Some(term), Some(store)) => {
                RunControl::with_lease(task, adopted, term, move || store.renew(task, term))
            }
            _ => RunControl::default(),
        };
        let current = RunningPrompt {
            prompt_id: job.prompt_id.clone(),
            client: job.client_id.clone(),
            worker: self.place.name.clone(),
            display: None,
        };
        let started = StartedPrompt::new(&self.place.memory, &job.prompt_id);
        let stopped = {
            let mut running = lock(&shared.running);
            let run = Running {
                current: current.clone(),
                worker: self.worker.clone(),
                control: control.clone(),
                watched: false,
                prompt: job.prompt.clone(),
                started,
            };
            running.insert(task, run);
            lock(&shared.stopped_early).remove(&task)
        };
        if stopped {
            shared.interrupt(Some(&current.prompt_id));
        }
        let began = Instant::now();
        let run = RunJob {
            prompt_id: job.prompt_id,
            prompt: job.prompt,
            extra_data: job.extra_data,
            outputs: job.outputs,
            sensitive: job.sensitive,
            client: job.client_id,
        };
        let worker = &self.worker;
        let outcome = catch_unwind(AssertUnwindSafe(|| worker.run(&run, &control)));
        // From here on an interrupt is meant for the next prompt. If the run was given up, its end is recorded already.
        let Some(taken_out) = shared.take(task) else {
            return AfterRun::Stop;
        };
        let outcome = outcome.unwrap_or_else(|_| {
            let text = "The executor failed; its caches were cleared.".to_owned();
            shared.broken(&current, "RuntimeError", text)
        });
        drop(taken_out);
        if shared.stopping.load(Ordering::SeqCst) && outcome.end == JobEnd::Interrupted {
            // Stopped because the server stops: the job stays in the database and runs again next time.
            return AfterRun::Stop;
        }
        match &outcome.end {
            JobEnd::Finished | JobEnd::Failed | JobEnd::Interrupted => {}
            JobEnd::Refused(why) => return self.give_back(task, &current, Attempt::NotMade, why),
            JobEnd::Lost(why) => return self.give_back(task, &current, Attempt::Made, why),
        }
        let recorded = shared.jobs.finish(task, outcome);
        let next = self.worker.is_ready().then(|| self.ask_next(GC_INTERVAL));
        if !shared.report_end(&current, recorded.wait()) {
            return AfterRun::Stop;
        }
        tracing::info!(prompt = %current.prompt_id, "Prompt executed in {}", duration_text(began.elapsed()));
        match next {
            Some(next) => AfterRun::Asked(next),
            None => AfterRun::GoOn,
        }
    }

    /// A job goes back into the queue.
    fn give_back(
        &self,
        task: u64,
        current: &RunningPrompt,
        attempt: Attempt,
        why: &str,
    ) -> AfterRun {
        tracing::warn!(prompt = %current.prompt_id, worker = %current.worker, "the job goes back into the queue: {why}");
        match self.shared.jobs.give_back(task, attempt).wait() {
            Some(Ok(_)) => {
                self.shared.status(self.shared.jobs.remaining());
                if attempt == Attempt::Made {
                    self.shared.tell_if_held(current);
                }
            }
            Some(Err(error)) => {
                // Its lease ends by itself.
                tracing::error!(prompt = %current.prompt_id, "cannot put the job back: {error}");
            }
            None => return AfterRun::Stop,
        }
        AfterRun::GoOn
    }
}

/// What the thread does after a run.
enum AfterRun {
    Stop,
    GoOn,
    /// The next job is asked for already.
    Asked(NextReply),
}

fn due(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at <= Instant::now())
}

/// `3.14 seconds`, or `HH:MM:SS` beyond ten minutes.
fn duration_text(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    if seconds > 600 {
        format!(
            "{:02}:{:02}:{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        )
    } else {
        format!("{:.2} seconds", elapsed.as_secs_f64())
    }
}
