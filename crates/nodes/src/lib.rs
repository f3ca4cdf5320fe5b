//! Built-in nodes and their list.

pub mod types;
