//! Panics of others.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls the memory room; a panic there must not take the worker with it.
pub(crate) fn catch_panic<T: Default>(what: &str, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        tracing::error!("the memory room failed in {what}");
        T::default()
    })
}
