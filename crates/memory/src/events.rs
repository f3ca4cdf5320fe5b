//! What happened: a ring of events, and their listeners.
//!
//! Events are numbered under the registry's lock and handed out after it was given back, in their order: a listener
//! may ask the registry anything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::reason::{Reason, Wish};
use crate::{Event, ModelId, Origin, Policy, SetBy, Trigger, WeightsId, Who};

/// How many events are remembered.
pub(crate) const RING: usize = 10_000;

pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// An event that is being written.
pub(crate) struct Draft(Event);

/// Starts an event of a kind.
pub(crate) fn event(kind: &'static str) -> Draft {
    Draft(Event {
        seq: 0,
        time: SystemTime::UNIX_EPOCH,
        kind,
        trigger: None,
        prompt: None,
        node: None,
        weights: None,
        model: None,
        class: None,
        device: None,
        bytes_before: None,
        bytes_after: None,
        policy: None,
        set_by: None,
        origin: None,
        decision: None,
        reason: None,
        error: None,
        places: Vec::new(),
        numbers: Vec::new(),
        worker: None,
    })
}

impl Draft {
    pub(crate) fn trigger(mut self, trigger: Trigger) -> Self {
        self.0.trigger = Some(trigger);
        self
    }

    pub(crate) fn who(mut self, who: &Who) -> Self {
        let non_empty = |text: &Arc<str>| (!text.is_empty()).then(|| Arc::clone(text));
        self.0.prompt = non_empty(&who.prompt);
        self.0.node = non_empty(&who.node);
        self
    }

    pub(crate) fn prompt(mut self, prompt: &str) -> Self {
        self.0.prompt = (!prompt.is_empty()).then(|| prompt.into());
        self
    }

    pub(crate) fn weights(mut self, id: &WeightsId, class: &Arc<str>) -> Self {
        self.0.weights = Some(id.clone());
        self.0.class = Some(Arc::clone(class));
        self
    }

    pub(crate) fn model(mut self, model: Option<ModelId>) -> Self {
        self.0.model = model;
        self
    }

    pub(crate) fn device(mut self, device: impl ToString) -> Self {
        self.0.device = Some(device.to_string());
        self
    }

    pub(crate) fn bytes(mut self, before: u64, after: u64) -> Self {
        self.0.bytes_before = Some(before);
        self.0.bytes_after = Some(after);
        self
    }

    pub(crate) fn policy(mut self, policy: Policy, set_by: SetBy) -> Self {
        self.0.policy = Some(policy);
        self.0.set_by = Some(set_by);
        self
    }

    /// The policy that counts now.
    pub(crate) fn effective(self, effective: Wish) -> Self {
        self.policy(effective.policy, effective.set_by)
    }

    pub(crate) fn origin(mut self, origin: Origin) -> Self {
        self.0.origin = Some(origin);
        self
    }

    pub(crate) fn places(mut self, places: Vec<(String, u64)>) -> Self {
        self.0.places = places;
        self
    }

    pub(crate) fn decision(mut self, decision: &'static str) -> Self {
        self.0.decision = Some(decision);
        self
    }

    pub(crate) fn reason(mut self, reason: Reason) -> Self {
        self.0.reason = Some(reason);
        self
    }

    pub(crate) fn error(mut self, error: Option<String>) -> Self {
        self.0.error = error;
        self
    }

    pub(crate) fn number(mut self, name: &'static str, value: u64) -> Self {
        self.0.numbers.push((name, value));
        self
    }
}

/// The ring, and what waits to be handed out.
#[derive(Default)]
pub(crate) struct Log {
    /// The last number that was given.
    numbers: EventNumbers,
    ring: VecDeque<Event>,
    /// Whose events these are, where there are several.
    pub(crate) worker: Option<Arc<str>>,
}

/// Numbers of events. Registries that share them have one order of what happened.
#[derive(Clone, Debug, Default)]
pub struct EventNumbers(Arc<AtomicU64>);

impl Log {
    /// Numbers and keeps an event; the answer goes to the listeners.
    pub(crate) fn write(&mut self, draft: Draft) -> Event {
        let event = Event {
            seq: self.numbers.0.fetch_add(1, Ordering::Relaxed) + 1,
            time: SystemTime::now(),
            worker: self.worker.clone(),
            ..draft.0
        };
        if self.ring.len() == RING {
            self.ring.pop_front();
        }
        self.ring.push_back(event.clone());
        event
    }

    pub(crate) fn of_worker(worker: &str, numbers: &EventNumbers) -> Self {
        Self {
            numbers: numbers.clone(),
            worker: Some(worker.into()),
            ..Self::default()
        }
    }

    /// Whoever asks under the lock sees all events up to this number; of other registries as soon as it has had their locks.
    pub(crate) fn last(&self) -> u64 {
        self.numbers.0.load(Ordering::Relaxed)
    }

    /// Those after a number, of these kinds (none: all), oldest first; the newest `limit` of them.
    pub(crate) fn since(&self, since: u64, kinds: &[String], limit: usize) -> Vec<Event> {
        let wanted = |event: &&Event| kinds.is_empty() || kinds.iter().any(|k| k == event.kind);
        let newer = self.ring.iter().rev().take_while(|event| event.seq > since);
        let mut events: Vec<Event> = newer.filter(wanted).take(limit).cloned().collect();
        events.reverse();
        events
    }
}

#[derive(Default)]
struct PendingEvents {
    events: VecDeque<Event>,
    /// A thread hands events out now; others that come meanwhile leave theirs to it.
    busy: bool,
}

/// Hands events to listeners.
#[derive(Default)]
pub(crate) struct Outbox {
    waiting: Mutex<PendingEvents>,
    listeners: Mutex<Vec<Listener>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends handing out also where a listener panics.
struct Turn<'a>(&'a Outbox);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.waiting).busy = false;
    }
}

impl Outbox {
    pub(crate) fn listen(&self, listener: Listener) {
        lock(&self.listeners).push(listener);
    }

    /// Called under the registry's lock, so that events wait in their order.
    pub(crate) fn put(&self, event: Event) {
        lock(&self.waiting).events.push_back(event);
    }

    /// Called without the registry's lock.
    pub(crate) fn deliver(&self) {
        loop {
            let batch: Vec<Event> = {
                let mut waiting = lock(&self.waiting);
                if waiting.busy || waiting.events.is_empty() {
                    return;
                }
                waiting.busy = true;
                waiting.events.drain(..).collect()
            };
            let turn = Turn(self);
            let listeners: Vec<Listener> = lock(&self.listeners).clone();
            for event in &batch {
                for listener in &listeners {
                    listener(event);
                }
            }
            drop(turn);
        }
    }
}
