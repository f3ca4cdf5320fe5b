//! Keeps a prompt's frames back until its submitter has been answered.
//!
//! Several clients attach their listener only after the answer to `POST /prompt`; an end that they do not see hangs them
//! for good. The prompt runs at once, but its frames wait until the answer was handed over, and a moment longer; frames for
//! a client that has no socket yet are kept for a short while too.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fresco_graph::lock;
use indexmap::IndexMap;

use crate::outbox::Frame;

/// Time for the answer to reach a client that reads its socket in order: whatever it does first, no frame is lost to it.
const SETTLE: Duration = Duration::from_millis(1);
/// The same for a client with an event loop (the fetch API), where frames that come before a listener are lost.
const SETTLE_EVENTS: Duration = Duration::from_millis(10);
/// How long after the answer a client that connects still gets the frames from before.
const LATE: Duration = Duration::from_secs(1);
/// Frames kept for a client without a socket.
const LATE_FRAMES: usize = 256;

/// Whether the submitter of one prompt has its answer.
pub(crate) struct Answer {
    settle: Duration,
    /// When its frames may go.
    ready: Mutex<Option<Instant>>,
}

impl Answer {
    /// Not before this; nothing while there is no answer.
    pub(crate) fn ready_at(&self) -> Option<Instant> {
        *lock(&self.ready)
    }
}

struct Submitted {
    client: Arc<str>,
    answer: Arc<Answer>,
    /// What a client without a socket has missed.
    late: Vec<Frame>,
}

/// The prompts that were submitted just now.
#[derive(Default)]
pub(crate) struct Answers {
    entries: IndexMap<Arc<str>, Submitted>,
    /// Answered ones, and when they are forgotten.
    expiring: VecDeque<(Instant, Arc<str>)>,
    /// The newest of each client.
    newest: HashMap<Arc<str>, Arc<Answer>>,
}

impl Answers {
    /// A prompt is being submitted.
    pub(crate) fn open(&mut self, prompt_id: &Arc<str>, client: Arc<str>, has_event_loop: bool) {
        self.forget(Instant::now());
        let settle = if has_event_loop {
            SETTLE_EVENTS
        } else {
            SETTLE
        };
        let answer = Arc::new(Answer {
            settle,
            ready: Mutex::default(),
        });
        let late = Vec::new();
        self.newest.insert(client.clone(), answer.clone());
        self.entries.insert(
            prompt_id.clone(),
            Submitted {
                client,
                answer,
                late,
            },
        );
    }

    /// The answer is on its way; gives the client.
    pub(crate) fn answered(&mut self, prompt_id: &Arc<str>) -> Option<Arc<str>> {
        let now = Instant::now();
        self.forget(now);
        let entry = self.entries.get(prompt_id)?;
        *lock(&entry.answer.ready) = Some(now + entry.answer.settle);
        self.expiring.push_back((now + LATE, prompt_id.clone()));
        Some(entry.client.clone())
    }

    fn forget(&mut self, now: Instant) {
        while let Some((at, _)) = self.expiring.front()
            && *at <= now
            && let Some((_, prompt_id)) = self.expiring.pop_front()
        {
            if let Some(gone) = self.entries.swap_remove(&prompt_id)
                && let Some(newest) = self.newest.get(&gone.client)
                && Arc::ptr_eq(newest, &gone.answer)
            {
                self.newest.remove(&gone.client);
            }
        }
    }

    /// What frames to a client have to wait for that are not about its prompt: they go out with those that are, which
    /// spares a write for each.
    pub(crate) fn of_client(&self, client: &str) -> Option<Arc<Answer>> {
        self.newest.get(client).cloned()
    }

    /// What frames of a prompt to this client have to wait for.
    pub(crate) fn of(&self, prompt_id: &str, client: &str) -> Option<Arc<Answer>> {
        let entry = self.entries.get(prompt_id)?;
        (&*entry.client == client).then(|| entry.answer.clone())
    }

    /// Keeps a frame for a client that may connect yet.
    pub(crate) fn keep(&mut self, prompt_id: &str, frame: Frame) {
        if let Some(entry) = self.entries.get_mut(prompt_id)
            && entry.late.len() < LATE_FRAMES
        {
            entry.late.push(frame);
        }
    }

    /// What was kept for a client that connects now.
    pub(crate) fn take_late(&mut self, client: &str) -> Vec<Frame> {
        self.forget(Instant::now());
        let own = self.entries.values_mut().filter(|e| &*e.client == client);
        own.flat_map(|entry| std::mem::take(&mut entry.late))
            .collect()
    }
}
