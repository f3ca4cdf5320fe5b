//! The handle to everything: submit, look, stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fresco_graph::{
    Listings, Map, NodeRegistry, ProblemsByNode, PromptError, PromptLimits, Resources, Rules,
    ValidPrompt, Value, lock,
};

use fresco_placement::{FreeNote, FreeRequest, JobNeeds, WorkerView};

use crate::event::EventSink;
use crate::feeder::{EngineShared, MakeWorker, RunningPrompt, WorkerPlace};
use crate::job::JobOutcome;
use crate::live_registry::LiveRegistry;
use crate::memory::{FreeReport, MemoryRoom, NoModels};
use crate::messages::now_ms;
use crate::panics::catch_panic;
use crate::reply::{Reply, reply};
use crate::source::JobSource;
use crate::state::ExecutorConfig;
use crate::store::{
    Claim, JobStore, NewJob, Priority, QueueChange, QueueOutline, QueueState, StoreError,
};
use crate::worker::{LocalWorker, WorkerSnapshot};

/// What an engine is made from.
pub struct EngineConfig {
    /// How workers of this process run nodes.
    pub executor: ExecutorConfig,
    /// Who runs jobs; each takes the next one as soon as it is free.
    pub workers: Vec<WorkerConfig>,
    pub listings: Arc<dyn Listings>,
    /// Where jobs come from.
    pub jobs: Arc<dyn JobSource>,
    pub limits: PromptLimits,
    /// How long a node may ignore an interrupt before its thread is given up.
    pub hang_grace: Duration,
}

/// One worker of an engine.
#[derive(Clone)]
pub struct WorkerConfig {
    /// In events, reports and leases; no other worker has it.
    pub name: Arc<str>,
    pub kind: WorkerKind,
}

#[derive(Clone)]
pub enum WorkerKind {
    /// A thread of this process.
    Local,
    /// A thread of this process with devices and models of its own. Its events go where those of the engine go.
    OnDevices(Box<ExecutorConfig>),
    /// Somebody else. A job is its own for `term` after each sign of life, also while this process is away.
    Remote { make: MakeWorker, term: Duration },
}

impl WorkerConfig {
    /// One worker in this process.
    pub fn local() -> Self {
        Self {
            name: "local".into(),
            kind: WorkerKind::Local,
        }
    }

    fn place(self, executor: &ExecutorConfig) -> Arc<WorkerPlace> {
        let requests = Arc::default();
        let own: &ExecutorConfig = match &self.kind {
            WorkerKind::OnDevices(own) => own,
            WorkerKind::Local | WorkerKind::Remote { .. } => executor,
        };
        // Models of a worker elsewhere are its own affair.
        let memory: Arc<dyn MemoryRoom> = match &self.kind {
            WorkerKind::Remote { .. } => Arc::new(NoModels),
            WorkerKind::Local | WorkerKind::OnDevices(_) => own.memory.clone(),
        };
        let (make, term): (MakeWorker, _) = match &self.kind {
            WorkerKind::Remote { make, term } => (make.clone(), Some(*term)),
            WorkerKind::Local | WorkerKind::OnDevices(_) => {
                let (name, config) = (self.name.clone(), own.clone());
                let requests = Arc::clone(&requests);
                let make: MakeWorker = Arc::new(move |sink| {
                    let config = ExecutorConfig {
                        sink,
                        ..config.clone()
                    };
                    LocalWorker::new(name.clone(), config, Arc::clone(&requests))
                });
                (make, None)
            }
        };
        Arc::new(WorkerPlace {
            claim: Claim {
                owner: self.name.clone(),
                term,
            },
            name: self.name,
            make,
            requests,
            memory,
            thread: std::sync::Mutex::default(),
            worker: std::sync::Mutex::default(),
            gone: std::sync::atomic::AtomicBool::new(false),
        })
    }
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
    /// As [`Engine::needs`] said; asked for by the engine where absent.
    pub needs: Option<JobNeeds>,
}

/// A prompt that was accepted, durably.
pub struct Ticket {
    pub prompt_id: Arc<str>,
    pub number: Value,
    pub problems: ProblemsByNode,
}

/// Keys of `extra_data` that no record may show.
pub const SENSITIVE: [&str; 2] = ["auth_token_comfy_org", "api_key_comfy_org"];

/// The running engine. Clones share it.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    shared: Arc<EngineShared>,
    registry: Arc<LiveRegistry>,
    resources: Arc<Resources>,
    listings: Arc<dyn Listings>,
    limits: PromptLimits,
    executor: ExecutorConfig,
}

impl Engine {
    /// Starts the workers; jobs that the store still holds run at once.
    pub fn start(config: EngineConfig) -> std::io::Result<Self> {
        let EngineConfig {
            executor,
            workers,
            listings,
            jobs,
            limits,
            hang_grace,
        } = config;
        let places: Vec<_> = workers.into_iter().map(|w| w.place(&executor)).collect();
        let ExecutorConfig {
            registry,
            resources,
            memory,
            sink,
            ..
        } = executor.clone();
        let shared = Arc::new(EngineShared {
            jobs,
            sink,
            memory,
            places: std::sync::RwLock::new(places),
            hang_grace,
            running: std::sync::Mutex::default(),
            stopped_early: std::sync::Mutex::default(),
            ended: std::sync::Condvar::new(),
            telling: std::sync::Mutex::default(),
            stopping: std::sync::atomic::AtomicBool::new(false),
            draining: std::sync::atomic::AtomicBool::new(false),
        });
        if let Some(store) = shared.jobs.store() {
            shared.listen_to(store);
        }
        for place in &shared.places() {
            shared.start(place);
        }
        Ok(Self(Arc::new(Inner {
            shared,
            registry,
            resources,
            listings,
            limits,
            executor,
        })))
    }

    /// Adds a worker while the engine runs. False if one of that name is there.
    pub fn add_worker(&self, config: WorkerConfig) -> bool {
        let shared = &self.0.shared;
        let place = config.place(&self.0.executor);
        {
            let mut places = shared
                .places
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            if shared.stopping.load(Ordering::SeqCst)
                || places.iter().any(|other| other.name == place.name)
            {
                return false;
            }
            places.push(place.clone());
        }
        shared.start(&place);
        // From now on the others have to say what they have.
        shared.jobs.wake();
        true
    }

    /// Takes a worker out that runs nothing. False if it runs something, or is not there.
    pub fn remove_worker(&self, name: &str) -> bool {
        let shared = &self.0.shared;
        let place = {
            let mut places = shared
                .places
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let busy = self.running().iter().any(|run| &*run.worker == name);
            let at = places.iter().position(|place| &*place.name == name);
            match at {
                Some(at) if !busy => places.remove(at),
                _ => return false,
            }
        };
        place.gone.store(true, Ordering::SeqCst);
        place.requests.close();
        if let Some(store) = shared.jobs.store() {
            store.worker_gone(&place.name);
        }
        true
    }

    /// What workers can do has changed: whoever waits for a job asks again.
    pub fn workers_changed(&self) {
        self.0.shared.jobs.wake();
    }

    /// The classes as they are now.
    pub fn registry(&self) -> Arc<NodeRegistry> {
        self.0.registry.snapshot()
    }

    /// Adds, replaces and removes classes. Prompts that run keep theirs.
    pub fn change_classes(&self, change: impl FnOnce(&mut NodeRegistry)) {
        self.0.registry.update(change);
    }

    /// The values of an owner are gone: results that have one are not used again, and nodes that made them run anew.
    pub fn drop_owned(&self, owner: &Arc<str>) {
        for place in &self.0.shared.places() {
            place.requests.push_owner(owner);
        }
        self.0.shared.jobs.wake();
    }

    /// What each worker holds.
    pub fn workers(&self) -> Vec<WorkerSnapshot> {
        let places = self.0.shared.places();
        let places = places.iter();
        let workers: Vec<_> = places.filter_map(|p| lock(&p.worker).clone()).collect();
        workers.iter().map(|worker| worker.snapshot()).collect()
    }

    /// What the worker of this process has, where there is only one.
    pub fn worker_view(&self) -> WorkerView {
        let place = self.0.shared.places().first().cloned();
        let worker = place.and_then(|place| lock(&place.worker).clone());
        worker.map(|worker| worker.view()).unwrap_or_default()
    }

    pub fn listings(&self) -> &Arc<dyn Listings> {
        &self.0.listings
    }

    /// The database; none where jobs are kept elsewhere.
    pub fn store(&self) -> Option<&JobStore> {
        self.0.shared.jobs.store()
    }

    fn kept(&self) -> Result<&JobStore, StoreError> {
        self.store().ok_or(StoreError::NoQueue)
    }

    /// What runs and what waits.
    pub fn queue(&self) -> Reply<Result<QueueState, StoreError>> {
        self.0.shared.jobs.queue()
    }

    pub fn sink(&self) -> &Arc<dyn EventSink> {
        &self.0.shared.sink
    }

    /// Whether checking this prompt may wait for another process, or for a disk or a network share. Then it must not be done on a
    /// thread that serves sockets.
    pub fn checks_wait(&self, prompt: &Map) -> bool {
        self.0.shared.chooses() || self.registry().checks_wait(prompt)
    }

    /// Checks a prompt. CPU-bound; large graphs take milliseconds. See [`Engine::checks_wait`].
    pub fn validate(
        &self,
        prompt: Map,
        targets: Option<&[Arc<str>]>,
    ) -> Result<ValidPrompt, PromptError> {
        let rules = Rules {
            registry: &self.registry(),
            listings: &*self.0.listings,
            resources: &self.0.resources,
            limits: self.0.limits,
        };
        rules.validate(prompt, targets)
    }

    /// What a prompt needs of the worker that runs it, which may take as long as asking a disk; nothing where there is one worker. See
    /// [`Engine::checks_wait`].
    pub fn needs(&self, valid: &ValidPrompt) -> Option<JobNeeds> {
        let shared = &self.0.shared;
        shared.chooses().then(|| {
            catch_panic("needs", || {
                shared.memory.needs(&valid.prompt, &valid.outputs)
            })
        })
    }

    /// Draws a priority number, as every request without its own does, even a refused one.
    pub fn next_number(&self, front: bool) -> i64 {
        self.store().map_or(0, |store| store.next_number(front))
    }

    /// Queues a prompt; resolves once it is on disk.
    pub async fn submit(
        &self,
        valid: ValidPrompt,
        submission: Submission,
    ) -> Result<Ticket, StoreError> {
        let (prompt_id, reply) = self.begin(&valid, submission);
        let accepted = reply.await;
        Self::accepted(prompt_id, valid.problems, accepted)
    }

    /// As [`Engine::submit`], for threads.
    pub fn submit_blocking(
        &self,
        valid: ValidPrompt,
        submission: Submission,
    ) -> Result<Ticket, StoreError> {
        let (prompt_id, reply) = self.begin(&valid, submission);
        let accepted = reply.wait();
        Self::accepted(prompt_id, valid.problems, accepted)
    }

    fn begin(
        &self,
        valid: &ValidPrompt,
        submission: Submission,
    ) -> (
        Arc<str>,
        crate::Reply<Result<crate::store::Accepted, StoreError>>,
    ) {
        let Submission {
            prompt_id,
            number,
            drawn,
            front,
            mut extra_data,
            needs,
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
        let needs = needs.or_else(|| self.needs(valid));
        let job = NewJob {
            prompt_id: prompt_id.clone(),
            priority,
            prompt: valid.prompt.clone(),
            extra_data,
            outputs: valid.outputs.clone(),
            sensitive,
        };
        let reply = match self.kept() {
            Ok(store) => store.enqueue_needing(job, needs),
            Err(error) => {
                let (sender, refused) = reply();
                sender.send(Err(error));
                refused
            }
        };
        (prompt_id, reply)
    }

    fn accepted(
        prompt_id: Arc<str>,
        problems: ProblemsByNode,
        accepted: Option<Result<crate::store::Accepted, StoreError>>,
    ) -> Result<Ticket, StoreError> {
        let accepted = accepted.unwrap_or(Err(StoreError::Closed))?;
        Ok(Ticket {
            prompt_id,
            number: accepted.number,
            problems,
        })
    }

    /// Pending plus running.
    pub fn remaining(&self) -> usize {
        self.0.shared.jobs.remaining()
    }

    /// What runs now, oldest first.
    pub fn running(&self) -> Vec<RunningPrompt> {
        let running = lock(&self.0.shared.running);
        running.values().map(|run| run.current.clone()).collect()
    }

    /// Stops running prompts: those with this id, or all. True if there was something to stop.
    pub fn interrupt(&self, prompt_id: Option<&str>) -> bool {
        self.0.shared.interrupt(prompt_id)
    }

    /// Leaves a request for each worker, which carries it out when it runs no prompt.
    pub fn free(&self, request: FreeRequest) {
        drop(self.free_and_wait(request));
    }

    /// As [`Engine::free`]; each worker answers when it is done, or never if the engine stops before.
    pub fn free_and_wait(&self, mut request: FreeRequest) -> Vec<Reply<FreeReport>> {
        let shared = &self.0.shared;
        let memory = &shared.memory;
        if request.is_noop() {
            catch_panic("note_free", || memory.note_free(FreeNote::Noop));
            let (sender, done) = reply();
            sender.send(FreeReport::default());
            return vec![done];
        }
        request.unload_models = true;
        let mut replies = Vec::new();
        for place in &shared.places() {
            let memory = &place.memory;
            let (sender, done) = reply();
            place.requests.push(request.clone(), Some(sender), || {
                for current in self.running().iter().filter(|c| c.worker == place.name) {
                    let prompt_id = &*current.prompt_id;
                    catch_panic("note_free", || {
                        memory.note_free(FreeNote::Deferred { prompt_id });
                    });
                }
            });
            replies.push(done);
        }
        shared.jobs.wake();
        replies
    }

    /// Somebody else told the memory room something: what is due there may be due sooner than the workers meant to look.
    pub fn memory_changed(&self) {
        self.0.shared.jobs.wake();
    }

    /// Pauses, holds, releases and orders waiting prompts; resolves once that is on disk, with how the queue stands then.
    pub async fn change_queue(&self, change: QueueChange) -> Result<QueueOutline, StoreError> {
        let shared = &self.0.shared;
        let changed = self.kept()?.change_queue(change).await;
        let outline = changed.unwrap_or(Err(StoreError::Closed))?;
        shared.queue_changed();
        Ok(outline)
    }

    /// Drops all waiting prompts.
    pub async fn clear_pending(&self) -> Result<usize, StoreError> {
        let cleared = self.kept()?.clear_pending().await;
        let cleared = cleared.unwrap_or(Err(StoreError::Closed))?;
        self.0.shared.status(self.remaining());
        Ok(cleared)
    }

    /// Drops the first waiting prompt with this id.
    pub async fn delete_pending(&self, prompt_id: &str) -> Result<bool, StoreError> {
        let deleted = self.kept()?.delete_pending(prompt_id).await;
        let deleted = deleted.unwrap_or(Err(StoreError::Closed))?;
        if deleted {
            self.0.shared.status(self.remaining());
        }
        Ok(deleted)
    }

    /// Cancels a job wherever it is: a waiting one is recorded as cancelled, a running one interrupted.
    pub async fn cancel(&self, prompt_id: &str) -> Result<bool, StoreError> {
        let store = self.kept()?;
        if store
            .cancel_pending(prompt_id, JobOutcome::interrupted(prompt_id))
            .await
            .unwrap_or(Err(StoreError::Closed))?
        {
            self.0.shared.status(self.remaining());
            return Ok(true);
        }
        Ok(self.interrupt(Some(prompt_id)))
    }

    /// Begins no more prompts, and waits until those that run have ended, at most `patience`. True if they have.
    /// [`Engine::stop`] comes next.
    pub fn drain(&self, patience: Duration) -> bool {
        let shared = &self.0.shared;
        shared.draining.store(true, Ordering::SeqCst);
        let _ = shared.jobs.drain().wait();
        let runs = |running: &mut std::collections::BTreeMap<_, _>| !running.is_empty();
        let (running, _) = shared
            .ended
            .wait_timeout_while(lock(&shared.running), patience, runs)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        running.is_empty()
    }

    /// Whether no more prompts are begun because the program is about to end.
    pub fn is_draining(&self) -> bool {
        self.0.shared.draining.load(Ordering::SeqCst)
    }

    /// Stops the workers: what runs is interrupted and stays queued for the next start. Waits at most `patience`.
    pub fn stop(&self, patience: Duration) {
        let shared = &self.0.shared;
        shared.stopping.store(true, Ordering::SeqCst);
        let places = shared.places();
        for place in &places {
            place.requests.close();
        }
        // Before the wait below, in which a service manager may lose its patience.
        let _ = shared.jobs.stopping().wait();
        shared.leave_remote();
        shared.interrupt(None);
        shared.jobs.wake();
        let give_up = std::time::Instant::now() + patience;
        for place in &places {
            let Some(thread) = lock(&place.thread).take() else {
                continue;
            };
            while !thread.is_finished() && std::time::Instant::now() < give_up {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a thread cannot be joined with a deadline; this happens once, at the end"
                )]
                std::thread::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() && thread.join().is_err() {
                tracing::error!("the thread of worker {} panicked", place.name);
            }
        }
        shared.abandon();
        let mut closed: Vec<&Arc<dyn MemoryRoom>> = Vec::new();
        let memories = places.iter().map(|place| &place.memory);
        for memory in memories.chain([&shared.memory]) {
            if !closed.iter().any(|other| Arc::ptr_eq(other, memory)) {
                catch_panic("shutdown", || memory.shutdown());
                closed.push(memory);
            }
        }
        let _ = shared.jobs.close().wait();
    }
}

/// A random UUID (version 4) in the usual spelling.
pub fn new_prompt_id() -> Arc<str> {
    uuid::Uuid::new_v4().to_string().into()
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
