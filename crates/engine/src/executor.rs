//! Runs one prompt after the other and owns node outputs. One thread; see `worker.rs` for who feeds it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use fresco_graph::{Map, Preview, Progress, Registry, Resources, Services, Value, map};

use crate::cache::{Instances, OutputCache, Strategy};
use crate::event::{Event, EventKind, EventSink, Failure};
use crate::ledger::Ledger;
use crate::memory::{Admission, Arriving, MemoryRoom, Unload};
use crate::progress::ProgressRegistry;
use crate::requests::FreeRequests;
use crate::run::Run;
use crate::tasks::Bell;
use crate::worker::{calm, lock};

/// A prompt to run.
#[derive(Clone, Debug)]
pub struct RunJob {
    pub prompt_id: Arc<str>,
    /// As validated.
    pub prompt: Arc<Map>,
    pub extra_data: Map,
    pub outputs: Vec<Arc<str>>,
    /// Secrets that no record shows.
    pub sensitive: Map,
    pub client: Option<Arc<str>>,
}

/// How a prompt ended, in the form history keeps.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub success: bool,
    pub interrupted: bool,
    /// UI output by node id.
    pub outputs: Map,
    pub meta: Map,
    /// `[event, data]` pairs.
    pub messages: Vec<Value>,
}

/// What an executor is made from.
#[derive(Clone)]
pub struct ExecutorConfig {
    pub registry: Arc<Registry>,
    pub resources: Arc<Resources>,
    pub memory: Arc<dyn MemoryRoom>,
    pub sink: Arc<dyn EventSink>,
    pub cache: Strategy,
    /// Preview method for prompts that do not name one.
    pub preview_method: Arc<str>,
    /// Unload all models after every prompt.
    pub disable_smart_memory: bool,
    /// Bytes of main memory that the values of one prompt may take together, on links and in caches.
    pub max_prompt_memory: u64,
}

/// The interrupt flag and the bell that wakes a waiting executor.
#[derive(Default)]
pub struct Interrupt {
    flag: AtomicBool,
    /// That of the running prompt. Asking does not take it: once raised it stays so, also when the prompt's thread has
    /// been given up and works for nobody.
    cancelled: Mutex<Arc<AtomicBool>>,
    pub(crate) bell: Arc<Bell>,
}

impl Interrupt {
    pub fn raise(&self) {
        self.flag.store(true, Ordering::SeqCst);
        lock(&self.cancelled).store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    /// For the next prompt, which gets a flag of its own.
    pub(crate) fn clear(&self) -> Arc<AtomicBool> {
        let mut cancelled = lock(&self.cancelled);
        self.flag.store(false, Ordering::SeqCst);
        *cancelled = Arc::default();
        cancelled.clone()
    }

    pub(crate) fn take(&self) -> bool {
        self.flag.swap(false, Ordering::SeqCst)
    }

    pub fn is_raised(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }
}

/// Where a node's queue flags go.
pub type FlagSetter = Arc<dyn Fn(&str, Value) + Send + Sync>;

/// Everything a running prompt shares with its nodes and with whoever watches it.
pub(crate) struct Watch {
    pub(crate) prompt_id: Arc<str>,
    pub(crate) client: Option<Arc<str>>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) progress: Arc<ProgressRegistry>,
    pub(crate) graph: Arc<crate::dynprompt::DynPrompt>,
    pub(crate) interrupt: Arc<Interrupt>,
    pub(crate) flags: FlagSetter,
    /// Cleared when the run was given up; a node that hangs on then talks to nobody.
    pub(crate) alive: Arc<AtomicBool>,
    /// Raised once the prompt was interrupted.
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) nodes_run: Arc<AtomicU64>,
}

impl Watch {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst) || !self.alive.load(Ordering::SeqCst)
    }

    pub(crate) fn emit(&self, kind: EventKind) {
        if self.alive.load(Ordering::Relaxed) {
            self.sink.emit(Event {
                prompt_id: Some(self.prompt_id.clone()),
                client: self.client.clone(),
                kind,
            });
        }
    }

    pub(crate) fn progress_changed(&self) {
        self.emit(EventKind::ProgressState {
            registry: self.progress.clone(),
        });
    }
}

impl Services for Watch {
    fn progress(&self, _: &str, node_id: &str, progress: Progress) {
        let Progress {
            value,
            max,
            preview,
            bar,
        } = progress;
        let ids = self.graph.ids_of(&node_id.into());
        self.progress.update(ids.clone(), value, max);
        self.progress_changed();
        let preview: Option<Preview> = preview;
        if bar {
            self.emit(EventKind::Progress {
                ids,
                value,
                max,
                preview,
            });
        } else if let Some(preview) = preview {
            self.emit(EventKind::Preview { ids, preview });
        }
    }

    fn interrupted(&self) -> bool {
        // A run that was given up must end at the first chance, without eating the next prompt's interrupt.
        !self.alive.load(Ordering::Relaxed) || self.interrupt.take()
    }

    fn send(&self, event: &str, data: Value, client: Option<&str>) {
        self.emit(EventKind::Custom {
            event: event.into(),
            data,
            client: client.map(Into::into),
        });
    }

    fn text(&self, node_id: &str, text: &str) {
        self.emit(EventKind::Text {
            node: node_id.into(),
            text: text.into(),
        });
    }

    fn set_flag(&self, name: &str, value: Value) {
        (self.flags)(name, value);
    }
}

/// Owns the caches and runs prompts, one at a time.
pub struct Executor {
    pub(crate) config: ExecutorConfig,
    pub(crate) interrupt: Arc<Interrupt>,
    pub(crate) flags: FlagSetter,
    pub(crate) cache: OutputCache,
    pub(crate) instances: Instances,
    pub(crate) prompts_run: u64,
    /// Looked at between nodes.
    pub(crate) requests: Arc<FreeRequests>,
    nodes_run: Arc<AtomicU64>,
    pub(crate) ledger: Ledger,
}

impl Executor {
    pub fn new(config: ExecutorConfig, interrupt: Arc<Interrupt>, flags: FlagSetter) -> Self {
        let cache = OutputCache::new(config.cache);
        Self {
            config,
            interrupt,
            flags,
            cache,
            instances: Instances::default(),
            prompts_run: 0,
            requests: Arc::default(),
            nodes_run: Arc::default(),
            ledger: Ledger::default(),
        }
    }

    pub(crate) fn with_requests(mut self, requests: Arc<FreeRequests>) -> Self {
        self.requests = requests;
        self
    }

    /// Counts node calls over the executor's life.
    pub fn nodes_run(&self) -> Arc<AtomicU64> {
        self.nodes_run.clone()
    }

    /// Forgets all outputs and instances.
    pub fn reset(&mut self) {
        self.cache = OutputCache::new(self.config.cache);
        self.instances = Instances::default();
    }

    /// Runs one prompt to its end. Never panics on what a node does.
    pub fn run(&mut self, job: &RunJob, alive: Arc<AtomicBool>) -> Outcome {
        self.prompts_run += 1;
        let cancelled = self.interrupt.clear();
        let graph = Arc::new(crate::dynprompt::DynPrompt::new(&job.prompt));
        let watch = Arc::new(Watch {
            prompt_id: job.prompt_id.clone(),
            client: job.client.clone(),
            sink: self.config.sink.clone(),
            progress: Arc::default(),
            graph: graph.clone(),
            interrupt: self.interrupt.clone(),
            flags: self.flags.clone(),
            alive,
            cancelled,
            nodes_run: self.nodes_run.clone(),
        });
        let mut messages = Messages {
            watch: watch.clone(),
            list: Vec::new(),
        };
        messages.start();
        let memory = self.config.memory.clone();

        let mut tops = HashMap::new();
        for id in graph.top_ids() {
            if let Some(node) = graph.top(id) {
                tops.insert(id.clone(), node.class.clone());
            }
        }
        self.instances.begin(&tops);

        let mut run = Run::new(self, job, graph, watch.clone());
        let nodes: HashSet<_> = tops.into_iter().collect();
        let cached = run.prepare(&nodes);
        messages.cached(cached.clone());
        let arriving = Arriving {
            prompt_id: &job.prompt_id,
            client: job.client.as_deref(),
            prompt: &job.prompt,
            outputs: &job.outputs,
            cached: &cached,
        };
        let end = match calm("admit", || memory.admit(&arriving)) {
            Admission::Refused { node, message } => End::Failed(run.refused(node, message)),
            Admission::Downgraded(message) => {
                tracing::info!(prompt = %job.prompt_id, "{message}");
                watch.emit(EventKind::Downgraded {
                    message: message.into(),
                });
                run.drive()
            }
            Admission::Ok => run.drive(),
        };
        let (outputs, meta) = run.into_ui();
        let mut outcome = Outcome {
            outputs,
            meta,
            ..Outcome::default()
        };
        match end {
            End::Success => {
                messages.success();
                outcome.success = true;
            }
            End::Failed(failure) => messages.error(failure),
            End::Interrupted {
                node,
                class,
                executed,
            } => {
                messages.interrupted(node, class, executed);
                outcome.interrupted = true;
            }
        }
        outcome.messages = messages.list;
        if self.config.disable_smart_memory {
            calm("unload_all", || {
                memory.unload_all(&job.prompt_id, Unload::PromptDone);
            });
        }
        outcome
    }
}

/// How a run came to its end.
pub(crate) enum End {
    Success,
    Failed(Failure),
    Interrupted {
        node: Arc<str>,
        class: Arc<str>,
        executed: Vec<Arc<str>>,
    },
}

/// The messages that history keeps, each also an event.
struct Messages {
    watch: Arc<Watch>,
    list: Vec<Value>,
}

impl Messages {
    fn record(&mut self, event: &str, mut data: Map, timestamp: i64, kind: EventKind) {
        data.insert("timestamp".into(), timestamp.into());
        self.list.push(vec![Value::from(event), data.into()].into());
        self.watch.emit(kind);
    }

    fn id(&self) -> Map {
        map! {"prompt_id" => &self.watch.prompt_id}
    }

    fn start(&mut self) {
        let timestamp = now_ms();
        self.record(
            "execution_start",
            self.id(),
            timestamp,
            EventKind::Start { timestamp },
        );
    }

    fn cached(&mut self, nodes: Vec<Arc<str>>) {
        let timestamp = now_ms();
        let mut data = map! {"nodes" => strings(&nodes)};
        data.extend(self.id());
        self.record(
            "execution_cached",
            data,
            timestamp,
            EventKind::Cached { nodes, timestamp },
        );
    }

    fn success(&mut self) {
        let timestamp = now_ms();
        self.record(
            "execution_success",
            self.id(),
            timestamp,
            EventKind::Success { timestamp },
        );
    }

    fn error(&mut self, failure: Failure) {
        let timestamp = failure.timestamp;
        let data = failure_data(&self.watch.prompt_id, &failure);
        self.record(
            "execution_error",
            data,
            timestamp,
            EventKind::Error(Arc::new(failure)),
        );
    }

    fn interrupted(&mut self, node: Arc<str>, class: Arc<str>, executed: Vec<Arc<str>>) {
        let timestamp = now_ms();
        let mut data = self.id();
        data.extend(
            map! {"node_id" => &node, "node_type" => &class, "executed" => strings(&executed)},
        );
        let kind = EventKind::Interrupted {
            node,
            class,
            executed,
            timestamp,
        };
        self.record("execution_interrupted", data, timestamp, kind);
    }
}

/// `execution_error` as history keeps it, without the timestamp.
pub fn failure_data(prompt_id: &str, failure: &Failure) -> Map {
    map! {
        "prompt_id" => prompt_id,
        "node_id" => &failure.node,
        "node_type" => &failure.class,
        "executed" => strings(&failure.executed),
        "exception_message" => failure.message.as_str(),
        "exception_type" => failure.kind.as_str(),
        "traceback" => failure.trace.clone(),
        "current_inputs" => failure.inputs.clone(),
        "current_outputs" => strings(&failure.outputs),
    }
}

fn strings(ids: &[Arc<str>]) -> Vec<Value> {
    ids.iter().map(Value::from).collect()
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}
