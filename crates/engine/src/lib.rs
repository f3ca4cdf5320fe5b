//! Queue, executor, output caches, durable store, events.
