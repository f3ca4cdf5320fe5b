//! The thread that runs jobs: files in, prompt through the engine, events and outcome out.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fresco_engine::{EventKind, Failure, FreeRequest, JobEnd, JobOutcome, Reply, RunJob};
use fresco_graph::Value;

use super::Shared;
use super::delivery::Parcel;
use super::events::EventReceiver;
use super::room::failed_for_room;
use crate::connection::{ANSWER, BrokerError, chain};
use crate::content::{ContentError, FileRef, ModelEntry, named_outputs};
use crate::protocol;
use crate::protocol::alive::TaskName;
use crate::protocol::jobs::{JobMessage, RunEvent, RunMessage, RunOutcome, encode_picture};

/// Events that go out together, at most.
const BATCH: usize = 256;
/// How long events are gathered that go out together: nobody sees the difference, and small jobs send one message.
const GATHER: Duration = Duration::from_millis(4);
/// How often the thread looks around while nothing happens.
const LOOK: Duration = Duration::from_millis(500);
/// How long the server may take to say that it has an outcome, before the next job is taken all the same.
const TAKEN: Duration = Duration::from_secs(2);
/// How long files and outcomes are tried to be handed over. A front that hears nothing for so long has given the job to another.
const DELIVERY: Duration = Duration::from_mins(10);
/// Between two tries, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Numbers what goes to one front about one job.
struct Outbox<'a> {
    shared: &'a Shared,
    subject: String,
    pictures: String,
    number: u64,
}

impl Outbox<'_> {
    fn message(&mut self, events: Vec<RunEvent>, outcome: Option<RunOutcome>) -> Vec<u8> {
        self.number += 1;
        protocol::encode(&RunMessage {
            number: self.number,
            session: self.shared.session.clone(),
            events,
            outcome,
        })
    }

    /// Sends events. One that is lost is no harm: the outcome says everything again, and it comes for certain.
    fn events(&mut self, events: Vec<RunEvent>) {
        if events.is_empty() {
            return;
        }
        let message = self.message(events, None);
        let broker = &self.shared.broker;
        let sent = broker
            .shorten(message)
            .and_then(|bytes| broker.publish(&self.subject, bytes));
        match sent {
            Ok(()) => self.shared.place.sent(self.number),
            Err(error) => tracing::debug!("events were not sent: {error}"),
        }
    }

    fn picture(&self, kind: &EventKind) {
        let Some(bytes) = encode_picture(kind) else {
            return;
        };
        if bytes.len() <= self.shared.broker.largest_message() {
            let _ = self.shared.broker.publish(&self.pictures, bytes);
        }
    }

    /// Hands the outcome to the server, with the events before it. One that is not taken at once is said again while other jobs run.
    fn deliver(&mut self, last: RunOutcome, events: Vec<RunEvent>, name: &TaskName, id: &str) {
        let text = self.message(events, Some(last)).into();
        let parcel = Parcel {
            name: name.clone(),
            subject: self.subject.as_str().into(),
            id: format!("{id}-{}", self.number).into(),
            text,
            since: Instant::now(),
        };
        let shared = self.shared;
        shared.place.sent(self.number);
        let Err(error) = shared.say_outcome(&parcel, TAKEN) else {
            return;
        };
        tracing::warn!("the outcome of a job is not delivered yet: {error}");
        if shared.deliver_later(parcel.clone()) {
            return;
        }
        let delivered = persist(shared, "the outcome of a job", || {
            shared.say_outcome(&parcel, ANSWER)
        });
        if let Err(error) = delivered {
            tracing::error!("the outcome of a job is lost, and its front runs it again: {error}");
        }
    }
}

/// An error that another try may not meet again.
trait Passing: std::error::Error {
    fn may_pass(&self) -> bool;
}

impl Passing for BrokerError {
    fn may_pass(&self) -> bool {
        true
    }
}

impl Passing for ContentError {
    /// A file that is gone from here does not come back.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Store(_))
    }
}

/// Tries something that the server may refuse for a while.
fn persist<T, E: Passing>(
    shared: &Shared,
    what: &str,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(50);
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if !error.may_pass() || began.elapsed() > DELIVERY || shared.place.is_closed() {
            return Err(error);
        }
        tracing::warn!("{what} is not delivered yet: {error}");
        shared.place.rest(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What became of a prompt, in the engine's words.
struct Performed {
    outcome: JobOutcome,
    files: Vec<FileRef>,
    /// What was not told yet.
    events: Vec<RunEvent>,
}

impl From<JobOutcome> for Performed {
    fn from(outcome: JobOutcome) -> Self {
        Self {
            outcome,
            files: Vec::new(),
            events: Vec::new(),
        }
    }
}

impl From<JobEnd> for Performed {
    fn from(end: JobEnd) -> Self {
        JobOutcome::from(end).into()
    }
}

impl Shared {
    pub(super) fn run_jobs(&self, jobs: &Receiver<JobMessage>, events: &EventReceiver) {
        self.room.begin();
        loop {
            // Nothing runs here now that could read what is removed.
            self.place
                .set_trouble(self.room.tidy().or_else(|| self.no_store()));
            match jobs.recv_timeout(LOOK) {
                Ok(job) => self.run_job(&job, events),
                Err(RecvTimeoutError::Timeout) if !self.place.is_closed() => {}
                Err(_) => return,
            }
        }
    }

    /// Why no job can be taken before the server has what is needed. Later it may be without for a while.
    fn no_store(&self) -> Option<Arc<str>> {
        let ready = self.broker.is_ready();
        (!ready).then(|| "NATS cannot keep its files and outcomes yet".into())
    }

    fn run_job(&self, job: &JobMessage, events: &EventReceiver) {
        // What came after the end of the job before.
        events.clear();
        let name = &job.name;
        let rest = format!("{}.{}", name.front, name.task);
        let mut out = Outbox {
            shared: self,
            subject: self.broker.subject(&format!("event.{rest}")),
            pictures: self.broker.subject(&format!("preview.{rest}")),
            number: 0,
        };
        tracing::info!(prompt = %job.job.prompt_id, front = %name.front, "got prompt");
        let began = Instant::now();
        self.room.job_begins();
        let Performed {
            outcome,
            files,
            events,
        } = self.perform(job, events, &mut out);
        // The engine tells of those that it ran.
        if let Some(why) = outcome.end.goes_back() {
            let seconds = began.elapsed().as_secs_f64();
            tracing::info!(prompt = %job.job.prompt_id, "given back after {seconds:.2} seconds: {why}");
        }
        let next = self.place.next_front();
        let ended_here = outcome.end.goes_back().is_none();
        let last = RunOutcome {
            outcome,
            files,
            offered: next.clone(),
        };
        self.place.deliver();
        // One that did not fit is told with the outcome: no other comes before that.
        self.place.set_trouble(self.room.tidy());
        // The same run may come again, if it was given back.
        let turn = self.place.turns();
        let id = format!("{}-{rest}-{turn}", self.session);
        out.deliver(last, events, name, &id);
        self.place.leave(next, ended_here);
    }

    fn perform(&self, job: &JobMessage, events: &EventReceiver, out: &mut Outbox) -> Performed {
        let prompt_id = &job.job.prompt_id;
        if let Err(error) = self.transfer.bring_inputs(&job.inputs) {
            if error.is_out_of_room() {
                self.room.was_too_small();
            }
            let why = format!("its files did not come: {}", chain(&error));
            return JobEnd::Refused(why).into();
        }
        if let Some(name) = job.models.iter().find_map(|front| self.differs(front)) {
            // Its front hears from the next sign of life that it need not ask here.
            self.catalogue.nudge();
            let why = format!(
                "worker {} has a different file {name} than its front",
                self.name
            );
            return JobEnd::Refused(why).into();
        }
        let prompt = (*job.job.prompt).clone();
        let valid = match self.engine.validate(prompt, Some(&job.job.outputs)) {
            Ok(valid) => valid,
            Err(error) => return self.failed(prompt_id, &chain(&error), out),
        };
        let lacks = |id: &&Arc<str>| !valid.outputs.contains(id);
        if let Some(id) = job.job.outputs.iter().find(lacks) {
            let problem = valid.problems.values().flat_map(|node| &node.errors).next();
            let why =
                problem.map_or_else(String::new, |p| format!(": {}: {}", p.message, p.details));
            return self.failed(prompt_id, &format!("output {id} cannot be run{why}"), out);
        }
        if !self.place.begin(prompt_id) {
            return self.stopped(prompt_id);
        }
        let ended = self.passer.pass(RunJob {
            prompt: valid.prompt,
            outputs: valid.outputs,
            ..job.job.clone()
        });
        // Whoever wanted it stopped in between was told before there was anything to stop.
        if self.place.is_cancelled() {
            self.engine.interrupt(Some(prompt_id));
        }
        let last_events = self.follow(prompt_id, events, out);
        if self.place.is_abandoned() {
            return JobEnd::Refused("its worker ends".to_owned()).into();
        }
        self.outcome(ended, last_events)
    }

    /// The name of a model file if the one here is another one than the front's.
    fn differs(&self, front: &ModelEntry) -> Option<String> {
        let ModelEntry { folder, name, .. } = front;
        let size = self.catalogue.size(folder, name)?;
        let is_same = size == front.size
            && match self.catalogue.content(folder, name) {
                Ok(Some(own)) => front.hash.is_none() || own.hash == front.hash,
                // It is being written, or cannot be read: the job would say so.
                Ok(None) | Err(_) => true,
            };
        (!is_same).then(|| format!("{folder}/{name}"))
    }

    /// Passes events on until the prompt has ended. The last ones are left for the message with the outcome.
    fn follow(
        &self,
        prompt_id: &Arc<str>,
        events: &EventReceiver,
        out: &mut Outbox,
    ) -> Vec<RunEvent> {
        // Small jobs are done before anybody could have seen how they go.
        let mut gather = Instant::now() + GATHER;
        let mut held = Vec::new();
        loop {
            let taken = events.take(gather, LOOK, BATCH);
            gather = Instant::now() + GATHER;
            let mut ended = false;
            let mut batch = Vec::new();
            for event in taken {
                if event.prompt_id.as_ref().is_some_and(|id| id != prompt_id) {
                    continue;
                }
                if matches!(event.kind, EventKind::Ended) {
                    ended = true;
                    break;
                }
                out.picture(&event.kind);
                batch.push(event.kind);
            }
            // How a failure ends is known with the outcome only: for lack of room here, the job goes to another worker.
            let failed = batch.iter().position(|k| matches!(k, EventKind::Error(_)));
            if let Some(at) = failed.filter(|_| !ended) {
                held.extend(batch.drain(at..));
            } else if !held.is_empty() {
                held.append(&mut batch);
                if ended {
                    batch = std::mem::take(&mut held);
                }
            }
            // The outcome names all files again, and comes before its events are told.
            let told = batch.into_iter().filter(EventKind::is_told_elsewhere);
            let messages = told.map(|event| self.message(event, ended)).collect();
            if ended {
                return messages;
            }
            out.events(messages);
        }
    }

    /// An event as it is sent, unless the job has ended with the files that it names.
    fn message(&self, event: EventKind, ended: bool) -> RunEvent {
        let files = match &event {
            EventKind::Executed { output, .. } if !ended => self.files_of(output),
            _ => Ok(Vec::new()),
        };
        RunEvent {
            files: files.unwrap_or_default(),
            event,
        }
    }

    /// Makes the files available that a result names.
    fn files_of(&self, output: &Value) -> Result<Vec<FileRef>, ContentError> {
        let named = named_outputs(output, self.transfer.dirs());
        self.transfer.offer(&named)
    }

    /// How the engine ended it, with the files it made.
    fn outcome(&self, ended: Reply<JobOutcome>, events: Vec<RunEvent>) -> Performed {
        let Some(outcome) = ended.wait() else {
            return JobEnd::Lost("the worker has no record of it".to_owned()).into();
        };
        if outcome.end == JobEnd::Failed
            && (failed_for_room(&outcome.messages) || self.room.is_short())
        {
            self.room.was_too_small();
            let why = format!(
                "the disk of worker {} has no room for what it makes",
                self.name
            );
            return JobEnd::Refused(why).into();
        }
        let outputs = Value::from(outcome.outputs.clone());
        let files = persist(self, "the files of a job", || self.files_of(&outputs));
        match files {
            Ok(files) => Performed {
                outcome,
                files,
                events,
            },
            Err(error) => {
                // A result that is remembered may name a file that is gone: the next run makes it again.
                drop(self.engine.free_and_wait(FreeRequest {
                    free_memory: true,
                    respect: true,
                    ..FreeRequest::default()
                }));
                let why = chain(&error);
                let gone = !error.may_pass();
                let why = format!("its files could not be handed over: {why}");
                if gone {
                    JobEnd::Refused(why).into()
                } else {
                    JobEnd::Lost(why).into()
                }
            }
        }
    }

    /// It was stopped before it began.
    fn stopped(&self, prompt_id: &Arc<str>) -> Performed {
        if self.place.is_abandoned() {
            return JobEnd::Refused("its worker ends".to_owned()).into();
        }
        JobOutcome::interrupted(prompt_id).into()
    }

    /// This worker cannot run the prompt, although it has the models and nodes that the front knows of.
    fn failed(&self, prompt_id: &Arc<str>, why: &str, out: &mut Outbox) -> Performed {
        let why = format!("Worker {} cannot run this prompt: {why}", self.name);
        let failure = Failure::of_job("WorkerRefused", why);
        let outcome = JobOutcome::failed(prompt_id, &failure);
        out.events(vec![RunEvent {
            event: EventKind::Error(Arc::new(failure)),
            files: Vec::new(),
        }]);
        outcome.into()
    }
}
