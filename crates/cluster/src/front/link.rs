//! What a front knows of one worker: its last sign of life, when it came by this machine's clock, and what was heard of the job it runs.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fresco_engine::now_ms;
use fresco_graph::lock;

use crate::protocol::SILENT;
use crate::protocol::alive::{Alive, Stranger, TaskName, WorkerState};

/// How long a worker that sent garbage is left alone.
const BAD: Duration = Duration::from_mins(1);
/// How long a worker rests that gave a job back, the first time and at most.
const REST: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(30)];
/// Messages of one job that wait to be looked at. More are read back from the stream.
const INBOX: usize = 10_000;

/// Something about the job that is followed.
pub(super) enum Inbox {
    Message(Bytes),
    Picture(Bytes),
}

#[derive(Default)]
pub(super) struct LinkState {
    pub(super) alive: Option<Alive>,
    /// Its last sign of life was in another version of the protocol.
    pub(super) stranger: Option<Stranger>,
    heard: Option<Instant>,
    /// Signs of life so far.
    beats: u64,
    /// Milliseconds that our clock is ahead of its clock; the smallest that was seen has the shortest way in it.
    ahead: Option<i64>,
    /// Session and catalogue that its description is of.
    described: Option<(Arc<str>, u64)>,
    /// The session before this one: if that is heard again, two workers have one name.
    before: Option<Arc<str>>,
    bad: Option<(Instant, String)>,
    rest: Option<Instant>,
    rests: u32,
    /// The job whose messages are wanted.
    follows: Option<u64>,
    inbox: VecDeque<Inbox>,
    was_ready: bool,
}

/// What is known of a worker at one moment.
pub(super) struct Sign {
    pub(super) session: Arc<str>,
    pub(super) job: Option<TaskName>,
    pub(super) events: u64,
    pub(super) beats: u64,
    /// Jobs whose outcomes it still has to hand over.
    pub(super) delivering: Vec<TaskName>,
}

pub(super) struct Link {
    pub(super) name: Arc<str>,
    state: Mutex<LinkState>,
    bell: Condvar,
}

/// Whether and why not a worker takes jobs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// Another front has it; say that we want it too.
    Elsewhere,
    Not(String),
}

impl LinkState {
    fn is_heard(&self) -> bool {
        self.heard.is_some_and(|at| at.elapsed() < SILENT)
    }

    fn session(&self) -> Option<&Arc<str>> {
        let alive = self.alive.as_ref().map(|alive| &alive.session);
        alive.or(self.stranger.as_ref().map(|stranger| &stranger.session))
    }

    /// The version of the worker's program.
    pub(super) fn program(&self) -> Option<Arc<str>> {
        let alive = self.alive.as_ref().map(|alive| &alive.version);
        let stranger = self.stranger.as_ref();
        alive.or(stranger.map(|one| &one.version.program)).cloned()
    }

    fn readiness(&self, front: &str) -> Readiness {
        let not = |why: &str| Readiness::Not(why.to_owned());
        if let Some(stranger) = self.stranger.as_ref().filter(|_| self.is_heard()) {
            return Readiness::Not(stranger.version.to_string());
        }
        let Some(alive) = self.alive.as_ref().filter(|_| self.is_heard()) else {
            return not("no sign of life");
        };
        if let Some((until, why)) = &self.bad
            && Instant::now() < *until
        {
            return Readiness::Not(format!("left alone for a minute: {why}"));
        }
        if self.described.is_none() {
            return not("it has not said yet what it has");
        }
        if self.rest.is_some_and(|until| Instant::now() < until) {
            return not("it gave a job back and rests");
        }
        if let Some(why) = &alive.trouble
            && alive.state == WorkerState::Idle
        {
            return not(why);
        }
        match (&alive.state, &alive.job, &alive.offered) {
            (WorkerState::Draining, ..) => not("it is about to end"),
            (WorkerState::Busy, Some(job), _) if *job.front != *front => Readiness::Elsewhere,
            (WorkerState::Busy, ..) => not("it runs a job"),
            (WorkerState::Idle, _, Some(other)) if **other != *front => Readiness::Elsewhere,
            (WorkerState::Idle, ..) => Readiness::Ready,
        }
    }

    /// Whether it was ready at the last look and is not any more.
    fn stopped_being_ready(&mut self, front: &str) -> bool {
        let is = self.readiness(front) == Readiness::Ready;
        std::mem::replace(&mut self.was_ready, is) && !is
    }
}

impl Link {
    pub(super) fn new(name: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            name,
            state: Mutex::default(),
            bell: Condvar::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        lock(&self.state)
    }

    /// A sign of life came. True if whoever waits for a job in its name should think again.
    pub(super) fn hear(&self, alive: Result<Alive, Stranger>, front: &str) -> bool {
        let mut state = self.state();
        let session = match &alive {
            Ok(alive) => &alive.session,
            Err(stranger) => &stranger.session,
        };
        if let Some(last) = state.session().cloned()
            && last != *session
        {
            if state.before.as_ref() == Some(session) {
                let why = "two workers have this name; start them with different --name".to_owned();
                tracing::error!(worker = %self.name, "{why}");
                state.bad = Some((Instant::now() + BAD, why));
            }
            state.before = Some(last);
            state.rest = None;
            state.rests = 0;
            state.ahead = None;
        }
        (state.alive, state.stranger) = match alive {
            Ok(alive) => {
                let ahead = now_ms().saturating_sub(alive.time);
                state.ahead = Some(state.ahead.map_or(ahead, |old| old.min(ahead)));
                (Some(alive), None)
            }
            Err(stranger) => {
                if state.stranger.as_ref() != Some(&stranger) {
                    let why = &stranger.version;
                    tracing::error!(worker = %self.name, "this worker gets no jobs: {why}");
                }
                (None, Some(stranger))
            }
        };
        state.heard = Some(Instant::now());
        state.beats += 1;
        let stopped = state.stopped_being_ready(front);
        drop(state);
        self.bell.notify_all();
        stopped
    }

    /// Looks whether time alone has changed what it can do.
    pub(super) fn look(&self, front: &str) -> bool {
        self.state().stopped_being_ready(front)
    }

    /// How long it has been silent; none if it was never heard.
    pub(super) fn silent(&self) -> Option<Duration> {
        self.state().heard.map(|at| at.elapsed())
    }

    /// Session and number of the description that is to be asked for.
    pub(super) fn wants_description(&self) -> Option<(Arc<str>, u64)> {
        let state = self.state();
        let alive = state.alive.as_ref().filter(|_| state.is_heard())?;
        let now = (alive.session.clone(), alive.catalogue);
        (state.described.as_ref() != Some(&now)).then_some(now)
    }

    pub(super) fn described(&self, of: (Arc<str>, u64)) {
        self.state().described = Some(of);
        self.bell.notify_all();
    }

    pub(super) fn readiness(&self, front: &str) -> Readiness {
        self.state().readiness(front)
    }

    /// Waits until it is ready, at most so long.
    pub(super) fn wait_ready(&self, front: &str, patience: Duration) -> Readiness {
        let unready = |state: &mut LinkState| state.readiness(front) != Readiness::Ready;
        let (mut state, _) = self
            .bell
            .wait_timeout_while(self.state(), patience, unready)
            .unwrap_or_else(PoisonError::into_inner);
        let now = state.readiness(front);
        state.was_ready = now == Readiness::Ready;
        now
    }

    /// It has our job, whatever its last sign of life said.
    pub(super) fn took(&self, name: &TaskName) {
        let mut state = self.state();
        if let Some(alive) = &mut state.alive {
            alive.state = WorkerState::Busy;
            alive.job = Some(name.clone());
            alive.events = 0;
        }
        state.was_ready = false;
    }

    /// It said that it is taken.
    pub(super) fn is_busy(&self) {
        let mut state = self.state();
        if let Some(alive) = &mut state.alive {
            alive.state = WorkerState::Busy;
        }
        state.was_ready = false;
    }

    /// Our job is done, and it is free again, for this front or for everybody.
    pub(super) fn done(&self, offered: Option<Arc<str>>) {
        let mut state = self.state();
        state.rests = 0;
        if let Some(alive) = &mut state.alive
            && alive.state == WorkerState::Busy
        {
            alive.state = WorkerState::Idle;
            alive.job = None;
            alive.offered = offered;
        }
    }

    /// A job did not begin there: it is not tried again at once.
    pub(super) fn rest(&self) {
        let mut state = self.state();
        let [shortest, longest] = REST;
        let time = shortest
            .saturating_mul(1 << state.rests.min(16))
            .min(longest);
        state.rests += 1;
        state.rest = Some(Instant::now() + time);
        state.was_ready = false;
    }

    /// It sent what makes no sense.
    pub(super) fn is_bad(&self, why: String) {
        tracing::error!(worker = %self.name, "{why}; it gets no jobs for a minute");
        let mut state = self.state();
        state.bad = Some((Instant::now() + BAD, why));
        state.was_ready = false;
    }

    /// Milliseconds that our clock is ahead of its clock.
    pub(super) fn ahead(&self) -> i64 {
        self.state().ahead.unwrap_or(0)
    }

    /// What is known of it, if it is alive.
    pub(super) fn sign(&self) -> Option<Sign> {
        let state = self.state();
        if let Some(stranger) = state.stranger.as_ref().filter(|_| state.is_heard()) {
            // Whatever it ran, it does not run it in words that are known here.
            return Some(Sign {
                session: stranger.session.clone(),
                job: None,
                events: 0,
                beats: state.beats,
                delivering: Vec::new(),
            });
        }
        let alive = state.alive.as_ref().filter(|_| state.is_heard())?;
        Some(Sign {
            session: alive.session.clone(),
            job: alive.job.clone(),
            events: alive.events,
            beats: state.beats,
            delivering: alive.delivering.clone(),
        })
    }

    /// Messages of this job are kept from now on, until the answer is dropped.
    pub(super) fn follow(self: &Arc<Self>, task: u64) -> Follow {
        let mut state = self.state();
        state.follows = Some(task);
        state.inbox.clear();
        Follow {
            link: self.clone(),
            task,
        }
    }

    /// Something about a job came. Of another job than the one that is followed, it is for nobody.
    pub(super) fn put(&self, task: u64, message: Inbox) {
        let mut state = self.state();
        if state.follows == Some(task) && state.inbox.len() < INBOX {
            state.inbox.push_back(message);
            drop(state);
            self.bell.notify_all();
        }
    }

    pub(super) fn ring(&self) {
        // With the lock, so that nobody is between looking and waiting.
        drop(self.state());
        self.bell.notify_all();
    }
}

/// A job that is followed.
pub(super) struct Follow {
    link: Arc<Link>,
    task: u64,
}

impl Follow {
    /// Waits for messages, another sign of life than the last one seen, or `stop`, at most so long.
    pub(super) fn wait(
        &self,
        beats: u64,
        patience: Duration,
        stop: impl Fn() -> bool,
    ) -> VecDeque<Inbox> {
        let quiet =
            |state: &mut LinkState| state.inbox.is_empty() && state.beats == beats && !stop();
        let (mut state, _) = self
            .link
            .bell
            .wait_timeout_while(self.link.state(), patience, quiet)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.inbox)
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        let mut state = self.link.state();
        if state.follows == Some(self.task) {
            state.follows = None;
            state.inbox.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use fresco_engine::placement::WorkerView;

    use super::*;
    use crate::protocol::{OtherVersion, PROTOCOL};

    fn alive(session: &str, state: WorkerState) -> Result<Alive, Stranger> {
        Ok(Alive {
            protocol: PROTOCOL,
            version: "1".into(),
            session: session.into(),
            time: now_ms() - 60_000,
            state,
            job: None,
            events: 0,
            offered: None,
            catalogue: 7,
            view: WorkerView::default(),
            results: None,
            delivering: Vec::new(),
            trouble: None,
        })
    }

    fn task(front: &str) -> TaskName {
        TaskName {
            front: front.into(),
            task: 1,
        }
    }

    fn ready_link() -> Arc<Link> {
        let link = Link::new("w".into());
        link.hear(alive("s", WorkerState::Idle), "me");
        let of = link.wants_description().unwrap();
        link.described(of);
        link
    }

    #[test]
    fn a_worker_is_ready_once_it_is_alive_and_described() {
        let link = Link::new("w".into());
        let Readiness::Not(why) = link.readiness("me") else {
            panic!("it is ready");
        };
        assert!(why.contains("no sign of life"));
        link.hear(alive("s", WorkerState::Idle), "me");
        assert!(matches!(link.readiness("me"), Readiness::Not(_)));
        link.described(link.wants_description().unwrap());
        assert_eq!(link.readiness("me"), Readiness::Ready);
        assert_eq!(link.wants_description(), None);
    }

    #[test]
    fn whose_it_is_decides() {
        let link = ready_link();
        link.took(&task("me"));
        assert!(matches!(link.readiness("me"), Readiness::Not(_)));
        assert_eq!(link.readiness("other"), Readiness::Elsewhere);
        link.done(Some("other".into()));
        assert_eq!(link.readiness("me"), Readiness::Elsewhere);
        assert_eq!(link.readiness("other"), Readiness::Ready);
        link.done(None);
        link.is_busy();
        assert!(matches!(link.readiness("me"), Readiness::Not(_)));
        link.hear(alive("s", WorkerState::Draining), "me");
        assert!(matches!(link.readiness("me"), Readiness::Not(_)));
    }

    #[test]
    fn clocks_are_compared_and_another_protocol_is_named() {
        let link = ready_link();
        assert!((59_000..70_000).contains(&link.ahead()));
        let stranger = Stranger {
            session: "t".into(),
            version: OtherVersion {
                protocol: 99,
                program: "9.9".into(),
            },
        };
        link.hear(Err(stranger), "me");
        let Readiness::Not(why) = link.readiness("me") else {
            panic!("it is ready");
        };
        assert!(why.contains("version 99 (Fresco 9.9)"), "{why}");
        assert_eq!(link.wants_description(), None);
        let sign = link.sign().unwrap();
        assert_eq!((&*sign.session, sign.job), ("t", None));
        // It was brought up to date.
        link.hear(alive("u", WorkerState::Idle), "me");
        assert!(link.wants_description().is_some());
    }

    #[test]
    fn two_workers_of_one_name_get_nothing() {
        let link = ready_link();
        link.hear(alive("t", WorkerState::Idle), "me");
        link.described(link.wants_description().unwrap());
        assert_eq!(link.readiness("me"), Readiness::Ready, "it began anew");
        link.hear(alive("s", WorkerState::Idle), "me");
        let Readiness::Not(why) = link.readiness("me") else {
            panic!("it is ready");
        };
        assert!(why.contains("two workers"), "{why}");
    }

    #[test]
    fn garbage_and_jobs_given_back_make_it_rest() {
        let link = ready_link();
        link.rest();
        assert!(matches!(link.readiness("me"), Readiness::Not(_)));
        let link = ready_link();
        link.is_bad("nonsense".into());
        assert!(matches!(link.readiness("me"), Readiness::Not(why) if why.contains("nonsense")));
    }

    #[test]
    fn only_messages_of_the_job_that_is_followed_are_kept() {
        let link = ready_link();
        link.put(1, Inbox::Message(Bytes::new()));
        let follow = link.follow(2);
        link.put(1, Inbox::Message(Bytes::new()));
        link.put(2, Inbox::Message(Bytes::new()));
        let beats = link.sign().unwrap().beats;
        assert_eq!(follow.wait(beats, Duration::ZERO, || false).len(), 1);
        drop(follow);
        link.put(2, Inbox::Message(Bytes::new()));
        let follow = link.follow(2);
        assert!(follow.wait(beats, Duration::ZERO, || false).is_empty());
    }
}
