//! Clients that are connected to another front of a cluster: what prompts of theirs have to tell goes there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use fresco_cluster::protocol::LOST;
use fresco_cluster::protocol::alive::ClientName;

use super::{Hub, Socket, State};
use crate::services::frame::Frame;

/// Clients that one front tells others of.
const MOST: usize = 512;
/// Longer names of clients are not told: a greeting is a small message.
const LONGEST: usize = 128;

/// A client of another front.
pub(super) struct Relay {
    front: Arc<str>,
    pub(super) socket: Arc<Socket>,
    /// When that front last said so.
    seen: Instant,
}

impl Relay {
    fn close(&self) {
        self.socket.outbox.close("its client is gone");
    }
}

impl Hub {
    /// The clients that are connected here, each with whether it knows described previews.
    pub(crate) fn clients(&self) -> Vec<ClientName> {
        let state = self.lock();
        let known = state.sockets.values();
        let known = known
            .filter(|socket| socket.sid.len() <= LONGEST)
            .take(MOST);
        let name = |socket: &Arc<Socket>| ClientName {
            sid: socket.sid.clone(),
            described_previews: socket.described_previews(),
        };
        known.map(name).collect()
    }

    /// Another front has these clients, and no others. Somebody has to carry what those get that are new.
    pub(crate) fn relay(&self, front: &Arc<str>, clients: Vec<ClientName>) -> Vec<Arc<Socket>> {
        let fits = |client: &ClientName| !client.sid.is_empty() && client.sid.len() <= LONGEST;
        let wanted: BTreeMap<Arc<str>, bool> = clients
            .into_iter()
            .take(MOST)
            .filter(fits)
            .map(|client| (client.sid, client.described_previews))
            .collect();
        let mut state = self.lock();
        let now = Instant::now();
        let mut unsent = Vec::new();
        state.relays.retain(|sid, relay| {
            let own = relay.front == *front;
            let stays = now.duration_since(relay.seen) < LOST && (!own || wanted.contains_key(sid));
            if !stays {
                unsent.push((sid.clone(), relay.socket.outbox.drain()));
                relay.close();
            }
            stays
        });
        for (sid, frames) in unsent {
            state.keep_missed(&sid, frames);
        }
        let mut new = Vec::new();
        for (sid, described) in wanted {
            if let Some(relay) = state.relays.get_mut(&sid) {
                // With two fronts that say they have it, the first has it.
                if relay.front == *front {
                    relay.seen = now;
                    set_described(&relay.socket, described);
                    // It was away and is there again.
                    let socket = relay.socket.clone();
                    for frame in state.missed.take(&sid) {
                        socket.outbox.push(frame);
                    }
                }
                continue;
            }
            let socket = self.socket(&mut state, sid.clone());
            set_described(&socket, described);
            state.missed.saw(&sid);
            for frame in state.missed.take(&sid) {
                socket.outbox.push(frame);
            }
            for frame in state.answers.take_late(&sid) {
                socket.outbox.push(frame);
            }
            let relay = Relay {
                front: front.clone(),
                socket: socket.clone(),
                seen: now,
            };
            state.relays.insert(sid, relay);
            new.push(socket);
        }
        new
    }

    /// What another front has for a client of this one. False: it is not connected here.
    pub(crate) fn deliver(&self, sid: &str, frame: Frame) -> bool {
        let state = self.lock();
        let socket = state.sockets.get(sid);
        if let Some(socket) = socket {
            self.push(socket, frame);
        }
        socket.is_some()
    }

    /// Frames that did not reach a client: it gets them when it connects again. If it is connected here meanwhile, at once.
    pub(crate) fn missed(&self, sid: &Arc<str>, frames: Vec<Frame>) {
        self.lock().keep_missed(sid, frames);
    }
}

impl State {
    fn keep_missed(&mut self, sid: &Arc<str>, frames: Vec<Frame>) {
        for frame in frames {
            match self.sockets.get(sid) {
                Some(socket) => drop(socket.outbox.push(frame)),
                None => self.missed.keep(sid, frame),
            }
        }
    }
}

fn set_described(socket: &Socket, described: bool) {
    let flag = &socket.described_previews;
    flag.store(described, Ordering::Relaxed);
}
