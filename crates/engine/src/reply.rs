//! An answer that comes later: awaited by the server, waited for by threads. Keeps the engine free of an async runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fresco_graph::lock;

struct State<T> {
    value: Option<T>,
    closed: bool,
    /// Nobody waits any more.
    left: bool,
    waker: Option<Waker>,
}

struct ReplyState<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

impl<T> ReplyState<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }
}

/// The side that answers. Dropped unanswered, the waiting side gets `None`.
pub struct Sender<T>(Arc<ReplyState<T>>);

/// The side that waits: a future, or [`Reply::wait`].
pub struct Reply<T>(Arc<ReplyState<T>>);

pub fn reply<T>() -> (Sender<T>, Reply<T>) {
    let state = Mutex::new(State {
        value: None,
        closed: false,
        left: false,
        waker: None,
    });
    let shared = Arc::new(ReplyState {
        state,
        ready: Condvar::new(),
    });
    (Sender(shared.clone()), Reply(shared))
}

impl<T> Sender<T> {
    pub fn send(self, value: T) {
        self.0.lock().value = Some(value);
        // Drop wakes the other side.
    }

    /// As [`Sender::send`]; the value comes back if the other side has waited long enough ([`Reply::wait_until`]).
    pub fn offer(self, value: T) -> Result<(), T> {
        let mut state = self.0.lock();
        if state.left {
            return Err(value);
        }
        state.value = Some(value);
        drop(state);
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.closed = true;
            state.waker.take()
        };
        self.0.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Reply<T> {
    /// Blocks this thread until the answer is there; `None` if the other side went away.
    pub fn wait(self) -> Option<T> {
        let mut state = self.0.lock();
        while !state.closed {
            state = self
                .0
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.value.take()
    }

    /// As [`Reply::wait`], at most until then; an error says that it took longer. Whatever comes later goes back to its sender.
    pub fn wait_until(self, deadline: Instant) -> Result<Option<T>, TooLate> {
        let mut state = self.0.lock();
        while !state.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.left = true;
                return Err(TooLate);
            }
            let waited = self.0.ready.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state.value.take())
    }
}

/// The answer did not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLate;

impl<T> Future for Reply<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if state.closed {
            return Poll::Ready(state.value.take());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_across_threads_and_reports_a_lost_sender() {
        let (tx, rx) = reply();
        let thread = std::thread::spawn(move || tx.send(5));
        assert_eq!(rx.wait(), Some(5));
        thread.join().unwrap();
        let (tx, rx) = reply::<i32>();
        drop(tx);
        assert_eq!(rx.wait(), None);
    }

    #[test]
    fn an_answer_that_nobody_waits_for_goes_back() {
        let soon = || Instant::now() + std::time::Duration::from_millis(1);
        let (tx, rx) = reply();
        assert_eq!(rx.wait_until(soon()), Err(TooLate));
        assert_eq!(tx.offer(5), Err(5));
        let (tx, rx) = reply();
        assert_eq!(tx.offer(5), Ok(()));
        assert_eq!(rx.wait_until(soon()), Ok(Some(5)));
        let (tx, rx) = reply::<i32>();
        drop(tx);
        assert_eq!(rx.wait_until(soon()), Ok(None));
    }
}
