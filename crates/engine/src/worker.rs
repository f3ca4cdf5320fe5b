//! The executor thread: takes jobs from the store, runs them, records how they ended, consumes the free flags.
//!
//! A node that neither ends nor heeds an interrupt cannot be stopped from outside. Then its thread is given up with its
//! caches, its prompt is recorded as interrupted, and a new thread takes the next job: a hung node ends its own prompt only.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fresco_graph::{Map, Value, map};

use crate::Reply;
use crate::event::{Event, EventKind, EventSink, Failure};
use crate::executor::{
    Executor, ExecutorConfig, FlagSetter, Interrupt, Outcome, RunJob, failure_data, now_ms,
};
use crate::gate::Gate;
use crate::memory::{FreeRequest, MemoryRoom, resident_ram};
use crate::requests::FreeRequests;
use crate::store::{Finished, Next, Store, TakenJob};

/// The reference collects garbage at most this often.
const GC_INTERVAL: Duration = Duration::from_secs(10);
/// How long the worker waits when nothing is due.
const LONG: Duration = Duration::from_secs(1000);
/// A memory room that is always due is still not asked more often than this.
const TICK: Duration = Duration::from_millis(20);

/// The prompt that runs now.
#[derive(Clone, Debug)]
pub struct Current {
    pub prompt_id: Arc<str>,
    pub client: Option<Arc<str>>,
    /// The node the UI should highlight.
    pub display: Option<Arc<str>>,
}

/// Counters since start.
#[derive(Default)]
pub struct Stats {
    pub succeeded: AtomicU64,
    pub failed: AtomicU64,
    pub interrupted: AtomicU64,
    pub nodes: AtomicU64,
}

/// A run in progress. Whoever takes it out of [`Shared::running`] records its end.
pub(crate) struct Running {
    pub(crate) current: Current,
    task: u64,
    /// Cleared when the run is given up; also tells one run from another.
    alive: Arc<AtomicBool>,
    /// It was asked to stop, and someone watches whether it does.
    asked: bool,
    /// For the class of the node that runs.
    prompt: Arc<Map>,
    started: Started,
}

/// A prompt that the memory room knows to run. Dropping it ends that: whoever takes the run out does so, once, and so
/// does an unwinding stack.
struct Started {
    memory: Arc<dyn MemoryRoom>,
    prompt_id: Arc<str>,
}

impl Started {
    fn new(memory: &Arc<dyn MemoryRoom>, prompt_id: &Arc<str>) -> Self {
        calm("prompt_started", || memory.prompt_started(prompt_id));
        Self {
            memory: memory.clone(),
            prompt_id: prompt_id.clone(),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        calm("after_prompt", || self.memory.after_prompt(&self.prompt_id));
    }
}

/// Calls the memory room; a panic there must not take the worker with it.
pub(crate) fn calm<T: Default>(what: &str, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        tracing::error!("the memory room failed in {what}");
        T::default()
    })
}

/// What the engine's handle and its threads share.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) config: ExecutorConfig,
    /// How long a node may ignore an interrupt before its thread is given up.
    pub(crate) hang_grace: Duration,
    pub(crate) interrupt: Mutex<Arc<Interrupt>>,
    pub(crate) running: Mutex<Option<Running>>,
    /// Rung when `running` is taken.
    pub(crate) ended: Condvar,
    pub(crate) gate: Arc<Gate>,
    pub(crate) requests: Arc<FreeRequests>,
    pub(crate) stats: Stats,
    /// Held while the state of the queue is read and told, so that what is told last is what is true.
    pub(crate) telling: Mutex<()>,
    /// The process is going down: what runs is put back, not recorded.
    pub(crate) stopping: AtomicBool,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn emit(&self, prompt_id: Option<Arc<str>>, client: Option<Arc<str>>, kind: EventKind) {
        self.config.sink.emit(Event {
            prompt_id,
            client,
            kind,
        });
    }

    pub(crate) fn status(&self, remaining: usize) {
        self.emit(None, None, EventKind::Status { remaining });
    }

    /// The waiting prompts are in another order, or may or may not run.
    pub(crate) fn queue_changed(&self) {
        let _telling = lock(&self.telling);
        let paused = self.store.paused();
        self.emit(None, None, EventKind::Queue { paused });
        self.status(self.store.remaining());
    }

    /// Asks the running prompt to stop; with an id only if that is the one.
    pub(crate) fn interrupt(self: &Arc<Self>, prompt_id: Option<&str>) -> bool {
        let mut running = lock(&self.running);
        let aimed = running.as_ref().map(|r| &*r.current.prompt_id);
        if prompt_id.is_some() && prompt_id != aimed {
            return false;
        }
        if let Some(run) = running.as_mut()
            && !std::mem::replace(&mut run.asked, true)
        {
            let (me, alive) = (self.clone(), run.alive.clone());
            let watch = std::thread::Builder::new().name("watchdog".into());
            if let Err(error) = watch.spawn(move || me.watch(&alive)) {
                tracing::error!("cannot watch whether the prompt stops: {error}");
            }
        }
        lock(&self.interrupt).raise();
        running.is_some()
    }

    /// The program ends and the run does not: its prompt is queued again, what it holds in memory is given back.
    pub(crate) fn abandon(&self) {
        let run = lock(&self.running).take();
        drop(run);
    }

    /// Takes a run out, if it is still there.
    fn take(&self, alive: &Arc<AtomicBool>) -> Option<Running> {
        let run = lock(&self.running).take_if(|r| Arc::ptr_eq(&r.alive, alive));
        self.ended.notify_all();
        run
    }

    /// Waits for a run that was asked to stop, and gives it up if it does not.
    fn watch(self: Arc<Self>, alive: &Arc<AtomicBool>) {
        let there =
            |run: &mut Option<Running>| run.as_ref().is_some_and(|r| Arc::ptr_eq(&r.alive, alive));
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
        let Some(run) = self.take(alive) else { return };
        alive.store(false, Ordering::SeqCst);
        // The thread that was given up keeps the old flag; the next one gets its own.
        *lock(&self.interrupt) = Arc::default();
        tracing::warn!(
            prompt = %run.current.prompt_id,
            node = run.current.display.as_deref().unwrap_or_default(),
            "the running node did not stop within {:.0} s of being interrupted; its thread was abandoned and the node caches were cleared",
            self.hang_grace.as_secs_f64()
        );
        let outcome = self.given_up(&run);
        self.stats.interrupted.fetch_add(1, Ordering::Relaxed);
        let Running {
            current,
            task,
            started,
            ..
        } = run;
        drop(started);
        let recorded = self.store.finish(task, finished(outcome)).wait();
        self.told(&current, recorded);
        self.start();
    }

    /// Starts a thread that takes jobs.
    pub(crate) fn start(self: &Arc<Self>) {
        let worker = Worker {
            shared: self.clone(),
        };
        let spawned = std::thread::Builder::new()
            .name("executor".into())
            .stack_size(16 << 20)
            .spawn(move || worker.work());
        match spawned {
            Ok(thread) => *lock(&self.thread) = Some(thread),
            Err(error) => tracing::error!("cannot start an executor thread: {error}"),
        }
    }

    /// Tells the world that a prompt was recorded.
    fn told(&self, current: &Current, recorded: Option<Result<usize, crate::StoreError>>) -> bool {
        match recorded {
            Some(Ok(remaining)) => self.status(remaining),
            Some(Err(error)) => {
                tracing::error!(prompt = %current.prompt_id, "cannot record the outcome: {error}");
            }
            None => return false,
        }
        let (id, client) = (current.prompt_id.clone(), current.client.clone());
        self.emit(Some(id), client, EventKind::Ended);
        true
    }

    /// The outcome of a run that was interrupted and did not stop.
    fn given_up(&self, run: &Running) -> Outcome {
        let current = &run.current;
        let node = current.display.clone().unwrap_or_default();
        let class = run.prompt.get(&node).and_then(|n| n.get("class_type"));
        let class: Arc<str> = class.and_then(Value::as_str).unwrap_or_default().into();
        let timestamp = now_ms();
        let start = map! {"prompt_id" => &current.prompt_id, "timestamp" => timestamp};
        let end = map! {
            "prompt_id" => &current.prompt_id,
            "node_id" => &node,
            "node_type" => &class,
            "executed" => Value::List(Arc::default()),
            "timestamp" => timestamp,
        };
        let (id, client) = (current.prompt_id.clone(), current.client.clone());
        let kind = EventKind::Interrupted {
            node,
            class,
            executed: Vec::new(),
            timestamp,
        };
        self.emit(Some(id), client, kind);
        Outcome {
            interrupted: true,
            messages: vec![
                Value::from(vec![Value::from("execution_start"), start.into()]),
                Value::from(vec![Value::from("execution_interrupted"), end.into()]),
            ],
            ..Outcome::default()
        }
    }

    /// The outcome of a run that did not come to an end of its own.
    fn broken(
        &self,
        current: &Current,
        node: Option<Arc<str>>,
        kind: &str,
        message: String,
    ) -> Outcome {
        let failure = Failure {
            node: node.unwrap_or_default(),
            class: "".into(),
            executed: Vec::new(),
            message,
            kind: kind.into(),
            trace: Vec::new(),
            inputs: Map::new().into(),
            outputs: Vec::new(),
            timestamp: now_ms(),
        };
        let mut data = failure_data(&current.prompt_id, &failure);
        data.insert("timestamp".into(), failure.timestamp.into());
        let start = map! {"prompt_id" => &current.prompt_id, "timestamp" => failure.timestamp};
        let messages = vec![
            Value::from(vec![Value::from("execution_start"), start.into()]),
            Value::from(vec![Value::from("execution_error"), data.into()]),
        ];
        let (id, client) = (current.prompt_id.clone(), current.client.clone());
        self.emit(Some(id), client, EventKind::Error(Arc::new(failure)));
        Outcome {
            messages,
            ..Outcome::default()
        }
    }
}

fn finished(outcome: Outcome) -> Finished {
    Finished {
        outputs: outcome.outputs,
        meta: outcome.meta,
        status_str: if outcome.success { "success" } else { "error" }.into(),
        completed: outcome.success,
        messages: outcome.messages.into(),
        cancelled: outcome.interrupted,
    }
}

/// Passes events on and remembers which node runs.
struct Tracker(Arc<Shared>);

impl EventSink for Tracker {
    fn emit(&self, event: Event) {
        if let EventKind::Executing { display, .. } = &event.kind
            && let Some(running) = lock(&self.0.running).as_mut()
        {
            running.current.display = Some(display.clone());
        }
        self.0.config.sink.emit(event);
    }
}

struct Worker {
    shared: Arc<Shared>,
}

impl Worker {
    fn executor(&self) -> Executor {
        let store = self.shared.store.clone();
        let flags: FlagSetter = Arc::new(move |name, value| store.set_flag(name, value));
        let mut config = self.shared.config.clone();
        config.sink = Arc::new(Tracker(self.shared.clone()));
        let interrupt = lock(&self.shared.interrupt).clone();
        let requests = self.shared.requests.clone();
        Executor::new(config, interrupt, flags).with_requests(requests)
    }

    /// The thread's body.
    fn work(self) {
        let memory = self.shared.config.memory.clone();
        let stopping = || self.shared.stopping.load(Ordering::SeqCst);
        let mut executor = self.executor();
        let mut asked: Option<Reply<Next>> = None;
        let mut need_gc = false;
        let mut last_gc: Option<Instant> = None;
        loop {
            let timeout = match (need_gc, last_gc) {
                (true, Some(at)) => GC_INTERVAL.saturating_sub(at.elapsed()),
                (true, None) => Duration::ZERO,
                (false, _) => LONG,
            };
            let next = match asked.take() {
                Some(reply) => reply,
                None => self.shared.store.ask_next(self.until_tick(timeout)),
            };
            match next.wait().unwrap_or(Next::Closed) {
                Next::Closed => return,
                Next::Woken | Next::Timeout => {}
                // Taken while the program ends: closing the store puts it back.
                Next::Job(_) if stopping() => return,
                Next::Job(job) => {
                    let Some(reply) = self.run(&mut executor, *job) else {
                        return;
                    };
                    asked = Some(reply);
                    need_gc = true;
                }
            }
            if stopping() {
                return;
            }
            if self.free(&mut executor) {
                (need_gc, last_gc) = (false, Some(Instant::now()));
            }
            if due(memory.next_tick()) {
                calm("tick", || memory.tick());
            }
            if need_gc && last_gc.is_none_or(|at| at.elapsed() > GC_INTERVAL) {
                calm("release_caches", || memory.release_caches());
                last_gc = Some(Instant::now());
                need_gc = false;
            }
        }
    }

    /// At most `timeout`, less if the memory room has something to do before.
    fn until_tick(&self, timeout: Duration) -> Duration {
        let Some(at) = self.shared.config.memory.next_tick() else {
            return timeout;
        };
        let left = at.saturating_duration_since(Instant::now()).max(TICK);
        timeout.min(left)
    }

    /// Carries out what was asked for meanwhile, by requests and by nodes. True if there was something.
    fn free(&self, executor: &mut Executor) -> bool {
        let memory = &self.shared.config.memory;
        let (mut request, waiters) = self.shared.requests.take();
        let flags = self.shared.store.flags(true);
        let wants = |name: &str| flags.get(name).map(Value::truthy);
        let free_memory = wants("free_memory").unwrap_or(false);
        let unload_models = wants("unload_models").unwrap_or(free_memory);
        if free_memory || unload_models {
            let by_node = FreeRequest {
                unload_models,
                free_memory,
                ..FreeRequest::default()
            };
            match &mut request {
                Some(request) => request.merge(by_node),
                None => request = Some(by_node),
            }
        }
        let Some(request) = request else {
            return false;
        };
        let (began, ram_before) = (Instant::now(), resident_ram());
        let mut report = if request.unload_models {
            calm("free", || memory.free(&request, None))
        } else {
            crate::memory::FreeReport::default()
        };
        if request.free_memory {
            executor.reset();
            calm("cache_reset", || memory.cache_reset());
            report.cache_reset = true;
        }
        calm("release_caches", || memory.release_caches());
        (report.ram_before, report.ram_after) = (ram_before, resident_ram());
        report.took = began.elapsed();
        for waiter in waiters {
            waiter.send(report.clone());
        }
        true
    }

    /// Runs one job and records its end. Gives the question for the next job, which travels with the record so that both
    /// share a commit; nothing if this thread should end.
    fn run(&self, executor: &mut Executor, job: TakenJob) -> Option<Reply<Next>> {
        let shared = &self.shared;
        shared.status(job.remaining);
        shared.gate.pass(&job.prompt_id, job.client_id.is_some());
        let alive = Arc::new(AtomicBool::new(true));
        let current = Current {
            prompt_id: job.prompt_id.clone(),
            client: job.client_id.clone(),
            display: None,
        };
        let started = Started::new(&shared.config.memory, &job.prompt_id);
        *lock(&shared.running) = Some(Running {
            current: current.clone(),
            task: job.task,
            alive: alive.clone(),
            asked: false,
            prompt: job.prompt.clone(),
            started,
        });
        let began = Instant::now();
        let run = RunJob {
            prompt_id: job.prompt_id,
            prompt: job.prompt,
            extra_data: job.extra_data,
            outputs: job.outputs,
            sensitive: job.sensitive,
            client: job.client_id,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| executor.run(&run, alive.clone())));
        // From here on an interrupt is meant for the next prompt. If the run was given up, its end is recorded already.
        let run = shared.take(&alive)?;
        let outcome = outcome.unwrap_or_else(|_| {
            *executor = self.executor();
            let text = "The executor failed; its caches were cleared.".to_owned();
            shared.broken(&current, None, "RuntimeError", text)
        });
        drop(run);
        let stats = &shared.stats;
        let counter = match &outcome {
            o if o.success => &stats.succeeded,
            o if o.interrupted => &stats.interrupted,
            _ => &stats.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if shared.stopping.load(Ordering::SeqCst) && outcome.interrupted {
            // Stopped because the server stops: the job stays in the database and runs again next time.
            return None;
        }
        let recorded = shared.store.finish(job.task, finished(outcome));
        let next = shared.store.ask_next(self.until_tick(GC_INTERVAL));
        if !shared.told(&current, recorded.wait()) {
            return None;
        }
        tracing::info!(prompt = %current.prompt_id, "Prompt executed in {}", duration_text(began.elapsed()));
        Some(next)
    }
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
