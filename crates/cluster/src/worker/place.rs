//! The one place of a worker: who has it, and who has it next.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fresco_graph::lock;

use crate::protocol::alive::{TaskName, WorkerState};

/// How long a front that was turned away counts as waiting.
const WANTED: Duration = Duration::from_secs(3);
/// How long a free place is kept for it.
const OFFER: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    /// Who has it.
    job: Option<TaskName>,
    /// The prompt, once the engine has it.
    prompt_id: Option<Arc<str>>,
    /// Its front wants it stopped.
    cancelled: bool,
    /// Number of its last message.
    events: u64,
    /// Who had it last.
    last: Option<TaskName>,
    /// Fronts that were turned away, and when they last said so.
    wanted: BTreeMap<Arc<str>, Instant>,
    /// When each front had it last, as a count.
    served: BTreeMap<Arc<str>, u64>,
    turns: u64,
    offered: Option<(Arc<str>, Instant)>,
    draining: bool,
    /// The job is done, and its outcome on the way: the place is free in a moment.
    delivering: bool,
    /// What runs is given back, whatever becomes of it.
    abandoned: bool,
    closed: bool,
    /// Why no job is taken now.
    trouble: Option<Arc<str>>,
    /// Something is to be told.
    changed: bool,
    /// Whoever tells it has just done so, and waits a little unless another front waits for it.
    pausing: bool,
}

#[derive(Default)]
pub(super) struct Place {
    state: Mutex<State>,
    bell: Condvar,
    /// Rung for whoever tells what changed.
    news: Condvar,
}

/// What is told in signs of life.
pub(super) struct Now {
    pub(super) state: WorkerState,
    pub(super) job: Option<TaskName>,
    pub(super) events: u64,
    pub(super) offered: Option<Arc<str>>,
    pub(super) trouble: Option<Arc<str>>,
}

impl State {
    /// Whether what changes is to be told at once.
    fn hurries(&self) -> bool {
        self.closed || self.draining || !self.wanted.is_empty()
    }

    fn offered(&self) -> Option<&Arc<str>> {
        let (front, until) = self.offered.as_ref()?;
        (Instant::now() < *until).then_some(front)
    }

    /// The front that waits and was served longest ago.
    fn next_front(&self) -> Option<Arc<str>> {
        let waits = |(_, at): &(&Arc<str>, &Instant)| at.elapsed() < WANTED;
        let waiting = self.wanted.iter().filter(waits).map(|(front, _)| front);
        let turn = |front: &&Arc<str>| self.served.get(*front).copied().unwrap_or(0);
        waiting.min_by_key(turn).cloned()
    }
}

impl Place {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        self.changed(&mut state);
        self.bell.notify_all();
    }

    fn changed(&self, state: &mut State) {
        state.changed = true;
        if !state.pausing || state.hurries() {
            self.news.notify_one();
        }
    }

    /// Gives the place to a job. False: it has it already, or had it just now. An error says why it cannot have it.
    pub(super) fn take(&self, name: &TaskName) -> Result<bool, String> {
        let mut state = lock(&self.state);
        if state.job.as_ref() == Some(name) || state.last.as_ref() == Some(name) {
            return Ok(false);
        }
        if state.draining {
            return Err("the worker is about to end".to_owned());
        }
        if state.job.is_some() {
            state.wanted.insert(name.front.clone(), Instant::now());
            return Err("the worker runs another job".to_owned());
        }
        if let Some(why) = &state.trouble {
            return Err(why.to_string());
        }
        if state.offered().is_some_and(|front| *front != name.front) {
            state.wanted.insert(name.front.clone(), Instant::now());
            return Err("the worker is kept for another front".to_owned());
        }
        state.job = Some(name.clone());
        state.prompt_id = None;
        state.cancelled = false;
        state.abandoned = false;
        state.delivering = false;
        state.events = 0;
        state.offered = None;
        state.turns += 1;
        let turn = state.turns;
        state.served.insert(name.front.clone(), turn);
        state.wanted.remove(&name.front);
        state.wanted.retain(|_, at| at.elapsed() < WANTED);
        self.changed(&mut state);
        Ok(true)
    }

    pub(super) fn deliver(&self) {
        lock(&self.state).delivering = true;
    }

    /// A front may hear of an outcome before the server has told us that it has it. Whoever comes in between waits.
    pub(super) fn wait_delivered(&self, patience: Duration) {
        let on_the_way = |state: &mut State| state.job.is_some() && state.delivering;
        let waited = self
            .bell
            .wait_timeout_while(lock(&self.state), patience, on_the_way);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// A front has jobs for this worker.
    pub(super) fn want(&self, front: &Arc<str>) {
        let mut state = lock(&self.state);
        state.wanted.insert(front.clone(), Instant::now());
        self.news.notify_one();
    }

    /// Stops a job that has the place. The prompt, if the engine has it already.
    pub(super) fn cancel(&self, front: &str, task: u64) -> Option<Arc<str>> {
        let mut state = lock(&self.state);
        let job = state.job.as_ref()?;
        if &*job.front != front || job.task != task {
            return None;
        }
        state.cancelled = true;
        state.prompt_id.clone()
    }

    /// The engine is about to have the prompt. False if it is not wanted any more.
    pub(super) fn begin(&self, prompt_id: &Arc<str>) -> bool {
        let mut state = lock(&self.state);
        state.prompt_id = Some(prompt_id.clone());
        !state.cancelled && !state.abandoned
    }

    pub(super) fn is_cancelled(&self) -> bool {
        lock(&self.state).cancelled
    }

    pub(super) fn is_abandoned(&self) -> bool {
        lock(&self.state).abandoned
    }

    /// Another message of the job was sent. Not told by itself: the message is heard too.
    pub(super) fn sent(&self, number: u64) {
        lock(&self.state).events = number;
    }

    /// Whom the place will be offered to when the job is done, for its outcome to say.
    pub(super) fn next_front(&self) -> Option<Arc<str>> {
        let state = lock(&self.state);
        let own = state.job.as_ref().map(|job| &job.front);
        state.next_front().filter(|front| Some(front) != own)
    }

    /// The job is done and delivered. `ended`: it was not given back, so the same run does not come again.
    pub(super) fn leave(&self, next: Option<Arc<str>>, ended: bool) {
        self.change(|state| {
            state.last = state.job.take().filter(|_| ended);
            state.prompt_id = None;
            state.offered = next.map(|front| (front, Instant::now() + OFFER));
        });
    }

    /// Why no job is taken from now on; none: jobs are taken.
    pub(super) fn set_trouble(&self, why: Option<Arc<str>>) {
        if lock(&self.state).trouble != why {
            self.change(|state| state.trouble = why);
        }
    }

    /// Has signs of life say soon what is new.
    pub(super) fn tell(&self) {
        self.change(|_| {});
    }

    /// How many jobs had the place so far.
    pub(super) fn turns(&self) -> u64 {
        lock(&self.state).turns
    }

    pub(super) fn drain(&self) {
        self.change(|state| state.draining = true);
    }

    pub(super) fn abandon(&self) {
        self.change(|state| state.abandoned = true);
    }

    pub(super) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    pub(super) fn now(&self) -> Now {
        let state = lock(&self.state);
        Now {
            state: match (&state.job, state.draining) {
                (_, true) => WorkerState::Draining,
                (Some(_), false) => WorkerState::Busy,
                (None, false) => WorkerState::Idle,
            },
            job: state.job.clone(),
            events: state.events,
            offered: state.offered().cloned(),
            trouble: state.trouble.clone(),
        }
    }

    /// Waits until nothing runs. False if that takes longer.
    pub(super) fn wait_free(&self, patience: Duration) -> bool {
        let busy = |state: &mut State| state.job.is_some();
        let (state, _) = self
            .bell
            .wait_timeout_while(lock(&self.state), patience, busy)
            .unwrap_or_else(PoisonError::into_inner);
        state.job.is_none()
    }

    /// Waits so long, less if the worker ends.
    pub(super) fn rest(&self, time: Duration) {
        let open = |state: &mut State| !state.closed;
        let rested = self.bell.wait_timeout_while(lock(&self.state), time, open);
        drop(rested.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits so long, less if another front waits for this worker, or if the worker ends.
    pub(super) fn pause(&self, most: Duration) {
        let mut state = lock(&self.state);
        state.pausing = true;
        let waited = self
            .news
            .wait_timeout_while(state, most, |state| !state.hurries());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.pausing = false;
    }

    /// Waits for a change, at most so long. False if the worker ends.
    pub(super) fn wait_change(&self, most: Duration) -> bool {
        let still = |state: &mut State| !state.changed && !state.closed;
        let (mut state, _) = self
            .news
            .wait_timeout_while(lock(&self.state), most, still)
            .unwrap_or_else(PoisonError::into_inner);
        state.changed = false;
        !state.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(front: &str, task: u64) -> TaskName {
        TaskName {
            front: front.into(),
            task,
        }
    }

    #[test]
    fn one_job_has_the_place_and_asking_again_is_no_second_one() {
        let place = Place::default();
        assert_eq!(place.take(&task("a", 1)), Ok(true));
        assert_eq!(place.take(&task("a", 1)), Ok(false));
        assert!(
            place
                .take(&task("a", 2))
                .unwrap_err()
                .contains("another job")
        );
        place.leave(None, true);
        // Its front did not hear that it was accepted, and asks late.
        assert_eq!(place.take(&task("a", 1)), Ok(false));
        assert_eq!(place.take(&task("a", 2)), Ok(true));
        // One that was given back may come again.
        place.leave(None, false);
        assert_eq!(place.take(&task("a", 2)), Ok(true));
    }

    #[test]
    fn fronts_take_turns() {
        let place = Place::default();
        assert_eq!(place.take(&task("a", 1)), Ok(true));
        assert!(place.take(&task("b", 1)).is_err());
        assert_eq!(place.next_front().as_deref(), Some("b"));
        place.leave(place.next_front(), true);
        assert_eq!(place.now().offered.as_deref(), Some("b"));
        assert!(place.take(&task("a", 2)).unwrap_err().contains("kept"));
        assert_eq!(place.take(&task("b", 1)), Ok(true));
        // Now the other one waits, and a third that was never served goes before it.
        place.want(&"c".into());
        assert_eq!(place.next_front().as_deref(), Some("c"));
        place.leave(None, true);
        assert_eq!(place.take(&task("a", 3)), Ok(true));
    }

    #[test]
    fn nobody_is_offered_what_only_its_own_front_wants() {
        let place = Place::default();
        assert_eq!(place.take(&task("a", 1)), Ok(true));
        place.want(&"a".into());
        assert_eq!(place.next_front(), None);
    }

    #[test]
    fn a_place_that_is_drained_takes_nothing_and_waits_for_what_it_has() {
        let place = Place::default();
        assert_eq!(place.take(&task("a", 1)), Ok(true));
        place.drain();
        assert!(!place.wait_free(Duration::ZERO));
        assert_eq!(place.now().state, WorkerState::Draining);
        place.leave(None, true);
        assert!(place.wait_free(Duration::ZERO));
        assert!(
            place
                .take(&task("a", 2))
                .unwrap_err()
                .contains("about to end")
        );
    }

    #[test]
    fn only_the_job_that_has_the_place_is_stopped() {
        let place = Place::default();
        assert_eq!(place.take(&task("a", 1)), Ok(true));
        assert_eq!(place.cancel("b", 1), None);
        assert_eq!(place.cancel("a", 2), None);
        assert!(!place.is_cancelled());
        assert_eq!(place.cancel("a", 1), None);
        assert!(place.is_cancelled());
        // It was stopped before it began.
        assert!(!place.begin(&"p".into()));
        assert_eq!(place.cancel("a", 1).as_deref(), Some("p"));
    }

    #[test]
    fn a_pause_ends_when_another_front_waits() {
        let place = Place::default();
        // Nobody waits: what changes meanwhile is told afterwards, once.
        place.pause(Duration::from_millis(1));
        assert_eq!(place.take(&task("a", 1)), Ok(true));
        assert!(place.wait_change(Duration::ZERO));
        assert!(!lock(&place.state).changed);
        let long = Duration::from_mins(1);
        std::thread::scope(|scope| {
            let pause = scope.spawn(|| {
                let began = Instant::now();
                place.pause(long);
                began.elapsed()
            });
            place.want(&"b".into());
            assert!(pause.join().expect("it does not panic") < long);
        });
    }
}
