//! Built-in nodes and their list.
