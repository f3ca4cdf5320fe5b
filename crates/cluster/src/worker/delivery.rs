//! Outcomes that the server has not taken yet. They are said again and again, also to the front itself, which hears them as they are said; the
//! worker takes other jobs meanwhile. Signs of life name their jobs, so that nobody takes these for lost.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fresco_graph::lock;

use super::Shared;
use crate::connection::{ANSWER, BrokerError};
use crate::protocol::alive::TaskName;

/// Outcomes and bytes of them that wait at once. Beyond it the worker takes no job before one is taken.
const MOST: usize = 64;
const MOST_BYTES: usize = 64 << 20;
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an outcome is tried to be handed over.
const PATIENCE: Duration = Duration::from_hours(1);

/// One outcome on its way.
#[derive(Clone)]
pub(super) struct Parcel {
    pub(super) name: TaskName,
    pub(super) subject: Arc<str>,
    /// Sent twice, it is kept once.
    pub(super) id: Arc<str>,
    pub(super) text: Arc<[u8]>,
    pub(super) since: Instant,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Parcel>,
    closed: bool,
}

#[derive(Default)]
pub(super) struct Undelivered {
    state: Mutex<State>,
    bell: Condvar,
}

impl Undelivered {
    /// Whether there was room for it.
    fn push(&self, parcel: Parcel) -> bool {
        let mut state = lock(&self.state);
        let bytes: usize = state.waiting.iter().map(|one| one.text.len()).sum();
        let fits = state.waiting.len() < MOST && bytes + parcel.text.len() <= MOST_BYTES;
        if fits {
            state.waiting.push_back(parcel);
            self.bell.notify_all();
        }
        fits
    }

    pub(super) fn names(&self) -> Vec<TaskName> {
        let state = lock(&self.state);
        state.waiting.iter().map(|one| one.name.clone()).collect()
    }

    /// The first one, waited for; none when the worker ends.
    fn first(&self) -> Option<Parcel> {
        let none = |state: &mut State| state.waiting.is_empty() && !state.closed;
        let state = self.bell.wait_while(lock(&self.state), none);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.waiting.front().filter(|_| !state.closed).cloned()
    }

    fn remove(&self, id: &str) {
        lock(&self.state).waiting.retain(|one| *one.id != *id);
        self.bell.notify_all();
    }

    fn rest(&self) {
        let open = |state: &mut State| !state.closed;
        let rested = self.bell.wait_timeout_while(lock(&self.state), PAUSE, open);
        drop(rested.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until all are delivered. False if that takes longer.
    pub(super) fn wait_empty(&self, patience: Duration) -> bool {
        let some = |state: &mut State| !state.waiting.is_empty();
        let (state, _) = self
            .bell
            .wait_timeout_while(lock(&self.state), patience, some)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting.is_empty()
    }

    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.bell.notify_all();
    }
}

impl Shared {
    /// Says an outcome. Its front hears it at once if it listens; without an error the server has it too.
    pub(super) fn say_outcome(
        &self,
        parcel: &Parcel,
        patience: Duration,
    ) -> Result<(), BrokerError> {
        let bytes = self.broker.shorten(parcel.text.to_vec())?;
        self.broker
            .publish_stored(&parcel.subject, &parcel.id, bytes, patience)
    }

    /// Leaves an outcome to the thread that tries again. False: too many wait there already.
    pub(super) fn deliver_later(&self, parcel: Parcel) -> bool {
        self.undelivered.push(parcel)
    }

    /// The thread's body.
    pub(super) fn deliver_again(&self) {
        while let Some(parcel) = self.undelivered.first() {
            let said = self.say_outcome(&parcel, ANSWER);
            if let Err(error) = &said
                && parcel.since.elapsed() < PATIENCE
            {
                tracing::debug!("the outcome of a job is not delivered yet: {error}");
                self.undelivered.rest();
                continue;
            }
            match said {
                Ok(()) => tracing::info!("the outcome of a job is delivered now"),
                Err(error) => tracing::error!(
                    "the outcome of a job is lost, and its front runs it again: {error}"
                ),
            }
            self.undelivered.remove(&parcel.id);
            self.place.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(id: &str, bytes: usize) -> Parcel {
        Parcel {
            name: TaskName {
                front: "f".into(),
                task: 1,
            },
            subject: "s".into(),
            id: id.into(),
            text: vec![0; bytes].into(),
            since: Instant::now(),
        }
    }

    #[test]
    fn outcomes_wait_in_their_order_and_not_without_limit() {
        let waiting = Undelivered::default();
        assert!(waiting.push(parcel("a", MOST_BYTES - 1)));
        assert!(!waiting.push(parcel("b", 2)), "too many bytes");
        assert!(waiting.push(parcel("c", 1)));
        assert_eq!(waiting.names().len(), 2);
        assert_eq!(&*waiting.first().unwrap().id, "a");
        waiting.remove("a");
        assert!(!waiting.wait_empty(Duration::ZERO));
        waiting.remove("c");
        assert!(waiting.wait_empty(Duration::ZERO));
        for n in 0..MOST {
            assert!(waiting.push(parcel(&n.to_string(), 1)));
        }
        assert!(!waiting.push(parcel("more", 1)), "too many");
        waiting.close();
        assert!(waiting.first().is_none());
    }
}
