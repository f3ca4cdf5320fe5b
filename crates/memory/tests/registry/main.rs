//! The registry on simulated devices, with weights that are only counted: the acceptance cases of the specification
//! that need no server, by their numbers, and properties of the planner.

#![expect(
    clippy::unwrap_used,
    reason = "what should work fails its test otherwise"
)]

mod claims;
mod deciders;
mod free;
mod harness;
mod loads;
mod oom;
mod placement;
mod planner;
mod prompts;
mod random;
mod retention;
mod storm;
mod time;
