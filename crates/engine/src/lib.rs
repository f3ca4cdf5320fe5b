//! Queue, executor, output caches, durable store, events.

pub mod event;
pub mod progress;
pub mod reply;
pub mod store;
