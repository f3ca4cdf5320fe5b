//! Main memory that requests take while they are answered: decoded pictures, large JSON. All requests together share one
//! limit, and none takes what the machine does not have.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{ApiError, Code};

/// Left free for everything else, as nodes leave it.
const SPARE: u64 = 768 << 20;
/// Less than this is not asked about: the question costs more than the memory.
const TRIFLE: u64 = 1 << 20;

/// Bytes of main memory that can be had now; none if nobody knows.
pub type FreeMemory = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// Hands out main memory to requests. Clones share.
#[derive(Clone)]
pub struct RequestMemory {
    inner: Arc<Inner>,
}

struct Inner {
    most: u64,
    free: FreeMemory,
    taken: Mutex<u64>,
    given_back: Condvar,
}

impl fmt::Debug for RequestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, taken) = (self.inner.most, self.taken());
        write!(f, "RequestMemory({taken} of {most})")
    }
}

/// Why there is no memory for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// More than all requests may have together.
    Never { wanted: u64, most: u64 },
    /// Others have it.
    Busy { wanted: u64, most: u64 },
    /// The machine has none.
    Machine { wanted: u64, free: u64 },
}

impl Short {
    /// The answer for a request; `what` is what the memory was for.
    pub(crate) fn for_request(self, what: &str) -> ApiError {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        match self {
            Self::Never { wanted, most } => ApiError::coded(
                Code::PictureTooLarge,
                format!(
                    "{what} takes {} MiB of memory, more than the {} MiB of --max-picture-memory",
                    mib(wanted),
                    mib(most)
                ),
            ),
            Self::Busy { wanted, most } => ApiError::later(
                Code::PicturesBusy,
                format!(
                    "{what} takes {} MiB of memory, and other requests have taken the {} MiB of --max-picture-memory; \
                     try again",
                    mib(wanted),
                    mib(most)
                ),
                5,
            ),
            Self::Machine { wanted, free } => ApiError::later(
                Code::NoMemory,
                format!(
                    "{what} takes {} MiB of memory, this machine has {} MiB left, and {} MiB of them stay free",
                    mib(wanted),
                    free >> 20,
                    SPARE >> 20
                ),
                30,
            ),
        }
    }
}

impl RequestMemory {
    pub fn new(most: u64, free: FreeMemory) -> Self {
        let inner = Inner {
            most,
            free,
            taken: Mutex::new(0),
            given_back: Condvar::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Bytes taken now.
    pub(crate) fn taken(&self) -> u64 {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        let taken = self.inner.taken.lock();
        taken.unwrap_or_else(PoisonError::into_inner)
    }

    fn shortage(&self, taken: u64, wanted: u64) -> Option<Short> {
        let most = self.inner.most;
        if wanted > most {
            return Some(Short::Never { wanted, most });
        }
        let sum = taken + wanted;
        if sum > most {
            return Some(Short::Busy { wanted, most });
        }
        if wanted < TRIFLE {
            return None;
        }
        // What others were given and have not written to yet still counts as free; all of it is taken off.
        let free = (self.inner.free)()?;
        (sum.saturating_add(SPARE) > free).then_some(Short::Machine { wanted, free })
    }

    /// Takes memory, or says at once why not.
    pub(crate) fn take(&self, bytes: u64) -> Result<Taken, Short> {
        self.take_within(bytes, Duration::ZERO)
    }

    /// Takes memory, waiting for what others give back. Not for socket threads.
    pub(crate) fn take_within(&self, bytes: u64, patience: Duration) -> Result<Taken, Short> {
        let deadline = Instant::now() + patience;
        let mut taken = self.lock();
        loop {
            let Some(short) = self.shortage(*taken, bytes) else {
                *taken += bytes;
                return Ok(Taken {
                    of: self.clone(),
                    bytes,
                });
            };
            let left = deadline.saturating_duration_since(Instant::now());
            // Nobody has any: waiting brings nothing.
            if *taken == 0 || left.is_zero() || matches!(short, Short::Never { .. }) {
                return Err(short);
            }
            let woken = self.inner.given_back.wait_timeout(taken, left);
            taken = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Memory of one request; given back when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    of: RequestMemory,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        *self.of.lock() -= self.bytes;
        self.of.inner.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(most: u64, free: Option<u64>) -> RequestMemory {
        RequestMemory::new(most, Arc::new(move || free))
    }

    #[test]
    fn all_requests_share_one_limit() {
        let memory = memory(100 * MIB, None);
        let first = memory.take(60 * MIB).unwrap();
        assert!(matches!(memory.take(60 * MIB), Err(Short::Busy { .. })));
        assert!(matches!(memory.take(101 * MIB), Err(Short::Never { .. })));
        let second = memory.take(40 * MIB).unwrap();
        assert_eq!(memory.taken(), 100 * MIB);
        drop((first, second));
        assert_eq!(memory.taken(), 0);
    }

    #[test]
    fn the_machine_keeps_some() {
        let memory = memory(u64::MAX / 2, Some(SPARE + 100 * MIB));
        let _first = memory.take(60 * MIB).unwrap();
        let short = memory.take(60 * MIB).unwrap_err();
        assert!(matches!(short, Short::Machine { .. }), "{short:?}");
        assert_eq!(short.for_request("a picture").status(), 503);
        memory.take(40 * MIB).unwrap();
    }

    #[test]
    fn whoever_waits_gets_what_others_give_back() {
        let memory = memory(100 * MIB, None);
        let first = memory.take(80 * MIB).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| memory.take_within(80 * MIB, Duration::from_secs(60)));
            drop(first);
            assert!(waits.join().unwrap().is_ok());
        });
        assert_eq!(memory.taken(), 0);
    }
}
