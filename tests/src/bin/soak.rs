//! `soak MINUTES`: many kinds of clients at once on the built server, for as long as it is told, and a look at what the
//! process holds meanwhile. It fails if memory, descriptors or threads grow, if a request fails that should not, or if the
//! books of the memory room do not match. `cargo xtask soak MINUTES` builds the program first.

#![expect(
    clippy::print_stdout,
    reason = "a driver reports to the person who started it"
)]

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use fresco_tests::{
    Connection, Frame, Server,
    chance::Chance,
    memory::{self, Flow, ROOMY, Room},
    server::program,
    socket::is_end,
    workflow::{self, TextToImage},
};
use serde_json::{Value, json};

/// Taken this often.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// What the process may hold more of at the end than after its warm-up, beside a share of what it held.
const RSS_SLACK: u64 = 24 << 20;
const DESCRIPTOR_SLACK: u64 = 12;
const THREAD_SLACK: u64 = 4;

/// What a worker needs: the server, when to stop, and where to count.
struct Site<'a> {
    server: &'a Server,
    stop: &'a AtomicBool,
    done: &'a AtomicU64,
}

/// One kind of client.
struct Worker {
    name: &'static str,
    /// One round of it; called until the time is over.
    round: fn(&Site<'_>, &mut Chance),
}

const WORKERS: &[Worker] = &[
    Worker {
        name: "pictures",
        round: pictures,
    },
    Worker {
        name: "models",
        round: models,
    },
    Worker {
        name: "interrupts",
        round: interrupts,
    },
    Worker {
        name: "frees",
        round: frees,
    },
    Worker {
        name: "sockets",
        round: sockets,
    },
    Worker {
        name: "mistakes",
        round: mistakes,
    },
];

fn main() -> Result<()> {
    let minutes = env::args().nth(1).context("usage: soak MINUTES")?;
    let minutes: f64 = minutes.parse().context("MINUTES must be a number")?;
    ensure!(minutes > 0.0, "MINUTES must be above 0");
    let time = Duration::from_secs_f64(minutes * 60.0);
    let seed = env::var_os("FRESCO_SEED").map_or_else(
        || Ok(Chance::seed()),
        |s| s.to_string_lossy().parse().context("FRESCO_SEED"),
    )?;
    println!(
        "soak: {} for {minutes} min, seed {seed}",
        program().display()
    );
    let base = memory::base();
    for name in ["second", "third"] {
        let whole = memory::add(
            base.path(),
            "checkpoints",
            "model",
            "model-of-another-inode",
        );
        // Another file to whoever knows weights by what was read: same bytes, another name and time.
        fs::copy(&whole, whole.with_file_name(format!("{name}.safetensors")))?;
        fs::remove_file(&whole)?;
    }
    let room = Room::at(base, ROOMY);
    let stop = AtomicBool::new(false);
    let counts: Vec<AtomicU64> = WORKERS.iter().map(|_| AtomicU64::new(0)).collect();
    let (samples, failures) = thread::scope(|scope| {
        let handles: Vec<_> = WORKERS
            .iter()
            .zip(&counts)
            .enumerate()
            .map(|(at, (worker, done))| {
                let site = Site {
                    server: &room.server,
                    stop: &stop,
                    done,
                };
                scope.spawn(move || work(worker, &site, seed.wrapping_add(at as u64)))
            })
            .collect();
        let samples = watch(room.server.pid(), time, &stop);
        stop.store(true, Ordering::Relaxed);
        let failures: Vec<&str> = handles
            .into_iter()
            .filter_map(|h| h.join().unwrap_or(Some("a thread")))
            .collect();
        (samples, failures)
    });
    let samples = samples?;
    for (worker, done) in WORKERS.iter().zip(&counts) {
        println!(
            "soak: {:<10} {:>7} rounds",
            worker.name,
            done.load(Ordering::Relaxed)
        );
    }
    if !failures.is_empty() {
        bail!(
            "{} stopped early; the program printed at its end:\n{}",
            failures.join(", "),
            tail(&room.server.log())
        );
    }
    settle(&room)?;
    judge(&samples)
}

/// Runs rounds until the time is over. The name of the worker, if one of them failed.
fn work(worker: &Worker, site: &Site<'_>, seed: u64) -> Option<&'static str> {
    let mut chance = Chance::new(seed);
    while !site.stop.load(Ordering::Relaxed) {
        let round = AssertUnwindSafe(|| (worker.round)(site, &mut chance));
        if catch_unwind(round).is_err() {
            site.stop.store(true, Ordering::Relaxed);
            return Some(worker.name);
        }
        site.done.fetch_add(1, Ordering::Relaxed);
    }
    None
}

/// How a prompt ended. Its entry is taken out of the history, so that a soak of an
/// hour has a history as long as one of a minute.
fn outcome(site: &Site<'_>, id: &str) -> Value {
    let entry = site.server.wait_for(id);
    let delete = json!({ "delete": [id] });
    site.server.post("/history", &delete).expect_status(200);
    entry
}

/// A pause that is no sleep of the program under test.
fn pause(most: u64, chance: &mut Chance) {
    thread::park_timeout(Duration::from_millis(1 + chance.below(most)));
}

/// Queues, listens to the end, looks at the history and fetches what was made.
fn pictures(site: &Site<'_>, chance: &mut Chance) {
    let client = format!("soak-{}", chance.below(20));
    let mut socket = site.server.socket(&client);
    for _ in 0..5 {
        let prompt = match chance.below(3) {
            0 => workflow::sized_picture(64 + 64 * chance.below(8) as u32, chance.draw(), "soak"),
            1 => workflow::chain(3 + chance.below(20) as usize, 64, chance.draw()),
            _ => workflow::picture(chance.draw(), "soak"),
        };
        let id = site.server.queue(&prompt, Some(&client));
        // Previews of others come to every socket.
        loop {
            match socket.frame() {
                Frame::Text(message, _) if is_end(&message, &id) => break,
                Frame::Closed => panic!("the server hung up"),
                _ => {}
            }
        }
        let entry = outcome(site, &id);
        assert_eq!(entry["status"]["status_str"], "success", "{entry}");
        for image in entry["outputs"]
            .as_object()
            .into_iter()
            .flatten()
            .flat_map(|(_, output)| output["images"].as_array().into_iter().flatten())
        {
            let word = |key: &str| image[key].as_str().unwrap_or_default().to_owned();
            let path = format!(
                "/view?filename={}&subfolder={}&type={}{}",
                word("filename"),
                word("subfolder"),
                word("type"),
                ["", "&preview=webp;80", "&channel=rgb"][chance.below(3) as usize],
            );
            let got = site.server.get(&path);
            got.expect_status(200);
        }
    }
    if chance.below(2) == 0 {
        socket.close();
    }
}

/// Draws with one of several checkpoints or with three files and a policy, so that weights come and go.
fn models(site: &Site<'_>, chance: &mut Chance) {
    let seed = chance.draw() >> 16;
    let prompt = if chance.below(2) == 0 {
        workflow::text_to_image(&TextToImage {
            checkpoint: [
                "model.safetensors",
                "second.safetensors",
                "third.safetensors",
            ][chance.below(3) as usize],
            seed,
            ..TextToImage::default()
        })
    } else {
        let mut policy = || Some(["auto", "keep", "eject_after"][chance.below(3) as usize]);
        let mut flow = Flow::default().seed(seed);
        flow.u.retention = policy();
        flow.c.retention = policy();
        flow.v.retention = policy();
        flow.lora = (chance.below(3) == 0).then_some(0.5);
        flow.prompt()
    };
    let id = site.server.queue(&prompt, None);
    let status = outcome(site, &id)["status"].clone();
    assert!(ended_well(&status), "{status}");
}

/// Success, or the interrupt that another worker sent to whatever was running.
fn ended_well(status: &Value) -> bool {
    status["status_str"] == "success" || status.to_string().contains("execution_interrupted")
}

/// Starts something long and interrupts it, by its id or whatever runs.
fn interrupts(site: &Site<'_>, chance: &mut Chance) {
    let prompt = workflow::text_to_image(&TextToImage {
        steps: 60,
        seed: chance.draw() >> 16,
        ..TextToImage::default()
    });
    let id = site.server.queue(&prompt, None);
    pause(400, chance);
    let body = json!({ "prompt_id": id });
    site.server.post("/interrupt", &body).expect_status(200);
    // One that had not begun goes on waiting: an interrupt is for what runs.
    let delete = json!({ "delete": [id] });
    site.server.post("/queue", &delete).expect_status(200);
    let mut connection = site.server.connect();
    loop {
        let queue = ask(&mut connection, "/queue");
        let there = |list: &str| {
            let list = queue[list].as_array().into_iter().flatten();
            list.clone().any(|entry| entry[1] == id)
        };
        if !there("queue_running") && !there("queue_pending") {
            break;
        }
        site.server.post("/interrupt", &body).expect_status(200);
        pause(20, chance);
    }
    pause(200, chance);
}

fn ask(connection: &mut Connection, path: &str) -> Value {
    let answer = connection.get(path).expect("the server answers");
    answer.expect_status(200).json()
}

/// The free buttons, and everything that reports.
fn frees(site: &Site<'_>, chance: &mut Chance) {
    let body = json!({"unload_models": chance.below(2) == 0, "free_memory": chance.below(4) == 0});
    site.server.post("/free", &body).expect_status(200);
    let mut connection = site.server.connect();
    for path in [
        "/memory",
        "/system_stats",
        "/api/jobs",
        "/object_info/KSampler",
        "/metrics",
    ] {
        let answer = connection.get(path).expect("the server answers");
        answer.expect_status(200);
    }
    pause(600, chance);
}

/// Sockets that come and go: politely, without a word, or after nonsense.
fn sockets(site: &Site<'_>, chance: &mut Chance) {
    let mut open = Vec::new();
    for at in 0..=chance.below(12) {
        let mut socket = site.server.socket(&format!("guest-{at}"));
        match chance.below(4) {
            0 => {
                socket
                    .send(r#"{"type":"feature_flags","data":{"supports_preview_metadata":true}}"#);
            }
            1 => socket.send("not JSON"),
            2 => socket.send_binary(&[0xFF; 300]),
            _ => {}
        }
        open.push(socket);
    }
    pause(300, chance);
    for socket in open {
        if chance.below(2) == 0 {
            socket.close();
        }
    }
}

/// Requests that are refused, and uploads that are not.
fn mistakes(site: &Site<'_>, chance: &mut Chance) {
    let wrong = [
        json!({"prompt": {}}),
        json!({"prompt": {"1": {"class_type": "Nothing", "inputs": {}}}}),
        json!({"prompt": {"1": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}}}}),
        json!({"prompt": {"1": {"class_type": "EmptyImage", "inputs": {"width": -1}}}}),
        json!([]),
    ];
    let body = &wrong[chance.below(wrong.len() as u64) as usize];
    let status = site.server.post("/prompt", body).status;
    assert!((400..500).contains(&status), "{status} for {body}");
    let missing = site.server.get("/view?filename=nothing.png");
    assert_eq!(missing.status, 404);
    let part = vec![b'x'; 1 + chance.below(200_000) as usize];
    let mut upload =
        b"--b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"soak.png\"\r\n\r\n"
            .to_vec();
    upload.extend(part);
    upload.extend(
        b"\r\n--b\r\nContent-Disposition: form-data; name=\"overwrite\"\r\n\r\ntrue\r\n--b--\r\n",
    );
    let headers = [("Content-Type", "multipart/form-data; boundary=b")];
    let got = site
        .server
        .request("POST", "/upload/image", &headers, &upload);
    got.expect_status(200);
    // One that fails while it runs.
    let failing = json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": "soak.png"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    });
    let id = site.server.queue(&failing, None);
    let entry = outcome(site, &id);
    assert_eq!(entry["status"]["status_str"], "error", "{entry}");
    pause(300, chance);
}

/// What the process holds at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    rss: u64,
    descriptors: u64,
    threads: u64,
}

fn sample(pid: u32) -> Result<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the server is gone")?;
    let number = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let word = line.and_then(|line| line.split_whitespace().next());
        Ok(word
            .with_context(|| format!("no {name} in status"))?
            .parse()?)
    };
    Ok(Sample {
        rss: number("VmRSS:")? << 10,
        threads: number("Threads:")?,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
    })
}

fn watch(pid: u32, time: Duration, stop: &AtomicBool) -> Result<Vec<Sample>> {
    let begun = Instant::now();
    let mut samples = Vec::new();
    let mut told = 0;
    while begun.elapsed() < time && !stop.load(Ordering::Relaxed) {
        let now = sample(pid)?;
        samples.push(now);
        let minutes = begun.elapsed().as_secs() / 60;
        if minutes > told {
            told = minutes;
            println!("soak: {minutes} min, {}", describe(now));
        }
        thread::park_timeout(SAMPLE_EVERY);
    }
    Ok(samples)
}

fn describe(sample: Sample) -> String {
    let Sample {
        rss,
        descriptors,
        threads,
    } = sample;
    format!(
        "{} MB, {descriptors} descriptors, {threads} threads",
        rss >> 20
    )
}

/// After everyone left: nothing runs, the books match, and no descriptor was forgotten.
fn settle(room: &Room) -> Result<()> {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let queue = room.server.get("/queue").expect_status(200).json();
        let idle = ["queue_running", "queue_pending"]
            .iter()
            .all(|list| queue[*list].as_array().is_some_and(Vec::is_empty));
        if idle {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "the queue never got empty: {queue}"
        );
        thread::park_timeout(Duration::from_millis(20));
    }
    room.checked();
    let body = json!({"unload_models": true, "free_memory": true});
    room.server.post("/free", &body).expect_status(200);
    // Connections that clients dropped are noticed soon after.
    loop {
        let now = sample(room.server.pid())?;
        if now.descriptors <= QUIET_DESCRIPTORS {
            println!("soak: at rest, {}", describe(now));
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{} descriptors are open with no client there",
            now.descriptors
        );
        thread::park_timeout(Duration::from_millis(50));
    }
}

/// Standard streams, the runtime, the listener, database files and the folders that are watched: more is a leak.
const QUIET_DESCRIPTORS: u64 = 40;

/// Compares what was held after the warm-up with what was held at the end.
fn judge(samples: &[Sample]) -> Result<()> {
    let count = samples.len();
    ensure!(count >= 20, "only {count} samples: the soak was too short");
    let early = &samples[count * 3 / 10..count * 5 / 10];
    let late = &samples[count * 8 / 10..];
    let mut problems = Vec::new();
    let mut compare = |name: &str, slack: u64, of: fn(&Sample) -> u64| {
        let (before, after) = (median(early, of), median(late, of));
        let most = before + before / 10 + slack;
        println!("soak: {name}: {before} after the warm-up, {after} at the end, at most {most}");
        if after > most {
            problems.push(name.to_owned());
        }
    };
    compare("memory", RSS_SLACK, |s| s.rss);
    compare("descriptors", DESCRIPTOR_SLACK, |s| s.descriptors);
    compare("threads", THREAD_SLACK, |s| s.threads);
    ensure!(problems.is_empty(), "grew: {}", problems.join(", "));
    println!("soak: nothing grew");
    Ok(())
}

fn median(samples: &[Sample], of: fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<u64> = samples.iter().map(of).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
