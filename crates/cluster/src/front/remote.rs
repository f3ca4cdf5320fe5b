//! A worker of the engine that passes jobs on to a process elsewhere and follows them there.
//!
//! The lease on a job is renewed for as long as signs of life say that its worker runs it. What is heard live may have gaps: messages are
//! numbered, and the missing ones are read back from the stream. The stream is also where a front that began anew finds what it missed,
//! the outcome above all: if that is there, it counts, whatever became of the worker since.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_engine::placement::{JobNeeds, ModelNeed, NeedKey, WorkerView};
use fresco_engine::{
    Engine, Event, EventKind, EventSink, Failure, FreeReport, FreeRequest, JobEnd, JobOutcome,
    RunControl, RunJob, Worker, WorkerSnapshot,
};
use fresco_graph::Value;

use super::FrontShared;
use super::link::{Follow, Inbox, Link, Readiness};
use crate::connection::{ANSWER, BrokerError, chain};
use crate::content::{ContentError, FileRef, ModelEntry, Renames, named_inputs};
use crate::protocol;
use crate::protocol::alive::TaskName;
use crate::protocol::control::{WorkerAnswer, WorkerRequest};
use crate::protocol::jobs::{self, JobMessage, RunAnswer, RunMessage, RunOutcome};

/// How often the thread looks around while nothing happens.
const LOOK: Duration = Duration::from_millis(500);
/// Between two requests to stop the same job.
const STOP_AGAIN: Duration = Duration::from_secs(2);
/// How long jobs are kept for their workers while this front itself cannot reach the server.
const SPLIT: Duration = Duration::from_mins(2);
/// Between two tries to read what is stored, after one that failed.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Between two tries to put files where there was no room.
const ROOM_AGAIN: Duration = Duration::from_secs(1);
/// How long a content that was announced may take to be found in the store.
const FINDING: Duration = Duration::from_secs(10);
/// How long files that a job made are tried to be fetched.
const FETCHING: Duration = Duration::from_mins(5);
/// How long a job of another front is waited for that stands in the way of freeing memory.
const FREEING_OTHERS: Duration = Duration::from_mins(10);
/// How long a worker may take to free memory.
const FREEING: Duration = Duration::from_secs(25);

pub(super) struct RemoteWorker {
    pub(super) front: Arc<FrontShared>,
    pub(super) link: Arc<Link>,
    pub(super) sink: Arc<dyn EventSink>,
}

fn not_begun(why: impl Into<String>) -> JobOutcome {
    JobEnd::Refused(why.into()).into()
}

fn lost(why: impl Into<String>) -> JobOutcome {
    JobEnd::Lost(why.into()).into()
}

/// A model, and not a class of nodes.
fn is_model(need: &ModelNeed) -> bool {
    matches!(need.key, NeedKey::Model { .. })
}

/// Does something that may take long, while the lease on its job goes on.
fn while_renewing<T>(control: &RunControl, work: impl FnOnce() -> T) -> T {
    let (done, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(Duration::from_secs(1))
                == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                if control.is_given_up() {
                    return;
                }
                control.renew_lease();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

impl RemoteWorker {
    fn control_subject(&self) -> String {
        self.front.broker.control_subject(&self.link.name)
    }

    /// Sends the job. Ok: it has it (true), or nobody knows (false). Otherwise it does not begin.
    fn send(
        &self,
        job: &RunJob,
        name: &TaskName,
        control: &RunControl,
    ) -> Result<bool, Box<JobOutcome>> {
        let Some(sign) = self.link.sign() else {
            return Err(not_begun("its worker shows no sign of life").into());
        };
        let front = &self.front;
        let registry = front.engine().map(Engine::registry);
        let Some(registry) = registry else {
            return Err(not_begun("the engine is not there yet").into());
        };
        let named = named_inputs(&job.prompt, &registry, front.transfer.dirs());
        let inputs = if named.is_empty() {
            Vec::new()
        } else {
            let offered = while_renewing(control, || front.transfer.offer(&named));
            match offered {
                Ok(refs) => refs,
                Err(error @ ContentError::Store(_)) => {
                    front.note_trouble(&chain(&error));
                    self.link.rest();
                    return Err(
                        not_begun(format!("its files cannot be sent: {}", chain(&error))).into(),
                    );
                }
                // A file that cannot be read will not be readable next time.
                Err(error) => return Err(self.refused(job, &chain(&error)).into()),
            }
        };
        let needs = front.models.needs(&job.prompt, &registry, Vec::new());
        let models = if needs.models().iter().any(is_model) {
            while_renewing(control, || self.own_models(&needs))
        } else {
            Vec::new()
        };
        let message = JobMessage {
            models,
            name: name.clone(),
            session: sign.session,
            job: job.clone(),
            inputs,
        };
        let subject = front.broker.subject(&format!("run.{}", self.link.name));
        let answer = front
            .broker
            .shorten(protocol::encode(&message))
            .and_then(|bytes| front.broker.request(&subject, bytes, ANSWER));
        match answer {
            Ok(answer) => match protocol::decode_answer(&answer) {
                Ok(Ok(RunAnswer::Accepted)) => {
                    self.link.took(name);
                    Ok(true)
                }
                Ok(Ok(RunAnswer::Busy(why))) => {
                    self.link.is_busy();
                    Err(not_begun(why).into())
                }
                Ok(Ok(RunAnswer::Refused(why)) | Err(why)) => Err(self.refused(job, &why).into()),
                Err(error) => {
                    self.link
                        .is_bad(format!("its answer to a job makes no sense: {error}"));
                    Ok(false)
                }
            },
            // It may have the job; signs of life will tell.
            Err(BrokerError::NoAnswer { .. }) => Ok(false),
            Err(error) => {
                front.note_trouble(&error.to_string());
                self.link.rest();
                Err(not_begun(error.to_string()).into())
            }
        }
    }

    /// The models that a job needs and that this machine has too, as they are now.
    fn own_models(&self, needs: &JobNeeds) -> Vec<ModelEntry> {
        let own = |need: &ModelNeed| {
            let NeedKey::Model { folder, name } = &need.key else {
                return None;
            };
            match self.front.catalogue.content(folder, name) {
                Ok(entry) => entry,
                Err(error) => {
                    tracing::warn!("the model file {folder}/{name} is not compared: {error}");
                    None
                }
            }
        };
        needs.models().iter().filter_map(own).collect()
    }

    /// The job can run nowhere as it is.
    fn refused(&self, job: &RunJob, why: &str) -> JobOutcome {
        let why = format!("Worker {} cannot run this prompt: {why}", self.link.name);
        let failure = Failure::of_job("WorkerRefused", why);
        let outcome = JobOutcome::failed(&job.prompt_id, &failure);
        self.emit(job, EventKind::Error(Arc::new(failure)));
        outcome
    }

    fn emit(&self, job: &RunJob, kind: EventKind) {
        self.sink.emit(Event {
            prompt_id: Some(job.prompt_id.clone()),
            client: job.client.clone(),
            worker: None,
            kind,
        });
    }
}

impl Worker for RemoteWorker {
    fn name(&self) -> &Arc<str> {
        &self.link.name
    }

    fn run(&self, job: &RunJob, control: &RunControl) -> JobOutcome {
        let Some(task) = control.task() else {
            return not_begun("a worker elsewhere needs the number of the run");
        };
        let name = TaskName {
            front: self.front.id.clone(),
            task,
        };
        let link = self.link.clone();
        let _wakes = control.cancel.on_raise(move || link.ring());
        let _routed = self.front.route(task, &self.link);
        let follow = self.link.follow(task);
        let before = self.link.sign();
        let sure = if control.is_adopted() {
            tracing::info!(prompt = %job.prompt_id, worker = %self.link.name, "its run from before is followed");
            false
        } else {
            match self.send(job, &name, control) {
                Ok(sure) => sure,
                Err(outcome) => return *outcome,
            }
        };
        let session = before.map(|sign| sign.session);
        let following = Following {
            worker: self,
            follow,
            subject: self
                .front
                .broker
                .subject(&format!("event.{}.{task}", self.front.id)),
            name,
            job,
            control,
            session: session.filter(|_| !control.is_adopted()),
            sure,
            next: 1,
            place: 0,
            missed: control.is_adopted(),
            generation: self.front.broker.generation(),
            beats: self.link.sign().map_or(0, |sign| sign.beats),
            absent: 0,
            split: None,
            unreadable: None,
            told: None,
            renames: Renames::default(),
            brought: Vec::new(),
        };
        following.run()
    }

    fn wait_ready(&self, patience: Duration) -> bool {
        let front = &self.front;
        if !front.broker.is_ready() {
            front.pause(patience);
            return false;
        }
        match self.link.wait_ready(&front.id, patience) {
            Readiness::Ready => true,
            Readiness::Elsewhere => {
                let waiting = front.store.waiting() > 0;
                if waiting {
                    let want = WorkerRequest::Want {
                        front: front.id.clone(),
                    };
                    if let Err(error) = front.broker.tell(&self.control_subject(), &want) {
                        tracing::debug!("a worker was not told that it is wanted: {error}");
                    }
                }
                false
            }
            Readiness::Not(_) => false,
        }
    }

    fn is_ready(&self) -> bool {
        self.front.broker.is_ready() && self.link.readiness(&self.front.id) == Readiness::Ready
    }

    fn free(&self, request: &FreeRequest) -> FreeReport {
        let began = Instant::now();
        let mut report = FreeReport {
            worker: self.link.name.clone(),
            ..FreeReport::default()
        };
        // A job of another front may run there first: it is asked again until it is done.
        let request = WorkerRequest::Free(request.clone());
        let answer = loop {
            let answer = self.front.ask_worker(&self.link.name, &request, FREEING);
            let not_yet = matches!(&answer, Ok(WorkerAnswer::Freed(freed)) if !freed.done);
            let waits = not_yet && self.link.sign().is_some();
            if !waits || began.elapsed() > FREEING_OTHERS {
                break answer;
            }
        };
        match answer {
            Ok(WorkerAnswer::Freed(freed)) => {
                report.models = freed.room.map(|room| room.of_worker(&self.link.name));
                report.ram_before = freed.ram_before;
                report.ram_after = freed.ram_after;
                report.cache_reset = freed.cache_reset;
            }
            Ok(_) => {
                tracing::warn!(worker = %self.link.name, "it does not say what it freed");
            }
            Err(error) => {
                tracing::warn!(worker = %self.link.name, "it was not told to free memory: {error}");
            }
        }
        report.took = began.elapsed();
        report
    }

    fn drop_owned(&self, _: &str) {
        // Values of packs never leave their machine: its own packs tell it.
    }

    fn view(&self) -> WorkerView {
        let state = self.link.state();
        let view = state.alive.as_ref().map(|alive| alive.view.clone());
        drop(state);
        let view = view.unwrap_or_default();
        match self.front.models.inventory(&self.link.name) {
            Some(inventory) => view.with_inventory(inventory),
            None => view,
        }
    }

    fn snapshot(&self) -> WorkerSnapshot {
        let state = self.link.state();
        let results = state.alive.as_ref().and_then(|alive| alive.results);
        WorkerSnapshot {
            worker: self.link.name.clone(),
            results: results.and_then(|n| usize::try_from(n).ok()),
        }
    }
}

/// Milliseconds between clocks that count as none.
const SAME_CLOCK: i64 = 2000;

/// What to add to a worker's times: nothing where the clocks agree well enough.
fn clock_shift(ahead: i64) -> i64 {
    if ahead.abs() < SAME_CLOCK { 0 } else { ahead }
}

/// Times in messages that history keeps.
fn shift_messages(messages: &mut [Value], shift: i64) {
    if shift == 0 {
        return;
    }
    for message in messages {
        let Some([name, Value::Map(data)]) = message.as_list() else {
            continue;
        };
        let Some(at) = data.get("timestamp").and_then(Value::as_int) else {
            continue;
        };
        let mut data = (**data).clone();
        data.insert("timestamp".into(), (at + i128::from(shift)).into());
        *message = vec![name.clone(), data.into()].into();
    }
}

/// Has the beginning of a run, as the history keeps it, say who ran it.
fn name_worker(message: &mut Value, worker: &Arc<str>) {
    let is_start = message
        .as_list()
        .and_then(|pair| pair.first()?.as_str())
        .is_some_and(|kind| kind == "execution_start");
    if let (true, Value::List(pair)) = (is_start, message)
        && let Some(Value::Map(data)) = Arc::make_mut(pair).get_mut(1)
    {
        Arc::make_mut(data).insert("worker".into(), worker.into());
    }
}

/// One run that is followed.
struct Following<'a> {
    worker: &'a RemoteWorker,
    follow: Follow,
    subject: String,
    name: TaskName,
    job: &'a RunJob,
    control: &'a RunControl,
    /// Who was given the job; unknown for one from before.
    session: Option<Arc<str>>,
    /// The worker had the job for certain.
    sure: bool,
    /// Number of the next message.
    next: u64,
    /// How far the stream was read.
    place: u64,
    /// Messages may have been missed.
    missed: bool,
    generation: u64,
    /// The last sign of life that was looked at.
    beats: u64,
    /// Signs of life since then that did not name the job.
    absent: u32,
    /// Since when the server cannot be reached.
    split: Option<Instant>,
    /// Since when what is stored cannot be read, and when that was last tried.
    unreadable: Option<(Instant, Instant)>,
    /// When the worker was last told to stop.
    told: Option<Instant>,
    renames: Renames,
    /// Files of the job that are here, without their bytes.
    brought: Vec<FileRef>,
}

impl Following<'_> {
    fn run(mut self) -> JobOutcome {
        loop {
            let stop = || {
                let raised = self.control.cancel.is_raised() && self.told.is_none();
                raised || self.control.is_given_up()
            };
            let heard = self.follow.wait(self.beats, LOOK, stop);
            if self.control.is_given_up() {
                return JobEnd::Interrupted.into();
            }
            match self.step(heard) {
                Ok(None) => {}
                Ok(Some(outcome)) => return outcome,
                Err(why) => {
                    self.worker.link.is_bad(why.clone());
                    return lost(why);
                }
            }
        }
    }

    fn step(
        &mut self,
        heard: std::collections::VecDeque<Inbox>,
    ) -> Result<Option<JobOutcome>, String> {
        if self.control.cancel.is_raised() {
            self.tell_to_stop();
        }
        let quiet = heard.is_empty();
        for one in heard {
            match one {
                Inbox::Picture(bytes) => {
                    if let Ok(kind) = jobs::decode_picture(&bytes) {
                        self.worker.emit(self.job, kind);
                    }
                }
                Inbox::Message(bytes) => {
                    if let Some(outcome) = self.live(&bytes)? {
                        return Ok(Some(outcome));
                    }
                }
            }
        }
        let broker = &self.worker.front.broker;
        if !broker.is_ready() {
            // Nobody can know how it goes there; what was heard last holds for a while.
            let since = *self.split.get_or_insert_with(Instant::now);
            if since.elapsed() < SPLIT {
                self.control.renew_lease();
            }
            return Ok(None);
        }
        if self.split.take().is_some() || self.generation != broker.generation() {
            self.generation = broker.generation();
            self.missed = true;
        }
        if std::mem::take(&mut self.missed)
            && let Some(outcome) = self.replay()?
        {
            return Ok(Some(outcome));
        }
        self.look_at_worker(quiet)
    }

    /// What the signs of life say about the job.
    fn look_at_worker(&mut self, quiet: bool) -> Result<Option<JobOutcome>, String> {
        let Some(sign) = self.worker.link.sign() else {
            // Silence: the lease ends when it is not renewed.
            return Ok(None);
        };
        let another = self.session.as_ref().is_some_and(|s| *s != sign.session);
        if sign.job.as_ref() == Some(&self.name) && !another {
            self.sure = true;
            self.absent = 0;
            self.session = Some(sign.session);
            if sign.beats != self.beats {
                self.beats = sign.beats;
                self.control.renew_lease();
            }
            if quiet && sign.events >= self.next {
                return self.replay();
            }
            return Ok(None);
        }
        if sign.delivering.contains(&self.name) && !another {
            // It is done, and the server does not take its outcome yet.
            self.sure = true;
            self.absent = 0;
            self.control.renew_lease();
            self.beats = sign.beats;
            return if quiet { self.replay() } else { Ok(None) };
        }
        if sign.beats == self.beats && !another {
            return Ok(None);
        }
        self.beats = sign.beats;
        self.absent += 1;
        // A sign of life may have been made before the job was there. The outcome of one that was, is in the stream before the worker
        // says that it is free.
        if self.absent < 3 && !another {
            return Ok(None);
        }
        if let Some(outcome) = self.replay()? {
            return Ok(Some(outcome));
        }
        if self.missed {
            // The stream could not be read, and may have the outcome.
            if self
                .unreadable
                .is_some_and(|(since, _)| since.elapsed() < SPLIT)
            {
                self.control.renew_lease();
            }
            return Ok(None);
        }
        if another {
            return Ok(Some(lost("its worker began anew")));
        }
        if self.sure || self.next > 1 {
            return Ok(Some(lost("its worker does not know it any more")));
        }
        self.worker.link.rest();
        Ok(Some(not_begun("its worker never got it")))
    }

    fn tell_to_stop(&mut self) {
        if self.told.is_some_and(|at| at.elapsed() < STOP_AGAIN) {
            return;
        }
        self.told = Some(Instant::now());
        let front = &self.worker.front;
        let request = WorkerRequest::Interrupt(self.name.clone());
        let subject = self.worker.control_subject();
        if let Err(error) = front.broker.tell(&subject, &request) {
            tracing::warn!(worker = %self.worker.link.name, "it was not told to stop: {error}");
        }
    }

    /// A message that was heard as it was sent.
    fn live(&mut self, bytes: &[u8]) -> Result<Option<JobOutcome>, String> {
        let Some(message) = self.read(bytes)? else {
            return Ok(None);
        };
        if message.number > self.next
            && let Some(outcome) = self.replay()?
        {
            return Ok(Some(outcome));
        }
        // Numbers that neither came nor are in the stream are nowhere.
        self.take(message)
    }

    /// Reads what the stream has from where it was last read.
    fn replay(&mut self) -> Result<Option<JobOutcome>, String> {
        if self
            .unreadable
            .is_some_and(|(_, tried)| tried.elapsed() < READ_AGAIN)
        {
            self.missed = true;
            return Ok(None);
        }
        loop {
            let stored = self
                .worker
                .front
                .broker
                .stored(&self.subject, self.place + 1);
            let bytes = match stored {
                Ok(Some((place, bytes))) => {
                    self.place = place;
                    bytes
                }
                Ok(None) => {
                    self.unreadable = None;
                    return Ok(None);
                }
                Err(error) => {
                    tracing::debug!("the stream is not read yet: {error}");
                    self.missed = true;
                    let now = Instant::now();
                    let since = self.unreadable.map_or(now, |(since, _)| since);
                    self.unreadable = Some((since, now));
                    return Ok(None);
                }
            };
            let Some(message) = self.read(&bytes)? else {
                continue;
            };
            if let Some(outcome) = self.take(message)? {
                return Ok(Some(outcome));
            }
        }
    }

    /// A message, wherever its content is. None: it cannot be had now.
    fn read(&mut self, bytes: &[u8]) -> Result<Option<RunMessage>, String> {
        match protocol::whole(&*self.worker.front.broker, bytes) {
            Ok(large) => RunMessage::decode(large.as_deref().unwrap_or(bytes))
                .map(Some)
                .map_err(|e| format!("a message of it makes no sense: {e}")),
            Err(error) => {
                tracing::warn!(worker = %self.worker.link.name, "a message is not read: {error}");
                self.missed = true;
                Ok(None)
            }
        }
    }

    /// A message in its turn. Those before it were seen.
    fn take(&mut self, message: RunMessage) -> Result<Option<JobOutcome>, String> {
        let RunMessage {
            number,
            session,
            events,
            outcome: last,
        } = message;
        // Of a worker that was given up and does not know it.
        let other = self.session.as_ref().is_some_and(|own| *own != session);
        if number < self.next || other {
            return Ok(None);
        }
        self.session = Some(session);
        self.next = number + 1;
        self.sure = true;
        let shift = clock_shift(self.worker.link.ahead());
        if let Some(last) = &last
            && last.outcome.end.goes_back().is_none()
            && let Err(error) = self.fetch(&last.files, true)
        {
            self.worker.link.done(last.offered.clone());
            if error.is_out_of_room() {
                // Only somebody who stops the job ends the wait for room.
                return Ok(Some(self.stopped()));
            }
            let why = format!("its files did not come: {}", chain(&error));
            return if error.is_theirs() {
                Err(why)
            } else {
                Ok(Some(lost(why)))
            };
        }
        for event in events {
            let mut kind = event.event;
            if let Some(timestamp) = kind.timestamp_mut() {
                *timestamp = timestamp.saturating_add(shift);
            }
            if let EventKind::Executed { output, .. } = &mut kind {
                // Clients fetch files as soon as they hear of them.
                if let Err(error) = self.fetch(&event.files, false) {
                    let why = chain(&error);
                    tracing::warn!(worker = %self.worker.link.name, "files did not come: {why}");
                }
                self.renames.apply(output);
            }
            self.worker.emit(self.job, kind);
        }
        Ok(last.map(|last| self.end(last, shift)))
    }

    /// The outcome, whose files are here.
    fn end(&mut self, last: RunOutcome, shift: i64) -> JobOutcome {
        let RunOutcome {
            mut outcome,
            offered,
            ..
        } = last;
        if outcome.end.goes_back().is_some() {
            self.worker.link.done(offered);
            self.worker.link.rest();
            // A job that never began keeps the number of its run: what was said about it must not be heard again. If that cannot be had, it
            // gets another number.
            if let JobEnd::Refused(why) = &outcome.end
                && let Err(error) = self.forget()
            {
                return lost(format!("{why} ({error})"));
            }
            return outcome;
        }
        self.worker.link.done(offered);
        self.renames.apply_to_map(&mut outcome.outputs);
        self.renames.apply_to_map(&mut outcome.meta);
        for message in &mut outcome.messages {
            self.renames.apply(message);
            name_worker(message, &self.worker.link.name);
        }
        shift_messages(&mut outcome.messages, shift);
        outcome
    }

    /// Has what was said about the job so far forgotten. The server may be away for a while.
    fn forget(&self) -> Result<(), BrokerError> {
        let began = Instant::now();
        loop {
            let forgotten = self.worker.front.broker.forget(&self.subject);
            let over = began.elapsed() > SPLIT || self.control.is_given_up();
            if forgotten.is_ok() || over {
                return forgotten;
            }
            self.control.renew_lease();
            self.worker.front.pause(READ_AGAIN);
        }
    }

    /// The job is done, and somebody stopped it while its files waited for room.
    fn stopped(&self) -> JobOutcome {
        let kind = EventKind::Interrupted {
            node: "".into(),
            class: "".into(),
            executed: Vec::new(),
            timestamp: fresco_engine::now_ms(),
        };
        self.worker.emit(self.job, kind);
        JobOutcome::interrupted(&self.job.prompt_id)
    }

    /// Puts files that the job made into this front's folders. Where the disk here is full, they wait until it is not: the worker has done
    /// its part, and to do it again would need as much room. `patient`: the server may be away for a while.
    fn fetch(&mut self, files: &[FileRef], patient: bool) -> Result<(), ContentError> {
        let mut refs = files.to_vec();
        // The outcome names again what events have named.
        refs.retain(|one| !self.brought.iter().any(|known| known.is_same_file(one)));
        if refs.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let mut waits_for_room = false;
        let transfer = &self.worker.front.transfer;
        loop {
            // What is in the references is here at once.
            let brought = if refs.iter().all(|one| one.data.is_some()) {
                transfer.bring_outputs(&refs)
            } else {
                while_renewing(self.control, || transfer.bring_outputs(&refs))
            };
            let error = match brought {
                Ok(renames) => {
                    self.renames.merge(renames);
                    for one in &mut refs {
                        one.data = None;
                    }
                    self.brought.append(&mut refs);
                    return Ok(());
                }
                Err(error) => error,
            };
            if error.is_out_of_room() && !self.control.cancel.is_raised() {
                let why = format!(
                    "the files of prompt {} do not fit on this machine's disk; free some space, they come then: {}",
                    self.job.prompt_id,
                    chain(&error)
                );
                if !std::mem::replace(&mut waits_for_room, true) {
                    tracing::error!(worker = %self.worker.link.name, "{why}");
                }
                self.worker.front.note_trouble(&why);
                self.control.renew_lease();
                self.worker.front.pause(ROOM_AGAIN);
                continue;
            }
            let passes = match &error {
                // What one node has just taken another may not know yet.
                ContentError::Store(BrokerError::NoContent { .. }) => began.elapsed() < FINDING,
                ContentError::Store(_) => true,
                _ => false,
            };
            if !patient || !passes || began.elapsed() > FETCHING || self.control.is_given_up() {
                return Err(error);
            }
            let why = chain(&error);
            tracing::warn!(worker = %self.worker.link.name, "files did not come: {why}; trying again");
            self.control.renew_lease();
            self.worker.front.pause(Duration::from_secs(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use fresco_graph::{json, map};

    use super::*;

    #[test]
    fn a_worker_with_another_clock_has_its_times_moved() {
        assert_eq!(clock_shift(1500), 0);
        assert_eq!(clock_shift(-60_000), -60_000);
        let mut messages = vec![
            Value::from(vec![Value::from("x"), map! {"timestamp" => 1}.into()]),
            Value::from("no message"),
        ];
        shift_messages(&mut messages, 5);
        assert_eq!(json::to_string(&messages[0]), r#"["x",{"timestamp":6}]"#);
    }
}
