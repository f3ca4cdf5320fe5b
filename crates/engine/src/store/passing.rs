//! Jobs that are kept elsewhere: from whoever brings them straight to the worker that waits, and their ends straight back.
//!
//! There is no thread here. Whoever calls does the little that is to be done, so that a job of another process costs this one neither
//! a database nor a way through one more thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use fresco_graph::{Map, Value, json, lock};

use super::Published;
use super::error::StoreError;
use super::record::{Next, QueueRecord, QueueState, TakenJob};
use super::thread::Command;
use crate::job::{JobOutcome, RunJob};
use crate::reply::{Reply, Sender, reply};

/// Gives jobs to the workers of an engine whose store keeps nothing.
pub struct Passer(Arc<Passing>);

impl Passer {
    pub(super) fn new(passing: Arc<Passing>) -> Self {
        Self(passing)
    }

    /// Has a job run. Answers how it ended; no answer means that it did not, because the engine stopped or gave it back.
    pub fn pass(&self, job: RunJob) -> Reply<JobOutcome> {
        let (sender, ended) = reply();
        let mut state = lock(&self.0.state);
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
            self.0.hand_out(&mut state);
        }
        ended
    }
}

#[derive(Default)]
struct State {
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

impl State {
    fn remaining(&self) -> usize {
        self.waiting.len() + self.running.len()
    }
}

pub(super) struct Passing {
    state: Mutex<State>,
    published: Arc<Published>,
}

impl Passing {
    pub(super) fn new(published: Arc<Published>) -> Self {
        Self {
            state: Mutex::default(),
            published,
        }
    }

    /// Answers as a store in which nothing waits and nothing has ended. What only a server asks for gets no reply, as if it were closed.
    pub(super) fn carry_out(&self, command: Command) {
        let mut state = lock(&self.state);
        match command {
            Command::Next(_, _, _, worker) if !state.closed => {
                state.workers.push_back(worker);
                self.hand_out(&mut state);
            }
            Command::Wake => {
                state.woken = true;
                self.hand_out(&mut state);
            }
            Command::GiveBack(task, _, to) => {
                let there = state.running.remove(&task).is_some();
                self.publish(&state);
                to.send(Ok(there));
            }
            Command::Enqueue(_, to) => to.send(Err(StoreError::NoQueue)),
            Command::Queue(to) if !state.closed => {
                let running = state.running.iter();
                let running = running.map(|(task, job)| job.record(*task));
                to.send(Ok(QueueState {
                    running: running.collect(),
                    pending: Vec::new(),
                }));
            }
            Command::DeletePending(_, to) => to.send(Ok(false)),
            Command::History(_, _, to) => to.send(Ok(Vec::new())),
            Command::HistoryGet(_, to) => to.send(Ok(None)),
            Command::ClearPending(to) | Command::HistoryDelete(_, to) => to.send(Ok(0)),
            Command::HistoryClear(to) => to.send(Ok(())),
            Command::Leases(to) => to.send(Vec::new()),
            Command::Drain(to) => {
                state.draining = true;
                to.send(());
            }
            Command::Stopping(to) => to.send(()),
            Command::Close(to) => {
                let end = std::mem::take(&mut *state);
                state.closed = true;
                self.publish(&state);
                for worker in end.workers {
                    worker.send(Next::Closed);
                }
                to.send(());
            }
            _ => {}
        }
    }

    pub(super) fn finish(
        &self,
        task: u64,
        outcome: JobOutcome,
    ) -> Reply<Result<usize, StoreError>> {
        let (sender, recorded) = reply();
        let mut state = lock(&self.state);
        if let Some(job) = state.running.remove(&task) {
            job.ended.send(outcome);
        }
        self.publish(&state);
        sender.send(Ok(state.remaining()));
        recorded
    }

    fn hand_out(&self, state: &mut State) {
        while !state.draining
            && !state.workers.is_empty()
            && let Some((job, sender)) = state.waiting.pop_front()
        {
            let task = job.task;
            // Before the worker knows of it.
            state.running.insert(task, Running::new(&job, sender));
            self.publish(state);
            let worker = state.workers.pop_front().expect("there is one");
            if let Err(Next::Job(job)) = worker.offer(Next::Job(job))
                && let Some(running) = state.running.remove(&task)
            {
                // It waited long enough, and will ask again.
                state.waiting.push_front((job, running.ended));
            }
        }
        if state.woken && !state.workers.is_empty() {
            state.woken = false;
            for worker in state.workers.drain(..) {
                worker.send(Next::Woken);
            }
        }
        self.publish(state);
    }

    fn publish(&self, state: &State) {
        let remaining = state.remaining();
        self.published.remaining.store(remaining, Ordering::Release);
        self.published
            .waiting
            .store(state.waiting.len(), Ordering::Release);
        let running = state.running.iter();
        let running = running.map(|(task, job)| (*task, job.prompt_id.clone()));
        *lock(&self.published.handed_out) = running.collect();
    }
}
