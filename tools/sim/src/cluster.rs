//! A fleet in virtual time: jobs come, the placement code says who takes which, workers load and run.
//!
//! Everything is drawn from one seed, so a table is the same on every machine.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fresco_placement::{
    Choice, FairQueue, Fleet, JobNeeds, ModelNeed, NeedKey, Resident, Rules, WaitingJob, WorkerView,
};

/// What is simulated.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) workers: usize,
    /// Models that one worker holds at a time.
    pub(crate) holds: usize,
    pub(crate) models: usize,
    /// How much more often the first model is wanted than the last: weights of 1/rank to this power.
    pub(crate) skew: f64,
    pub(crate) jobs: usize,
    pub(crate) clients: usize,
    /// Share of the workers' time that running the jobs takes, loading left out; 0: all jobs are there at the start.
    pub(crate) load: f64,
    /// Share of the workers that die when half of the jobs came.
    pub(crate) die: f64,
    pub(crate) policy: Policy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The real code.
    Placement,
    /// Whoever is free takes the first job.
    InTurn,
}

/// Bytes of each model, and seconds that a job computes on average.
const MODEL_BYTES: u64 = 6_000_000_000;
const RUN: f64 = 8.0;

/// What came out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) finished: usize,
    pub(crate) twice: usize,
    pub(crate) retried: usize,
    pub(crate) loads: usize,
    /// Jobs that found their model there.
    pub(crate) resident: usize,
    pub(crate) computing: Duration,
    pub(crate) loading: Duration,
    /// Time of workers that were there.
    pub(crate) there: Duration,
    pub(crate) waits: Vec<Duration>,
    pub(crate) most_passes: u32,
}

impl Outcome {
    pub(crate) fn resident_share(&self) -> f64 {
        self.resident as f64 / (self.finished + self.retried).max(1) as f64
    }

    pub(crate) fn utilisation(&self) -> f64 {
        self.computing.as_secs_f64() / self.there.as_secs_f64().max(1e-9)
    }

    /// The wait that this share of the jobs does not exceed.
    pub(crate) fn wait(&self, share: f64) -> f64 {
        let last = self.waits.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.waits.get(at).map_or(0.0, Duration::as_secs_f64)
    }
}

/// Numbers that look random: SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1, never 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, count: usize) -> usize {
        (self.share() * count as f64) as usize
    }

    fn seconds(&mut self, mean: f64) -> Duration {
        Duration::from_secs_f64(-mean * (1.0 - self.share()).ln())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    /// Worker and the run that ends.
    Done(usize, u64),
    LookAgain,
    Die,
}

struct Job {
    model: usize,
    client: usize,
    came: Duration,
    run: Duration,
    done: bool,
}

#[derive(Default)]
struct Worker {
    /// Models in memory, the one that was used longest ago first.
    models: VecDeque<usize>,
    /// Job, run number, start.
    running: Option<(usize, u64, Duration)>,
    dead: bool,
}

struct World {
    scenario: Scenario,
    rules: Rules,
    chance: Chance,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    numbers: u64,
    jobs: Vec<Job>,
    needs: Vec<JobNeeds>,
    model_names: Vec<Arc<str>>,
    clients: Vec<Arc<str>>,
    popularity: Vec<f64>,
    queue: FairQueue<usize>,
    fleet: Fleet,
    workers: Vec<Worker>,
    names: Vec<Arc<str>>,
    asks: BTreeSet<Arc<str>>,
    look_again: Option<Duration>,
    outcome: Outcome,
}

pub(crate) fn simulate(scenario: &Scenario) -> Outcome {
    let mut world = World::new(scenario.clone());
    world.run();
    world.finish()
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let weights: Vec<f64> = (1..=scenario.models)
            .map(|rank| (rank as f64).powf(-scenario.skew))
            .collect();
        let sum: f64 = weights.iter().sum();
        let mut so_far = 0.0;
        let popularity = weights
            .iter()
            .map(|weight| {
                so_far += weight / sum;
                so_far
            })
            .collect();
        let named = |prefix: &str, count: usize| -> Vec<Arc<str>> {
            (0..count)
                .map(|i| format!("{prefix}{i:05}").into())
                .collect()
        };
        let model_names = named("model", scenario.models);
        let needs = model_names.iter().map(|key| {
            let need = ModelNeed {
                key: NeedKey::Class(key.clone()),
                bytes: MODEL_BYTES,
            };
            JobNeeds::new(vec![need], Vec::new())
        });
        Self {
            rules: Rules::default(),
            chance: Chance(17),
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            numbers: 0,
            jobs: Vec::with_capacity(scenario.jobs),
            needs: needs.collect(),
            model_names,
            clients: named("client", scenario.clients),
            popularity,
            queue: FairQueue::default(),
            fleet: Fleet::default(),
            workers: (0..scenario.workers).map(|_| Worker::default()).collect(),
            names: named("worker", scenario.workers),
            asks: BTreeSet::new(),
            look_again: None,
            outcome: Outcome::default(),
            scenario,
        }
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((time, self.numbers, event)));
    }

    fn run(&mut self) {
        for worker in 0..self.workers.len() {
            self.becomes_idle(worker);
        }
        self.at(Duration::ZERO, Event::Arrives);
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time;
            match event {
                Event::Arrives => self.arrives(),
                Event::Done(worker, run) => self.done(worker, run),
                Event::LookAgain => self.look_again = None,
                Event::Die => self.die(),
            }
            self.hand_out();
        }
    }

    fn arrives(&mut self) {
        let share = self.chance.share();
        let model = self.popularity.partition_point(|p| *p < share);
        let job = Job {
            model: model.min(self.scenario.models - 1),
            client: self.chance.below(self.scenario.clients),
            came: self.now,
            run: self.chance.seconds(RUN),
            done: false,
        };
        let number = self.jobs.len();
        self.queue.insert(&self.clients[job.client], number, false);
        self.jobs.push(job);
        if self.scenario.die > 0.0 && number == self.scenario.jobs / 2 {
            self.at(self.now, Event::Die);
        }
        if number + 1 < self.scenario.jobs {
            let next = if self.scenario.load > 0.0 {
                let rate = self.scenario.workers as f64 * self.scenario.load / RUN;
                self.chance.seconds(1.0 / rate)
            } else {
                Duration::ZERO
            };
            self.at(self.now + next, Event::Arrives);
        }
    }

    fn becomes_idle(&mut self, worker: usize) {
        let name = &self.names[worker];
        let resident = self.workers[worker].models.iter().map(|model| Resident {
            key: NeedKey::Class(self.model_names[*model].clone()),
            bytes: MODEL_BYTES,
            kept: false,
        });
        let room = MODEL_BYTES * self.scenario.holds as u64;
        let view = WorkerView::new(resident.collect(), vec![name.clone()], room);
        self.fleet.asks(name, &Arc::new(view), self.now);
        self.asks.insert(name.clone());
    }

    fn done(&mut self, worker: usize, run: u64) {
        let Some((job, _, since)) = self.workers[worker]
            .running
            .take_if(|(_, number, _)| *number == run)
        else {
            // It died meanwhile.
            return;
        };
        self.outcome.there += self.now.saturating_sub(since);
        let job = &mut self.jobs[job];
        self.outcome.twice += usize::from(job.done);
        job.done = true;
        self.outcome.finished += 1;
        self.becomes_idle(worker);
    }

    fn die(&mut self) {
        let count = (self.workers.len() as f64 * self.scenario.die).round() as usize;
        // Every so manieth one.
        let step = self.workers.len() / count.max(1);
        for worker in (0..self.workers.len()).step_by(step.max(1)).take(count) {
            let seat = &mut self.workers[worker];
            seat.dead = true;
            seat.models.clear();
            self.asks.remove(&self.names[worker]);
            self.fleet.remove_worker(&self.names[worker]);
            if let Some((job, _, _)) = seat.running.take() {
                self.outcome.retried += 1;
                // As the store does it: tried again before all others.
                let client = self.clients[self.jobs[job].client].clone();
                self.queue.insert(&client, job, true);
            }
        }
    }

    fn hand_out(&mut self) {
        while !self.asks.is_empty() && !self.queue.is_empty() {
            let most = match self.scenario.policy {
                Policy::Placement => self.rules.window,
                Policy::InTurn => 1,
            };
            let window = self.queue.window(most);
            let (at, worker) = match self.scenario.policy {
                Policy::InTurn => match self.asks.first() {
                    Some(worker) => (0, worker.clone()),
                    None => return,
                },
                Policy::Placement => {
                    let jobs: Vec<WaitingJob<'_>> = window
                        .iter()
                        .map(|job| WaitingJob {
                            needs: &self.needs[self.jobs[job.key].model],
                            client: &self.clients[self.jobs[job.key].client],
                            passes: job.passes,
                            front: job.front,
                        })
                        .collect();
                    let fleet = &self.fleet;
                    match fleet.place(&jobs, self.now, &self.rules) {
                        Choice::Take { job, worker } => (job, worker),
                        Choice::Wait { look_again } => {
                            let at = look_again.map(|time| self.now + time);
                            let sooner =
                                |at: &Duration| self.look_again.is_none_or(|old| *at < old);
                            if let Some(at) = at.filter(sooner) {
                                self.look_again = Some(at);
                                self.at(at, Event::LookAgain);
                            }
                            return;
                        }
                    }
                }
            };
            let passes = window[at].passes;
            self.outcome.most_passes = self.outcome.most_passes.max(passes);
            let job = window[at].key;
            let passed: Vec<(Arc<str>, usize)> = window[..at]
                .iter()
                .map(|job| (self.clients[self.jobs[job.key].client].clone(), job.key))
                .collect();
            let client = self.clients[self.jobs[job].client].clone();
            self.queue.take(&client, &job, passed);
            self.start(&worker, job, &client);
        }
    }

    fn start(&mut self, name: &Arc<str>, job: usize, client: &str) {
        self.asks.remove(name);
        let Ok(worker) = self.names.binary_search(name) else {
            return;
        };
        let model = self.jobs[job].model;
        self.fleet.took(name, &self.needs[model], client, self.now);
        let seat = &mut self.workers[worker];
        let there = seat.models.iter().position(|known| *known == model);
        let load = if let Some(at) = there {
            seat.models.remove(at);
            self.outcome.resident += 1;
            Duration::ZERO
        } else {
            while seat.models.len() >= self.scenario.holds {
                seat.models.pop_front();
            }
            self.outcome.loads += 1;
            self.rules.load_time(MODEL_BYTES)
        };
        seat.models.push_back(model);
        self.numbers += 1;
        let number = self.numbers;
        seat.running = Some((job, number, self.now));
        let Job { came, run, .. } = self.jobs[job];
        self.outcome.waits.push(self.now.saturating_sub(came));
        self.outcome.computing += run;
        self.outcome.loading += load;
        self.at(self.now + load + run, Event::Done(worker, number));
    }

    fn finish(mut self) -> Outcome {
        let living = self.workers.iter().filter(|worker| !worker.dead).count() as u32;
        // Workers that died were there for about half of the time.
        let died = self.workers.len() as u32 - living;
        self.outcome.there = self.now * living + self.now / 2 * died;
        self.outcome.waits.sort_unstable();
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(policy: Policy) -> Scenario {
        Scenario {
            name: "",
            workers: 4,
            holds: 2,
            models: 8,
            skew: 0.0,
            jobs: 4000,
            clients: 3,
            load: 0.0,
            die: 0.0,
            policy,
        }
    }

    #[test]
    fn models_stay_where_they_are_used() {
        let outcome = simulate(&small(Policy::Placement));
        assert_eq!((outcome.finished, outcome.twice), (4000, 0));
        assert!(
            outcome.resident_share() >= 0.9,
            "{}",
            outcome.resident_share()
        );
        let in_turn = simulate(&small(Policy::InTurn));
        let share = in_turn.resident_share();
        assert!((0.2..0.3).contains(&share), "{share}");
        assert_eq!(in_turn.finished, 4000);
    }

    #[test]
    fn what_the_dead_ran_is_run_by_others_and_nothing_twice() {
        let scenario = Scenario {
            workers: 40,
            load: 0.7,
            die: 0.1,
            ..small(Policy::Placement)
        };
        let outcome = simulate(&scenario);
        assert_eq!((outcome.finished, outcome.twice), (4000, 0));
        assert!(outcome.retried > 0);
    }

    #[test]
    fn nobody_is_passed_over_for_ever() {
        let outcome = simulate(&small(Policy::Placement));
        // Once it is due, those that were chosen before it may still be counted.
        assert!(outcome.most_passes <= Rules::default().passes + 8);
    }
}
