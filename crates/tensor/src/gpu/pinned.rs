//! Main memory that GPUs read themselves.

use std::sync::atomic::{AtomicBool, Ordering};

use super::backends::{self, Backend};

/// Whether main memory of weights may be pinned.
static PINNING: AtomicBool = AtomicBool::new(true);

/// Whether weights that stream to GPUs may be kept where the system cannot move them, which GPUs read faster. They may unless
/// this says otherwise.
pub fn allow_pinned_memory(allowed: bool) {
    PINNING.store(allowed, Ordering::Relaxed);
}

/// Main memory that does not move while this is there.
#[derive(Debug)]
pub(crate) struct PinnedBytes {
    address: usize,
    backend: &'static Backend,
}

impl PinnedBytes {
    /// None where the system refuses, or the user.
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        if !PINNING.load(Ordering::Relaxed) {
            return None;
        }
        // Memory can be pinned once.
        let backend = backends::all()
            .iter()
            .find(|backend| (backend.pin)(bytes))?;
        Some(Self {
            address: bytes.as_ptr() as usize,
            backend,
        })
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        (self.backend.unpin)(self.address);
    }
}
