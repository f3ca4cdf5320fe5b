//! Other fronts on the same NATS server. Each has a queue and a history of its own; what one of them does not know, it asks the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fresco_graph::{Value, lock};
use serde::{Deserialize, Serialize};

use super::{Front, FrontShared};
use crate::connection::{BrokerError, ReceivedMessage, chain, is_word};
use crate::content::{FileRef, named_outputs};
use crate::protocol::alive::{ClientName, FrontAlive};
use crate::protocol::fronts::{FrontAnswer, FrontRequest};
use crate::protocol::{self, OtherVersion, ProtocolError, RequestResult, SILENT};

/// How long an answer may take.
const ANSWERS: Duration = Duration::from_secs(3);
/// How long it may take until a client of another front has something: files come first.
const HANDING: Duration = Duration::from_secs(10);
/// Fronts that are known at once.
const MOST: usize = 256;

#[derive(Default)]
pub(super) struct Peers {
    seen: Mutex<BTreeMap<Arc<str>, Instant>>,
    /// Fronts that speak another version: they are told of once.
    strangers: Mutex<BTreeMap<Arc<str>, OtherVersion>>,
    answers: OnceLock<Arc<dyn FrontRequests>>,
    neighbour: OnceLock<Arc<dyn Neighbour>>,
}

/// What a front has to do with clients of others. Calls come from the thread of the client of NATS: they must not wait.
pub trait Neighbour: Send + Sync {
    /// The clients of this front, for others to know.
    fn clients(&self) -> Vec<ClientName>;

    /// Another front has these clients.
    fn front_has(&self, front: &Arc<str>, clients: Vec<ClientName>);

    /// Another front has something for a client here. [`Front::whole_message`] makes the message of it. `delivered` is to be told whether
    /// the client was there; one that is dropped means that it was not.
    fn deliver(&self, payload: Bytes, delivered: Option<Delivered>);
}

/// Answers questions of other fronts. May take its time.
pub trait FrontRequests: Send + Sync {
    fn answer(&self, request: FrontRequest) -> RequestResult<FrontAnswer>;
}

/// Whether a client got what another front had for it.
#[derive(Serialize, Deserialize)]
struct DeliveryReport {
    delivered: bool,
}

/// Tells another front whether a client got what was for it.
pub type Delivered = Box<dyn FnOnce(bool) + Send>;

impl Peers {
    fn alive(&self) -> Vec<Arc<str>> {
        let mut seen = lock(&self.seen);
        seen.retain(|_, at| at.elapsed() < SILENT);
        seen.keys().cloned().collect()
    }
}

impl FrontShared {
    /// Lets other fronts know that this one is there.
    pub(super) fn greet(&self) {
        if !self.broker.is_ready() {
            return;
        }
        let subject = self.broker.subject(&format!("fronts.alive.{}", self.id));
        let neighbour = self.peers.neighbour.get();
        let neighbour = neighbour.filter(|_| !self.peers.alive().is_empty());
        let greeting = FrontAlive::new(neighbour.map(|neighbour| neighbour.clients()));
        if let Err(error) = self.broker.publish(&subject, greeting.encode()) {
            tracing::debug!("other fronts do not hear of this one: {error}");
        }
    }

    /// On the client's thread.
    pub(super) fn hear_front(&self, heard: &ReceivedMessage) {
        let name = heard.subject.rsplit('.').next().filter(|n| is_word(n));
        let Some(name) = name.filter(|name| **name != *self.id) else {
            return;
        };
        let name: Arc<str> = name.into();
        let greeting = match FrontAlive::decode(&heard.payload) {
            Ok(greeting) => greeting,
            Err(error) => {
                self.note_stranger(name, error);
                return;
            }
        };
        let mut seen = lock(&self.peers.seen);
        if seen.len() >= MOST && !seen.contains_key(&name) {
            return;
        }
        seen.insert(name.clone(), Instant::now());
        drop(seen);
        if let Some(neighbour) = self.peers.neighbour.get()
            && let Some(clients) = greeting.connected
        {
            neighbour.front_has(&name, clients);
        }
    }

    /// A front whose sign of life is not understood is not asked, and its clients get nothing from here.
    fn note_stranger(&self, front: Arc<str>, error: ProtocolError) {
        let ProtocolError::Version(version) = error else {
            tracing::debug!(%front, "a sign of life of another front makes no sense: {error}");
            return;
        };
        let mut strangers = lock(&self.peers.strangers);
        if strangers.get(&front) != Some(&version) && strangers.len() < MOST {
            tracing::error!(%front, "another front is not asked and gets nothing for its clients: {version}");
            strangers.insert(front, version);
        }
    }

    /// On the client's thread.
    pub(super) fn hear_told(&self, heard: &ReceivedMessage) {
        if let Some(neighbour) = self.peers.neighbour.get() {
            neighbour.deliver(heard.payload.clone(), None);
        }
    }

    /// On the client's thread. As [`FrontShared::hear_told`], by a front that waits for a word.
    pub(super) fn hear_handed(self: &Arc<Self>, heard: ReceivedMessage) {
        let Some(neighbour) = self.peers.neighbour.get() else {
            return;
        };
        let (me, payload) = (self.clone(), heard.payload.clone());
        let answer = move |arrived: bool| {
            let word = protocol::encode(&DeliveryReport { delivered: arrived });
            if let Err(error) = me.broker.answer(&heard, word) {
                tracing::debug!("another front was not answered: {error}");
            }
        };
        neighbour.deliver(payload, Some(Box::new(answer)));
    }

    /// On the client's thread.
    pub(super) fn hear_question(self: &Arc<Self>, heard: ReceivedMessage) {
        let me = self.clone();
        self.broker.serve(heard, move |request: FrontRequest| {
            let Some(answers) = me.peers.answers.get() else {
                return Err("this front is not ready yet; ask again".to_owned());
            };
            answers.answer(request)
        });
    }
}

impl Front {
    /// Answers questions of other fronts from now on.
    pub fn answer_fronts(&self, answers: Arc<dyn FrontRequests>) {
        let _ = self.shared.peers.answers.set(answers);
    }

    /// Clients of other fronts are this one's business from now on.
    pub fn meet_neighbours(&self, neighbour: Arc<dyn Neighbour>) {
        let _ = self.shared.peers.neighbour.set(neighbour);
    }

    /// Greets other fronts soon, with the clients that there are now. Does not wait.
    pub fn clients_changed(&self) {
        self.shared.tell_news();
    }

    /// Sends another front something for one of its clients.
    pub fn tell_front(&self, front: &str, message: Vec<u8>) -> Result<(), BrokerError> {
        let broker = &self.shared.broker;
        let subject = broker.subject(&format!("fronts.tell.{front}"));
        broker.publish(&subject, broker.shorten(message)?)
    }

    /// As [`Front::tell_front`], and waits for the word that the client has it.
    pub fn hand_to_front(&self, front: &str, message: Vec<u8>) -> Result<bool, BrokerError> {
        let broker = &self.shared.broker;
        let message = broker.shorten(message)?;
        let subject = broker.subject(&format!("fronts.hand.{front}"));
        let answer = broker.request(&subject, message, HANDING)?;
        Ok(protocol::decode(&answer).is_ok_and(|DeliveryReport { delivered }| delivered))
    }

    /// What another front sent, though it was too large for a message.
    pub fn whole_message(&self, payload: Bytes) -> Result<Bytes, BrokerError> {
        let large = protocol::whole(&*self.shared.broker, &payload)?;
        Ok(large.map_or(payload, Bytes::from))
    }

    /// Whether another front was heard lately.
    pub fn has_fronts(&self) -> bool {
        !self.shared.peers.alive().is_empty()
    }

    /// Asks all other fronts at once; gives the answers that came. Waits: not for threads that serve sockets.
    pub fn ask_fronts(&self, request: &FrontRequest) -> Vec<FrontAnswer> {
        let shared = &self.shared;
        let fronts = shared.peers.alive();
        let ask_one = |front: &Arc<str>| {
            let subject = shared.broker.subject(&format!("fronts.ask.{front}"));
            let answer = shared.broker.ask(&subject, request, ANSWERS);
            let why = match answer {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(why)) => why,
                Err(error) => error.to_string(),
            };
            tracing::debug!(%front, "another front does not answer: {why}");
            // Nobody waits for it again before it greets.
            lock(&shared.peers.seen).remove(front);
            None
        };
        std::thread::scope(|scope| {
            let calls: Vec<_> = fronts
                .iter()
                .map(|front| scope.spawn(move || ask_one(front)))
                .collect();
            let answers = calls.into_iter().map(|call| call.join().ok()?);
            answers.flatten().collect()
        })
    }

    /// Makes the files available that results name, for another front.
    pub fn offer_files(&self, outputs: &Value) -> Result<Vec<FileRef>, BrokerError> {
        let transfer = &self.shared.transfer;
        let refs = transfer.offer(&named_outputs(outputs, transfer.dirs()));
        refs.map_err(|e| BrokerError::failed("offer files of a result", chain(&e)))
    }

    /// Puts files of another front into the folders here. Where a different file has a name, results get the new one.
    pub fn bring_files(&self, files: &[FileRef], outputs: &mut Value) -> Result<(), BrokerError> {
        let failed = |e| BrokerError::failed("bring files of a result", chain(&e));
        let renames = self.shared.transfer.bring_outputs(files).map_err(failed)?;
        renames.apply(outputs);
        Ok(())
    }
}
