//! Queue, executor, output caches, durable store, events.

mod cache;
mod cut;
mod dynprompt;
mod engine;
pub mod event;
mod executor;
mod feeder;
mod job;
mod ledger;
mod live_registry;
mod memory;
mod messages;
mod panics;
mod passer;
pub mod progress;
pub mod reply;
mod requests;
mod run;
mod source;
mod state;
pub mod store;
mod tasks;
mod watch;
mod worker;

pub use cache::{OutputCache, Strategy};
pub use engine::{
    Engine, EngineConfig, SENSITIVE, Submission, Ticket, WorkerConfig, WorkerKind, new_prompt_id,
};
pub use event::*;
pub use executor::Executor;
pub use feeder::{MakeWorker, RunningPrompt};
pub use fresco_placement::{FreeNote, FreeRequest, RoomReport};
pub use job::{JobEnd, JobOutcome, RunControl, RunJob};
pub use live_registry::LiveRegistry;
pub use memory::{Admission, Arriving, FreeReport, MemoryRoom, NoModels, Unload};
pub use messages::{failure_data, now_ms};
pub use passer::JobPasser;
pub use progress::ProgressRegistry;
pub use reply::{Reply, Sender, reply};
pub use source::{JobSource, NextReply};
pub use state::ExecutorConfig;
pub use store::{JobStore, StoreError};
pub use worker::{Worker, WorkerSnapshot};

/// Which worker takes which job.
pub use fresco_placement as placement;
