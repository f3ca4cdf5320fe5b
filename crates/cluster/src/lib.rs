//! Workers on other machines, through a NATS server with JetStream.
//!
//! A *front* (`fresco serve --nats`) has the queue and its database; a *worker* (`fresco worker --nats`) runs jobs. What they say:
//!
//! | subject | kind | who to whom |
//! |---|---|---|
//! | `fresco.alive.WORKER` | message, each second and at every change | worker to all fronts: session, state, what it runs, number of its last event |
//! | `fresco.run.WORKER` | request | front to worker: run this job; answered at once with "accepted" or why not |
//! | `fresco.control.WORKER` | request | front to worker: interrupt, free, describe yourself, memory |
//! | `fresco.fronts.alive.FRONT` | message, each second and when clients come or go | front to all fronts: the clients that it has |
//! | `fresco.fronts.ask.FRONT` | request | front to front: your queue, that job's result, interrupt it |
//! | `fresco.fronts.tell.FRONT` | message | front to front: this is for a client of yours |
//! | `fresco.fronts.hand.FRONT` | request | the same, answered when the client has it |
//! | `fresco.event.FRONT.TASK` | stored in a stream | worker to one front: numbered events, the outcome last |
//! | `fresco.preview.FRONT.TASK` | message | pictures on the way, thinned, lost when nobody listens |
//!
//! What each message holds, and in which version, is in [`protocol`]. Files and large messages are in an object store, named by the hash of their content. Nothing depends on two clocks agreeing: each side
//! counts from when *it* heard something.
//!
//! Who owns what: the front's database owns the job and its lease; the worker process owns its one place; the stream owns what was said about a
//! run until the front has recorded its outcome. A run has a number that no other run has, so an outcome counts once or not at all.

mod connection;
pub mod content;
mod disk;
mod exchange;
mod front;
mod objects;
pub mod protocol;
mod streams;
mod worker;

pub use connection::{
    Broker, BrokerError, BrokerSettings, BrokerState, ReceivedMessage, Subscription,
};
pub use front::{Delivered, Front, FrontParts, FrontRequests, Neighbour, WorkerFacts};
pub use objects::{ContentHash, hash_file};
pub use worker::{EventReceiver, MemoryRequests, WorkerParts, WorkerProcess, WorkerSink};
