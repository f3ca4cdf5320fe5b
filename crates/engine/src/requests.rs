//! Requests to free memory, on their way from whoever asks to the worker.
//!
//! They wait for the end of the running prompt and become one meanwhile. Forced ones are also carried out between two
//! nodes, as far as the running prompt does not hold what they are about.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{FreeReport, FreeRequest};
use crate::reply::Sender;

#[derive(Default)]
struct Waiting {
    /// All of them as one.
    request: Option<FreeRequest>,
    /// Those among them that do not wait for the prompt.
    forced: Option<FreeRequest>,
    /// Who wants to know when it is done.
    waiters: Vec<Sender<FreeReport>>,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct FreeRequests {
    waiting: Mutex<Waiting>,
    /// Whether there is a forced one: asked between any two nodes, so without a lock.
    forced: AtomicBool,
}

fn add(sum: &mut Option<FreeRequest>, request: FreeRequest) {
    match sum {
        Some(sum) => sum.merge(request),
        None => *sum = Some(request),
    }
}

impl FreeRequests {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request. `note` is called before the worker can see it, so that what it says comes before what is done.
    pub(crate) fn push(
        &self,
        request: FreeRequest,
        waiter: Option<Sender<FreeReport>>,
        note: impl FnOnce(),
    ) {
        let mut waiting = self.lock();
        if waiting.closed {
            return;
        }
        note();
        if request.force {
            add(&mut waiting.forced, request.clone());
            self.forced.store(true, Ordering::Release);
        }
        add(&mut waiting.request, request);
        waiting.waiters.extend(waiter);
    }

    /// Everything that waits, once.
    pub(crate) fn take(&self) -> (Option<FreeRequest>, Vec<Sender<FreeReport>>) {
        let mut waiting = self.lock();
        self.forced.store(false, Ordering::Release);
        waiting.forced = None;
        (waiting.request.take(), std::mem::take(&mut waiting.waiters))
    }

    /// The forced requests since the last look. They stay among those that wait.
    pub(crate) fn take_forced(&self) -> Option<FreeRequest> {
        if !self.forced.load(Ordering::Acquire) {
            return None;
        }
        let mut waiting = self.lock();
        self.forced.store(false, Ordering::Release);
        waiting.forced.take()
    }

    /// Nothing will be carried out any more; whoever waits is told so.
    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        *waiting = Waiting {
            closed: true,
            ..Waiting::default()
        };
    }
}
