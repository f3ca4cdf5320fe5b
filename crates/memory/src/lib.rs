//! What lives on which device, and for how long.
//!
//! A pure planner (what is there, what is asked: a plan) and one registry that carries plans out. The registry owns
//! residency and retention: there is no other place where either could be set or read.

mod act;
pub mod amount;
mod blocks;
mod budget;
mod check;
mod claims;
mod cleanup;
mod command;
mod entry;
mod error;
mod events;
mod expert;
mod free;
mod lease;
mod load;
mod load_query;
mod oom;
mod open;
mod place;
mod placement;
pub mod plan;
mod reason;
mod registry;
mod report;
mod room;
mod rooms;
mod settings;
#[cfg(test)]
mod snapshot;
mod types;
mod units;
mod whatif;

pub use blocks::{Distribution, Placement, allocation_string, distribute};
pub use budget::{Budget, Demand, ReserveRule, Reserves, VramState, budget, headroom};
pub use command::{MemoryAnswer, MemoryCommand, Overview, Refusal};
pub use error::{MemoryError, WeightsRemoved};
pub use events::{EventNumbers, Listener};
pub use expert::{
    Amount, DeviceTotal, Expert, ExpertCode, ExpertError, Warning, device_order, parse_expert,
};
pub use free::Removed;
pub use fresco_placement::{FreeNote, FreeRequest};
pub use fresco_tensor::{WeightTraffic, weight_traffic};
pub use lease::{Handle, Lease};
pub use load_query::{LoadQuery, LoadSubject};
pub use oom::OomStep;
pub use open::{HandleOptions, Opened};
pub use placement::{Order, Shrunk, Split, shrink, shrink_in, split, split_in};
pub use reason::{NodePlace, Reason, Wish};
pub use registry::ModelRegistry;
pub use report::device_bytes;
pub use rooms::{Registries, WorkerModels};
pub use settings::{HostMemory, Probes, Settings, host_memory, resident_set};
pub use types::*;
pub use units::{Allowance, UnitPlan, UnitScene, plan_units};
pub use whatif::{DevicePlan, HostPlan, LoadModel, LoadPlan, LoadRequest, ModelPlan};
