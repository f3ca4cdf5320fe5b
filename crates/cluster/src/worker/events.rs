//! The engine's events on their way to the thread that passes them on.
//!
//! A small job has a dozen of them within a millisecond, and waking a thread costs more than what it then does. So whoever waits says until
//! when events may gather, and is woken before that only when the job has ended.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fresco_engine::{Event, EventKind, EventSink};
use fresco_graph::lock;

/// Between two pictures on the way.
const PICTURES: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    waiting: VecDeque<Event>,
    /// Somebody waits for any event, not for the end of a job alone.
    eager: bool,
    /// An end is among those that wait.
    ended: bool,
    last_picture: Option<Instant>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    bell: Condvar,
}

/// Takes the engine's events.
pub struct WorkerSink(Arc<Queue>);

/// Where the engine's events come out.
pub struct EventReceiver(Arc<Queue>);

impl WorkerSink {
    pub fn new() -> (Arc<Self>, EventReceiver) {
        let queue = Arc::<Queue>::default();
        (Arc::new(Self(queue.clone())), EventReceiver(queue))
    }
}

/// Pictures are many and large; some of them will do.
fn thinned(kind: EventKind, last: &mut Option<Instant>) -> Option<EventKind> {
    let is_picture = matches!(
        kind,
        EventKind::Preview { .. }
            | EventKind::Progress {
                preview: Some(_),
                ..
            }
    );
    if !is_picture {
        return Some(kind);
    }
    if last.is_none_or(|at| at.elapsed() >= PICTURES) {
        *last = Some(Instant::now());
        return Some(kind);
    }
    match kind {
        EventKind::Progress {
            ids, value, max, ..
        } => Some(EventKind::Progress {
            ids,
            value,
            max,
            preview: None,
        }),
        _ => None,
    }
}

impl EventSink for WorkerSink {
    fn emit(&self, mut event: Event) {
        if matches!(
            event.kind,
            EventKind::Status { .. } | EventKind::Queue { .. }
        ) {
            return;
        }
        let mut state = lock(&self.0.state);
        let Some(kind) = thinned(event.kind, &mut state.last_picture) else {
            return;
        };
        let ended = matches!(kind, EventKind::Ended);
        event.kind = kind;
        state.ended |= ended;
        state.waiting.push_back(event);
        if ended || state.eager {
            drop(state);
            self.0.bell.notify_one();
        }
    }
}

impl EventReceiver {
    /// Forgets what came so far.
    pub(super) fn clear(&self) {
        let mut state = lock(&self.0.state);
        state.waiting.clear();
        state.ended = false;
    }

    /// Events, at most so many: those that came until `gather`, or until a job ended; after that the first that comes, at most `patience`
    /// later. None if nothing came.
    pub(super) fn take(&self, gather: Instant, patience: Duration, most: usize) -> Vec<Event> {
        let state = lock(&self.0.state);
        let left = gather.saturating_duration_since(Instant::now());
        let mut state = if left.is_zero() {
            state
        } else {
            let waited = self.0.bell.wait_timeout_while(state, left, |s| !s.ended);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        if state.waiting.is_empty() {
            state.eager = true;
            let empty = |s: &mut State| s.waiting.is_empty();
            let waited = self.0.bell.wait_timeout_while(state, patience, empty);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.eager = false;
        }
        let count = state.waiting.len().min(most);
        let taken: Vec<Event> = state.waiting.drain(..count).collect();
        let is_end = |event: &Event| matches!(event.kind, EventKind::Ended);
        state.ended = state.waiting.iter().any(is_end);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    fn event(kind: EventKind) -> Event {
        Event {
            prompt_id: Some("p".into()),
            client: None,
            worker: None,
            kind,
        }
    }

    fn start() -> Event {
        event(EventKind::Start { timestamp: 1 })
    }

    #[test]
    fn events_gather_until_their_job_ends() {
        let (sink, receiver) = WorkerSink::new();
        let thread = std::thread::spawn(move || {
            let taken = receiver.take(Instant::now() + LONG, LONG, 10);
            (taken.len(), receiver)
        });
        for _ in 0..3 {
            sink.emit(start());
        }
        sink.emit(event(EventKind::Ended));
        let (count, receiver) = thread.join().expect("it does not panic");
        assert_eq!(count, 4);
        // Nothing is left, and nothing comes.
        let soon = Duration::from_millis(1);
        assert!(receiver.take(Instant::now(), soon, 10).is_empty());
    }

    #[test]
    fn the_first_event_is_waited_for_and_many_come_in_parts() {
        let (sink, receiver) = WorkerSink::new();
        let thread = std::thread::spawn(move || {
            let taken = receiver.take(Instant::now(), LONG, 10);
            (taken.len(), receiver)
        });
        sink.emit(start());
        let (count, receiver) = thread.join().expect("it does not panic");
        assert_eq!(count, 1);
        for _ in 0..5 {
            sink.emit(start());
        }
        sink.emit(event(EventKind::Status { remaining: 1 }));
        let soon = Instant::now();
        assert_eq!(receiver.take(soon, LONG, 3).len(), 3);
        assert_eq!(receiver.take(soon, LONG, 3).len(), 2);
        sink.emit(start());
        receiver.clear();
        assert!(receiver.take(soon, Duration::ZERO, 3).is_empty());
    }
}
