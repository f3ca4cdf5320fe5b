//! `serve --nats`: the front's part in a cluster, joined with the server that shows it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use fresco_cluster::content::{Catalogue, ClusterModels, Transfer};
use fresco_cluster::protocol::RequestResult;
use fresco_cluster::protocol::alive::ClientName;
use fresco_cluster::protocol::fronts::{FrontAnswer, FrontRequest};
use fresco_cluster::{Broker, BrokerError, Delivered, Front, FrontParts, FrontRequests, Neighbour};
use fresco_engine::{Engine, JobStore};
use fresco_server::{App, answer_front, relay};
use tokio::runtime::Handle;

use crate::assembly::Assembly;

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
        store: JobStore,
    ) -> Result<Arc<Front>, BrokerError> {
        Front::start(FrontParts {
            transfer: Arc::new(Transfer::new(self.broker.clone(), assembly.dirs.clone())),
            broker: self.broker,
            engine: engine.clone(),
            store,
            models: self.models,
            catalogue: self.catalogue,
        })
    }
}

/// Answers other fronts as the server does.
pub(crate) struct ForFronts {
    pub(crate) app: App,
    /// Where the server runs.
    pub(crate) runtime: Handle,
}

impl FrontRequests for ForFronts {
    fn answer(&self, request: FrontRequest) -> RequestResult<FrontAnswer> {
        self.runtime.block_on(answer_front(&self.app, request))
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
                    Ok(bytes) => relay::deliver(&own, &bytes),
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
    fn clients(&self) -> Vec<ClientName> {
        relay::clients(&self.app)
    }

    fn front_has(&self, front: &Arc<str>, clients: Vec<ClientName>) {
        relay::front_has(&self.app, &self.runtime, front, clients);
    }

    fn deliver(&self, payload: Bytes, delivered: Option<Delivered>) {
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
