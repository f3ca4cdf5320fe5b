//! Other fronts on the same NATS server. Each has a queue and a history of its own; what one of them does not know, it asks the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fresco_graph::{Map, Value, json, lock, map};

use super::{Front, FrontShared, ask};
use crate::connection::{BrokerError, Heard, chain, is_word};
use crate::content::{FileRef, named_outputs};
use crate::wire;
use crate::worker::{OtherRequests, large_message, small_message};

/// A front that was silent for longer is not asked.
const LIFE: Duration = Duration::from_secs(4);
/// How long an answer may take.
const ANSWERS: Duration = Duration::from_secs(3);
/// How long it may take until a client of another front has something: files come first.
const HANDING: Duration = Duration::from_secs(10);
/// Fronts that are known at once.
const MOST: usize = 256;

#[derive(Default)]
pub(super) struct Peers {
    seen: Mutex<BTreeMap<Arc<str>, Instant>>,
    answers: OnceLock<Arc<dyn OtherRequests>>,
    neighbour: OnceLock<Arc<dyn Neighbour>>,
}

/// What a front has to do with clients of others. Calls come from the thread of the client of NATS: they must not wait.
pub trait Neighbour: Send + Sync {
    /// The clients of this front, for others to know.
    fn clients(&self) -> Value;

    /// Another front has these clients.
    fn front_has(&self, front: &Arc<str>, clients: &Value);

    /// Another front has something for a client here. [`Front::whole_message`] makes the message of it. `delivered` is to be told whether
    /// the client was there; one that is dropped means that it was not.
    fn told(&self, payload: Bytes, delivered: Option<Delivered>);
}

/// Tells another front whether a client got what was for it.
pub type Delivered = Box<dyn FnOnce(bool) + Send>;

impl Peers {
    fn alive(&self) -> Vec<Arc<str>> {
        let mut seen = lock(&self.seen);
        seen.retain(|_, at| at.elapsed() < LIFE);
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
        let mut greeting = map! {"version" => env!("CARGO_PKG_VERSION")};
        if let Some(neighbour) = self.peers.neighbour.get()
            && !self.peers.alive().is_empty()
        {
            greeting.insert("clients".into(), neighbour.clients());
        }
        if let Err(error) = self.broker.publish(&subject, wire::bytes(greeting)) {
            tracing::debug!("other fronts do not hear of this one: {error}");
        }
    }

    /// On the client's thread.
    pub(super) fn hear_front(&self, heard: &Heard) {
        let name = heard.subject.rsplit('.').next().filter(|n| is_word(n));
        let Some(name) = name.filter(|name| **name != *self.id) else {
            return;
        };
        let name: Arc<str> = name.into();
        let mut seen = lock(&self.peers.seen);
        if seen.len() >= MOST && !seen.contains_key(&name) {
            return;
        }
        seen.insert(name.clone(), Instant::now());
        drop(seen);
        if let Some(neighbour) = self.peers.neighbour.get()
            && let Ok(greeting) = wire::parse(&heard.payload)
            && let Some(clients) = greeting.get("clients")
        {
            neighbour.front_has(&name, clients);
        }
    }

    /// On the client's thread.
    pub(super) fn hear_told(&self, heard: &Heard) {
        if let Some(neighbour) = self.peers.neighbour.get() {
            neighbour.told(heard.payload.clone(), None);
        }
    }

    /// On the client's thread. As [`FrontShared::hear_told`], by a front that waits for a word.
    pub(super) fn hear_handed(self: &Arc<Self>, heard: Heard) {
        let Some(neighbour) = self.peers.neighbour.get() else {
            return;
        };
        let (me, payload) = (self.clone(), heard.payload.clone());
        let answer = move |arrived: bool| {
            let word = wire::bytes(map! {"delivered" => arrived});
            if let Err(error) = me.broker.answer(&heard, word) {
                tracing::debug!("another front was not answered: {error}");
            }
        };
        neighbour.told(payload, Some(Box::new(answer)));
    }

    /// On the client's thread. Each question has a thread of its own: an answer may read files.
    pub(super) fn hear_question(self: &Arc<Self>, heard: Heard) {
        let me = self.clone();
        let work = move || {
            let answer = me.answer(&heard.payload);
            let text = json::to_string(&answer).into_bytes();
            let sent = small_message(&me.broker, text).and_then(|t| me.broker.answer(&heard, t));
            if let Err(error) = sent {
                tracing::debug!("another front was not answered: {error}");
            }
        };
        let spawned = std::thread::Builder::new().name("peer".into()).spawn(work);
        if let Err(error) = spawned {
            tracing::error!("cannot answer another front: {error}");
        }
    }

    fn answer(&self, question: &[u8]) -> Value {
        let wrong = |why: String| Value::from(map! {"error" => why});
        let question = match wire::parse(question) {
            Ok(question) => question,
            Err(error) => return wrong(error.to_string()),
        };
        let answers = self.peers.answers.get();
        let answer = answers.and_then(|answers| answers.answer(&question));
        answer.unwrap_or_else(|| wrong("this front does not know that question".to_owned()))
    }
}

impl Front {
    /// Answers questions of other fronts from now on.
    pub fn answer_fronts(&self, answers: Arc<dyn OtherRequests>) {
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
        broker.publish(&subject, small_message(broker, message)?)
    }

    /// As [`Front::tell_front`], and waits for the word that the client has it. Where nobody listens for that, another program's older
    /// version may: it is told as well.
    pub fn hand_to_front(&self, front: &str, message: Vec<u8>) -> Result<bool, BrokerError> {
        let broker = &self.shared.broker;
        let message = small_message(broker, message)?;
        let subject = broker.subject(&format!("fronts.hand.{front}"));
        match broker.request(&subject, message.clone(), HANDING) {
            Ok(answer) => {
                let answer = wire::parse(&answer).unwrap_or_default();
                Ok(answer.get("delivered").is_some_and(Value::truthy))
            }
            Err(error) => {
                if matches!(error, BrokerError::Nobody { .. }) {
                    broker.publish(&broker.subject(&format!("fronts.tell.{front}")), message)?;
                }
                Err(error)
            }
        }
    }

    /// What another front sent, though it was too large for a message.
    pub fn whole_message(&self, payload: Bytes) -> Result<Bytes, BrokerError> {
        let large = large_message(&self.shared.broker, &payload)?;
        Ok(large.map_or(payload, Bytes::from))
    }

    /// Whether another front was heard lately.
    pub fn has_fronts(&self) -> bool {
        !self.shared.peers.alive().is_empty()
    }

    /// Asks all other fronts at once; gives the answers that came. Waits: not for threads that serve sockets.
    pub fn ask_fronts(&self, question: &Map) -> Vec<Value> {
        let shared = &self.shared;
        let fronts = shared.peers.alive();
        let ask_one = |front: &Arc<str>| {
            let subject = shared.broker.subject(&format!("fronts.ask.{front}"));
            let answer = ask(&shared.broker, &subject, question.clone(), ANSWERS);
            answer.inspect_err(|error| {
                tracing::debug!(%front, "another front does not answer: {error}");
                // Nobody waits for it again before it greets.
                lock(&shared.peers.seen).remove(front);
            })
        };
        std::thread::scope(|scope| {
            let calls: Vec<_> = fronts
                .iter()
                .map(|front| scope.spawn(move || ask_one(front)))
                .collect();
            let answers = calls.into_iter().map(|call| call.join().ok()?.ok());
            answers.flatten().collect()
        })
    }

    /// Makes the files available that results name, for another front.
    pub fn offer_files(&self, outputs: &Value) -> Result<Value, BrokerError> {
        let transfer = &self.shared.transfer;
        let refs = transfer.offer(&named_outputs(outputs, transfer.dirs()));
        let refs = refs.map_err(|e| BrokerError::failed("offer files of a result", chain(&e)))?;
        Ok(FileRef::list_to_value(&refs))
    }

    /// Puts files of another front into the folders here. Where a different file has a name, results get the new one.
    pub fn bring_files(&self, files: &Value, outputs: &mut Value) -> Result<(), BrokerError> {
        let failed = |e| BrokerError::failed("bring files of a result", chain(&e));
        let refs = FileRef::list_from_value(Some(files)).map_err(failed)?;
        let renames = self.shared.transfer.bring_outputs(&refs).map_err(failed)?;
        renames.apply(outputs);
        Ok(())
    }
}
