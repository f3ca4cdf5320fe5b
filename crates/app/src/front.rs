//! `serve --nats`: the front's part in a cluster, joined with the server that shows it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use fresco_cluster::content::{Catalogue, ClusterModels, Transfer};
use fresco_cluster::{
    Broker, BrokerError, Delivered, Front, FrontParts, Neighbour, OtherRequests, WorkerFacts,
};
use fresco_engine::Engine;
use fresco_graph::{Map, Value};
use fresco_server::{App, FarWorker, FarWorkers, answer_front, relay};
use tokio::runtime::Handle;

use crate::assembly::Assembly;

/// How long a worker's memory room may take to answer.
const MEMORY: Duration = Duration::from_secs(5);
/// What this machine has, between two starts.
const CATALOGUE: &str = "fresco-models.txt";

/// What a front has before the engine runs.
pub(crate) struct ClusterParts {
    pub(crate) broker: Arc<Broker>,
    pub(crate) models: ClusterModels,
    catalogue: Arc<Catalogue>,
}

impl ClusterParts {
    pub(crate) fn new(broker: Arc<Broker>, assembly: &Assembly) -> Self {
        let cache = assembly.dirs.user.join(Path::new(CATALOGUE));
        Self {
            broker,
            models: ClusterModels::new(assembly.folders.clone()),
            catalogue: Catalogue::start(assembly.folders.clone(), cache),
        }
    }

    /// Joins the cluster. Waits for the database: not for threads that serve sockets.
    pub(crate) fn join(
        self,
        assembly: &Assembly,
        engine: &Engine,
    ) -> Result<Arc<Front>, BrokerError> {
        Front::start(FrontParts {
            transfer: Arc::new(Transfer::new(self.broker.clone(), assembly.dirs.clone())),
            broker: self.broker,
            engine: engine.clone(),
            models: self.models,
            catalogue: self.catalogue,
        })
    }
}

/// The cluster as the server shows it.
pub(crate) struct Shown(pub(crate) Arc<Front>);

impl FarWorkers for Shown {
    fn trouble(&self) -> Option<String> {
        self.0.trouble()
    }

    fn workers(&self) -> Vec<FarWorker> {
        let shown = |facts: WorkerFacts| FarWorker {
            name: facts.name,
            state: facts.state,
            version: facts.version,
            silent_ms: facts.silent,
        };
        self.0.workers().into_iter().map(shown).collect()
    }

    fn ask_memory(&self, worker: &str, mut request: Map) -> Result<Value, String> {
        request.insert("kind".into(), "memory".into());
        self.0
            .ask(worker, request, MEMORY)
            .map_err(|error| error.to_string())
    }

    fn has_fronts(&self) -> bool {
        self.0.has_fronts()
    }

    fn ask_fronts(&self, question: &Map) -> Vec<Value> {
        self.0.ask_fronts(question)
    }

    fn clients_changed(&self) {
        self.0.clients_changed();
    }

    fn tell_front(&self, front: &str, message: Vec<u8>) {
        if let Err(error) = self.0.tell_front(front, message) {
            tracing::debug!(%front, "a client of another front was not told: {error}");
        }
    }

    fn hand_to_front(&self, front: &str, message: Vec<u8>) -> bool {
        self.0
            .hand_to_front(front, message)
            .unwrap_or_else(|error| {
                tracing::debug!(%front, "a client of another front was not told: {error}");
                false
            })
    }

    fn offer_files(&self, outputs: &Value) -> Result<Value, String> {
        let offered = self.0.offer_files(outputs);
        offered.map_err(|error| error.to_string())
    }

    fn bring_files(&self, files: &Value, outputs: &mut Value) -> Result<(), String> {
        let brought = self.0.bring_files(files, outputs);
        brought.map_err(|error| error.to_string())
    }
}

/// Answers other fronts as the server does.
pub(crate) struct ForFronts {
    pub(crate) app: App,
    /// Where the server runs.
    pub(crate) runtime: Handle,
}

impl OtherRequests for ForFronts {
    fn answer(&self, request: &Value) -> Option<Value> {
        Some(self.runtime.block_on(answer_front(&self.app, request)))
    }
}

/// Messages of other fronts that wait for the thread that hands them on, and their bytes: some are pictures, and some wait for files.
const TOLD: usize = 4096;
const TOLD_BYTES: usize = 64 << 20;

/// A message, and whom to tell whether it arrived.
type Letter = (Bytes, Option<Delivered>);

/// Messages on their way to a thread, of which no more wait than there is room for.
struct Line {
    to: SyncSender<Letter>,
    waiting: Arc<AtomicUsize>,
    most: usize,
}

/// The other end.
struct LineEnd {
    from: Receiver<Letter>,
    waiting: Arc<AtomicUsize>,
}

impl Line {
    /// For so many messages and bytes.
    fn new(messages: usize, most: usize) -> (Self, LineEnd) {
        let (to, from) = sync_channel(messages);
        let waiting = Arc::new(AtomicUsize::new(0));
        let end = LineEnd {
            from,
            waiting: Arc::clone(&waiting),
        };
        (Self { to, waiting, most }, end)
    }

    /// Whether there was room for it.
    fn push(&self, message: Bytes, delivered: Option<Delivered>) -> bool {
        let bytes = message.len();
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let taken = before + bytes <= self.most && self.to.try_send((message, delivered)).is_ok();
        if !taken {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }
}

impl Iterator for LineEnd {
    type Item = Letter;

    /// The next message, waited for; none when nobody can send any more.
    fn next(&mut self) -> Option<Letter> {
        let letter = self.from.recv().ok()?;
        self.waiting.fetch_sub(letter.0.len(), Ordering::Relaxed);
        Some(letter)
    }
}

/// Has to do with clients of other fronts as the server does.
pub(crate) struct WithNeighbours {
    app: App,
    runtime: Handle,
    told: Line,
}

impl WithNeighbours {
    /// Messages for clients are handed on in their order by a thread: some bring files with them.
    pub(crate) fn start(app: &App, front: &Arc<Front>, runtime: Handle) -> io::Result<Arc<Self>> {
        let (told, messages) = Line::new(TOLD, TOLD_BYTES);
        let (own, far) = (app.clone(), Arc::downgrade(front));
        let hand_on = move || {
            for (payload, delivered) in messages {
                let Some(front) = far.upgrade() else {
                    return;
                };
                let arrived = match front.whole_message(payload) {
                    Ok(bytes) => relay::told(&own, &bytes),
                    Err(error) => {
                        tracing::warn!("a client was not told: {error}");
                        false
                    }
                };
                if let Some(tell) = delivered {
                    tell(arrived);
                }
            }
        };
        std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(hand_on)?;
        Ok(Arc::new(Self {
            app: app.clone(),
            runtime,
            told,
        }))
    }
}

impl Neighbour for WithNeighbours {
    fn clients(&self) -> Value {
        relay::clients(&self.app)
    }

    fn front_has(&self, front: &Arc<str>, clients: &Value) {
        relay::front_has(&self.app, &self.runtime, front, clients);
    }

    fn told(&self, payload: Bytes, delivered: Option<Delivered>) {
        if !self.told.push(payload, delivered) {
            tracing::warn!("clients of this front do not hear all that others have for them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_room_for_messages_and_for_bytes() {
        let (line, mut end) = Line::new(3, 100);
        let message = |bytes: usize| Bytes::from(vec![7; bytes]);
        let push = |line: &Line, bytes| line.push(message(bytes), None);
        assert!(push(&line, 60));
        assert!(!push(&line, 41), "too many bytes");
        assert!(push(&line, 40));
        assert!(push(&line, 0));
        assert!(!push(&line, 0), "too many messages");
        assert_eq!(end.next().map(|(m, _)| m.len()), Some(60));
        // What went on leaves its room to others, and what was refused took none.
        assert!(!push(&line, 61));
        assert!(push(&line, 60));
        drop(line);
        assert_eq!(end.map(|(m, _)| m.len()).sum::<usize>(), 100);
    }
}
