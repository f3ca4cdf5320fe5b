//! Who runs jobs.
//!
//! The engine gives each worker a thread that feeds it (`feeder`): it takes a job from the store, calls [`Worker::run`], and
//! records the end. The first implementation, [`LocalWorker`], runs nodes on that very thread; others may pass the job on
//! to a process or a machine and wait there for its end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fresco_graph::lock;
use fresco_placement::{FreeRequest, WorkerView};

use crate::executor::Executor;
use crate::job::{JobOutcome, RunControl, RunJob};
use crate::memory::{FreeReport, MemoryRoom};
use crate::panics::catch_panic;
use crate::requests::FreeRequests;
use crate::state::ExecutorConfig;

/// Runs jobs, one at a time.
pub trait Worker: Send + Sync {
    /// Its name in events, reports and leases.
    fn name(&self) -> &Arc<str>;

    /// Runs a job to its end. Events go to the sink that the worker was made with.
    fn run(&self, job: &RunJob, control: &RunControl) -> JobOutcome;

    /// Waits until it could take a job, at most so long. False: not yet.
    fn wait_ready(&self, _patience: Duration) -> bool {
        true
    }

    /// Whether it could take a job now.
    fn is_ready(&self) -> bool {
        true
    }

    /// Asks a run to stop. It goes on until [`Worker::run`] returns; the token stays raised until then. Must not wait: it is
    /// called on threads that serve sockets.
    fn interrupt(&self, control: &RunControl) {
        control.cancel.raise();
    }

    /// Frees memory now. Called while no job runs.
    fn free(&self, request: &FreeRequest) -> FreeReport;

    /// Forgets results that hold values of this owner. Called while no job runs.
    fn drop_owned(&self, owner: &str);

    /// Which weights it has and where it computes, for whoever decides who runs what. Called while no job runs.
    fn view(&self) -> WorkerView {
        WorkerView::default()
    }

    /// What it holds at this moment.
    fn snapshot(&self) -> WorkerSnapshot;
}

/// What a worker holds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct WorkerSnapshot {
    pub worker: Arc<str>,
    /// Results of nodes that are kept; none while a job runs.
    pub results: Option<usize>,
}

/// Runs nodes in this process, on the thread that calls it.
pub(crate) struct LocalWorker {
    name: Arc<str>,
    config: ExecutorConfig,
    requests: Arc<FreeRequests>,
    /// Held while a job runs. A run that was given up holds it for ever; its worker is replaced then.
    executor: Mutex<Executor>,
}

impl LocalWorker {
    pub(crate) fn new(
        name: Arc<str>,
        config: ExecutorConfig,
        requests: Arc<FreeRequests>,
    ) -> Arc<Self> {
        let executor = Executor::with_requests(config.clone(), requests.clone());
        Arc::new(Self {
            name,
            config,
            requests,
            executor: Mutex::new(executor),
        })
    }

    fn memory(&self) -> &Arc<dyn MemoryRoom> {
        &self.config.memory
    }
}

impl Worker for LocalWorker {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn run(&self, job: &RunJob, control: &RunControl) -> JobOutcome {
        let mut executor = lock(&self.executor);
        let ran = catch_unwind(AssertUnwindSafe(|| executor.run(job, control)));
        ran.unwrap_or_else(|panic| {
            // Its books may not add up any more.
            *executor = Executor::with_requests(self.config.clone(), self.requests.clone());
            resume_unwind(panic)
        })
    }

    fn free(&self, request: &FreeRequest) -> FreeReport {
        let memory = self.memory();
        let (began, ram_before) = (Instant::now(), memory.resident_ram());
        let mut report = FreeReport {
            worker: self.name.clone(),
            ..FreeReport::default()
        };
        if request.unload_models {
            report.models = catch_panic("free", || memory.free(request, None));
        }
        if request.free_memory {
            lock(&self.executor).reset();
            catch_panic("cache_reset", || memory.cache_reset());
            report.cache_reset = true;
        }
        catch_panic("release_caches", || memory.release_caches());
        (report.ram_before, report.ram_after) = (ram_before, memory.resident_ram());
        report.took = began.elapsed();
        report
    }

    fn drop_owned(&self, owner: &str) {
        lock(&self.executor).drop_owned(owner);
    }

    fn view(&self) -> WorkerView {
        catch_panic("view", || self.memory().view())
    }

    fn snapshot(&self) -> WorkerSnapshot {
        WorkerSnapshot {
            worker: self.name.clone(),
            results: self.executor.try_lock().ok().map(|e| e.cache().len()),
        }
    }
}
