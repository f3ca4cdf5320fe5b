//! Queue, executor, output caches, durable store, events.

mod cache;
mod dynprompt;
mod event;
mod executor;
mod memory;
mod progress;
mod reply;
mod run;
mod tasks;

pub use cache::{OutputCache, Strategy};
pub use event::*;
pub use executor::{
    Executor, ExecutorConfig, FlagSetter, Interrupt, Outcome, RunJob, failure_data, now_ms,
};
pub use memory::{MemoryRoom, NoModels, available_ram, total_ram};
pub use progress::{NodeProgress, NodeState, ProgressRegistry};
pub use reply::{Reply, Sender, reply};
