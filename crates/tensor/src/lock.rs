//! Taking a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value behind a lock, also after a panic of somebody who held it: nothing in this crate leaves a value half changed
/// under a lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
