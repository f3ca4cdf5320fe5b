//! Who works, with which weights, and what each takes next.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, btree_set};
use std::sync::Arc;
use std::time::Duration;

use crate::{JobNeeds, ModelNeed, NeedKey, WorkerView};

/// What is weighed against what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// How often a job is passed over by those behind it, at most.
    pub passes: u32,
    /// Bytes of weights that a worker reads and copies in a second.
    pub load_rate: f64,
    /// How many jobs are looked at for one worker.
    pub window: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            passes: 32,
            load_rate: 1e9,
            window: 128,
        }
    }
}

impl Rules {
    /// How long weights take to load.
    pub fn load_time(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.load_rate).unwrap_or(Duration::MAX)
    }
}

/// In a large fleet with many idle workers not all of them are compared.
const MOST_ASKED: usize = 64;

/// Nobody is looked at again sooner than this: who is about to be free may take a moment longer.
const SHORTEST_WAIT: Duration = Duration::from_millis(20);

/// Who loads weights that nobody who asks has.
enum Loading {
    By(usize),
    /// Nobody: so long from now somebody has them, or is to be asked again.
    Later(Duration),
    /// Nobody who asks may run it.
    Nobody,
}

/// Those of the holders that no job waits for yet.
type Holders<'a> = btree_set::Iter<'a, usize>;

/// The model that says most about where a job is at home. What has no bytes is at hand or not, and never loaded.
fn largest(needs: &JobNeeds) -> Option<&ModelNeed> {
    let weights = needs.models().iter().filter(|model| model.bytes > 0);
    weights.max_by_key(|model| model.bytes)
}

/// A job that waits, in the order of the queue.
#[derive(Clone, Copy, Debug)]
pub struct WaitingJob<'a> {
    pub needs: &'a JobNeeds,
    pub client: &'a str,
    /// How often others were taken before it.
    pub passes: u32,
    /// It was put in front.
    pub front: bool,
}

/// What a worker that asks should do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This job of those that wait is to be given to this worker, one of those that asked.
    Take { job: usize, worker: Arc<str> },
    /// Nothing for it now. `look_again`: so long from now, where somebody else is waited for.
    Wait { look_again: Option<Duration> },
}

/// One worker.
#[derive(Clone, Debug)]
struct Seat {
    name: Arc<str>,
    view: Arc<WorkerView>,
    /// Since when it runs a job; none: it is idle.
    busy_since: Option<Duration>,
    /// How long its jobs take.
    usual: Option<Duration>,
    last_client: Arc<str>,
    gone: bool,
}

/// The workers as they are known to whoever hands jobs out. Times are from any moment on, the same for all calls.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// In the order in which they came; others name them by their place here.
    seats: Vec<Seat>,
    places: BTreeMap<Arc<str>, usize>,
    /// Who asks for a job now.
    askers: BTreeSet<usize>,
    /// Who has which weights.
    holders: Holding,
    /// Those of them that are idle.
    idle_holders: Holding,
}

/// Workers by what they have.
type Holding = BTreeMap<NeedKey, BTreeSet<usize>>;

fn enlist(holding: &mut Holding, view: &WorkerView, seat: usize) {
    for one in view.resident() {
        holding.entry(one.key.clone()).or_default().insert(seat);
    }
}

fn unlist(holding: &mut Holding, view: &WorkerView, seat: usize) {
    for one in view.resident() {
        if let Some(of_key) = holding.get_mut(&one.key) {
            of_key.remove(&seat);
            if of_key.is_empty() {
                holding.remove(&one.key);
            }
        }
    }
}

impl Fleet {
    /// Workers that are there.
    pub fn len(&self) -> usize {
        self.seats.iter().filter(|seat| !seat.gone).count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A worker is idle, says what it has and asks for a job.
    pub fn asks(&mut self, name: &Arc<str>, view: &Arc<WorkerView>, now: Duration) {
        let at = if let Some(at) = self.places.get(name) {
            *at
        } else {
            self.places.insert(name.clone(), self.seats.len());
            self.seats.push(Seat {
                name: name.clone(),
                view: Arc::default(),
                busy_since: None,
                usual: None,
                last_client: Arc::default(),
                gone: false,
            });
            self.seats.len() - 1
        };
        self.set_view(at, view);
        let seat = &mut self.seats[at];
        seat.gone = false;
        if let Some(since) = seat.busy_since.take() {
            let took = now.saturating_sub(since);
            // The newest counts for a quarter: one slow job changes little, a new kind of work soon counts.
            seat.usual = Some(seat.usual.map_or(took, |usual| (usual * 3 + took) / 4));
        }
        enlist(&mut self.idle_holders, view, at);
        self.askers.insert(at);
    }

    /// A worker that asked was told to look around, and will ask again.
    pub fn rests(&mut self, name: &str) {
        if let Some(at) = self.places.get(name) {
            self.askers.remove(at);
        }
    }

    /// A worker was given a job.
    pub fn took(&mut self, name: &str, needs: &JobNeeds, client: &str, now: Duration) {
        let Some(&at) = self.places.get(name) else {
            return;
        };
        self.askers.remove(&at);
        let seat = &mut self.seats[at];
        seat.busy_since = Some(now);
        unlist(&mut self.idle_holders, &seat.view, at);
        if &*seat.last_client != client {
            seat.last_client = client.into();
        }
        if !seat.view.is_home(needs) {
            let next = Arc::new(seat.view.with(needs));
            self.set_view(at, &next);
        }
    }

    /// Whether a worker could run a job: it has the devices and the models. Nobody is known to lack anything.
    pub fn may_run(&self, name: &str, needs: &JobNeeds) -> bool {
        let seat = self.places.get(name).map(|&at| &self.seats[at]);
        seat.is_none_or(|seat| self.may_take(seat, needs))
    }

    /// Forgets a worker that has left.
    pub fn remove_worker(&mut self, name: &str) {
        if let Some(&at) = self.places.get(name) {
            self.set_view(at, &Arc::default());
            self.askers.remove(&at);
            self.seats[at].gone = true;
        }
    }

    fn set_view(&mut self, at: usize, view: &Arc<WorkerView>) {
        let old = std::mem::replace(&mut self.seats[at].view, view.clone());
        if Arc::ptr_eq(&old, view) || old.resident() == view.resident() {
            return;
        }
        unlist(&mut self.holders, &old, at);
        unlist(&mut self.idle_holders, &old, at);
        enlist(&mut self.holders, view, at);
    }

    fn take(&self, job: usize, seat: usize) -> Choice {
        Choice::Take {
            job,
            worker: self.seats[seat].name.clone(),
        }
    }

    /// Those that are there.
    fn present(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(|seat| !seat.gone)
    }

    /// One decision for all that ask: who is given what. To be repeated until it is [`Choice::Wait`].
    pub fn place(&self, jobs: &[WaitingJob<'_>], now: Duration, rules: &Rules) -> Choice {
        let mut look_again: Option<Duration> = None;
        let mut cold = None;
        // By what jobs need: who has it and is about to be free. Each of them can be waited for by one job.
        let mut hopes: BTreeMap<&JobNeeds, Option<Holders<'_>>> = BTreeMap::new();
        for (at, job) in jobs.iter().enumerate() {
            let holders = match hopes.entry(job.needs) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    // Nobody who asks has what an equal job before it needed.
                    if let Some(seat) = self.at_home(job) {
                        return self.take(at, seat);
                    }
                    let key = largest(job.needs).map(|model| &model.key);
                    let names = key.and_then(|key| self.holders.get(key));
                    new.insert(names.map(BTreeSet::iter))
                }
            };
            let due = job.front || job.passes >= rules.passes;
            let load = rules.load_time(job.needs.bytes());
            let hope = holders.as_mut();
            let hope = hope.and_then(|holders| self.free_in(holders, job, load, now));
            let loading = match hope {
                Some(time) => Loading::Later(time),
                None if cold.is_some() && !due => continue,
                None => self.to_load(job, load, due),
            };
            match loading {
                // Nobody goes before it any more.
                Loading::By(seat) if due => return self.take(at, seat),
                Loading::By(seat) => cold = Some(self.take(at, seat)),
                Loading::Later(time) => {
                    let time = time.max(SHORTEST_WAIT);
                    look_again = Some(look_again.map_or(time, |old| old.min(time)));
                }
                Loading::Nobody => {}
            }
        }
        cold.unwrap_or(Choice::Wait { look_again })
    }

    /// One that asks and has a job's weights; of several one that ran this client's last job, because it has some of its
    /// results too.
    fn at_home(&self, job: &WaitingJob<'_>) -> Option<usize> {
        let candidates = match largest(job.needs) {
            Some(model) => self.idle_holders.get(&model.key)?,
            None => &self.askers,
        };
        let mut found = None;
        let asking = candidates.iter().filter(|at| self.askers.contains(at));
        for &at in asking.take(MOST_ASKED) {
            let seat = &self.seats[at];
            if !seat.view.is_home(job.needs) || !self.may_take(seat, job.needs) {
                continue;
            }
            if !job.client.is_empty() && &*seat.last_client == job.client {
                return Some(at);
            }
            found = found.or(Some(at));
        }
        found
    }

    /// A worker that lacks what a job names leaves it to those that have it, if there are any.
    fn may_take(&self, seat: &Seat, needs: &JobNeeds) -> bool {
        if seat.view.may_run(needs) {
            return true;
        }
        // A model that a worker has not it cannot load; a device that nobody has is for the node to say.
        let lacks_model = {
            let mut without = needs.clone();
            without.devices.clear();
            !seat.view.may_run(&without)
        };
        !lacks_model && !self.present().any(|seat| seat.view.may_run(needs))
    }

    /// Who of those that ask should load a job's weights.
    fn to_load(&self, job: &WaitingJob<'_>, load: Duration, due: bool) -> Loading {
        // With room for it, without, and as the last resort; those that have most of it first.
        let mut best: Option<((bool, bool, u64), usize)> = None;
        for &at in self.askers.iter().take(MOST_ASKED) {
            let seat = &self.seats[at];
            if !self.may_take(seat, job.needs) {
                continue;
            }
            let view = &seat.view;
            let rank = (
                !view.fits_beside(job.needs),
                !view.fits(job.needs),
                view.missing(job.needs),
            );
            if best.as_ref().is_none_or(|(known, _)| rank < *known) {
                best = Some((rank, at));
            }
        }
        let Some(((_, streams, _), at)) = best else {
            return Loading::Nobody;
        };
        let elsewhere = |other: &Seat| other.view.may_run(job.needs) && other.view.fits(job.needs);
        if streams && !due && self.present().any(elsewhere) {
            return Loading::Later(load);
        }
        Loading::By(at)
    }

    /// When the next of those that have a job's weights is free, if that is sooner than `load`.
    fn free_in(
        &self,
        holders: &mut Holders<'_>,
        job: &WaitingJob<'_>,
        load: Duration,
        now: Duration,
    ) -> Option<Duration> {
        holders.find_map(|at| {
            let other = &self.seats[*at];
            let left = match other.busy_since {
                // One that takes longer than usual may take any time.
                Some(since) => {
                    let ran = now.saturating_sub(since);
                    let left = other.usual?.checked_sub(ran)?;
                    (left < load && !job.front).then_some(left)?
                }
                None if self.askers.contains(at) => return None,
                // It is about to ask.
                None => load,
            };
            let suits = other.view.is_home(job.needs) && other.view.may_run(job.needs);
            suits.then_some(left)
        })
    }

    /// Why a job waits that no worker could run: what each of them lacks. None if one could, and before the first came.
    pub fn lacking(&self, needs: &JobNeeds) -> Option<Vec<Lacking>> {
        if self.seats.is_empty() || self.present().any(|seat| self.may_take(seat, needs)) {
            return None;
        }
        let lacking = |seat: &Seat| Lacking {
            worker: seat.name.clone(),
            keys: seat.view.lacks(needs).cloned().collect(),
        };
        Some(self.present().map(lacking).collect())
    }
}

/// What a worker lacks for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    pub worker: Arc<str>,
    pub keys: Vec<NeedKey>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Inventory, Resident};

    const GB: u64 = 1_000_000_000;

    fn needs(models: &[&str]) -> JobNeeds {
        let model = |name: &&str| ModelNeed {
            key: NeedKey::model("", name),
            bytes: 4 * GB,
        };
        JobNeeds::new(models.iter().map(model).collect(), Vec::new())
    }

    fn on_device(device: &str) -> JobNeeds {
        JobNeeds::new(Vec::new(), vec![device.into()])
    }

    fn view(name: &str, models: &[&str]) -> WorkerView {
        let resident = models.iter().map(|key| Resident {
            key: NeedKey::model("", key.trim_start_matches('!')),
            bytes: 4 * GB,
            kept: key.starts_with('!'),
        });
        WorkerView::new(resident.collect(), vec![name.into()], 10 * GB)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Workers as `name: models`, a star for those that run something since second 0 and usually take 10 seconds.
    fn fleet(text: &str) -> Fleet {
        let mut fleet = Fleet::default();
        for worker in text.split(';') {
            let (name, models) = worker.split_once(':').unwrap();
            let busy = name.trim().ends_with('*');
            let name: Arc<str> = name.trim().trim_end_matches('*').into();
            let models: Vec<&str> = models.split_whitespace().collect();
            let view = Arc::new(view(&name, &models));
            fleet.asks(&name, &view, at(0));
            if busy {
                fleet.took(&name, &JobNeeds::default(), "", at(0));
                fleet.asks(&name, &view, at(10));
                fleet.took(&name, &JobNeeds::default(), "", at(10));
            }
        }
        fleet
    }

    /// Jobs as models, `^` for one in front, `+N` for one passed over so often.
    #[track_caller]
    fn check(workers: &str, asker: &str, jobs: &str, second: u64, wanted: &str) {
        let mut fleet = fleet(workers);
        let askers: Vec<&str> = asker.split(' ').collect();
        for worker in ["u", "v", "w"] {
            if !askers.contains(&worker) {
                fleet.rests(worker);
            }
        }
        let wants: Vec<(JobNeeds, bool, u32)> = jobs
            .split(',')
            .map(|job| {
                let job = job.trim();
                let (job, passes) = job.split_once('+').unwrap_or((job, "0"));
                let front = job.starts_with('^');
                let job = job.trim_start_matches('^');
                let wanted = match job.strip_prefix('@') {
                    Some(device) => on_device(device),
                    None => needs(&job.split_whitespace().collect::<Vec<_>>()),
                };
                (wanted, front, passes.parse().unwrap())
            })
            .collect();
        let jobs: Vec<WaitingJob<'_>> = wants
            .iter()
            .map(|(needs, front, passes)| WaitingJob {
                needs,
                client: "",
                passes: *passes,
                front: *front,
            })
            .collect();
        let rules = Rules {
            passes: 3,
            ..Rules::default()
        };
        let got = match fleet.place(&jobs, at(second), &rules) {
            Choice::Take { job, worker } if askers.len() == 1 => {
                assert_eq!(&*worker, asker);
                job.to_string()
            }
            Choice::Take { job, worker } => format!("{job} to {worker}"),
            Choice::Wait { look_again: None } => "wait".to_owned(),
            Choice::Wait {
                look_again: Some(time),
            } => format!("wait {}", time.as_secs()),
        };
        assert_eq!(got, wanted);
    }

    #[test]
    fn resident_weights_go_first_until_others_waited_long_enough() {
        check("w: a", "w", "b, a", 10, "1");
        check("w: a", "w", "b+3, a", 10, "0");
        check("w: a", "w", "b, c, b+3, a", 10, "2");
        check("w: a", "w", "a, b+3", 10, "0");
        check("w: a", "w", "^b, a", 10, "0");
        check("w: a", "w", "b, ^a", 10, "1");
        // Without models everybody is at home.
        check("w: a", "w", ", a", 10, "0");
        check("w: a", "w", "b", 10, "0");
    }

    #[test]
    fn a_job_waits_for_its_weights_if_that_is_sooner() {
        // Four seconds to load; the other one is free in ten, then in three.
        check("w: a; v*: b", "w", "b", 10, "0");
        check("w: a; v*: b", "w", "b", 17, "wait 3");
        // Longer than usual: nobody knows how long.
        check("w: a; v*: b", "w", "b", 21, "0");
        // One worker can be waited for by one job.
        check("w: a; v*: b", "w", "b, b", 17, "1");
        check("w: a; v*: b; u*: b", "w", "b, b", 17, "wait 3");
        // Behind it something else may go.
        check("w: a; v*: b", "w", "b, c", 17, "1");
        // An idle one that has it takes it, or will as soon as it asks.
        check("w: a; v: b", "v w", "b", 17, "0 to v");
        check("w: a; v: b", "v w", "^b", 17, "0 to v");
        check("w: a; v: b", "w", "b", 17, "wait 4");
        check("w: a; v: b", "v", "b", 17, "0");
        check("w: a; v*: b", "w", "^b", 17, "0");
        check("w: a; v*: b", "w", "b+3", 17, "wait 3");
    }

    #[test]
    fn weights_go_where_there_is_room() {
        // Eight of ten are full here, and v is empty.
        check("u: a b; v:", "u v", "c", 10, "0 to v");
        check("u: a b; v*:", "u", "c", 10, "0");
        // Kept weights make no room: there it would stream.
        check("w: !a !b; v*: c", "w", "d", 10, "wait 4");
        check("w: !a !b; v*: !c !e", "w", "d", 10, "0");
        check("w: !a !b; v*: c", "w", "d+3", 10, "0");
    }

    #[test]
    fn devices_that_are_named_are_used() {
        check("w:; v:", "w", "@v, a", 10, "1");
        check("w:; v:", "v", "@v, a", 10, "0");
        check("w:; v:", "v w", "@w", 10, "0 to w");
        check("w:; v:", "w", "@nobody", 10, "0");
        check("w:; v:", "w", "@v", 10, "wait");
    }

    #[test]
    fn a_client_goes_where_its_results_are() {
        let mut fleet = fleet("u: a; w: a; v: a");
        let (v, wants) = (Arc::from("v"), needs(&["a"]));
        fleet.took(&v, &wants, "me", at(11));
        fleet.asks(&v, &Arc::new(view("v", &["a"])), at(12));
        let job = WaitingJob {
            needs: &wants,
            client: "me",
            passes: 0,
            front: false,
        };
        let choice = fleet.place(&[job], at(13), &Rules::default());
        assert_eq!(choice, Choice::Take { job: 0, worker: v });
    }

    #[test]
    fn models_that_a_worker_has_not_are_left_to_others() {
        let mut fleet = Fleet::default();
        let has = |keys: &[&str]| {
            let keys = keys.iter().map(|key| NeedKey::model("", key)).collect();
            Arc::new(view("x", &[]).with_inventory(Inventory::new(keys)))
        };
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        let wants = needs(&["b"]);
        let job = WaitingJob {
            needs: &wants,
            client: "",
            passes: 99,
            front: true,
        };
        let place = |fleet: &Fleet| fleet.place(&[job], at(1), &Rules::default());
        let nothing = Choice::Wait { look_again: None };
        fleet.asks(&one, &has(&["a"]), at(0));
        assert_eq!(place(&fleet), nothing);
        let lacking = |worker: &Arc<str>| Lacking {
            worker: worker.clone(),
            keys: vec![NeedKey::model("", "b")],
        };
        assert_eq!(fleet.lacking(&wants), Some(vec![lacking(&one)]));
        fleet.asks(&two, &has(&["a", "b"]), at(0));
        let worker = two.clone();
        assert_eq!(place(&fleet), Choice::Take { job: 0, worker });
        assert_eq!(fleet.lacking(&wants), None);
        fleet.remove_worker("two");
        assert_eq!(place(&fleet), nothing);
        assert_eq!(fleet.lacking(&wants), Some(vec![lacking(&one)]));
        assert_eq!(fleet.len(), 1);
        fleet.remove_worker("one");
        assert_eq!(fleet.lacking(&wants), Some(Vec::new()));
        assert_eq!(Fleet::default().lacking(&wants), None);
    }

    #[test]
    fn what_has_no_bytes_is_at_hand_or_not() {
        let mut fleet = Fleet::default();
        let class = |name: &str| ModelNeed {
            key: NeedKey::class(name),
            bytes: 0,
        };
        let wants = JobNeeds::new(vec![class("X")], Vec::new());
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        let plain = Inventory::new(vec![NeedKey::class("Y")]);
        let with = Inventory::new(vec![NeedKey::class("X")]);
        fleet.asks(
            &one,
            &Arc::new(view("one", &[]).with_inventory(plain)),
            at(0),
        );
        fleet.asks(
            &two,
            &Arc::new(view("two", &[]).with_inventory(with)),
            at(0),
        );
        let job = WaitingJob {
            needs: &wants,
            client: "",
            passes: 0,
            front: false,
        };
        let choice = fleet.place(&[job], at(1), &Rules::default());
        assert_eq!(
            choice,
            Choice::Take {
                job: 0,
                worker: two
            }
        );
    }
}
