//! Whether this machine still has the memory for something large.
//!
//! The kernel promises more memory than there is and kills the whole program when the promise is called in. Asking
//! first turns a size that does not fit into an error of the node or request that wanted it.
//!
//! Memory that was granted but not yet written to is not missing in the kernel's figures. It is counted here until the
//! claim on it is dropped, so that several requests at once cannot all be granted the same bytes.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_os = "linux")]
use crate::container;
use crate::machine::{self, MemoryFigures};
use crate::{recycle, watch};

/// The kernel's figures are read once for so many bytes: for every buffer of this size, now and then for small ones.
const STEP: u64 = 32 << 20;

/// Claims on less are not counted as pending; [`UNASKED`] bounds what they are together.
const SMALL: u64 = 1 << 20;

/// Left for everything else: the server, encoders, other programs.
const SPARE: u64 = 768 << 20;

/// Bytes granted since the figures were last read.
static UNASKED: AtomicU64 = AtomicU64::new(0);

/// Bytes granted that the kernel may not count as used yet.
static PENDING: AtomicU64 = AtomicU64::new(0);

/// Memory that may be taken. It counts as used until this is dropped: keep it until all of it was written to.
#[derive(Debug, Default)]
#[must_use = "the memory stops counting as used when the claim is dropped"]
pub struct Claim {
    pending: u64,
    tight: bool,
}

impl Claim {
    /// Whether it takes a good part of what is left. Whoever gets it writes to it at once, so that the kernel's figures
    /// are right for the next one who asks.
    pub(crate) fn is_tight(&self) -> bool {
        self.tight
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.pending > 0 {
            PENDING.fetch_sub(self.pending, Ordering::Relaxed);
        }
    }
}

/// There is not enough memory for what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not enough memory: {} MiB are wanted, {} MiB more than this machine or its container can spare", wanted.div_ceil(1 << 20), missing.div_ceil(1 << 20)
)]
pub struct NoRoom {
    pub wanted: u64,
    pub missing: u64,
}

/// Asks for so many bytes of main memory. Where nobody knows what is free, they are granted.
pub fn claim(bytes: u64) -> Result<Claim, NoRoom> {
    let pending = if bytes < SMALL { 0 } else { bytes };
    let others = PENDING.fetch_add(pending, Ordering::Relaxed);
    let mut claim = Claim {
        pending,
        tight: false,
    };
    if !is_due(&UNASKED, bytes) {
        return Ok(claim);
    }
    let wanted = bytes.saturating_add(others);
    let Some(mut free) = available() else {
        return Ok(claim);
    };
    if shortfall(wanted, free).is_some() {
        // What is only kept for later is better used now.
        recycle::free_all();
        free = available().unwrap_or(free);
    }
    if let Some(missing) = shortfall(wanted, free) {
        return Err(NoRoom {
            wanted: bytes,
            missing,
        });
    }
    claim.tight = is_tight(wanted, free);
    Ok(claim)
}

/// Runs something that takes at most so many bytes in ways of its own: text, files, encoders. Storage of numbers is made
/// with [`crate::Buffer`] instead.
pub fn with_memory<T>(bytes: u64, take: impl FnOnce() -> T) -> Result<T, NoRoom> {
    let _claim = claim(bytes)?;
    Ok(watch::granted(take))
}

fn is_due(unasked: &AtomicU64, bytes: u64) -> bool {
    let sum = unasked
        .fetch_add(bytes, Ordering::Relaxed)
        .saturating_add(bytes);
    if sum >= STEP {
        unasked.store(0, Ordering::Relaxed);
    }
    sum >= STEP
}

fn shortfall(bytes: u64, available: u64) -> Option<u64> {
    let needed = bytes.saturating_add(SPARE);
    (needed > available).then(|| needed - available)
}

/// More than a quarter of what may be given away.
fn is_tight(bytes: u64, available: u64) -> bool {
    bytes > available.saturating_sub(SPARE) / 4
}

/// Memory the kernel says can be had without swapping, in bytes; `None` if nobody knows.
pub fn available() -> Option<u64> {
    memory().map(|memory| memory.available)
}

/// All memory there is for this program, in bytes.
pub fn total() -> Option<u64> {
    memory().map(|memory| memory.total)
}

/// Both figures at once.
pub fn total_and_available() -> Option<(u64, u64)> {
    memory().map(|memory| (memory.total, memory.available))
}

/// What the machine has, or the container if that is less.
fn memory() -> Option<MemoryFigures> {
    let machine = machine::memory()?;
    #[cfg(target_os = "linux")]
    if let Some(limit) = container::limit() {
        return Some(machine.at_most(limit));
    }
    Some(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_stays_free() {
        assert_eq!(shortfall(1 << 30, 4 << 30), None);
        assert_eq!(shortfall(1 << 30, 1 << 30), Some(SPARE));
        assert_eq!(shortfall(u64::MAX, 1 << 30), Some(u64::MAX - (1 << 30)));
    }

    #[test]
    #[cfg(any(target_os = "linux", windows, target_os = "macos"))]
    fn a_tensor_larger_than_the_machine_is_refused() {
        let all = available().unwrap();
        assert!(claim(all).is_err());
        // The kernel would promise this much, and end the program when it is written to.
        let shape = [(all / 4) as usize / 1024, 1024];
        if crate::element_count(&shape).is_ok() {
            let error = crate::Tensor::zeros(shape).unwrap_err();
            assert!(
                matches!(error, crate::TensorError::NoMemory { .. }),
                "{error}"
            );
        }
    }

    #[test]
    #[cfg(any(target_os = "linux", windows, target_os = "macos"))]
    fn what_is_granted_counts_before_it_is_written_to() {
        let half = available().unwrap().saturating_sub(SPARE) / 2 + (64 << 20);
        // Nothing is allocated, so the kernel's figures stay as they are.
        let Ok(first) = claim(half) else {
            return;
        };
        assert!(claim(half).is_err(), "the same bytes were granted twice");
        drop(first);
        assert!(claim(half).is_ok(), "the claim still counts");
    }

    #[test]
    fn a_quarter_of_what_is_left_is_tight() {
        let free = SPARE + (4 << 30);
        assert!(!is_tight(1 << 30, free));
        assert!(is_tight((1 << 30) + 1, free));
        assert!(is_tight(1, 0));
    }

    #[test]
    fn many_small_tensors_are_asked_about_too() {
        let unasked = AtomicU64::new(0);
        let due: Vec<bool> = (0..6).map(|_| is_due(&unasked, STEP / 3 + 1)).collect();
        assert_eq!(due, [false, false, true, false, false, true]);
        assert!(is_due(&unasked, STEP) && !is_due(&unasked, STEP - 1));
    }
}
