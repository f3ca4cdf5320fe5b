//! Asking before much memory is taken, for rooms that cannot know what is free.
//!
//! The binary hands out a guard that knows the machine and its container; without one, everything is granted.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Knows how much memory can still be had.
pub trait MemorySource: Send + Sync {
    /// Grants so many bytes, which count as used until the answer is dropped; or says how many are missing.
    fn claim(&self, bytes: u64) -> Result<Box<dyn Any + Send>, u64>;

    /// Gives back to the system what was dropped and is still kept for later.
    fn give_back(&self) {}
}

/// Whom to ask before much memory is taken. Cheap to clone.
#[derive(Clone, Default)]
pub struct MemoryGuard(Option<Arc<dyn MemorySource>>);

impl MemoryGuard {
    pub fn new(source: impl MemorySource + 'static) -> Self {
        Self(Some(Arc::new(source)))
    }

    /// Gives back to the system what was dropped in many small pieces, which allocators keep otherwise. Takes
    /// milliseconds.
    pub fn give_back(&self) {
        if let Some(source) = &self.0 {
            source.give_back();
        }
    }

    /// Asks for the memory of something; `what` is shown in the error ("the picture cat.png").
    pub fn claim(&self, bytes: u64, what: &str) -> Result<MemoryClaim, NoMemory> {
        let Some(source) = &self.0 else {
            return Ok(MemoryClaim(None));
        };
        match source.claim(bytes) {
            Ok(claim) => Ok(MemoryClaim(Some(claim))),
            Err(missing) => Err(NoMemory {
                what: what.to_owned(),
                wanted: bytes,
                missing,
            }),
        }
    }
}

impl fmt::Debug for MemoryGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.0.is_some() { "asks" } else { "grants" };
        write!(f, "MemoryGuard({kind})")
    }
}

/// Memory that may be taken. It counts as used, beside what the kernel counts, until this is dropped; so it is dropped
/// as soon as the memory was written to, or not wanted any more.
#[must_use = "the memory stops counting as used when the claim is dropped"]
pub struct MemoryClaim(
    #[expect(dead_code, reason = "held for its drop")] Option<Box<dyn Any + Send>>,
);

/// There is not enough memory for what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not enough memory for {what}: it takes {} MiB, {} MiB more than can be spared now", wanted.div_ceil(1 << 20), missing.div_ceil(1 << 20)
)]
pub struct NoMemory {
    pub what: String,
    pub wanted: u64,
    pub missing: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Half;

    impl MemorySource for Half {
        fn claim(&self, bytes: u64) -> Result<Box<dyn Any + Send>, u64> {
            if bytes > 50 << 20 {
                Err(bytes - (50 << 20))
            } else {
                Ok(Box::new(()))
            }
        }
    }

    #[test]
    fn a_guard_says_what_is_missing_for_what() {
        let guard = MemoryGuard::new(Half);
        assert!(guard.claim(50 << 20, "a picture").is_ok());
        let error = guard.claim(60 << 20, "a picture").err().unwrap();
        assert_eq!(
            error.to_string(),
            "not enough memory for a picture: it takes 60 MiB, 10 MiB more than can be spared now"
        );
        assert!(MemoryGuard::default().claim(u64::MAX, "all").is_ok());
    }
}
