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

use crate::services::frame::{AnswerGate, Frame};

/// Time for the answer to reach a client that reads its socket in order: whatever it does first, no frame is lost to it.
const SETTLE: Duration = Duration::from_millis(1);
/// The same for a client with an event loop (the fetch API), where frames that come before a listener are lost.
const SETTLE_EVENTS: Duration = Duration::from_millis(10);
/// How long after the answer a client that connects still gets the frames from before.
const LATE: Duration = Duration::from_secs(1);
/// Frames kept for a client without a socket.
const LATE_FRAMES: usize = 256;

struct Submitted {
    client: Arc<str>,
    answer: Arc<AnswerGate>,
    /// What a client without a socket has missed.
    late: Vec<Frame>,
}

/// The prompts that were submitted just now.
#[derive(Default)]
pub(crate) struct Answers {
    entries: IndexMap<Arc<str>, Submitted>,
    /// Answered ones, and when they are forgotten.
    expiring: VecDeque<(Instant, Arc<str>, Arc<AnswerGate>)>,
    /// The newest of each client.
    newest: HashMap<Arc<str>, Arc<AnswerGate>>,
}

impl Answers {
    /// A prompt is being submitted.
    pub(crate) fn open(
        &mut self,
        prompt_id: &Arc<str>,
        client: Arc<str>,
        has_event_loop: bool,
    ) -> Arc<AnswerGate> {
        self.forget(Instant::now());
        let settle = if has_event_loop {
            SETTLE_EVENTS
        } else {
            SETTLE
        };
        let answer = Arc::new(AnswerGate {
            settle,
            ready: Mutex::default(),
        });
        let late = Vec::new();
        self.newest.insert(client.clone(), answer.clone());
        let before = self.entries.insert(
            prompt_id.clone(),
            Submitted {
                client,
                answer: answer.clone(),
                late,
            },
        );
        // Somebody sent the same id again.
        if let Some(before) = before {
            self.forget_newest(&before);
        }
        answer
    }

    /// An answer is on its way: the frames that wait for it may go.
    pub(crate) fn answered(&mut self, prompt_id: &Arc<str>, answer: &Arc<AnswerGate>) {
        let now = Instant::now();
        self.forget(now);
        *lock(&answer.ready) = Some(now + answer.settle);
        self.expiring
            .push_back((now + LATE, prompt_id.clone(), answer.clone()));
    }

    fn forget(&mut self, now: Instant) {
        while let Some((at, ..)) = self.expiring.front()
            && *at <= now
            && let Some((_, prompt_id, answer)) = self.expiring.pop_front()
        {
            let same = |entry: &Submitted| Arc::ptr_eq(&entry.answer, &answer);
            if self.entries.get(&prompt_id).is_some_and(same)
                && let Some(gone) = self.entries.swap_remove(&prompt_id)
            {
                self.forget_newest(&gone);
            }
        }
    }

    /// Whose newest prompt this was has none now.
    fn forget_newest(&mut self, gone: &Submitted) {
        let newest = self.newest.get(&gone.client);
        if newest.is_some_and(|newest| Arc::ptr_eq(newest, &gone.answer)) {
            self.newest.remove(&gone.client);
        }
    }

    /// What frames to a client have to wait for that are not about its prompt: they go out with those that are, which
    /// spares a write for each.
    pub(crate) fn of_client(&self, client: &str) -> Option<Arc<AnswerGate>> {
        self.newest.get(client).cloned()
    }

    /// What frames of a prompt to this client have to wait for.
    pub(crate) fn of(&self, prompt_id: &str, client: &str) -> Option<Arc<AnswerGate>> {
        let entry = self.entries.get(prompt_id)?;
        (&*entry.client == client).then(|| entry.answer.clone())
    }

    /// Keeps a frame for a client that may connect yet.
    pub(crate) fn keep(&mut self, prompt_id: &str, frame: Frame) {
        self.forget(Instant::now());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answers_to(ids: &[(&str, &str)]) -> Answers {
        let mut answers = Answers::default();
        for (prompt_id, client) in ids {
            answers.open(&Arc::from(*prompt_id), Arc::from(*client), false);
        }
        answers
    }

    fn sizes(answers: &Answers) -> (usize, usize, usize) {
        let Answers {
            entries,
            expiring,
            newest,
        } = answers;
        (entries.len(), expiring.len(), newest.len())
    }

    #[test]
    fn one_id_from_many_clients_leaves_nothing_behind() {
        let mut answers = answers_to(&[("p", "a"), ("p", "b")]);
        let answer = answers.open(&"p".into(), "c".into(), false);
        assert_eq!(sizes(&answers), (1, 0, 1));
        assert!(answers.of("p", "c").is_some() && answers.of("p", "a").is_none());
        assert!(answers.of_client("a").is_none());
        answers.answered(&"p".into(), &answer);
        answers.forget(Instant::now() + LATE);
        assert_eq!(sizes(&answers), (0, 0, 0));
    }

    #[test]
    fn the_time_of_an_earlier_prompt_does_not_end_a_later_one() {
        let mut answers = Answers::default();
        let first = answers.open(&"p".into(), "a".into(), false);
        let second = answers.open(&"p".into(), "a".into(), false);
        // Frames that wait for the first go with its answer, whoever sent the id again.
        answers.answered(&"p".into(), &first);
        assert!(first.ready_at().is_some() && second.ready_at().is_none());
        answers.forget(Instant::now() + LATE);
        assert!(answers.of("p", "a").is_some_and(|a| a.ready_at().is_none()));
        assert!(answers.of_client("a").is_some());
    }
}
