//! The thread that runs jobs: files in, prompt through the engine, events and outcome out.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fresco_engine::store::HistoryRecord;
use fresco_engine::{
    Event, EventKind, Failure, FreeRequest, Outcome, Returned, Submission, failure_data, now_ms,
};
use fresco_graph::{Map, Value, json, map};

use super::{Shared, small_message};
use crate::connection::{BrokerError, chain};
use crate::content::{FileRef, named_outputs, remove_old};
use crate::event_wire;
use crate::wire::{JobMessage, OutcomeMessage};

/// Events that go out together, at most.
const BATCH: usize = 256;
/// How long events are gathered that go out together: nobody sees the difference, and small jobs send one message.
const GATHER: Duration = Duration::from_millis(1);
/// How often the thread looks around while nothing happens.
const LOOK: Duration = Duration::from_millis(500);
/// How long files of a job stay on the worker: results that it remembers name them.
const KEPT: Duration = Duration::from_hours(24);
/// How often it looks for older ones.
const SWEEPS: Duration = Duration::from_hours(1);
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
    fn message(&mut self, mut body: Map) -> Result<Vec<u8>, BrokerError> {
        self.number += 1;
        body.insert("n".into(), self.number.into());
        body.insert("session".into(), (&self.shared.session).into());
        let text = json::to_string(&body.into()).into_bytes();
        small_message(&self.shared.broker, text)
    }

    /// Sends events. One that is lost is no harm: the outcome says everything again, and it comes for certain.
    fn events(&mut self, events: Vec<Value>) {
        if events.is_empty() {
            return;
        }
        let sent = self
            .message(map! {"events" => events})
            .and_then(|bytes| self.shared.broker.publish(&self.subject, bytes));
        match sent {
            Ok(()) => self.shared.place.sent(self.number),
            Err(error) => tracing::debug!("events were not sent: {error}"),
        }
    }

    fn picture(&self, kind: &EventKind) {
        let bytes = match kind {
            EventKind::Preview { ids, preview } => event_wire::encode_picture(ids, None, preview),
            EventKind::Progress {
                ids,
                value,
                max,
                preview: Some(preview),
            } => event_wire::encode_picture(ids, Some((*value, *max)), preview),
            _ => return,
        };
        if bytes.len() <= self.shared.broker.largest_message() {
            let _ = self.shared.broker.publish(&self.pictures, bytes);
        }
    }

    /// Hands the outcome to the server, again and again until it has it.
    fn deliver(&mut self, last: &OutcomeMessage, id: &str) {
        let mut body = map! {"outcome" => last.to_value()};
        self.number += 1;
        body.insert("n".into(), self.number.into());
        body.insert("session".into(), (&self.shared.session).into());
        let text = json::to_string(&body.into()).into_bytes();
        let broker = &self.shared.broker;
        let number = self.number;
        let delivered = persist(self.shared, "the outcome of a job", || {
            let bytes = small_message(broker, text.clone())?;
            broker.publish_stored(&self.subject, &format!("{id}-{number}"), bytes)
        });
        match delivered {
            Ok(()) => self.shared.place.sent(number),
            Err(error) => tracing::error!(
                "the outcome of a job is lost, and its front runs it again: {error}"
            ),
        }
    }
}

/// Tries something that the server may refuse for a while.
fn persist<T>(
    shared: &Shared,
    what: &str,
    mut attempt: impl FnMut() -> Result<T, BrokerError>,
) -> Result<T, BrokerError> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(50);
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if began.elapsed() > DELIVERY || shared.place.is_closed() {
            return Err(error);
        }
        tracing::warn!("{what} is not delivered yet: {error}");
        shared.place.rest(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What became of a prompt, in the engine's words.
struct Performed {
    outcome: Outcome,
    files: Value,
}

impl From<Returned> for Performed {
    fn from(returned: Returned) -> Self {
        Self {
            outcome: Outcome {
                returned: Some(returned),
                ..Outcome::default()
            },
            files: Value::Null,
        }
    }
}

impl Shared {
    pub(super) fn run_jobs(&self, jobs: &Receiver<JobMessage>, events: &Receiver<Event>) {
        let mut swept: Option<Instant> = None;
        loop {
            match jobs.recv_timeout(LOOK) {
                Ok(job) => self.run_job(&job, events),
                Err(RecvTimeoutError::Timeout) if !self.place.is_closed() => {}
                Err(_) => return,
            }
            // Nothing runs here now that could read them.
            if swept.is_none_or(|at| at.elapsed() > SWEEPS) {
                self.sweep();
                swept = Some(Instant::now());
            }
        }
    }

    /// Removes files of jobs that are long done. Fronts have what was made, and send again what is read.
    fn sweep(&self) {
        for folder in &self.swept {
            let gone = remove_old(folder, KEPT);
            if gone.files > 0 {
                let (files, bytes) = (gone.files, gone.bytes);
                tracing::info!(
                    files,
                    bytes,
                    "removed old files of jobs from {}",
                    folder.display()
                );
            }
        }
    }

    fn run_job(&self, job: &JobMessage, events: &Receiver<Event>) {
        // What came after the end of the job before.
        while events.try_recv().is_ok() {}
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
        let Performed { outcome, files } = self.perform(job, events, &mut out);
        let ended = match &outcome {
            Outcome {
                returned: Some(Returned::NotBegun(why) | Returned::Lost(why)),
                ..
            } => format!("given back: {why}"),
            Outcome { success: true, .. } => "executed".to_owned(),
            Outcome {
                interrupted: true, ..
            } => "interrupted".to_owned(),
            _ => "failed".to_owned(),
        };
        tracing::info!(
            prompt = %job.job.prompt_id,
            "Prompt {ended} in {:.2} seconds",
            began.elapsed().as_secs_f64()
        );
        let next = self.place.next_front();
        let ended_here = outcome.returned.is_none();
        let last = OutcomeMessage {
            outcome,
            files,
            offered: next.clone(),
        };
        self.place.deliver();
        out.deliver(&last, &format!("{}-{rest}", self.session));
        self.place.leave(next, ended_here);
    }

    fn perform(&self, job: &JobMessage, events: &Receiver<Event>, out: &mut Outbox) -> Performed {
        let prompt_id = &job.job.prompt_id;
        let brought = FileRef::list_from_value(Some(&job.inputs))
            .and_then(|refs| self.transfer.bring_inputs(&refs));
        if let Err(error) = brought {
            let why = format!("its files did not come: {}", chain(&error));
            return Returned::NotBegun(why).into();
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
        let mut extra_data = job.job.extra_data.clone();
        extra_data.extend(job.job.sensitive.clone());
        let submitted = self.engine.submit_blocking(
            valid,
            Submission {
                prompt_id: Some(prompt_id.clone()),
                extra_data,
                ..Submission::default()
            },
        );
        if let Err(error) = submitted {
            let why = format!("the worker cannot take it: {}", chain(&error));
            return Returned::NotBegun(why).into();
        }
        // Whoever wanted it stopped in between was told before there was anything to stop.
        if self.place.is_cancelled() {
            self.engine.interrupt(Some(prompt_id));
        }
        let interrupted = self.follow(prompt_id, events, out);
        if self.place.is_abandoned() {
            return Returned::NotBegun("its worker ends".to_owned()).into();
        }
        self.outcome(prompt_id, interrupted)
    }

    /// Passes events on until the prompt has ended. True if it was interrupted.
    fn follow(&self, prompt_id: &Arc<str>, events: &Receiver<Event>, out: &mut Outbox) -> bool {
        let mut interrupted = false;
        loop {
            let first = match events.recv_timeout(LOOK) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return interrupted,
            };
            if !matches!(first.kind, EventKind::Ended) {
                self.place.rest(GATHER);
            }
            let mut batch = Vec::new();
            let mut ended = false;
            let more = std::iter::from_fn(|| events.try_recv().ok()).take(BATCH);
            for event in std::iter::once(first).chain(more) {
                if event.prompt_id.as_ref().is_some_and(|id| id != prompt_id) {
                    continue;
                }
                match &event.kind {
                    EventKind::Ended => {
                        ended = true;
                        break;
                    }
                    EventKind::Interrupted { .. } => interrupted = true,
                    kind => out.picture(kind),
                }
                let files = match &event.kind {
                    EventKind::Executed { output, .. } => self.files_of(output).ok(),
                    _ => None,
                };
                if let Some(mut message) = event_wire::encode(&event.kind) {
                    if let Some(files) = files {
                        message.insert("files".into(), files);
                    }
                    batch.push(message.into());
                }
            }
            out.events(batch);
            if ended {
                return interrupted;
            }
        }
    }

    /// Makes the files available that a result names.
    fn files_of(&self, output: &Value) -> Result<Value, BrokerError> {
        let named = named_outputs(output, self.transfer.dirs());
        if named.is_empty() {
            return Ok(Value::Null);
        }
        let refs = self.transfer.offer(&named).map_err(|error| match error {
            crate::content::ContentError::Store(error) => error,
            error => BrokerError::failed("send files of a job", chain(&error)),
        })?;
        Ok(FileRef::list_to_value(&refs))
    }

    /// What the engine recorded, with the files it made.
    fn outcome(&self, prompt_id: &Arc<str>, interrupted: bool) -> Performed {
        let store = self.engine.store();
        let record = store.history_get(prompt_id).wait();
        let Some(Ok(Some(record))) = record else {
            return Returned::Lost("the worker has no record of it".to_owned()).into();
        };
        drop(store.history_delete(vec![prompt_id.clone()]));
        let outcome = recorded(&record, interrupted);
        let outputs = Value::from(outcome.outputs.clone());
        let files = persist(self, "the files of a job", || self.files_of(&outputs));
        match files {
            Ok(files) => Performed { outcome, files },
            Err(error) => {
                // A result that is remembered may name a file that is gone: the next run makes it again.
                drop(self.engine.free_and_wait(FreeRequest {
                    free_memory: true,
                    respect: true,
                    ..FreeRequest::default()
                }));
                Returned::Lost(format!("its files could not be handed over: {error}")).into()
            }
        }
    }

    /// It was stopped before it began.
    fn stopped(&self, prompt_id: &Arc<str>) -> Performed {
        if self.place.is_abandoned() {
            return Returned::NotBegun("its worker ends".to_owned()).into();
        }
        let data = map! {
            "prompt_id" => prompt_id, "node_id" => "", "node_type" => "",
            "executed" => Vec::<Value>::new(), "timestamp" => now_ms(),
        };
        Performed {
            outcome: Outcome {
                interrupted: true,
                messages: vec![vec![Value::from("execution_interrupted"), data.into()].into()],
                ..Outcome::default()
            },
            files: Value::Null,
        }
    }

    /// This worker cannot run the prompt, although it has the models and nodes that the front knows of.
    fn failed(&self, prompt_id: &Arc<str>, why: &str, out: &mut Outbox) -> Performed {
        let failure = Failure {
            node: "".into(),
            class: "".into(),
            executed: Vec::new(),
            message: format!("Worker {} cannot run this prompt: {why}", self.name),
            kind: "WorkerRefused".to_owned(),
            trace: Vec::new(),
            inputs: Map::new().into(),
            outputs: Vec::new(),
            timestamp: now_ms(),
        };
        let start = map! {"prompt_id" => prompt_id, "timestamp" => failure.timestamp};
        let mut data = failure_data(prompt_id, &failure);
        data.insert("timestamp".into(), failure.timestamp.into());
        let messages = vec![
            vec![Value::from("execution_start"), start.into()].into(),
            vec![Value::from("execution_error"), data.into()].into(),
        ];
        let event = event_wire::encode(&EventKind::Error(Arc::new(failure)));
        out.events(event.into_iter().map(Value::from).collect());
        Performed {
            outcome: Outcome {
                messages,
                ..Outcome::default()
            },
            files: Value::Null,
        }
    }
}

/// A record of the history as the outcome it was made from.
fn recorded(record: &HistoryRecord, interrupted: bool) -> Outcome {
    let object = |text: &str| match json::parse(text) {
        Ok(Value::Map(map)) => (*map).clone(),
        _ => Map::new(),
    };
    let messages = match json::parse(&record.messages) {
        Ok(Value::List(list)) => list.to_vec(),
        _ => Vec::new(),
    };
    Outcome {
        success: record.completed,
        interrupted,
        outputs: object(&record.outputs),
        meta: object(&record.meta),
        messages,
        returned: None,
    }
}
