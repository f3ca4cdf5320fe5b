//! What lives on which device, and for how long.
//!
//! A pure planner (what is there, what is asked: a plan) and one registry that carries plans out. The registry owns
//! residency and retention: there is no other place where either could be set or read.

mod types;

pub use types::*;
