//! Queue, executor, output caches, durable store, events.

mod cache;
mod cut;
mod dynprompt;
mod engine;
pub mod event;
mod executor;
mod gate;
mod ledger;
mod memory;
pub mod progress;
pub mod reply;
mod requests;
mod run;
pub mod store;
mod tasks;
mod worker;

pub use cache::{OutputCache, Strategy};
pub use engine::{Engine, EngineConfig, SENSITIVE, Submission, Ticket, new_prompt_id};
pub use event::*;
pub use executor::{
    Executor, ExecutorConfig, FlagSetter, Interrupt, Outcome, RunJob, failure_data, now_ms,
};
pub use gate::Release;
pub use memory::{
    Admission, Arriving, ClaimReport, DeviceReport, FreeNote, FreeReport, FreeRequest, Freed,
    HandleReport, LoadPlan, LoadRequest, LoadSubject, MemoryEvent, MemoryOrigin, MemoryProblem,
    MemoryRoom, ModelDetail, ModelReport, NoModels, Places, Plan, PlanStep, PlannedUnit, Removed,
    Snapshot, UnitReport, Unload, available_ram, resident_ram, total_ram,
};
pub use progress::{NodeProgress, NodeState, ProgressRegistry};
pub use reply::{Reply, Sender, reply};
pub use store::{Store, StoreError};
pub use worker::{Current, Stats};
