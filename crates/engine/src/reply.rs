//! An answer that comes later: awaited by the server, waited for by threads. Keeps the engine free of an async runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use fresco_graph::lock;

struct State<T> {
    value: Option<T>,
    closed: bool,
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
}

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
}
