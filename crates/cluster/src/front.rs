//! The front's side: which workers there are, and the engine's places for them.
//!
//! A thread of its own (`fleet`) gives each worker that shows life a place in the engine, asks it what it has, and takes the place away when
//! it was silent for long. Messages are heard on the client's thread and handed to the [`Link`](link::Link) of their worker.

mod link;
mod peers;
mod remote;

pub use peers::{Delivered, FrontRequests, Neighbour};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fresco_engine::{Engine, JobStore, MakeWorker, WorkerConfig, WorkerKind};
use fresco_graph::lock;

use crate::connection::{Broker, BrokerError, BrokerState, ReceivedMessage, Subscription, is_word};
use crate::content::{Catalogue, ClusterModels, Transfer};
use crate::protocol::alive::Alive;
use crate::protocol::control::{WorkerAnswer, WorkerRequest};
use crate::protocol::{BEAT, GONE, LOST, SILENT};
use link::{Inbox, Link, Readiness};
use peers::Peers;
use remote::RemoteWorker;

/// How often it is looked whether the NATS cluster has grown.
const TEND: Duration = Duration::from_secs(10);
/// Workers that are known at once. Whoever sends signs of life in more names is no worker.
const MOST: usize = 4096;
/// How long a description may take.
const DESCRIBING: Duration = Duration::from_secs(5);
/// How long trouble with the server is shown after it was last met.
const TROUBLE: Duration = Duration::from_mins(1);
/// Key of the front's name in its database.
const FRONT: &str = "cluster.front";

/// What a front is made of.
pub struct FrontParts {
    pub broker: Arc<Broker>,
    pub engine: Engine,
    /// Its database.
    pub store: JobStore,
    /// Into and out of this machine's folders.
    pub transfer: Arc<Transfer>,
    pub models: ClusterModels,
    /// What this machine has itself.
    pub catalogue: Arc<Catalogue>,
}

/// What the threads share.
struct FrontShared {
    /// The same after a restart: it is in the database.
    id: Arc<str>,
    broker: Arc<Broker>,
    transfer: Arc<Transfer>,
    models: ClusterModels,
    catalogue: Arc<Catalogue>,
    engine: OnceLock<Engine>,
    /// The engine's database.
    store: JobStore,
    links: Mutex<BTreeMap<Arc<str>, Arc<Link>>>,
    /// Who follows which run.
    routes: Mutex<BTreeMap<u64, Arc<Link>>>,
    trouble: Mutex<Option<(Instant, String)>>,
    peers: Peers,
    bell: Condvar,
    /// Something changed that the fleet's thread should look at.
    news: Mutex<bool>,
    stopping: AtomicBool,
}

/// A worker as a front knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerFacts {
    pub name: Arc<str>,
    /// `ready`, `busy elsewhere`, or why it gets no job.
    pub state: String,
    pub version: Arc<str>,
    /// Milliseconds since its last sign of life.
    pub silent: Option<u64>,
}

/// The front's part in a cluster.
pub struct Front {
    shared: Arc<FrontShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    heard: Mutex<Vec<Subscription>>,
}

/// The name of this front, made when its database was new.
fn front_id(store: &JobStore) -> Arc<str> {
    if let Some(Ok(Some(id))) = store.get(FRONT).wait()
        && is_word(&id)
    {
        return id.into();
    }
    let id: Arc<str> = fresco_engine::new_prompt_id();
    if let Some(Err(error)) = store.set(FRONT, Some(&id)).wait() {
        tracing::warn!("jobs that run elsewhere will not be found again after a restart: {error}");
    }
    id
}

impl Front {
    /// Looks for workers from now on. Jobs that workers have run since before this process began are followed.
    pub fn start(parts: FrontParts) -> Result<Arc<Self>, BrokerError> {
        let FrontParts {
            broker,
            engine,
            store,
            transfer,
            models,
            catalogue,
        } = parts;
        let shared = Arc::new(FrontShared {
            id: front_id(&store),
            broker,
            transfer,
            models,
            catalogue,
            engine: OnceLock::new(),
            store,
            links: Mutex::default(),
            routes: Mutex::default(),
            trouble: Mutex::default(),
            peers: Peers::default(),
            bell: Condvar::new(),
            news: Mutex::new(true),
            stopping: AtomicBool::new(false),
        });
        let _ = shared.engine.set(engine.clone());
        let mut heard = Vec::new();
        let listen = |subject: &str, hear: fn(&FrontShared, &ReceivedMessage)| {
            let me = shared.clone();
            let subject = shared.broker.subject(subject);
            shared
                .broker
                .subscribe(&subject, move |message| hear(&me, &message))
        };
        let id = shared.id.clone();
        heard.push(listen("alive.*", FrontShared::hear_alive)?);
        heard.push(listen(&format!("event.{id}.*"), |me, message| {
            me.pass_on(message, Inbox::Message);
        })?);
        heard.push(listen(&format!("preview.{id}.*"), |me, message| {
            me.pass_on(message, Inbox::Picture);
        })?);
        heard.push(listen("fronts.alive.*", FrontShared::hear_front)?);
        heard.push(listen(
            &format!("fronts.tell.{id}"),
            FrontShared::hear_told,
        )?);
        let me = shared.clone();
        let handed = shared.broker.subject(&format!("fronts.hand.{id}"));
        let hear = move |message| me.hear_handed(message);
        heard.push(shared.broker.subscribe(&handed, hear)?);
        let me = shared.clone();
        let questions = shared.broker.subject(&format!("fronts.ask.{id}"));
        let hear = move |message| me.hear_question(message);
        heard.push(shared.broker.subscribe(&questions, hear)?);
        for lease in shared.store.leases().wait().unwrap_or_default() {
            if is_word(&lease.owner)
                && let Some(link) = shared.link(&lease.owner)
            {
                shared.give_place(&link);
            }
        }
        let me = shared.clone();
        let thread = std::thread::Builder::new()
            .name("fleet".to_owned())
            .spawn(move || me.look_after_fleet())
            .map_err(|e| BrokerError::failed("start a thread", e))?;
        tracing::info!(
            "front {id}: prompts go to workers on NATS at {}",
            shared.broker.address()
        );
        Ok(Arc::new(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            heard: Mutex::new(heard),
        }))
    }

    /// What is wrong with the server, if something is.
    pub fn trouble(&self) -> Option<String> {
        match self.shared.broker.state() {
            BrokerState::Ready => {
                let trouble = lock(&self.shared.trouble);
                let recent = trouble.as_ref().filter(|(at, _)| at.elapsed() < TROUBLE);
                let address = self.shared.broker.address();
                let store = self.shared.broker.store_trouble();
                let store = store.map(|why| format!("NATS at {address}: {why}"));
                recent.map(|(_, why)| why.clone()).or(store)
            }
            BrokerState::Connecting(why) | BrokerState::Unusable(why) => {
                Some(format!("NATS at {}: {why}", self.shared.broker.address()))
            }
        }
    }

    /// The workers that were heard of.
    pub fn workers(&self) -> Vec<WorkerFacts> {
        let links: Vec<Arc<Link>> = lock(&self.shared.links).values().cloned().collect();
        let facts = |link: &Arc<Link>| {
            let state = match link.readiness(&self.shared.id) {
                Readiness::Ready => "ready".to_owned(),
                Readiness::Elsewhere => "busy elsewhere".to_owned(),
                Readiness::Not(why) => why,
            };
            let silent = link.silent();
            let held = link.state();
            let version = held.program();
            WorkerFacts {
                name: link.name.clone(),
                state,
                version: version.unwrap_or_default(),
                silent: silent.map(|time| time.as_millis() as u64),
            }
        };
        links.iter().map(facts).collect()
    }

    /// Asks a worker something. Waits: not for threads that serve sockets.
    pub fn ask(
        &self,
        worker: &str,
        request: &WorkerRequest,
        patience: Duration,
    ) -> Result<WorkerAnswer, BrokerError> {
        if !lock(&self.shared.links).contains_key(worker) {
            return Err(BrokerError::Nobody {
                what: format!("ask worker {worker}"),
            });
        }
        self.shared.ask_worker(worker, request, patience)
    }

    /// After the engine has stopped.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.tell_news();
        lock(&self.heard).clear();
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the fleet panicked");
        }
    }
}

/// Messages of a run come to whoever follows it, until this is dropped.
struct Route<'a> {
    front: &'a FrontShared,
    task: u64,
}

impl Drop for Route<'_> {
    fn drop(&mut self) {
        lock(&self.front.routes).remove(&self.task);
    }
}

impl FrontShared {
    fn ask_worker(
        &self,
        worker: &str,
        request: &WorkerRequest,
        patience: Duration,
    ) -> Result<WorkerAnswer, BrokerError> {
        let answer = self.broker.ask_worker(worker, request, patience)?;
        answer.map_err(|why| BrokerError::failed(format!("ask worker {worker}"), why))
    }

    fn engine(&self) -> Option<&Engine> {
        self.engine.get()
    }

    fn tell_news(&self) {
        *lock(&self.news) = true;
        self.bell.notify_all();
    }

    /// Waits so long, or until something changes.
    fn wait(&self, patience: Duration) {
        let still = |news: &mut bool| !*news && !self.stopping.load(Ordering::SeqCst);
        let waited = self
            .bell
            .wait_timeout_while(lock(&self.news), patience, still);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits so long, less if the front stops.
    fn pause(&self, time: Duration) {
        let go_on = |_: &mut bool| !self.stopping.load(Ordering::SeqCst);
        let waited = self.bell.wait_timeout_while(lock(&self.news), time, go_on);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Something that the server refused, for people who ask how it goes.
    fn note_trouble(&self, why: &str) {
        *lock(&self.trouble) = Some((Instant::now(), why.to_owned()));
    }

    /// What is known of a worker; none if there are too many.
    fn link(&self, name: &Arc<str>) -> Option<Arc<Link>> {
        let mut links = lock(&self.links);
        if let Some(link) = links.get(name) {
            return Some(link.clone());
        }
        if links.len() >= MOST {
            return None;
        }
        let link = Link::new(name.clone());
        links.insert(name.clone(), link.clone());
        Some(link)
    }

    fn route(&self, task: u64, link: &Arc<Link>) -> Route<'_> {
        lock(&self.routes).insert(task, link.clone());
        Route { front: self, task }
    }

    /// On the client's thread.
    fn hear_alive(&self, heard: &ReceivedMessage) {
        let Some(name) = heard.subject.rsplit('.').next().filter(|n| is_word(n)) else {
            return;
        };
        let name: Arc<str> = name.into();
        let alive = match Alive::decode(&heard.payload) {
            Ok(alive) => alive,
            Err(error) => {
                let known = lock(&self.links).get(&name).cloned();
                match known {
                    Some(link) => link.is_bad(format!("a sign of life makes no sense: {error}")),
                    None => {
                        tracing::debug!(worker = %name, "a sign of life makes no sense: {error}");
                    }
                }
                return;
            }
        };
        let Some(link) = self.link(&name) else {
            return;
        };
        let new = link.silent().is_none_or(|time| time > BEAT * 3);
        if link.hear(alive, &self.id)
            && let Some(engine) = self.engine()
        {
            engine.workers_changed();
        }
        if new || link.wants_description().is_some() {
            self.tell_news();
        }
    }

    /// On the client's thread.
    fn pass_on(&self, heard: &ReceivedMessage, make: fn(bytes::Bytes) -> Inbox) {
        let task = heard.subject.rsplit('.').next();
        let Some(task) = task.and_then(|task| task.parse::<u64>().ok()) else {
            return;
        };
        let link = lock(&self.routes).get(&task).cloned();
        if let Some(link) = link {
            link.put(task, make(heard.payload.clone()));
        }
    }

    /// Gives a worker a place in the engine, if it has none.
    fn give_place(self: &Arc<Self>, link: &Arc<Link>) {
        let Some(engine) = self.engine() else {
            return;
        };
        let make: MakeWorker = {
            let (front, link) = (self.clone(), link.clone());
            Arc::new(move |sink| {
                Arc::new(RemoteWorker {
                    front: front.clone(),
                    link: link.clone(),
                    sink,
                })
            })
        };
        engine.add_worker(WorkerConfig {
            name: link.name.clone(),
            kind: WorkerKind::Remote { make, term: LOST },
        });
    }

    /// The thread's body.
    fn look_after_fleet(self: &Arc<Self>) {
        let mut own = None;
        let mut tended = Instant::now();
        while !self.stopping.load(Ordering::SeqCst) {
            let version = self.catalogue.version();
            if own != Some(version) {
                own = Some(version);
                self.models.set_own(&self.catalogue.entries());
            }
            let links: Vec<Arc<Link>> = lock(&self.links).values().cloned().collect();
            for link in &links {
                self.look_after(link);
            }
            self.greet();
            if tended.elapsed() > TEND {
                tended = Instant::now();
                self.broker.tend_streams();
            }
            self.wait(BEAT);
            *lock(&self.news) = false;
        }
    }

    fn look_after(self: &Arc<Self>, link: &Arc<Link>) {
        let Some(engine) = self.engine() else {
            return;
        };
        if link.look(&self.id) {
            engine.workers_changed();
        }
        let Some(silent) = link.silent() else {
            // Known from a lease only. When that has ended, there is nothing to wait for.
            self.let_go(engine, link);
            return;
        };
        if silent > GONE && self.broker.is_ready() {
            self.let_go(engine, link);
            return;
        }
        if silent < SILENT {
            if engine.workers().iter().all(|one| one.worker != link.name) {
                tracing::info!(worker = %link.name, "a worker came");
                self.give_place(link);
            }
            if let Some(of) = link.wants_description() {
                self.describe(engine, link, of);
            }
        }
    }

    /// Takes the place of a worker away that is gone.
    fn let_go(&self, engine: &Engine, link: &Arc<Link>) {
        let leases = self.store.leases().wait().unwrap_or_default();
        if leases.iter().any(|lease| lease.owner == link.name) {
            return;
        }
        let there = engine.workers().iter().any(|one| one.worker == link.name);
        if there && !engine.remove_worker(&link.name) {
            return;
        }
        tracing::info!(worker = %link.name, "a worker is gone");
        self.models.remove_worker(&link.name);
        lock(&self.links).remove(&link.name);
    }

    fn describe(&self, engine: &Engine, link: &Arc<Link>, of: (Arc<str>, u64)) {
        let asked = self.ask_worker(&link.name, &WorkerRequest::Describe, DESCRIBING);
        let description = match asked {
            Ok(WorkerAnswer::Description(description)) => description,
            Ok(_) => {
                link.is_bad("it does not say what it has when it is asked".to_owned());
                return;
            }
            Err(error) => {
                tracing::debug!(worker = %link.name, "it does not say what it has: {error}");
                return;
            }
        };
        let entries = Arc::new(description.models);
        self.models
            .set_worker(&link.name, entries, description.classes);
        link.described(of);
        engine.workers_changed();
    }
}
