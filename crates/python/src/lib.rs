//! Python packs: their nodes run in a process of their own, which may fail, hang or end without harm to anything else.
//!
//! [`candidates`] says which packs there are; without any, nothing of Python is started. [`Host`] starts the process, has it
//! import the packs, hands their classes to the rest of the program through [`Outside`], and starts it again when it ends.
//! [`Hosts`] has one for the packs that share a process, and one for each that has its own.
//! The Python side is in the folder `python`, part of this program and written to disk when it is first needed.

mod channel;
mod class;
mod discover;
mod host;
mod hosts;
mod interpreter;
mod output;
mod report;
mod routes;
mod schema;
mod segment;
mod shim;
mod wire;
mod worker;

pub use discover::{Candidate, Wanted, candidates};
pub use host::{Host, Outside, Settings};
pub use hosts::{Apart, Hosts};
pub use interpreter::{Interpreter, NoPython, Search};
pub use report::{PackReport, Phase, State};
