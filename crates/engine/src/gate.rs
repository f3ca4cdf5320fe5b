//! Keeps a prompt from starting before its submitter has been answered.
//!
//! Several clients attach their listener only after the answer to `POST /prompt`; a prompt that ends before that hangs
//! them for good. So the worker waits for the answer to be handed over, and a moment longer if a client listens.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for the answer to reach a client that will then listen.
const SETTLE: Duration = Duration::from_millis(10);
/// An answer that takes longer than this does not hold up the queue.
const PATIENCE: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(crate) struct Gate {
    /// Prompt id to the moment it was answered; none while it is not.
    prompts: Mutex<HashMap<Arc<str>, Option<Instant>>>,
    answered: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Option<Instant>>> {
        self.prompts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate for a prompt; it opens when the guard is dropped.
    pub(crate) fn close(self: &Arc<Self>, prompt_id: &Arc<str>) -> Release {
        self.lock().insert(prompt_id.clone(), None);
        Release {
            gate: self.clone(),
            prompt_id: prompt_id.clone(),
        }
    }

    /// Waits until the prompt may start.
    pub(crate) fn pass(&self, prompt_id: &str, client: bool) {
        let give_up = Instant::now() + PATIENCE;
        let mut prompts = self.lock();
        let answered = loop {
            match prompts.get(prompt_id) {
                None => return,
                Some(Some(at)) => break *at,
                Some(None) => {
                    let now = Instant::now();
                    if now >= give_up {
                        break now;
                    }
                    let waited = self.answered.wait_timeout(prompts, give_up - now);
                    prompts = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        };
        prompts.remove(prompt_id);
        drop(prompts);
        if client {
            #[expect(
                clippy::disallowed_methods,
                reason = "the event waited for is on the client's machine"
            )]
            std::thread::sleep((answered + SETTLE).saturating_duration_since(Instant::now()));
        }
    }

    /// Forgets a prompt that will never start.
    pub(crate) fn forget(&self, prompt_id: &str) {
        self.lock().remove(prompt_id);
    }
}

/// Drop it once the submitter's answer is on its way.
pub struct Release {
    gate: Arc<Gate>,
    prompt_id: Arc<str>,
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(at) = self.gate.lock().get_mut(&self.prompt_id) {
            *at = Some(Instant::now());
        }
        self.gate.answered.notify_all();
    }
}
