//! Whether this machine still has the memory for a large tensor.
//!
//! The kernel promises more memory than there is and kills the whole program when the promise is called in. Asking
//! first turns a size that does not fit into an error of the node that wanted it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::container;

/// The kernel's figures are read once for so many bytes: for every tensor of this size, now and then for small ones.
const STEP: u64 = 32 << 20;

/// Bytes of tensors made since the figures were last read.
static UNASKED: AtomicU64 = AtomicU64::new(0);

/// Left for everything else: the server, encoders, other programs.
const SPARE: u64 = 768 << 20;

/// Bytes that are missing for an allocation, or `None` if it fits or nobody knows.
pub(crate) fn missing(bytes: u64) -> Option<u64> {
    let available = is_due(&UNASKED, bytes).then(available).flatten()?;
    shortfall(bytes, available)
}

/// Bytes that are missing after an allocation that somebody else made: many small ones fill the memory too.
pub(crate) fn missing_after(bytes: u64) -> Option<u64> {
    let available = is_due(&UNASKED, bytes).then(available).flatten()?;
    shortfall(0, available)
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

/// Memory the kernel says can be had without swapping, in bytes; `None` if nobody knows.
pub fn available() -> Option<u64> {
    let machine = meminfo("MemAvailable:")?;
    Some(container::limit().map_or(machine, |limit| machine.min(limit.available)))
}

/// All memory there is for this program, in bytes.
pub fn total() -> Option<u64> {
    let machine = meminfo("MemTotal:")?;
    Some(container::limit().map_or(machine, |limit| machine.min(limit.total)))
}

fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
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
    #[cfg(target_os = "linux")]
    fn a_tensor_larger_than_the_machine_is_refused() {
        let all = available().unwrap();
        assert!(missing(all).is_some());
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
    fn many_small_tensors_are_asked_about_too() {
        let unasked = AtomicU64::new(0);
        let due: Vec<bool> = (0..6).map(|_| is_due(&unasked, STEP / 3 + 1)).collect();
        assert_eq!(due, [false, false, true, false, false, true]);
        assert!(is_due(&unasked, STEP) && !is_due(&unasked, STEP - 1));
    }
}
