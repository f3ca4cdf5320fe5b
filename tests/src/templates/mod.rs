//! The ecosystem's own workflows, run to their end with networks that are narrow and have made-up weights.
//!
//! A template asks for files by name. [`files`] has one table of what such a name stands for, [`networks`] makes the
//! weights, [`reduce`] makes pictures small and steps few, and [`Runner`] sends the result to the program.

pub mod files;
pub mod films;
pub mod networks;
pub mod reduce;
mod run;

pub use files::write as write_model;
pub use networks::Network;
pub use run::{Outcome, Runner, sound};
