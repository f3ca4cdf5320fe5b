//! Kills the program at random moments under load: what was accepted is never lost, what was saved is whole.
//!
//! `FRESCO_CRASHES` sets the number of kills; `cargo xtask crash 200` is the long form.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a surprise is a failed test, and the seed must be seen"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fresco_tests::{
    Connection, Server, StartOptions,
    chance::Chance,
    picture,
    server::{free_port, spawn},
    workflow,
};
use serde_json::json;

/// Prompts a round may add; 200 rounds stay below the length of the history.
const PER_ROUND: u64 = 40;

/// What the client was told: id, and the place in the queue.
type Accepted = BTreeMap<String, f64>;

#[test]
fn nothing_accepted_is_lost() {
    let crashes: u64 = env::var_os("FRESCO_CRASHES").map_or(20, |count| {
        let count = count.to_string_lossy();
        count.parse().expect("FRESCO_CRASHES is a number")
    });
    let seed = Chance::seed();
    println!("seed {seed}, {crashes} kills");
    let mut chance = Chance::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut accepted = Accepted::new();
    for round in 0..crashes {
        if chance.below(8) == 0 {
            kill_while_starting(folder.path(), &mut chance);
        } else {
            kill_under_load(folder.path(), round, &mut chance, &mut accepted);
        }
    }
    let server = start(folder.path());
    check_kept(&server, &accepted);
    drain(&server);
    check_finished(&server, &accepted);
    println!("{} prompts accepted, all finished", accepted.len());
}

#[test]
fn a_prompt_that_takes_the_program_down_twice_is_held_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    // Long enough to be still running at each kill, on any machine.
    let long = workflow::chain(20_000, 256, 1);
    let body = json!({"prompt": long, "prompt_id": "deadly"});
    for attempt in 0..2 {
        let mut server = start(folder.path());
        if attempt == 0 {
            server.post("/prompt", &body).expect_status(200);
            let after = json!({"prompt": workflow::picture(1, "after"), "prompt_id": "after"});
            server.post("/prompt", &after).expect_status(200);
        }
        wait_until_running(&server, "deadly");
        if attempt == 0 {
            let front = json!({"prompt": workflow::picture(2, "after"), "prompt_id": "front", "front": true});
            server.post("/prompt", &front).expect_status(200);
        } else {
            // Tried again before all others, alone.
            assert!(
                server
                    .get("/history")
                    .json()
                    .as_object()
                    .unwrap()
                    .is_empty()
            );
        }
        server.kill();
    }
    let mut server = start(folder.path());
    for id in ["front", "after"] {
        assert_eq!(server.wait_for(id)["status"]["status_str"], "success");
    }
    let job = server.get("/api/jobs/deadly").expect_status(200).json();
    assert_eq!(
        (&job["status"], &job["held"]),
        (&json!("pending"), &json!(true))
    );
    let reason = job["held_reason"].as_str().unwrap();
    assert!(reason.contains("went down 2 times"), "{reason}");
    let outline = server.get("/fresco/queue").expect_status(200).json();
    assert_eq!(outline["held"], json!(["deadly"]));
    assert_eq!(outline["held_reasons"], json!({"deadly": reason}));
    let listed = server.get("/api/jobs?status=pending").json();
    assert_eq!(listed["jobs"][0]["held_reason"], reason);

    // Not lost: it can be released, and then it runs.
    let released = server.post("/fresco/queue", &json!({"release": ["deadly"]}));
    let released = released.expect_status(200).json();
    assert_eq!(
        (&released["held"], &released["held_reasons"]),
        (&json!([]), &json!(null))
    );
    wait_until_running(&server, "deadly");
    // An end that somebody asks for is nobody's fault: it waits as before, without being held.
    assert!(server.terminate().success());
    let server = start(folder.path());
    wait_until_running(&server, "deadly");
}

fn wait_until_running(server: &Server, id: &str) {
    let mut connection = server.connect();
    let deadline = Instant::now() + Duration::from_mins(1);
    while Instant::now() < deadline {
        let queue = connection.get("/queue").unwrap().json();
        if queue["queue_running"][0][1] == id {
            return;
        }
        thread::park_timeout(Duration::from_millis(3));
    }
    panic!("{id} never ran: {}", server.log());
}

fn start(base: &Path) -> Server {
    Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    })
}

/// A crash during recovery must not hurt what is being recovered.
fn kill_while_starting(base: &Path, chance: &mut Chance) {
    let mut child = spawn(base, free_port(), &StartOptions::default());
    pause(Duration::from_micros(chance.below(60_000)));
    child.kill().unwrap();
    child.wait().unwrap();
}

fn kill_under_load(base: &Path, round: u64, chance: &mut Chance, accepted: &mut Accepted) {
    let mut server = start(base);
    check_kept(&server, accepted);
    let (sender, answers) = mpsc::channel();
    let stop_after = 1 + chance.below(PER_ROUND);
    let address = server.address;
    let submitters: Vec<_> = (0..2)
        .map(|lane| {
            let sender = sender.clone();
            thread::spawn(move || {
                // Errors end the lane: the server has been killed under it, which is the point.
                let Ok(mut connection) = Connection::open(address) else {
                    return;
                };
                for index in 0..PER_ROUND / 2 {
                    let id = format!("r{round}-l{lane}-{index}");
                    let prompt = workflow::picture(
                        round * PER_ROUND + lane * 20 + index,
                        &format!("crash/{id}"),
                    );
                    let body = json!({"prompt": prompt, "prompt_id": id});
                    match connection.post("/prompt", &body) {
                        Ok(answer) if answer.status == 200 => {
                            if sender.send((id, answer.json())).is_err() {
                                return;
                            }
                        }
                        Ok(answer) => panic!("refused: {} {}", answer.status, answer.text()),
                        Err(_) => return,
                    }
                }
            })
        })
        .collect();
    drop(sender);
    let mut count = 0;
    while count < stop_after {
        match answers.recv() {
            Ok((id, answer)) => {
                accepted.insert(id, answer["number"].as_f64().unwrap());
                count += 1;
            }
            Err(_) => break,
        }
    }
    pause(Duration::from_micros(chance.below(15_000)));
    server.kill();
    // Answers that were on their way count: the client did get them.
    for (id, answer) in answers {
        accepted.insert(id, answer["number"].as_f64().unwrap());
    }
    for submitter in submitters {
        submitter.join().unwrap();
    }
}

/// Spins to the moment of the kill; the moment is the random input here, not something waited for.
fn pause(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        thread::yield_now();
    }
}

/// Every accepted prompt is queued or finished, once, and the queue is in the order of acceptance.
fn check_kept(server: &Server, accepted: &Accepted) {
    // The queue first: a prompt that finishes in between is then seen twice rather than never.
    let queue = server.get("/queue").expect_status(200).json();
    let history = server.get("/history").expect_status(200).json();
    let finished: BTreeSet<&str> = history
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let waiting: Vec<(f64, &str)> = ["queue_running", "queue_pending"]
        .iter()
        .flat_map(|key| queue[key].as_array().unwrap())
        .map(|item| (item[0].as_f64().unwrap(), item[1].as_str().unwrap()))
        .collect();
    let queued: BTreeSet<&str> = waiting.iter().map(|(_, id)| *id).collect();
    assert_eq!(queued.len(), waiting.len(), "a prompt is queued twice");
    for (id, number) in accepted {
        assert!(
            finished.contains(id.as_str()) || queued.contains(id.as_str()),
            "{id} (number {number}) was accepted and is gone"
        );
    }
    // What two kills hit waits for a release, and others pass it.
    let held = server.get("/fresco/queue").expect_status(200).json();
    let held = held["held"].as_array().unwrap();
    let in_line: Vec<_> = waiting
        .iter()
        .filter(|(_, id)| !held.iter().any(|held| held == id))
        .collect();
    assert!(
        in_line.windows(2).all(|pair| pair[0].0 <= pair[1].0),
        "the queue is out of order: {waiting:?}"
    );
    for (number, id) in &waiting {
        if let Some(told) = accepted.get(*id) {
            assert_eq!(told, number, "{id} changed its place");
        }
    }
}

/// Waits until the queue is empty, told by the server itself. Prompts that two kills hit are held; they are released.
fn drain(server: &Server) {
    let held = server.get("/fresco/queue").expect_status(200).json();
    let release = json!({"release": held["held"]});
    server.post("/fresco/queue", &release).expect_status(200);
    let mut socket = server.socket("crash-test");
    socket.until(|message| message["data"]["status"]["exec_info"]["queue_remaining"] == json!(0));
}

fn check_finished(server: &Server, accepted: &Accepted) {
    let history = server.get("/history").expect_status(200).json();
    let history = history.as_object().unwrap();
    let output = server.base.join("output");
    for id in accepted.keys() {
        let entry = &history[id.as_str()];
        assert_eq!(entry["status"]["status_str"], "success", "{id}: {entry}");
        let images = entry["outputs"]["3"]["images"].as_array().unwrap();
        assert_eq!(images.len(), 1, "{id}");
        let path = output
            .join(images[0]["subfolder"].as_str().unwrap())
            .join(images[0]["filename"].as_str().unwrap());
        assert!(path.is_file(), "{id}: {} is missing", path.display());
    }
    check_once(server, accepted);
    let mut pictures = 0;
    for entry in fs::read_dir(output.join("crash")).unwrap() {
        let path = entry.unwrap().path();
        // Unfinished files have another name, are never listed, and go with a later start.
        if path.extension().is_none_or(|extension| extension != "png") {
            continue;
        }
        let picture = picture::read_file(&path).unwrap();
        assert_eq!(
            (picture.width, picture.height),
            (64, 64),
            "{}",
            path.display()
        );
        pictures += 1;
    }
    println!("{pictures} pictures, all whole");
}

/// The history is an object, which would hide a second entry of the same id; the list of jobs would not.
fn check_once(server: &Server, accepted: &Accepted) {
    let jobs = server
        .get("/api/jobs?status=completed,failed&limit=100000")
        .expect_status(200)
        .json();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for job in jobs["jobs"].as_array().unwrap() {
        *counts.entry(job["id"].as_str().unwrap()).or_default() += 1;
    }
    for id in accepted.keys() {
        assert_eq!(counts.get(id.as_str()), Some(&1), "{id}");
    }
}
