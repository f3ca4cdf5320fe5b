//! Which job goes to which waiting worker.
//!
//! One worker takes jobs in the order of the queue. Several say what they have when they ask, and `fresco_placement` decides. A job
//! in whose last run the process died runs with nothing beside it, so that nothing but itself can be to blame if that
//! happens again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_graph::lock;
use fresco_placement::{Choice, Fleet, InLine, JobNeeds, Lacking, Rules, WaitingJob};

use super::bodies;
use super::error::StoreError;
use super::pending::{Body, Facts, Key};
use super::record::{Next, TakenJob};
use super::thread::{StoreThread, Waiter};

/// What is known of the workers.
pub(super) struct Placement {
    fleet: Fleet,
    rules: Rules,
    /// Times count from here.
    began: Instant,
    /// When a worker that was given nothing may be given something.
    pub(super) look_again: Option<Instant>,
    /// Jobs that nobody can run, of which the log has told.
    told: BTreeSet<i64>,
}

/// Jobs at the front of the queue that are asked why they wait, each time when there is nothing to hand out.
const ASKED_WHY: usize = 16;
/// Jobs that the log tells of, before it may tell of them again.
const MOST_TOLD: usize = 10_000;
/// Names in one reason.
const NAMED: usize = 5;

/// What is lacking, in words.
fn reason(lacking: &[Lacking]) -> Arc<str> {
    if lacking.is_empty() {
        return "there is no worker now".into();
    }
    let shorten = |mut names: Vec<String>, what: &str| {
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        if more > 0 {
            names.push(format!("{more} more{what}"));
        }
        names
    };
    let worker = |one: &Lacking| {
        let names = shorten(one.keys.iter().map(ToString::to_string).collect(), "");
        format!("{} lacks {}", one.worker, names.join(", "))
    };
    let workers = shorten(lacking.iter().map(worker).collect(), " workers");
    format!("no worker has all that it needs: {}", workers.join("; ")).into()
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            fleet: Fleet::default(),
            rules: Rules::default(),
            began: Instant::now(),
            look_again: None,
            told: BTreeSet::new(),
        }
    }
}

impl Placement {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn asks(&mut self, waiter: &Waiter) {
        if let Some(view) = &waiter.view {
            let now = self.now();
            self.fleet.asks(&waiter.claim.owner, view, now);
        }
    }
}

impl Placement {
    /// Whether a worker that asks may run a job at all.
    fn may_run(&self, waiter: &Waiter, needs: &JobNeeds) -> bool {
        self.fleet.may_run(&waiter.claim.owner, needs)
    }

    /// A worker was sent away without a job.
    pub(super) fn rests(&mut self, waiter: &Waiter) {
        self.fleet.rests(&waiter.claim.owner);
    }
}

/// A decision that was made.
struct Handout {
    /// Which of those that wait.
    waiter: usize,
    key: Key,
    attempts: u32,
}

/// Who submitted a job.
pub(super) fn client_id(body: &Body) -> Option<Arc<str>> {
    let id = body.extra_data.get("client_id").and_then(|id| id.as_str());
    id.map(Arc::from)
}

impl StoreThread {
    /// A worker asks for a job.
    pub(super) fn wait_for_job(&mut self, waiter: Waiter) {
        if waiter.view.is_some() && !self.queue.pending.has_lines() {
            let clients = self.read_clients().unwrap_or_else(|error| {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "jobs from before count as those of one client"
                );
                Vec::new()
            });
            self.queue.pending.form_lines(clients);
        }
        self.workers.placement.asks(&waiter);
        self.workers.waiters.push_back(waiter);
    }

    /// A worker is there no more: nothing waits for it, and it asks for nothing.
    pub(super) fn worker_gone(&mut self, name: &str) {
        self.workers.placement.fleet.remove_worker(name);
        let (gone, stay): (VecDeque<Waiter>, VecDeque<Waiter>) = self
            .workers
            .waiters
            .drain(..)
            .partition(|w| *w.claim.owner == *name);
        self.workers.waiters = stay;
        for waiter in gone {
            waiter.sender.send(Next::Woken);
        }
    }

    /// Who submitted the jobs that the database has.
    fn read_clients(&self) -> Result<Vec<(i64, Arc<str>)>, StoreError> {
        let db = &self.database.connection;
        let read = |row: &rusqlite::Row| {
            let client: Option<String> = row.get(1)?;
            Ok((row.get(0)?, client.unwrap_or_default().into()))
        };
        db.prepare(
            "SELECT j.seq, CAST(json_extract(b.extra_data, '$.client_id') AS TEXT)
                FROM jobs j JOIN bodies b ON b.seq = j.seq WHERE json_valid(b.extra_data)",
        )
        .and_then(|mut s| s.query_map([], read)?.collect())
        .map_err(StoreError::sql("read who submitted jobs"))
    }

    /// Hands jobs to waiting workers, in the same transaction that accepted them where possible.
    pub(super) fn serve_waiters(&mut self) -> Result<(), StoreError> {
        self.workers.placement.look_again = None;
        while !self.workers.waiters.is_empty()
            && !self.queue.paused
            && !self.queue.draining
            && self.files.lost.is_none()
            && let Some(Handout {
                waiter,
                key,
                attempts,
            }) = self.next_handout()
        {
            let facts = self.queue.pending.facts(&key);
            let (body, sensitive) = self.queue.pending.remove(&key);
            let body = match body {
                Some(body) => body,
                None => match bodies::load(&self.database.connection, key.seq) {
                    Ok(body) => body,
                    Err(StoreError::Unreadable { .. }) => {
                        if let Err(error) = self.reject_unreadable(&key) {
                            // Not the whole batch's affair; it stands aside until the next start.
                            self.undo_one(&error)?;
                            self.queue.pending.set_held(&key, true);
                        }
                        continue;
                    }
                    Err(e) => return Err(e),
                },
            };
            let waiter = self
                .workers
                .waiters
                .remove(waiter)
                .expect("chosen among them");
            let task = self.lease(
                &key,
                attempts,
                &waiter.claim,
                facts.clone(),
                sensitive.clone(),
            )?;
            self.end_change()?;
            if waiter.view.is_some() {
                let needs = facts.needs.unwrap_or_default();
                let now = self.workers.placement.now();
                let fleet = &mut self.workers.placement.fleet;
                fleet.took(&waiter.claim.owner, &needs, &facts.client, now);
            }
            let client_id = client_id(&body);
            let job = TakenJob {
                task,
                attempt: attempts + 1,
                number: key.number,
                prompt_id: key.prompt_id,
                prompt: body.prompt,
                extra_data: body.extra_data,
                outputs: body.outputs,
                sensitive,
                client_id,
                remaining: self.remaining(),
            };
            self.change.batch.handouts.push((waiter, Box::new(job)));
        }
        if self.workers.woken && !self.workers.waiters.is_empty() {
            self.workers.woken = false;
            for waiter in self.workers.waiters.drain(..) {
                self.workers.placement.rests(&waiter);
                waiter.sender.send(Next::Woken);
            }
        }
        Ok(())
    }

    fn next_handout(&mut self) -> Option<Handout> {
        if self
            .workers
            .waiters
            .iter()
            .any(|waiter| waiter.view.is_none())
        {
            let waiter = self.workers.waiters.iter().position(|w| w.view.is_none())?;
            let (key, attempts) = self.queue.pending.first()?;
            return Some(Handout {
                waiter,
                key: key.clone(),
                attempts,
            });
        }
        let retries = self.queue.pending.retries();
        let local = self
            .workers
            .waiters
            .iter()
            .position(|w| w.claim.term.is_none());
        for (key, attempts) in retries.iter().cloned() {
            let (_, needs) = self.known_facts(&key);
            // A worker elsewhere does not take this process down.
            let suits =
                |w: &Waiter| w.claim.term.is_some() && self.workers.placement.may_run(w, &needs);
            let far = self.workers.waiters.iter().position(suits);
            let here = |leased: &super::leases::Leased| leased.deadline.is_none();
            let alone = !self.queue.running.values().any(here);
            if let Some(waiter) = far.or(local.filter(|_| alone)) {
                return Some(Handout {
                    waiter,
                    key,
                    attempts,
                });
            }
        }
        if !retries.is_empty() && local.is_some() {
            return None;
        }
        let retried =
            |leased: &super::leases::Leased| leased.deadline.is_none() && leased.attempts > 0;
        if self.queue.running.values().any(retried) {
            return None;
        }
        self.place_one()
    }

    /// Asks the placement who is given what.
    fn place_one(&mut self) -> Option<Handout> {
        let window = self
            .queue
            .pending
            .window(self.workers.placement.rules.window);
        if window.is_empty() {
            return None;
        }
        let facts: Vec<(Arc<str>, Arc<JobNeeds>)> = window
            .iter()
            .map(|job| self.known_facts(&job.key))
            .collect();
        let jobs: Vec<WaitingJob<'_>> = window
            .iter()
            .zip(&facts)
            .map(|(job, (client, needs))| WaitingJob {
                needs,
                client,
                passes: job.passes,
                front: job.front,
            })
            .collect();
        let placement = &self.workers.placement;
        let now = placement.now();
        let choice = placement.fleet.place(&jobs, now, &placement.rules);
        let (job, worker) = match choice {
            Choice::Take { job, worker } => (job, worker),
            Choice::Wait { look_again } => {
                let at = look_again.and_then(|time| Instant::now().checked_add(time));
                self.workers.placement.look_again = at;
                let first: Vec<_> = window
                    .iter()
                    .zip(&facts)
                    .take(ASKED_WHY)
                    .map(|(job, (_, needs))| (job.key.clone(), needs.clone()))
                    .collect();
                self.tell_why(&first);
                return None;
            }
        };
        let mut names = self
            .workers
            .waiters
            .iter()
            .map(|waiter| &waiter.claim.owner);
        let waiter = names.position(|name| *name == worker)?;
        let key = window[job].key.clone();
        self.queue.pending.take_turn(&key, &window[..job]);
        Some(Handout {
            waiter,
            attempts: self.queue.pending.attempts(&key),
            key,
        })
    }

    /// Says once of each job why nobody takes it.
    fn tell_why(&mut self, jobs: &[(Key, Arc<JobNeeds>)]) {
        let placement = &mut self.workers.placement;
        for (key, needs) in jobs {
            let Some(lacking) = placement.fleet.lacking(needs) else {
                continue;
            };
            if placement.told.len() >= MOST_TOLD {
                placement.told.clear();
            }
            if placement.told.insert(key.seq) {
                tracing::warn!(prompt = %key.prompt_id, "the prompt waits: {}", reason(&lacking));
            }
        }
    }

    /// Why the first jobs wait, as far as no worker can run them.
    pub(super) fn waiting_reasons(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let window = self
            .queue
            .pending
            .window(self.workers.placement.rules.window);
        let why = |job: &InLine<Key>| {
            let needs = self.queue.pending.facts(&job.key).needs?;
            let lacking = self.workers.placement.fleet.lacking(&needs)?;
            Some((job.key.prompt_id.clone(), reason(&lacking)))
        };
        window.iter().filter_map(why).collect()
    }

    /// Who submitted a job and what it needs. Asked for once where nobody said so when it was accepted.
    fn known_facts(&mut self, key: &Key) -> (Arc<str>, Arc<JobNeeds>) {
        let Facts { client, needs } = self.queue.pending.facts(key);
        if let Some(needs) = needs {
            return (client, needs);
        }
        let stored;
        let body = if let Some(body) = self.queue.pending.body(key.seq) {
            Some(body)
        } else {
            stored = bodies::load(&self.database.connection, key.seq).ok();
            stored.as_ref()
        };
        let needs = match (&*lock(&self.published.needs), body) {
            (Some(ask), Some(body)) => ask(&body.prompt, &body.outputs),
            _ => JobNeeds::default(),
        };
        let needs = Arc::new(needs);
        let facts = Facts {
            client: client.clone(),
            needs: Some(needs.clone()),
        };
        self.queue.pending.describe(key.seq, facts);
        (client, needs)
    }
}

#[cfg(test)]
mod tests {
    use fresco_placement::NeedKey;

    use super::*;

    #[test]
    fn reasons_name_workers_and_what_they_lack() {
        let lacking = |worker: &str, keys: Vec<NeedKey>| Lacking {
            worker: worker.into(),
            keys,
        };
        let vae = |name: &str| NeedKey::model("vae", name);
        assert_eq!(&*reason(&[]), "there is no worker now");
        assert_eq!(
            &*reason(&[
                lacking(
                    "a",
                    vec![NeedKey::class("X"), NeedKey::model("loras", "s/l.pt")]
                ),
                lacking("b", ["1", "2", "3", "4", "5", "6", "7"].map(vae).to_vec()),
            ]),
            "no worker has all that it needs: a lacks the node X, loras/s/l.pt; b lacks vae/1, vae/2, vae/3, vae/4, vae/5, 2 more"
        );
    }
}
