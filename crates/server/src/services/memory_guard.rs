//! Main memory that requests take while they are answered: decoded pictures, large JSON. All requests together share one
//! limit, and none takes what the machine does not have: that is asked of the guard which prompts ask too.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fresco_files::{MemoryClaim, MemoryGuard, MemorySource, NoMemory};
use fresco_graph::lock;

use crate::http::error::{ApiError, Code};

/// Hands out main memory to requests. Clones share.
#[derive(Clone)]
pub(crate) struct RequestMemory {
    inner: Arc<Inner>,
}

struct Inner {
    most: u64,
    machine: MemoryGuard,
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
    Machine { wanted: u64, missing: u64 },
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
            Self::Machine { wanted, missing } => ApiError::later(
                Code::NoMemory,
                format!(
                    "{what} takes {} MiB of memory, {} MiB more than this machine can spare now",
                    mib(wanted),
                    mib(missing)
                ),
                30,
            ),
        }
    }

    fn missing(self) -> u64 {
        match self {
            Self::Never { wanted, most } | Self::Busy { wanted, most } => {
                wanted.saturating_sub(most).max(1)
            }
            Self::Machine { missing, .. } => missing,
        }
    }
}

impl RequestMemory {
    pub(crate) fn new(most: u64, machine: MemoryGuard) -> Self {
        let inner = Inner {
            most,
            machine,
            taken: Mutex::new(0),
            given_back: Condvar::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Gives back to the system what requests have dropped. Not for socket threads.
    pub(crate) fn give_back(&self) {
        self.inner.machine.give_back();
    }

    /// Bytes taken now.
    pub(crate) fn taken(&self) -> u64 {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        lock(&self.inner.taken)
    }

    fn try_take(&self, taken: &mut u64, wanted: u64) -> Result<(Taken, MemoryClaim), Short> {
        let most = self.inner.most;
        if wanted > most {
            return Err(Short::Never { wanted, most });
        }
        if *taken + wanted > most {
            return Err(Short::Busy { wanted, most });
        }
        let claim = self.inner.machine.claim(wanted, "a request");
        let claim = claim.map_err(|NoMemory { missing, .. }| Short::Machine { wanted, missing })?;
        *taken += wanted;
        let taken = Taken {
            of: self.clone(),
            bytes: wanted,
        };
        Ok((taken, claim))
    }

    /// Takes memory, or says at once why not.
    pub(crate) fn take(&self, bytes: u64) -> Result<(Taken, MemoryClaim), Short> {
        self.take_until(bytes, Instant::now())
    }

    /// Takes memory, waiting for what others give back. Not for socket threads.
    fn take_until(&self, bytes: u64, deadline: Instant) -> Result<(Taken, MemoryClaim), Short> {
        let mut taken = self.lock();
        loop {
            let short = match self.try_take(&mut taken, bytes) {
                Ok(got) => return Ok(got),
                Err(short) => short,
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

    /// What one request asks, for as long as it works.
    pub(crate) fn share(&self, patience: Duration) -> Share {
        Share(Arc::new(RequestShare {
            memory: self.clone(),
            deadline: Instant::now() + patience,
            held: Mutex::default(),
            refused: Mutex::default(),
        }))
    }
}

/// What one request has taken; given back with the last clone.
#[derive(Clone)]
pub(crate) struct Share(Arc<RequestShare>);

struct RequestShare {
    memory: RequestMemory,
    deadline: Instant,
    held: Mutex<Vec<Taken>>,
    refused: Mutex<Option<Short>>,
}

impl Share {
    /// For code that asks while it works, such as decoders.
    pub(crate) fn guard(&self) -> MemoryGuard {
        MemoryGuard::new(self.clone())
    }

    /// Takes memory for as long as the request works.
    pub(crate) fn take(&self, bytes: u64) -> Result<MemoryClaim, Short> {
        let (taken, claim) = self.0.memory.take_until(bytes, self.0.deadline)?;
        lock(&self.0.held).push(taken);
        Ok(claim)
    }

    /// Why the guard refused, if it did.
    pub(crate) fn refused(&self) -> Option<Short> {
        *lock(&self.0.refused)
    }
}

impl MemorySource for Share {
    fn claim(&self, bytes: u64) -> Result<Box<dyn Any + Send>, u64> {
        match self.take(bytes) {
            Ok(claim) => Ok(Box::new(claim)),
            Err(short) => {
                *lock(&self.0.refused) = Some(short);
                Err(short.missing())
            }
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

    fn memory(most: u64) -> RequestMemory {
        RequestMemory::new(most, MemoryGuard::default())
    }

    #[test]
    fn all_requests_share_one_limit() {
        let memory = memory(100 * MIB);
        let first = memory.take(60 * MIB).unwrap();
        let refused = |bytes| memory.take(bytes).err().unwrap();
        assert!(matches!(refused(60 * MIB), Short::Busy { .. }));
        assert!(matches!(refused(101 * MIB), Short::Never { .. }));
        let share = memory.share(Duration::ZERO);
        assert!(share.take(30 * MIB).is_ok());
        let guard = share.guard();
        assert!(guard.claim(10 * MIB, "more").is_ok());
        assert!(guard.claim(MIB, "too much").is_err());
        assert!(matches!(share.refused(), Some(Short::Busy { .. })));
        assert_eq!(memory.taken(), 100 * MIB);
        drop((first, guard, share));
        assert_eq!(memory.taken(), 0);
    }

    #[test]
    fn the_machine_is_asked_too() {
        struct None;
        impl MemorySource for None {
            fn claim(&self, bytes: u64) -> Result<Box<dyn Any + Send>, u64> {
                Err(bytes)
            }
        }
        let memory = RequestMemory::new(100 * MIB, MemoryGuard::new(None));
        let short = memory.take(60 * MIB).err().unwrap();
        assert!(matches!(short, Short::Machine { .. }), "{short:?}");
        assert_eq!(short.for_request("a picture").status(), 503);
        assert_eq!(memory.taken(), 0);
    }

    #[test]
    fn whoever_waits_gets_what_others_give_back() {
        let memory = memory(100 * MIB);
        let first = memory.take(80 * MIB).unwrap();
        std::thread::scope(|scope| {
            let share = memory.share(Duration::from_mins(1));
            let waits = scope.spawn(move || share.take(80 * MIB).is_ok());
            drop(first);
            assert!(waits.join().unwrap());
        });
        assert_eq!(memory.taken(), 0);
    }
}
