//! Jobs that are kept elsewhere: from the process that brings them straight to the worker that waits, and their ends straight back.
//!
//! The passer has no thread of its own. The caller does the little that is to be done, so that a job of another process costs this one neither
//! a database nor a way through one more thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fresco_graph::{Map, Value, json, lock};
use fresco_placement::WorkerView;

use crate::job::{JobOutcome, RunJob};
use crate::reply::{Reply, Sender, reply};
use crate::source::{JobSource, NextReply};
use crate::store::{Attempt, Claim, Next, QueueRecord, QueueState, StoreError, TakenJob};

/// Gives jobs to the workers of an engine that keeps none. Clones are the same.
#[derive(Clone, Default)]
pub struct JobPasser(Arc<Mutex<PasserState>>);

#[derive(Default)]
struct PasserState {
    waiting: VecDeque<(Box<TakenJob>, Sender<JobOutcome>)>,
    /// By the number of the run.
    running: BTreeMap<u64, Running>,
    workers: VecDeque<Sender<Next>>,
    runs: u64,
    /// Somebody wants the workers to look around.
    woken: bool,
    draining: bool,
    closed: bool,
}

/// A job that a worker has.
struct Running {
    prompt_id: Arc<str>,
    prompt: Arc<Map>,
    extra_data: Map,
    outputs: Vec<Arc<str>>,
    ended: Sender<JobOutcome>,
}

impl Running {
    fn new(job: &TakenJob, ended: Sender<JobOutcome>) -> Self {
        Self {
            prompt_id: job.prompt_id.clone(),
            prompt: job.prompt.clone(),
            extra_data: job.extra_data.clone(),
            outputs: job.outputs.clone(),
            ended,
        }
    }

    fn record(&self, task: u64) -> QueueRecord {
        let text = |value: Value| json::to_string(&value).into();
        QueueRecord {
            number: task.into(),
            prompt_id: self.prompt_id.clone(),
            prompt: text(Value::Map(self.prompt.clone())),
            extra_data: text(self.extra_data.clone().into()),
            outputs: text(self.outputs.clone().into()),
        }
    }
}

impl PasserState {
    fn remaining(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    fn hand_out(&mut self) {
        while !self.draining
            && !self.workers.is_empty()
            && let Some((job, sender)) = self.waiting.pop_front()
            && let Some(worker) = self.workers.pop_front()
        {
            let task = job.task;
            // Before the worker knows of it.
            self.running.insert(task, Running::new(&job, sender));
            if let Err(Next::Job(job)) = worker.offer(Next::Job(job))
                && let Some(running) = self.running.remove(&task)
            {
                // It waited long enough, and will ask again.
                self.waiting.push_front((job, running.ended));
            }
        }
        if self.woken && !self.workers.is_empty() {
            self.woken = false;
            for worker in self.workers.drain(..) {
                worker.send(Next::Woken);
            }
        }
    }
}

impl JobPasser {
    fn state(&self) -> MutexGuard<'_, PasserState> {
        lock(&self.0)
    }

    /// Has a job run. Answers how it ended; no answer means that it did not, because the engine stopped or gave it back.
    pub fn pass(&self, job: RunJob) -> Reply<JobOutcome> {
        let (sender, ended) = reply();
        let mut state = self.state();
        if !state.closed {
            let task = state.runs;
            state.runs += 1;
            let taken = TakenJob {
                task,
                attempt: 1,
                number: task.into(),
                prompt_id: job.prompt_id,
                prompt: job.prompt,
                extra_data: job.extra_data,
                outputs: job.outputs,
                sensitive: job.sensitive,
                client_id: job.client,
                remaining: state.remaining() + 1,
            };
            state.waiting.push_back((Box::new(taken), sender));
            state.hand_out();
        }
        ended
    }

    /// Jobs that no worker has yet.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }
}

/// A reply that is there already.
fn at_once<T>(answer: T) -> Reply<T> {
    let (sender, replied) = reply();
    sender.send(answer);
    replied
}

impl JobSource for JobPasser {
    fn ask_next(&self, _: &Claim, _: Option<Arc<WorkerView>>, timeout: Duration) -> NextReply {
        let (sender, next) = reply();
        let mut state = self.state();
        if !state.closed {
            state.workers.push_back(sender);
            state.hand_out();
        }
        NextReply::within(next, timeout)
    }

    fn wake(&self) {
        let mut state = self.state();
        state.woken = true;
        state.hand_out();
    }

    fn give_back(&self, task: u64, _: Attempt) -> Reply<Result<bool, StoreError>> {
        at_once(Ok(self.state().running.remove(&task).is_some()))
    }

    fn finish(&self, task: u64, outcome: JobOutcome) -> Reply<Result<usize, StoreError>> {
        let mut state = self.state();
        if let Some(job) = state.running.remove(&task) {
            job.ended.send(outcome);
        }
        at_once(Ok(state.remaining()))
    }

    fn remaining(&self) -> usize {
        self.state().remaining()
    }

    fn handed_out(&self) -> BTreeMap<u64, Arc<str>> {
        let state = self.state();
        let running = state.running.iter();
        running
            .map(|(task, job)| (*task, job.prompt_id.clone()))
            .collect()
    }

    /// What runs.
    fn queue(&self) -> Reply<Result<QueueState, StoreError>> {
        let state = self.state();
        if state.closed {
            return reply().1;
        }
        let running = state.running.iter();
        at_once(Ok(QueueState {
            running: running.map(|(task, job)| job.record(*task)).collect(),
            pending: Vec::new(),
        }))
    }

    fn drain(&self) -> Reply<()> {
        self.state().draining = true;
        at_once(())
    }

    fn stopping(&self) -> Reply<()> {
        at_once(())
    }

    fn close(&self) -> Reply<()> {
        let end = {
            let mut state = self.state();
            let end = std::mem::take(&mut *state);
            state.closed = true;
            end
        };
        for worker in end.workers {
            worker.send(Next::Closed);
        }
        at_once(())
    }
}
