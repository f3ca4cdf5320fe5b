//! The worker process: takes jobs from fronts, has its own engine run them, tells how it goes.
//!
//! It owns its one place. A front asks for it with the job in hand; whoever comes while it is taken hears "busy". A front that was turned away
//! says so ([`Place::want`]), and the place is offered to it alone for a moment when it is free, so that fronts take turns.
//!
//! Threads: `door` answers requests and never waits for a job; `runner` brings a job's files, runs it and delivers its outcome; `delivery` tries
//! outcomes again that the server does not take; `beat` gives signs of life, also while the others wait.

mod delivery;
mod events;
mod place;
mod room;
mod runner;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fresco_engine::{Engine, JobPasser, now_ms};
use fresco_files::Folders;
use fresco_memory::{MemoryCommand, Refusal};

use crate::connection::{Broker, BrokerError, ReceivedMessage, Subscription, is_word};
use crate::content::sync::ModelServer;
use crate::content::{Catalogue, Transfer, neutral_view};
use crate::protocol::alive::Alive;
use crate::protocol::control::{FreedMemory, WorkerAnswer, WorkerDescription, WorkerRequest};
use crate::protocol::jobs::{JobMessage, RunAnswer};
use crate::protocol::memory::MemoryReply;
use crate::protocol::{self, BEAT, PROTOCOL, ProtocolError, RequestResult};
use delivery::Undelivered;
pub use events::{EventReceiver, WorkerSink};
use place::Place;
use room::Room;

/// Between two signs of life, at least, unless another front waits for this worker: small jobs come and go in between.
const PULSE: Duration = Duration::from_millis(25);
/// How long a front waits at most for an outcome that is on its way.
const DELIVERED: Duration = Duration::from_millis(200);
/// How long a request to free memory is waited for.
const FREEING: Duration = Duration::from_secs(20);

/// What a worker is made of.
pub struct WorkerParts {
    /// One word; no other worker on this server has it.
    pub name: Arc<str>,
    /// Of the program.
    pub version: Arc<str>,
    pub broker: Arc<Broker>,
    /// Runs one job at a time. Its events go to the sink of [`WorkerSink::new`].
    pub engine: Engine,
    /// Of the engine's store.
    pub passer: JobPasser,
    pub events: EventReceiver,
    pub transfer: Arc<Transfer>,
    pub catalogue: Arc<Catalogue>,
    pub folders: Folders,
    /// Folders that are this worker's alone; files of jobs do not stay there for ever.
    pub swept: Vec<PathBuf>,
    /// The model files of this machine, for others.
    pub models: Arc<ModelServer>,
    pub memory: Arc<dyn MemoryRequests>,
}

/// Requests that the memory room answers.
pub trait MemoryRequests: Send + Sync {
    /// May take its time.
    fn carry_out(&self, command: &MemoryCommand) -> Result<MemoryReply, Refusal>;
}

/// What the threads share.
struct Shared {
    name: Arc<str>,
    version: Arc<str>,
    session: Arc<str>,
    broker: Arc<Broker>,
    engine: Engine,
    passer: JobPasser,
    place: Place,
    undelivered: Undelivered,
    transfer: Arc<Transfer>,
    catalogue: Arc<Catalogue>,
    folders: Folders,
    room: Room,
    models: Arc<ModelServer>,
    memory: Arc<dyn MemoryRequests>,
}

/// Makes one of what was heard.
type Make = fn(ReceivedMessage) -> AtTheDoor;

/// What comes to the door.
enum AtTheDoor {
    Run(ReceivedMessage),
    Control(ReceivedMessage),
    Close,
}

/// A running worker.
pub struct WorkerProcess {
    shared: Arc<Shared>,
    door: Sender<AtTheDoor>,
    threads: Vec<JoinHandle<()>>,
    _heard: Vec<Subscription>,
}

impl WorkerProcess {
    /// Starts to take jobs as soon as the server is there.
    pub fn start(parts: WorkerParts) -> Result<Self, BrokerError> {
        let WorkerParts {
            name,
            version,
            broker,
            engine,
            passer,
            events,
            transfer,
            catalogue,
            folders,
            swept,
            models,
            memory,
        } = parts;
        if !is_word(&name) {
            return Err(BrokerError::Settings(format!(
                "--name: {name:?} has signs other than letters, digits, _ and -, or more than 64"
            )));
        }
        let shared = Arc::new(Shared {
            name,
            version,
            session: fresco_engine::new_prompt_id(),
            broker,
            engine,
            passer,
            place: Place::default(),
            undelivered: Undelivered::default(),
            transfer,
            catalogue,
            folders,
            room: Room::new(swept),
            models,
            memory,
        });
        let (door, knocks) = channel();
        let (jobs, taken) = channel();
        let mut heard = Vec::new();
        for (subject, make) in [
            ("run", AtTheDoor::Run as Make),
            ("control", AtTheDoor::Control as Make),
        ] {
            let subject = shared.broker.subject(&format!("{subject}.{}", shared.name));
            let door = door.clone();
            heard.push(shared.broker.subscribe(&subject, move |message| {
                let _ = door.send(make(message));
            })?);
        }
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work)
                .map_err(|e| BrokerError::failed("start a thread", e))
        };
        let (a, b, c, d) = (
            shared.clone(),
            shared.clone(),
            shared.clone(),
            shared.clone(),
        );
        let threads = vec![
            spawn("door", Box::new(move || a.keep_the_door(&knocks, &jobs)))?,
            spawn("runner", Box::new(move || b.run_jobs(&taken, &events)))?,
            spawn("beat", Box::new(move || c.beat()))?,
            spawn("delivery", Box::new(move || d.deliver_again()))?,
        ];
        Ok(Self {
            shared,
            door,
            threads,
            _heard: heard,
        })
    }

    /// Takes no more jobs and waits for what runs, at most so long; then it is given back to its front, which queues it again.
    pub fn drain(self, patience: Duration) {
        let shared = &self.shared;
        shared.place.drain();
        if !shared.place.wait_free(patience) {
            tracing::warn!("the running job did not end in time; its front queues it again");
            shared.place.abandon();
            shared.engine.interrupt(None);
            shared.place.wait_free(Duration::from_secs(15));
        }
        if !shared.undelivered.wait_empty(patience) {
            tracing::warn!(
                "NATS did not take all outcomes in time; their fronts run those jobs again"
            );
        }
        shared.place.close();
        shared.undelivered.close();
        let _ = self.door.send(AtTheDoor::Close);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the worker panicked");
            }
        }
        shared.broker.flush();
    }
}

impl Shared {
    /// Signs of life: each second, and soon after each change.
    fn beat(&self) {
        let subject = self.broker.subject(&format!("alive.{}", self.name));
        let mut was_ready = false;
        while self.place.wait_change(BEAT) {
            let ready = self.broker.is_ready();
            if ready && !was_ready {
                tracing::info!(
                    "worker {} is ready: it takes jobs from NATS at {}",
                    self.name,
                    self.broker.address()
                );
            }
            was_ready = ready;
            // Also where nothing can be kept now: those who hear it know that it lives.
            if self.broker.check_connected().is_ok() {
                self.say_alive(&subject);
                self.place.pause(PULSE);
            }
        }
        // The last word: it is about to end.
        self.say_alive(&subject);
    }

    fn say_alive(&self, subject: &str) {
        let now = self.place.now();
        let snapshot = self.engine.workers();
        let alive = Alive {
            protocol: PROTOCOL,
            version: self.version.clone(),
            session: self.session.clone(),
            time: now_ms(),
            state: now.state,
            job: now.job,
            events: now.events,
            offered: now.offered,
            catalogue: (self.catalogue.version() << 24) + self.engine.registry().len() as u64,
            view: neutral_view(&self.engine.worker_view(), &self.folders),
            results: snapshot
                .first()
                .and_then(|one| one.results)
                .map(|n| n as u64),
            delivering: self.undelivered.names(),
            trouble: now.trouble,
        };
        if let Err(error) = self.broker.publish(subject, alive.encode()) {
            tracing::debug!("no sign of life was sent: {error}");
        }
    }

    fn keep_the_door(self: &Arc<Self>, knocks: &Receiver<AtTheDoor>, jobs: &Sender<JobMessage>) {
        for knock in knocks {
            match knock {
                AtTheDoor::Close => return,
                AtTheDoor::Run(heard) => {
                    let (answer, job) = match self.admit(&heard) {
                        Ok(job) => (RunAnswer::Accepted, job),
                        Err(answer) => (answer, None),
                    };
                    let answer = protocol::encode_answer(&Ok(answer));
                    if let Err(error) = self.broker.answer(&heard, answer) {
                        // The front sees from the signs of life what became of it.
                        tracing::warn!("a front was not answered: {error}");
                    }
                    if let Some(job) = job {
                        let _ = jobs.send(job);
                    }
                }
                AtTheDoor::Control(heard) => {
                    let me = self.clone();
                    let answer = move |request| me.answer(request);
                    self.broker.serve(heard, answer);
                }
            }
        }
    }

    /// Takes a job, or says why not. Nothing: it has that job already.
    fn admit(&self, heard: &ReceivedMessage) -> Result<Option<JobMessage>, RunAnswer> {
        let large = protocol::whole(&*self.broker, &heard.payload);
        let bytes = large.map_err(|e| RunAnswer::Busy(e.to_string()))?;
        let message = bytes.as_deref().unwrap_or(&heard.payload);
        let job = JobMessage::decode(message).map_err(|error| {
            tracing::warn!("a job is refused: {error}");
            match error {
                // Another worker may have the front's version.
                ProtocolError::Version(version) => RunAnswer::Busy(version.to_string()),
                ProtocolError::Garbage(why) => {
                    RunAnswer::Refused(format!("the job cannot be read: {why}"))
                }
            }
        })?;
        if job.session != self.session {
            return Err(RunAnswer::Busy("the worker began anew".to_owned()));
        }
        self.place.wait_delivered(DELIVERED);
        match self.place.take(&job.name) {
            Ok(true) => Ok(Some(job)),
            Ok(false) => Ok(None),
            Err(why) => Err(RunAnswer::Busy(why)),
        }
    }

    fn answer(&self, request: WorkerRequest) -> RequestResult<WorkerAnswer> {
        match request {
            WorkerRequest::Want { front } => {
                self.place.want(&front);
                Ok(WorkerAnswer::Done)
            }
            WorkerRequest::Interrupt(name) => {
                if let Some(prompt_id) = self.place.cancel(&name.front, name.task) {
                    self.engine.interrupt(Some(&prompt_id));
                }
                Ok(WorkerAnswer::Done)
            }
            WorkerRequest::Free(request) => Ok(WorkerAnswer::Freed(self.free(request))),
            WorkerRequest::Describe => Ok(WorkerAnswer::Description(self.describe())),
            WorkerRequest::Memory(command) => {
                let answer = self.memory.carry_out(&command);
                Ok(WorkerAnswer::Memory(answer))
            }
            WorkerRequest::Models(request) => self.models.answer(request).map(WorkerAnswer::Models),
        }
    }

    fn free(&self, request: fresco_engine::FreeRequest) -> FreedMemory {
        let (sender, done) = channel();
        let replies = self.engine.free_and_wait(request);
        let wait = move || {
            let reports: Vec<_> = replies
                .into_iter()
                .filter_map(fresco_engine::Reply::wait)
                .collect();
            let _ = sender.send(reports);
        };
        let spawned = std::thread::Builder::new().name("free".into()).spawn(wait);
        if let Err(error) = spawned {
            tracing::error!("cannot wait for what was freed: {error}");
        }
        let reports = done.recv_timeout(FREEING).unwrap_or_default();
        let Some(report) = reports.first() else {
            return FreedMemory::default();
        };
        FreedMemory {
            done: true,
            cache_reset: report.cache_reset,
            room: report.models.clone(),
            ram_before: report.ram_before,
            ram_after: report.ram_after,
        }
    }

    fn describe(&self) -> WorkerDescription {
        let registry = self.engine.registry();
        let ids = registry.iter().map(|class| class.schema().id.clone());
        let mut classes: Vec<Arc<str>> = ids.collect();
        classes.sort();
        WorkerDescription {
            classes,
            models: self.catalogue.entries().to_vec(),
        }
    }
}
