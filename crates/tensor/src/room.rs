//! Whether this machine still has the memory for a large tensor.
//!
//! The kernel promises more memory than there is and kills the whole program when the promise is called in. Asking
//! first turns a size that does not fit into an error of the node that wanted it.

/// Tensors below this are not asked about: reading the kernel's figures takes longer than filling one.
const LARGE: u64 = 32 << 20;

/// Left for everything else: the server, encoders, other programs.
const SPARE: u64 = 768 << 20;

/// Bytes that are missing for an allocation, or `None` if it fits or nobody knows.
pub(crate) fn missing(bytes: u64) -> Option<u64> {
    (bytes >= LARGE)
        .then(available)
        .flatten()
        .and_then(|available| shortfall(bytes, available))
}

fn shortfall(bytes: u64, available: u64) -> Option<u64> {
    let needed = bytes.saturating_add(SPARE);
    (needed > available).then(|| needed - available)
}

/// Memory the kernel says can be had without swapping, in bytes.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
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
    fn small_tensors_are_never_refused() {
        assert_eq!(missing(LARGE - 1), None);
    }
}
