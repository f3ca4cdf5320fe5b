//! The memory that weights are read into, kept for the next ones.
//!
//! A weight is read, packed and dropped, a thousand times while a model is loaded. Fresh pages for each would take longer
//! than the reading itself.

use std::sync::{Mutex, MutexGuard};

use crate::lock::lock;
use crate::pages::prefer_large;

/// Smaller ones are left to the allocator.
const LEAST: usize = 1 << 20;
/// Larger ones go back to the system.
const MOST: usize = 64 << 20;

/// The largest that was given back.
static SPARE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<u8>> {
    lock(&SPARE)
}

/// So many bytes, of any value.
pub(crate) fn take(len: usize) -> Vec<u8> {
    if len >= LEAST {
        let mut bytes = std::mem::take(&mut *spare());
        if bytes.capacity() >= len {
            bytes.resize(len, 0);
            return bytes;
        }
    }
    // Nothing of it was touched yet.
    let mut bytes = vec![0; len];
    prefer_large(&mut bytes);
    bytes
}

/// Memory that nobody needs any more.
pub(crate) fn give(bytes: Vec<u8>) {
    if (LEAST..=MOST).contains(&bytes.capacity()) {
        let mut spare = spare();
        if spare.capacity() < bytes.capacity() {
            *spare = bytes;
        }
    }
}

/// Back to the system with it.
pub(crate) fn free() {
    drop(std::mem::take(&mut *spare()));
}
