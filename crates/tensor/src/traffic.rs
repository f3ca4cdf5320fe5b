//! What was done with bytes of weights in main memory since the program started. A load that goes straight to a GPU reads each byte of
//! its file once and does nothing else with it; these counts show it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static READ: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);
static CONVERTED: AtomicU64 = AtomicU64::new(0);

/// Bytes of weights by what was done with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightTraffic {
    /// Read from files, headers included.
    pub read: u64,
    /// Copied or put together in main memory after they were read.
    pub copied: u64,
    /// Decoded to f32 in main memory.
    pub converted: u64,
}

/// The counts so far.
pub fn weight_traffic() -> WeightTraffic {
    WeightTraffic {
        read: READ.load(Relaxed),
        copied: COPIED.load(Relaxed),
        converted: CONVERTED.load(Relaxed),
    }
}

pub(crate) fn read(bytes: usize) {
    READ.fetch_add(bytes as u64, Relaxed);
}

pub(crate) fn copied(bytes: usize) {
    COPIED.fetch_add(bytes as u64, Relaxed);
}

pub(crate) fn converted(bytes: usize) {
    CONVERTED.fetch_add(bytes as u64, Relaxed);
}
