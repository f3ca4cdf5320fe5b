//! Runs one prompt after the other and owns node outputs. One thread; see `feeder.rs` for who feeds it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::cache::OutputCache;
use crate::dynprompt::DynPrompt;
use crate::event::EventKind;
use crate::job::{JobOutcome, RunControl, RunJob};
use crate::memory::{Admission, Arriving, Unload};
use crate::messages::RunMessages;
use crate::panics::catch_panic;
use crate::requests::FreeRequests;
use crate::run::Run;
use crate::state::{ExecutorConfig, ExecutorState};
use crate::watch::Watch;

/// Owns the caches and runs prompts, one at a time.
pub struct Executor(ExecutorState);

impl Executor {
    pub fn new(config: ExecutorConfig) -> Self {
        Self::with_requests(config, Arc::default())
    }

    pub(crate) fn with_requests(config: ExecutorConfig, requests: Arc<FreeRequests>) -> Self {
        Self(ExecutorState::new(config, requests))
    }

    /// Forgets all outputs and instances.
    pub fn reset(&mut self) {
        self.0.reset();
    }

    /// Forgets outputs that hold a value of this owner, and the state of nodes whose classes it has.
    pub fn drop_owned(&mut self, owner: &str) {
        self.0.drop_owned(owner);
    }

    /// The outputs that are kept.
    pub fn cache(&self) -> &OutputCache {
        &self.0.cache
    }

    /// Runs one prompt to its end. Never panics on what a node does.
    pub fn run(&mut self, job: &RunJob, control: &RunControl) -> JobOutcome {
        let state = &mut self.0;
        state.prompts_run += 1;
        let bell = state.bell.clone();
        let _wakes = control.cancel.on_raise(move || bell.ring());
        let graph = Arc::new(DynPrompt::new(&job.prompt));
        let watch = Arc::new(Watch {
            prompt_id: job.prompt_id.clone(),
            client: job.client.clone(),
            sink: state.config.sink.clone(),
            graph: graph.clone(),
            control: control.clone(),
            requests: state.requests.clone(),
            progress: std::sync::Mutex::default(),
            hidden: std::sync::Mutex::default(),
        });
        let mut messages = RunMessages::begin(&watch);
        let memory = state.config.memory.clone();

        let mut tops = HashMap::new();
        for id in graph.top_ids() {
            if let Some(node) = graph.top(id) {
                tops.insert(id.clone(), node.class.clone());
            }
        }
        state.instances.begin(&tops);

        let mut run = Run::new(state, job, graph, watch.clone());
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
        // Headers of files are read for the answer, which an interrupt ends, too: nodes that are not run say so then.
        let admission = run.guarded(|| Ok(catch_panic("admit", || memory.admit(&arriving))));
        let end = match admission.unwrap_or(Admission::Ok) {
            Admission::Refused { node, message } => messages.failed(run.refused(node, message)),
            Admission::Downgraded(message) => {
                tracing::info!(prompt = %job.prompt_id, "{message}");
                watch.emit(EventKind::Downgraded {
                    message: message.into(),
                });
                run.drive(&mut messages)
            }
            Admission::Ok => run.drive(&mut messages),
        };
        let (outputs, meta) = run.into_ui();
        let outcome = JobOutcome {
            end,
            outputs,
            meta,
            messages: messages.list,
        };
        if self.0.config.disable_smart_memory {
            catch_panic("unload_all", || {
                memory.unload_all(&job.prompt_id, Unload::PromptDone);
            });
        }
        outcome
    }
}
