//! Ending work that nobody wants any more.
//!
//! Whoever runs a node sets a flag for its thread ([`with`]). Every operation that makes a tensor looks at it, and so do
//! the loops of those that can take long, on whichever thread they run. A flag that was raised stays raised: what was
//! computed after that may be incomplete, and no operation will give it out.

use std::cell::RefCell;
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crate::error::{Result, TensorError};

thread_local! {
    static CURRENT: RefCell<Cancel> = const { RefCell::new(Cancel(None)) };
}

/// Elements that simple loops go through between two looks at the flag.
pub(crate) const CHUNK: usize = 1 << 20;

/// The flag of some work; without one it is never raised.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Option<Arc<AtomicBool>>);

/// What unwinds the stack where an operation has no error to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl Cancel {
    /// The flag of what this thread works on. Tasks on other threads take a clone along.
    pub fn current() -> Self {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs a part of its work on this thread.
    pub fn within<T>(self, work: impl FnOnce() -> T) -> T {
        struct Before(Cancel);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(std::mem::take(&mut self.0));
            }
        }
        let _before = Before(CURRENT.replace(self));
        work()
    }

    /// Whether there is no flag, so that it is never raised.
    pub(crate) fn is_never(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub fn is_raised(&self) -> bool {
        // Relaxed: nothing else is read because of it.
        self.0
            .as_ref()
            .is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_raised() {
            return Err(TensorError::Cancelled);
        }
        Ok(())
    }

    /// Unwinds the stack if the flag is raised, without the message of a panic. For loops that have no error to return:
    /// no half-made result gets out, and whoever runs nodes catches it as it catches panics.
    #[inline]
    pub fn stop(&self) {
        if self.is_raised() {
            resume_unwind(Box::new(Cancelled));
        }
    }
}

/// Runs `work` with a flag for this thread.
pub fn with<T>(flag: &Arc<AtomicBool>, work: impl FnOnce() -> T) -> T {
    Cancel(Some(flag.clone())).within(work)
}

/// A writer that stops when its work is not wanted any more. Large pieces are written in smaller ones, because the disk may
/// be slow.
pub struct CancellableWriter<W> {
    inner: W,
    cancel: Cancel,
}

/// Bytes written between two looks at the flag.
const PIECE: usize = 4 << 20;

impl<W: io::Write> CancellableWriter<W> {
    pub fn new(inner: W) -> Self {
        Self {
            inner,
            cancel: Cancel::current(),
        }
    }
}

impl<W: io::Write> io::Write for CancellableWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.cancel.check().map_err(io::Error::other)?;
        self.inner.write(&bytes[..bytes.len().min(PIECE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// An error if the work of this thread is not wanted any more.
#[inline]
pub fn check() -> Result<()> {
    CURRENT.with_borrow(Cancel::check)
}

/// How long a thread that waits for a lock does not look at it.
const LOOK: Duration = Duration::from_millis(1);

/// The value behind a lock, also after a panic, or an error as soon as the work of this thread is not wanted any more. For locks that
/// are held while files are read: the disk or the network share may not answer.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    let cancel = Cancel::current();
    if cancel.is_never() {
        return Ok(crate::lock::lock(mutex));
    }
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                cancel.check()?;
                std::thread::park_timeout(LOOK);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::Tensor;

    #[test]
    fn a_raised_flag_ends_operations_of_its_own_thread_only() {
        let flag = Arc::new(AtomicBool::new(false));
        with(&flag, || {
            let a = Tensor::zeros([8]).unwrap();
            assert!(a.add(&a).is_ok());
            flag.store(true, Ordering::Relaxed);
            assert_eq!(a.repeat(&[2]).unwrap_err(), TensorError::Cancelled);
            let other = std::thread::spawn(|| Tensor::zeros([8]).map(drop));
            assert_eq!(other.join().unwrap(), Ok(()));
        });
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn a_raised_flag_ends_waiting_for_a_lock() {
        let (mutex, flag) = (Mutex::new(7), Arc::new(AtomicBool::new(false)));
        with(&flag, || assert_eq!(*lock(&mutex).unwrap(), 7));
        let held = mutex.lock().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| with(&flag, || lock(&mutex).map(drop)));
            flag.store(true, Ordering::Relaxed);
            assert_eq!(waiting.join().unwrap(), Err(TensorError::Cancelled));
        });
        drop(held);
    }

    #[test]
    fn writing_stops() {
        use std::io::Write as _;
        let flag = Arc::new(AtomicBool::new(false));
        with(&flag, || {
            let mut out = CancellableWriter::new(Vec::new());
            let bytes = vec![7; PIECE + 3];
            out.write_all(&bytes).unwrap();
            assert_eq!(out.inner, bytes);
            flag.store(true, Ordering::Relaxed);
            assert!(out.write_all(&bytes).is_err());
        });
    }

    #[test]
    fn loops_without_an_error_unwind() {
        let flag = Arc::new(AtomicBool::new(true));
        let ended = with(&flag, || {
            let cancel = Cancel::current();
            catch_unwind(move || cancel.stop())
        });
        assert!(ended.unwrap_err().is::<Cancelled>());
        Cancel::current().stop();
    }
}
