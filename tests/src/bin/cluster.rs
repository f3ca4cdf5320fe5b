//! `cluster [JOBS [KILLS [WORKERS [SEED]]]]`: a real NATS server, two fronts and some workers as processes on loopback, and random
//! kills of all of them while jobs run. Every job that was accepted must be in the history of its front, finished, once, with its
//! own picture. `cargo xtask cluster` builds the program first; CI runs the short form.
//!
//! Kills: SIGKILL of a worker, a front or the NATS server, started again a moment later; a worker that stands still for longer than
//! its jobs are leased to it, and then goes on; a worker whose line to the NATS server is cut for as long; a worker that is told to
//! stop and drains.

#![expect(
    clippy::print_stdout,
    reason = "a driver reports to the person who started it"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    net::SocketAddr,
    path::Path,
    process::ExitStatus,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use fresco_tests::{
    Connection,
    chance::Chance,
    cluster::{Cluster, Front},
    picture, workflow,
};
use serde_json::{Value, json};

const FRONTS: usize = 2;
/// Longer than a job is leased to a worker that gives no sign of life.
const STANDSTILL: Duration = Duration::from_secs(13);
/// A worker that began later may not listen for signals yet. It has no job then, and ends as programs do that do not listen.
const LISTENS: Duration = Duration::from_secs(1);
/// Nothing ends for so long: something hangs.
const STUCK: Duration = Duration::from_mins(3);
/// Jobs of a front that wait at most; more are queued as these end.
const BACKLOG: u64 = 5000;
/// Jobs beyond those that are due by the next kill, so that there is always something to lose.
const AHEAD: u64 = 400;

/// Jobs that a client knows to be accepted, and those whose answer it never saw.
#[derive(Default)]
struct Ledger {
    accepted: BTreeMap<String, u64>,
    unsure: BTreeSet<String>,
}

/// What submitters and the killer share.
struct Run {
    jobs: u64,
    address: Vec<SocketAddr>,
    ledgers: Vec<Mutex<Ledger>>,
    accepted: AtomicU64,
    /// How many may be accepted by now: more follow with every kill.
    allowed: AtomicU64,
    /// Set when something failed: the others stop.
    over: AtomicBool,
}

impl Run {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding it")
}

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let mut number = |default: u64, what: &str| match arguments.next() {
        None => Ok(default),
        Some(text) => text
            .parse()
            .with_context(|| format!("{what} must be a number, not {text:?}")),
    };
    let jobs = number(300, "JOBS")?;
    let kills = number(20, "KILLS")?;
    let workers = number(3, "WORKERS")?;
    let seed = number(Chance::seed(), "SEED")?;
    ensure!(jobs > 0 && workers > 0, "there is nothing to do");
    println!("{jobs} jobs, {kills} kills, {FRONTS} fronts, {workers} workers, seed {seed}");
    let mut cluster = Cluster::new(FRONTS, workers as usize)?;
    let outcome = trial(&mut cluster, jobs, kills, seed);
    if outcome.is_err() {
        println!("{}", cluster.tails(60));
        let kept = cluster.folder.path().to_owned();
        cluster.folder.disable_cleanup(true);
        println!("logs and folders are kept in {}", kept.display());
    }
    outcome
}

fn trial(cluster: &mut Cluster, jobs: u64, kills: u64, seed: u64) -> Result<()> {
    let begun = Instant::now();
    cluster.start()?;
    let run = Arc::new(Run {
        jobs,
        address: cluster.fronts.iter().map(|front| front.address).collect(),
        ledgers: (0..FRONTS).map(|_| Mutex::default()).collect(),
        accepted: AtomicU64::new(0),
        allowed: AtomicU64::new(jobs),
        over: AtomicBool::new(false),
    });
    let submitters: Vec<_> = (0..FRONTS)
        .map(|front| {
            let run = run.clone();
            thread::spawn(move || submit(&run, front))
        })
        .collect();
    let killed = kill_at_random(cluster, &run, kills, seed);
    let killed = match killed {
        Ok(killed) => killed,
        Err(error) => {
            run.over.store(true, Ordering::SeqCst);
            for submitter in submitters {
                let _ = submitter.join();
            }
            return Err(error);
        }
    };
    for submitter in submitters {
        submitter.join().expect("a submitter gives its errors")?;
    }
    // Everything runs from here on.
    cluster.start()?;
    let released = drain(cluster, &run)?;
    for (index, front) in cluster.fronts.iter().enumerate() {
        check(front, &lock(&run.ledgers[index]))?;
    }
    let unsure: usize = run.ledgers.iter().map(|l| lock(l).unsure.len()).sum();
    println!(
        "{} jobs accepted ({unsure} without an answer), all finished once; {killed}; {released} released after too many losses; {:.0} s",
        run.accepted.load(Ordering::SeqCst),
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The colour of a job's picture: no two jobs have the same.
fn colour(front: usize, number: u64) -> u64 {
    let bytes = [
        front as u64 * 50 + number / 10_000,
        number / 100 % 100,
        number % 100,
    ];
    bytes.iter().fold(0, |sum, byte| (sum << 8) | (2 * byte))
}

/// What the workflow makes of it: the opposite colour, rounded down as nodes do. Bytes of colours are two apart, so that no two become one.
fn opposite(colour: u64) -> u64 {
    let byte = |at: u32| {
        let part = (colour >> at & 0xff) as f32 / 255.0;
        u64::from((255.0 * (1.0 - part)) as u8) << at
    };
    byte(16) | byte(8) | byte(0)
}

/// Queues jobs on one front until enough were accepted in all; a front that is down is tried again.
fn submit(run: &Run, front: usize) -> Result<()> {
    let mut connection: Option<Connection> = None;
    let mut number = 0;
    let mut failing: Option<Instant> = None;
    while run.accepted.load(Ordering::SeqCst) < run.jobs && !run.is_over() {
        let mut once = || -> Result<bool> {
            if run.accepted.load(Ordering::SeqCst) >= run.allowed.load(Ordering::SeqCst) {
                return Ok(false);
            }
            if connection.is_none() {
                connection = Some(Connection::open(run.address[front])?);
            }
            let open = connection.as_mut().context("it was just opened")?;
            if number % 64 == 0 && remaining(open)? > BACKLOG {
                return Ok(false);
            }
            let id = format!("f{front}-{number}");
            let prompt = workflow::picture(colour(front, number), &format!("kill/f{front}"));
            let body =
                json!({"prompt": prompt, "prompt_id": id, "client_id": format!("c{}", number % 5)});
            lock(&run.ledgers[front]).unsure.insert(id.clone());
            number += 1;
            let answer = open.post("/prompt", &body)?;
            let mut ledger = lock(&run.ledgers[front]);
            if answer.status == 200 {
                ledger.unsure.remove(&id);
                ledger.accepted.insert(id, number - 1);
                run.accepted.fetch_add(1, Ordering::SeqCst);
            } else {
                // It said no: then it must not run.
                ledger.unsure.remove(&id);
                bail!("refused: {} {}", answer.status, answer.text());
            }
            Ok(true)
        };
        match once() {
            Ok(posted) => {
                failing = None;
                if !posted {
                    thread::park_timeout(Duration::from_millis(50));
                }
            }
            Err(error) => {
                connection = None;
                let since = *failing.get_or_insert_with(Instant::now);
                ensure!(
                    since.elapsed() < STUCK,
                    "front {front} takes no jobs: {error:#}"
                );
                thread::park_timeout(Duration::from_millis(30));
            }
        }
    }
    Ok(())
}

fn remaining(connection: &mut Connection) -> Result<u64> {
    let answer = connection.get("/prompt")?;
    ensure!(answer.status == 200, "GET /prompt: {}", answer.status);
    let answer: Value = serde_json::from_slice(&answer.body)?;
    let count = answer["exec_info"]["queue_remaining"].as_u64();
    count.context("no count of what is left")
}

/// Jobs that have ended; none if a front does not answer now.
fn ended(cluster: &Cluster, run: &Run) -> Option<u64> {
    let mut left = 0;
    for front in &cluster.fronts {
        let mut connection = front.connect().ok()?;
        left += remaining(&mut connection).ok()?;
    }
    Some(run.accepted.load(Ordering::SeqCst).saturating_sub(left))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    KillWorker,
    KillFront,
    KillNats,
    StopWorker,
    CutWorker,
    DrainWorker,
}

impl Harm {
    fn draw(chance: &mut Chance) -> Self {
        match chance.below(100) {
            0..45 => Self::KillWorker,
            45..63 => Self::KillFront,
            63..81 => Self::KillNats,
            81..86 => Self::StopWorker,
            86..93 => Self::CutWorker,
            _ => Self::DrainWorker,
        }
    }
}

/// Spreads the kills over the run: each when its share of the jobs has ended.
fn kill_at_random(cluster: &mut Cluster, run: &Run, kills: u64, seed: u64) -> Result<String> {
    let mut chance = Chance::new(seed);
    let mut counts: BTreeMap<Harm, u64> = BTreeMap::new();
    for kill in 0..kills {
        // The last ones while there is still something to lose.
        let due = run.jobs * kill / (kills + 1);
        let next = run.jobs * (kill + 1) / (kills + 1);
        run.allowed.store(next + AHEAD, Ordering::SeqCst);
        wait_for_progress(cluster, run, due)?;
        pause(Duration::from_millis(chance.below(200)));
        let harm = Harm::draw(&mut chance);
        *counts.entry(harm).or_default() += 1;
        let down = Duration::from_millis(chance.below(1200));
        let worker = chance.below(cluster.workers.len() as u64) as usize;
        let front = chance.below(cluster.fronts.len() as u64) as usize;
        match harm {
            Harm::KillWorker => cluster.workers[worker].process.kill(),
            Harm::KillFront => cluster.fronts[front].process.kill(),
            Harm::KillNats => cluster.nats.kill(),
            Harm::StopWorker => {
                let process = &cluster.workers[worker].process;
                process.signal("STOP");
                pause(STANDSTILL);
                process.signal("CONT");
            }
            Harm::CutWorker => {
                let line = &cluster.workers[worker].line;
                line.cut();
                pause(if chance.below(2) == 0 {
                    down
                } else {
                    STANDSTILL
                });
                line.mend();
            }
            Harm::DrainWorker => {
                let process = &mut cluster.workers[worker].process;
                let young = process.age() < LISTENS;
                let status = process.terminate();
                let fine =
                    |status: ExitStatus| status.success() || young && status.code().is_none();
                ensure!(
                    status.is_some_and(fine),
                    "a worker that was told to stop ended with {status:?}"
                );
            }
        }
        pause(down);
        restart(cluster)?;
        if kill % 20 == 19 {
            println!("{} kills, {:?} jobs ended", kill + 1, ended(cluster, run));
        }
    }
    run.allowed.store(u64::MAX, Ordering::SeqCst);
    let counts: Vec<String> = counts
        .iter()
        .map(|(harm, n)| format!("{harm:?} {n}"))
        .collect();
    Ok(counts.join(", "))
}

/// Starts what was killed, without waiting until it is ready: that, too, is a moment to be killed in.
fn restart(cluster: &mut Cluster) -> Result<()> {
    if !cluster.nats.is_started() {
        cluster.nats.start()?;
    }
    let fronts = cluster.fronts.iter_mut().map(|front| &mut front.process);
    let workers = cluster.workers.iter_mut().map(|worker| &mut worker.process);
    for process in fronts.chain(workers) {
        if let Some(status) = process.ended() {
            bail!(
                "{} ended by itself: {status}\n{}",
                process.name,
                process.tail(60)
            );
        }
        if !process.is_started() {
            process.start()?;
        }
    }
    Ok(())
}

fn wait_for_progress(cluster: &mut Cluster, run: &Run, due: u64) -> Result<()> {
    let mut best = 0;
    let mut since = Instant::now();
    loop {
        if let Some(ended) = ended(cluster, run) {
            if ended >= due {
                return Ok(());
            }
            if ended > best {
                best = ended;
                since = Instant::now();
            }
        }
        // Jobs that lost their worker too often are no progress either.
        if since.elapsed() > Duration::from_secs(20) {
            release(cluster);
        }
        ensure!(
            since.elapsed() < STUCK,
            "only {best} of {due} jobs ended, and nothing moves"
        );
        pause(Duration::from_millis(25));
    }
}

/// Lets jobs go on that were held for losing their worker too often. Gives how many.
fn release(cluster: &Cluster) -> usize {
    let mut count = 0;
    for front in &cluster.fronts {
        let Ok(outline) = front.get("/fresco/queue") else {
            continue;
        };
        let held = outline["held"].as_array().cloned().unwrap_or_default();
        if !held.is_empty()
            && front
                .post("/fresco/queue", &json!({"release": held}))
                .is_ok()
        {
            count += held.len();
        }
    }
    count
}

/// Waits until nothing is left on any front.
fn drain(cluster: &mut Cluster, run: &Run) -> Result<usize> {
    let mut released = 0;
    let mut best = u64::MAX;
    let mut since = Instant::now();
    loop {
        released += release(cluster);
        let mut left = 0;
        for front in &cluster.fronts {
            left += remaining(&mut front.connect()?)?;
        }
        if left == 0 {
            return Ok(released);
        }
        if left < best {
            best = left;
            since = Instant::now();
        }
        ensure!(
            since.elapsed() < STUCK,
            "{left} of {} jobs are left, and nothing moves",
            run.accepted.load(Ordering::SeqCst)
        );
        pause(Duration::from_millis(100));
    }
}

fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        thread::park_timeout(left);
    }
}

/// Every accepted job is in the history once, succeeded, and has its own picture, whole. Nothing is there that nobody asked for.
fn check(front: &Front, ledger: &Ledger) -> Result<()> {
    let jobs = front.get("/api/jobs?limit=1000000")?;
    let mut counts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for job in jobs["jobs"].as_array().context("no list of jobs")? {
        let text = |key: &str| job[key].as_str().unwrap_or_default().to_owned();
        counts.entry(text("id")).or_default().push(text("status"));
    }
    for id in ledger.accepted.keys() {
        let found = counts.get(id).map(Vec::as_slice).unwrap_or_default();
        ensure!(
            found == ["completed"],
            "{id} was accepted and is in the books as {found:?}: {}",
            front.get(&format!("/history/{id}")).unwrap_or_default()
        );
    }
    for (id, found) in &counts {
        let known = ledger.accepted.contains_key(id) || ledger.unsure.contains(id);
        ensure!(known, "{id} was never asked for, and is {found:?}");
        ensure!(found.len() == 1, "{id} is there {} times", found.len());
    }
    let mut files = BTreeSet::new();
    let mut connection = front.connect()?;
    for (id, number) in &ledger.accepted {
        let history = connection.get(&format!("/history/{id}"))?.json();
        let images = &history[id]["outputs"]["3"]["images"];
        let text = |key: &str| images[0][key].as_str().unwrap_or_default();
        let name = Path::new(text("subfolder")).join(text("filename"));
        ensure!(
            images.as_array().is_some_and(|all| all.len() == 1),
            "{id}: {images}"
        );
        ensure!(
            files.insert(name.clone()),
            "{}: two jobs have it",
            name.display()
        );
        let picture = picture::read_file(&front.base.join("output").join(&name))
            .with_context(|| format!("the picture of {id}"))?;
        let index: usize = id[1..2].parse().context("ids begin with their front")?;
        let wanted = opposite(colour(index, *number));
        let found = picture.pixels[..3]
            .iter()
            .fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
        ensure!(
            found == wanted,
            "{id} has the picture of another job: {found:06x}, not {wanted:06x}"
        );
    }
    Ok(())
}
