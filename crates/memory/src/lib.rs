//! What lives on which device, and for how long.
//!
//! A pure planner (what is there, what is asked: a plan) and one registry that carries plans out. The registry owns
//! residency and retention: there is no other place where either could be set or read.

pub mod amount;
mod blocks;
mod budget;
pub mod estimate;
mod expert;
mod placement;
mod types;

pub use blocks::{Distribution, Placement, allocation_string, distribute};
pub use budget::{Budget, Demand, ReserveRule, Reserves, VramState, budget, headroom};
pub use expert::{
    Amount, DeviceTotal, Expert, ExpertCode, ExpertError, Warning, device_order, parse_expert,
};
pub use placement::{Order, Shrunk, Split, shrink, shrink_in, split, split_in};
pub use types::*;
