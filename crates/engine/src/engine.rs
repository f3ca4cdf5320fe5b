//! The handle to everything: submit, look, stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fresco_graph::{
    Listings, Map, ProblemsByNode, PromptError, PromptLimits, Registry, Resources, Rules,
    ValidPrompt, Value, map,
};

use crate::event::EventSink;
use crate::executor::{ExecutorConfig, now_ms};
use crate::gate::{Gate, Release};
use crate::memory::{
    FreeNote, FreeReport, FreeRequest, MemoryProblem, MemoryRoom, ModelReport, Removed,
};
use crate::reply::{Reply, Sender, reply};
use crate::store::{Finished, NewJob, Priority, QueueChange, QueueOutline, Store, StoreError};
use crate::worker::{Current, Shared, Stats, calm, lock};

/// What an engine is made from.
pub struct EngineConfig {
    pub executor: ExecutorConfig,
    pub listings: Arc<dyn Listings>,
    pub store: Store,
    pub limits: PromptLimits,
    /// How long a node may ignore an interrupt before its thread is given up.
    pub hang_grace: Duration,
}

/// A prompt on its way into the queue.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// A fresh one is made when absent.
    pub prompt_id: Option<Arc<str>>,
    /// Explicit priority; lower runs first.
    pub number: Option<f64>,
    /// A number drawn before with [`Engine::next_number`].
    pub drawn: Option<i64>,
    pub front: bool,
    pub extra_data: Map,
}

/// A prompt that was accepted, durably.
pub struct Ticket {
    pub prompt_id: Arc<str>,
    pub number: Value,
    pub problems: ProblemsByNode,
    /// The prompt does not start before this is dropped.
    pub release: Release,
}

/// Keys of `extra_data` that no record may show.
pub const SENSITIVE: [&str; 2] = ["auth_token_comfy_org", "api_key_comfy_org"];

/// The running engine. Clones share it.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    resources: Arc<Resources>,
    listings: Arc<dyn Listings>,
    limits: PromptLimits,
}

impl Engine {
    /// Starts the worker; jobs that the store still holds run at once.
    pub fn start(config: EngineConfig) -> std::io::Result<Self> {
        let EngineConfig {
            executor,
            listings,
            store,
            limits,
            hang_grace,
        } = config;
        let (registry, resources) = (executor.registry.clone(), executor.resources.clone());
        let shared = Arc::new(Shared {
            store,
            config: executor,
            hang_grace,
            interrupt: std::sync::Mutex::default(),
            running: std::sync::Mutex::default(),
            ended: std::sync::Condvar::new(),
            gate: Arc::new(Gate::default()),
            requests: Arc::default(),
            stats: Stats::default(),
            telling: std::sync::Mutex::default(),
            stopping: std::sync::atomic::AtomicBool::new(false),
            thread: std::sync::Mutex::default(),
        });
        shared.start();
        Ok(Self(Arc::new(Inner {
            shared,
            registry,
            resources,
            listings,
            limits,
        })))
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    pub fn listings(&self) -> &Arc<dyn Listings> {
        &self.0.listings
    }

    pub fn store(&self) -> &Store {
        &self.0.shared.store
    }

    pub fn stats(&self) -> &Stats {
        &self.0.shared.stats
    }

    pub fn sink(&self) -> &Arc<dyn EventSink> {
        &self.0.shared.config.sink
    }

    /// Checks a prompt. CPU-bound; large graphs take milliseconds.
    pub fn validate(
        &self,
        prompt: Map,
        targets: Option<&[Arc<str>]>,
    ) -> Result<ValidPrompt, PromptError> {
        let rules = Rules {
            registry: &self.0.registry,
            listings: &*self.0.listings,
            resources: &self.0.resources,
            limits: self.0.limits,
        };
        rules.validate(prompt, targets)
    }

    /// Draws a priority number, as every request without its own does, even a refused one.
    pub fn next_number(&self, front: bool) -> i64 {
        self.0.shared.store.next_number(front)
    }

    /// Queues a prompt; resolves once it is on disk.
    pub async fn submit(
        &self,
        valid: ValidPrompt,
        submission: Submission,
    ) -> Result<Ticket, StoreError> {
        let (prompt_id, release, reply) = self.begin(&valid, submission);
        let accepted = reply.await;
        self.accepted(prompt_id, release, valid.problems, accepted)
    }

    /// As [`Engine::submit`], for threads.
    pub fn submit_blocking(
        &self,
        valid: ValidPrompt,
        submission: Submission,
    ) -> Result<Ticket, StoreError> {
        let (prompt_id, release, reply) = self.begin(&valid, submission);
        let accepted = reply.wait();
        self.accepted(prompt_id, release, valid.problems, accepted)
    }

    fn begin(
        &self,
        valid: &ValidPrompt,
        submission: Submission,
    ) -> (
        Arc<str>,
        Release,
        crate::Reply<Result<crate::store::Accepted, StoreError>>,
    ) {
        let Submission {
            prompt_id,
            number,
            drawn,
            front,
            mut extra_data,
        } = submission;
        let prompt_id = prompt_id.unwrap_or_else(new_prompt_id);
        let mut sensitive = Map::new();
        for key in SENSITIVE {
            if let Some(value) = extra_data.shift_remove(key) {
                sensitive.insert(key.into(), value);
            }
        }
        extra_data.insert("create_time".into(), now_ms().into());
        let priority = match (number, drawn) {
            (Some(n), _) => Priority::Explicit(n),
            (None, Some(n)) => Priority::Drawn(n),
            (None, None) if front => Priority::Front,
            (None, None) => Priority::Auto,
        };
        let release = self.0.shared.gate.close(&prompt_id);
        let reply = self.0.shared.store.enqueue(NewJob {
            prompt_id: prompt_id.clone(),
            priority,
            prompt: valid.prompt.clone(),
            extra_data,
            outputs: valid.outputs.clone(),
            sensitive,
        });
        (prompt_id, release, reply)
    }

    fn accepted(
        &self,
        prompt_id: Arc<str>,
        release: Release,
        problems: ProblemsByNode,
        accepted: Option<Result<crate::store::Accepted, StoreError>>,
    ) -> Result<Ticket, StoreError> {
        match accepted.unwrap_or(Err(StoreError::Closed)) {
            Ok(accepted) => {
                self.0.shared.status(accepted.remaining);
                Ok(Ticket {
                    prompt_id,
                    number: accepted.number,
                    problems,
                    release,
                })
            }
            Err(error) => {
                self.0.shared.gate.forget(&prompt_id);
                Err(error)
            }
        }
    }

    /// Pending plus running.
    pub fn remaining(&self) -> usize {
        self.0.shared.store.remaining()
    }

    /// What runs now.
    pub fn current(&self) -> Option<Current> {
        lock(&self.0.shared.running)
            .as_ref()
            .map(|r| r.current.clone())
    }

    /// Stops the running prompt; with an id only if that one runs. True if something was running to stop.
    pub fn interrupt(&self, prompt_id: Option<&str>) -> bool {
        self.0.shared.interrupt(prompt_id)
    }

    /// Leaves a flag for the worker (`unload_models`, `free_memory`).
    pub fn set_flag(&self, name: &str, value: Value) {
        self.0.shared.store.set_flag(name, value);
    }

    /// Whoever owns models: for looking, and for what changes nothing at once.
    pub fn memory(&self) -> &Arc<dyn MemoryRoom> {
        &self.0.shared.config.memory
    }

    /// Leaves a request for the worker, which carries it out when no prompt runs.
    pub fn free(&self, request: FreeRequest) {
        self.leave(request, None);
    }

    /// As [`Engine::free`], answered when it is done; never if the engine stops before.
    pub fn free_and_wait(&self, request: FreeRequest) -> Reply<FreeReport> {
        let (sender, reply) = reply();
        self.leave(request, Some(sender));
        reply
    }

    fn leave(&self, mut request: FreeRequest, waiter: Option<Sender<FreeReport>>) {
        let (shared, memory) = (&self.0.shared, self.memory());
        if request.is_noop() {
            calm("note_free", || memory.note_free(FreeNote::Noop));
            if let Some(waiter) = waiter {
                waiter.send(FreeReport::default());
            }
            return;
        }
        request.unload_models = true;
        let force = request.force;
        shared.requests.push(request, waiter, || {
            if let Some(current) = self.current() {
                let prompt_id = &*current.prompt_id;
                calm("note_free", || {
                    memory.note_free(FreeNote::Deferred { prompt_id });
                });
            }
        });
        if force {
            // An executor that waits for slow nodes looks around.
            lock(&shared.interrupt).bell.ring();
        }
        shared.store.wake();
    }

    /// Sets how long a model stays.
    pub fn set_policy(&self, id: &str, policy: &str) -> Result<ModelReport, MemoryProblem> {
        let report = self.memory().set_policy(id, policy);
        // A time to live may end sooner than the worker meant to look.
        self.0.shared.store.wake();
        report
    }

    /// Drops a model.
    pub fn remove_model(&self, id: &str, force: bool) -> Result<Removed, MemoryProblem> {
        let removed = self.memory().remove(id, force);
        self.0.shared.store.wake();
        removed
    }

    /// Drops a model that no prompt uses.
    pub fn release_model(&self, id: &str) -> Result<(), MemoryProblem> {
        self.memory().release(id)
    }

    /// Pauses, holds, releases and orders waiting prompts; resolves once that is on disk, with how the queue stands then.
    pub async fn change_queue(&self, change: QueueChange) -> Result<QueueOutline, StoreError> {
        let shared = &self.0.shared;
        let changed = shared.store.change_queue(change).await;
        let outline = changed.unwrap_or(Err(StoreError::Closed))?;
        shared.queue_changed();
        Ok(outline)
    }

    /// Drops all waiting prompts.
    pub async fn clear_pending(&self) -> Result<usize, StoreError> {
        let cleared = self
            .0
            .shared
            .store
            .clear_pending()
            .await
            .unwrap_or(Err(StoreError::Closed))?;
        self.0.shared.status(self.remaining());
        Ok(cleared)
    }

    /// Drops the first waiting prompt with this id.
    pub async fn delete_pending(&self, prompt_id: &str) -> Result<bool, StoreError> {
        let deleted = self
            .0
            .shared
            .store
            .delete_pending(prompt_id)
            .await
            .unwrap_or(Err(StoreError::Closed))?;
        if deleted {
            self.0.shared.status(self.remaining());
        }
        Ok(deleted)
    }

    /// Cancels a job wherever it is: a waiting one is recorded as cancelled, a running one interrupted.
    pub async fn cancel(&self, prompt_id: &str) -> Result<bool, StoreError> {
        let data = map! {
            "prompt_id" => prompt_id,
            "node_id" => "",
            "node_type" => "",
            "executed" => Value::List(Arc::default()),
            "timestamp" => now_ms(),
        };
        let message = Value::from(vec![Value::from("execution_interrupted"), data.into()]);
        let finished = Finished {
            outputs: Map::new(),
            meta: Map::new(),
            status_str: "error".into(),
            completed: false,
            messages: vec![message].into(),
            cancelled: true,
        };
        let store = &self.0.shared.store;
        if store
            .cancel_pending(prompt_id, finished)
            .await
            .unwrap_or(Err(StoreError::Closed))?
        {
            self.0.shared.status(self.remaining());
            return Ok(true);
        }
        Ok(self.interrupt(Some(prompt_id)))
    }

    /// Stops the worker: what runs is interrupted and stays queued for the next start. Waits at most `patience`.
    pub fn stop(&self, patience: Duration) {
        let shared = &self.0.shared;
        shared.stopping.store(true, Ordering::SeqCst);
        shared.requests.close();
        // Before the wait below, in which a service manager may lose its patience.
        let _ = shared.store.stopping().wait();
        shared.interrupt(None);
        shared.store.wake();
        let Some(worker) = lock(&shared.thread).take() else {
            return;
        };
        let give_up = std::time::Instant::now() + patience;
        while !worker.is_finished() && std::time::Instant::now() < give_up {
            #[expect(
                clippy::disallowed_methods,
                reason = "a thread cannot be joined with a deadline; this happens once, at the end"
            )]
            std::thread::sleep(Duration::from_millis(5));
        }
        if worker.is_finished() && worker.join().is_err() {
            tracing::error!("the worker thread panicked");
        }
        shared.abandon();
        calm("shutdown", || shared.config.memory.shutdown());
        let _ = shared.store.close().wait();
    }
}

/// A random UUID (version 4) in the usual spelling.
pub fn new_prompt_id() -> Arc<str> {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // RandomState is seeded from the operating system; two of them give 128 unpredictable bits.
    let word = || RandomState::new().build_hasher().finish();
    let bits = (u128::from(word()) << 64) | u128::from(word());
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_ids_are_version_4_and_differ() {
        let (a, b) = (new_prompt_id(), new_prompt_id());
        assert_ne!(a, b);
        assert_eq!(a.len(), 36);
        assert_eq!(&a[14..15], "4");
        assert!(matches!(&a[19..20], "8" | "9" | "a" | "b"));
    }
}
