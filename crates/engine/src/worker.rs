//! The worker thread: takes jobs from the store, has them run, records how they ended, consumes the free flags.
//!
//! Node code runs on a thread of its own. If a node neither ends nor heeds an interrupt, that thread is abandoned with its
//! caches and a new one takes the next job: a hung node ends its own prompt only.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fresco_graph::{Map, Value, map};

use crate::event::{Event, EventKind, EventSink, Failure};
use crate::executor::{
    Executor, ExecutorConfig, FlagSetter, Interrupt, Outcome, RunJob, failure_data, now_ms,
};
use crate::gate::Gate;
use crate::store::{Finished, Next, Store, TakenJob};

/// The reference collects garbage at most this often.
const GC_INTERVAL: Duration = Duration::from_secs(10);

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

/// What the engine's handle and its worker share.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) interrupt: Mutex<Arc<Interrupt>>,
    pub(crate) current: Mutex<Option<Current>>,
    /// When the running prompt was asked to stop.
    pub(crate) asked: Mutex<Option<Instant>>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) stats: Stats,
    /// The process is going down: what runs is put back, not recorded.
    pub(crate) stopping: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn status(&self, remaining: usize) {
        self.sink.emit(Event {
            prompt_id: None,
            client: None,
            kind: EventKind::Status { remaining },
        });
    }

    /// Asks the running prompt to stop; with an id only if that is the one.
    pub(crate) fn interrupt(&self, prompt_id: Option<&str>) -> bool {
        let current = lock(&self.current);
        let running = current.as_ref();
        if prompt_id.is_some_and(|id| running.is_none_or(|c| &*c.prompt_id != id)) {
            return false;
        }
        if running.is_some() {
            lock(&self.asked).get_or_insert_with(Instant::now);
        }
        lock(&self.interrupt).raise();
        running.is_some()
    }
}

/// Passes events on and remembers which node runs.
struct Tracker(Arc<Shared>);

impl EventSink for Tracker {
    fn emit(&self, event: Event) {
        if let EventKind::Executing { display, .. } = &event.kind
            && let Some(current) = lock(&self.0.current).as_mut()
        {
            current.display = Some(display.clone());
        }
        self.0.sink.emit(event);
    }
}

enum Order {
    Run(Box<RunJob>, Arc<AtomicBool>, mpsc::Sender<Outcome>),
    Reset,
}

/// The thread that runs nodes.
struct Hands {
    orders: mpsc::Sender<Order>,
}

impl Hands {
    fn new(
        config: ExecutorConfig,
        interrupt: Arc<Interrupt>,
        flags: FlagSetter,
    ) -> std::io::Result<Self> {
        let (orders, receiver) = mpsc::channel();
        std::thread::Builder::new()
            .name("executor".into())
            .stack_size(16 << 20)
            .spawn(move || {
                let mut executor = Executor::new(config, interrupt, flags);
                while let Ok(order) = receiver.recv() {
                    match order {
                        Order::Reset => executor.reset(),
                        Order::Run(job, alive, done) => {
                            let outcome = executor.run(&job, alive);
                            let _ = done.send(outcome);
                        }
                    }
                }
            })?;
        Ok(Self { orders })
    }
}

pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: ExecutorConfig,
    /// How long a node may ignore an interrupt before its thread is given up.
    pub(crate) hang_grace: Duration,
}

impl Worker {
    /// The thread's body.
    pub(crate) fn work(mut self) {
        self.config.sink = Arc::new(Tracker(self.shared.clone()));
        let mut hands = self.new_hands();
        let mut need_gc = false;
        let mut last_gc: Option<Instant> = None;
        loop {
            let timeout = match (need_gc, last_gc) {
                (true, Some(at)) => GC_INTERVAL.saturating_sub(at.elapsed()),
                (true, None) => Duration::ZERO,
                (false, _) => Duration::from_secs(1000),
            };
            match self.shared.store.next(timeout) {
                Next::Closed => return,
                Next::Woken | Next::Timeout => {}
                Next::Job(job) => {
                    self.run(&mut hands, *job);
                    need_gc = true;
                }
            }
            if self.shared.stopping.load(Ordering::SeqCst) {
                return;
            }
            let flags = self.shared.store.flags(true);
            let wants = |name: &str| flags.get(name).map(Value::truthy);
            let free = wants("free_memory").unwrap_or(false);
            if wants("unload_models").unwrap_or(free) {
                self.config.memory.unload_all();
                (need_gc, last_gc) = (true, None);
            }
            if free {
                if let Some(hands) = &hands {
                    let _ = hands.orders.send(Order::Reset);
                }
                (need_gc, last_gc) = (true, None);
            }
            if need_gc && last_gc.is_none_or(|at| at.elapsed() > GC_INTERVAL) {
                self.config.memory.release_caches();
                last_gc = Some(Instant::now());
                need_gc = false;
            }
        }
    }

    fn new_hands(&self) -> Option<Hands> {
        let store = self.shared.store.clone();
        let flags: FlagSetter = Arc::new(move |name, value| store.set_flag(name, value));
        let interrupt = lock(&self.shared.interrupt).clone();
        Hands::new(self.config.clone(), interrupt, flags)
            .inspect_err(|e| tracing::error!("cannot start an executor thread: {e}"))
            .ok()
    }

    fn run(&self, hands: &mut Option<Hands>, job: TakenJob) {
        let shared = &self.shared;
        shared.status(job.remaining);
        shared.gate.pass(&job.prompt_id, job.client_id.is_some());
        let current = Current {
            prompt_id: job.prompt_id.clone(),
            client: job.client_id.clone(),
            display: None,
        };
        *lock(&shared.current) = Some(current);
        *lock(&shared.asked) = None;
        let began = Instant::now();
        let run = RunJob {
            prompt_id: job.prompt_id.clone(),
            prompt: job.prompt,
            extra_data: job.extra_data,
            outputs: job.outputs,
            sensitive: job.sensitive,
            client: job.client_id.clone(),
        };
        let outcome = self.supervise(hands, run);
        self.config.memory.after_prompt(&job.prompt_id);
        let stats = &shared.stats;
        let counter = match &outcome {
            o if o.success => &stats.succeeded,
            o if o.interrupted => &stats.interrupted,
            _ => &stats.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        // From here on an interrupt is meant for the next prompt.
        *lock(&shared.current) = None;
        if shared.stopping.load(Ordering::SeqCst) && outcome.interrupted {
            // Stopped because the server stops: the job stays in the database and runs again next time.
            return;
        }
        let finished = Finished {
            outputs: outcome.outputs,
            meta: outcome.meta,
            status_str: if outcome.success { "success" } else { "error" }.into(),
            completed: outcome.success,
            messages: outcome.messages.into(),
            cancelled: outcome.interrupted,
        };
        match shared.store.finish(job.task, finished).wait() {
            Some(Ok(remaining)) => shared.status(remaining),
            Some(Err(error)) => {
                tracing::error!(prompt = %job.prompt_id, "cannot record the outcome: {error}");
            }
            None => return,
        }
        let ended = Event {
            prompt_id: Some(job.prompt_id.clone()),
            client: job.client_id,
            kind: EventKind::Ended,
        };
        shared.sink.emit(ended);
        tracing::info!(prompt = %job.prompt_id, "Prompt executed in {}", duration_text(began.elapsed()));
    }

    /// Has the job run and waits for its end, or gives it up.
    fn supervise(&self, hands: &mut Option<Hands>, job: RunJob) -> Outcome {
        let alive = Arc::new(AtomicBool::new(true));
        let (done, outcome) = mpsc::channel();
        let (prompt_id, client) = (job.prompt_id.clone(), job.client.clone());
        let order = Order::Run(Box::new(job), alive.clone(), done);
        if hands.is_none() {
            *hands = self.new_hands();
        }
        let sent = hands.as_ref().is_some_and(|h| h.orders.send(order).is_ok());
        let why = if sent {
            loop {
                match outcome.recv_timeout(Duration::from_millis(250)) {
                    Ok(outcome) => return outcome,
                    Err(RecvTimeoutError::Disconnected) => {
                        break (
                            "RuntimeError",
                            "The executor thread ended unexpectedly; it was started anew."
                                .to_owned(),
                        );
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        let asked = *lock(&self.shared.asked);
                        if asked.is_some_and(|at| at.elapsed() > self.hang_grace) {
                            let text = format!(
                                "The running node did not stop within {:.0} s of being interrupted; its thread was abandoned and the node caches were cleared.",
                                self.hang_grace.as_secs_f64()
                            );
                            break ("InterruptProcessingException", text);
                        }
                    }
                }
            }
        } else {
            (
                "RuntimeError",
                "No executor thread could be started.".to_owned(),
            )
        };
        alive.store(false, Ordering::SeqCst);
        // The abandoned thread keeps the old flag; the next one gets its own.
        *lock(&self.shared.interrupt) = Arc::default();
        *hands = self.new_hands();
        self.given_up(&prompt_id, client, why.0, why.1)
    }

    fn given_up(
        &self,
        prompt_id: &Arc<str>,
        client: Option<Arc<str>>,
        kind: &str,
        message: String,
    ) -> Outcome {
        let display = lock(&self.shared.current)
            .as_ref()
            .and_then(|c| c.display.clone());
        let failure = Failure {
            node: display.unwrap_or_default(),
            class: "".into(),
            executed: Vec::new(),
            message,
            kind: kind.into(),
            trace: Vec::new(),
            inputs: Map::new().into(),
            outputs: Vec::new(),
            timestamp: now_ms(),
        };
        let mut data = failure_data(prompt_id, &failure);
        data.insert("timestamp".into(), failure.timestamp.into());
        let start = map! {"prompt_id" => prompt_id, "timestamp" => failure.timestamp};
        let messages = vec![
            Value::from(vec![Value::from("execution_start"), start.into()]),
            Value::from(vec![Value::from("execution_error"), data.into()]),
        ];
        let kind = EventKind::Error(Arc::new(failure));
        self.shared.sink.emit(Event {
            prompt_id: Some(prompt_id.clone()),
            client,
            kind,
        });
        Outcome {
            messages,
            ..Outcome::default()
        }
    }
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
