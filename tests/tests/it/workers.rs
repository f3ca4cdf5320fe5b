//! `--workers`: several prompts at once in one program, each worker with devices and models of its own.

use std::{thread, time::Duration};

use fresco_tests::{
    Server, StartOptions,
    memory::{Flow, ROOMY, Room, id, on},
    server::run_program,
    socket::is_end,
    workflow,
};
use serde_json::{Value, json};

/// Two workers, one on each device.
fn two() -> Vec<&'static str> {
    let mut arguments = ROOMY.to_vec();
    arguments.extend(["--workers", "sim:0", "sim:1"]);
    arguments
}

/// Minutes of work that can be interrupted.
fn long(width: u32) -> Value {
    json!({
        "1": {"class_type": "SolidMask", "inputs": {"value": 0.0, "width": width, "height": 4096}},
        "2": {"class_type": "SolidMask", "inputs": {"value": 1.0, "width": 8, "height": 8}},
        "3": {"class_type": "MaskComposite", "inputs": {
            "destination": ["1", 0], "source": ["2", 0], "x": 0, "y": 0, "operation": "add"}},
        "4": {"class_type": "GrowMask", "inputs": {
            "mask": ["3", 0], "expand": 8000, "tapered_corners": true}},
        "5": {"class_type": "MaskToImage", "inputs": {"mask": ["4", 0]}},
        "6": {"class_type": "PreviewImage", "inputs": {"images": ["5", 0]}},
    })
}

fn running(server: &Server) -> Vec<String> {
    let queue = server.get("/queue").json();
    let entries = queue["queue_running"].as_array().unwrap();
    entries
        .iter()
        .map(|entry| entry[1].as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn until(server: &Server, what: &str, test: impl Fn() -> bool) {
    for _ in 0..5000 {
        if test() {
            return;
        }
        thread::park_timeout(Duration::from_millis(4));
    }
    panic!("waited in vain for {what}:\n{}", server.log());
}

#[test]
fn two_prompts_run_at_once_and_each_is_stopped_alone() {
    let server = Server::with(&two());
    let mut sockets = ["one", "two"].map(|client| server.socket(client));
    let ids = [
        server.queue(&long(4095), Some("one")),
        server.queue(&long(4096), Some("two")),
    ];
    for socket in &mut sockets {
        socket.until(|message| message["type"] == "executing" && message["data"]["node"] == "4");
    }
    let mut both = running(&server);
    both.sort();
    let mut wanted = ids.to_vec();
    wanted.sort();
    assert_eq!(both, wanted, "queue_running has both");
    server
        .post("/interrupt", &json!({"prompt_id": ids[0]}))
        .expect_status(200);
    let messages = sockets[0].until(|message| is_end(message, &ids[0]));
    assert!(
        messages
            .iter()
            .any(|m| m["type"] == "execution_interrupted")
    );
    assert!(
        messages
            .iter()
            .all(|m| m["data"]["prompt_id"] != json!(ids[1])),
        "a client hears of its own prompt only: {messages:?}"
    );
    assert_eq!(running(&server), [ids[1].clone()], "the other one goes on");
    // Whoever is free takes the next one.
    let small = server.queue(&workflow::picture(3, "beside"), Some("one"));
    assert_eq!(server.wait_for(&small)["status"]["status_str"], "success");
    assert_eq!(running(&server), [ids[1].clone()]);
    server.post("/interrupt", &json!({})).expect_status(200);
    sockets[1].until(|message| is_end(message, &ids[1]));
    until(&server, "an empty queue", || running(&server).is_empty());
}

#[test]
fn a_prompt_goes_where_its_weights_are_and_memory_shows_all_workers() {
    let room = Room::with(&two());
    // Plain loaders: wherever it runs.
    let flow = |seed| {
        let mut flow = Flow::default().seed(seed);
        for part in [&mut flow.u, &mut flow.c, &mut flow.v] {
            part.plain = true;
        }
        flow.prompt()
    };
    room.ok(&flow(1));
    let first = room.model("diffusion");
    let home = first["worker"].as_str().unwrap().to_owned();
    assert!(["sim:0", "sim:1"].contains(&home.as_str()), "{first}");
    assert!(on(&first, &home) > 0, "{first}");
    for seed in 2..7 {
        room.ok(&flow(seed));
    }
    // The other worker was idle all the time, and never loaded anything.
    let workers: Vec<String> = room
        .models()
        .iter()
        .map(|model| model["worker"].as_str().unwrap().to_owned())
        .collect();
    assert!(workers.iter().all(|worker| *worker == home), "{workers:?}");
    let devices = room.get("/memory/devices");
    let names: Vec<&str> = devices
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["device"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["cpu", "sim:0", "sim:1"]);
    // Policies hold at the worker that has the model; another one does not know it.
    let answer = room.about(
        "PATCH",
        id(&first),
        &format!("?worker={home}"),
        &json!({"policy": "keep"}),
    );
    assert_eq!(answer.expect_status(200).json()["effective_policy"], "keep");
    let other = if home == "sim:0" { "sim:1" } else { "sim:0" };
    room.about(
        "PATCH",
        id(&first),
        &format!("?worker={other}"),
        &json!({"policy": "keep"}),
    )
    .expect_status(404);
    room.about(
        "PATCH",
        id(&first),
        "?worker=nobody",
        &json!({"policy": "keep"}),
    )
    .expect_status(400);
    let events = room.events(0);
    let numbers: Vec<u64> = events.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert!(
        numbers.is_sorted_by(|a, b| a < b),
        "one order of events: {numbers:?}"
    );
    room.checked();
}

#[test]
fn a_prompt_that_names_a_device_runs_on_the_worker_that_has_it() {
    let room = Room::with(&two());
    for device in ["sim:1", "sim:0", "sim:1"] {
        let mut flow = Flow::default();
        for part in [&mut flow.u, &mut flow.c, &mut flow.v] {
            part.device = device;
        }
        room.ok(&flow.prompt());
        let models = room.models();
        let there = models.iter().filter(|model| on(model, device) > 0);
        assert_eq!(there.count(), 3, "{models:?}");
    }
}

#[test]
fn a_worker_that_cannot_be_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, wanted) in [
        (vec!["--workers", "sim:0", "sim:5"], "unknown device sim:5"),
        (vec!["--workers", "sim:0", "sim:0"], "named twice"),
        (vec!["--workers", "sim:0+cpu"], "name cpu alone"),
    ] {
        let mut all = vec!["serve", "--quick-test-for-ci", "--base-directory"];
        all.push(folder.path().to_str().unwrap());
        all.extend(["--sim-device", "sim:0=64MiB"]);
        all.extend(arguments);
        let (status, _, errors) = run_program(&all, folder.path());
        assert!(!status.success(), "{all:?}");
        assert!(errors.contains(wanted), "{errors}");
    }
}

/// Killed while two run: both are tried again, one after the other, and neither is blamed for the other.
#[test]
fn a_crash_with_two_running_prompts_loses_neither() {
    let folder = tempfile::tempdir().unwrap();
    let options = || StartOptions {
        arguments: two(),
        base: Some(folder.path()),
        ..StartOptions::default()
    };
    let mut server = Server::start_with(options());
    let ids = [
        server.queue(&long(4095), None),
        server.queue(&long(4096), None),
    ];
    until(&server, "both to run", || running(&server).len() == 2);
    let third = server.queue(&workflow::picture(5, "third"), None);
    server.kill();
    let server = Server::start_with(options());
    until(&server, "one of them to run", || {
        running(&server).len() == 1
    });
    let first = running(&server).remove(0);
    assert!(ids.contains(&first));
    // Nothing runs beside a prompt that may have taken the program down.
    assert_eq!(server.get(&format!("/history/{third}")).json(), json!({}));
    server
        .post("/interrupt", &json!({"prompt_id": first}))
        .expect_status(200);
    until(&server, "the other one to run", || {
        let now = running(&server);
        now.len() == 1 && now[0] != first
    });
    server.post("/interrupt", &json!({})).expect_status(200);
    assert_eq!(server.wait_for(&third)["status"]["status_str"], "success");
    for id in ids {
        server.wait_for(&id);
    }
}

/// Told to stop with `--drain`: what runs ends, nothing else begins, and probes are told.
#[test]
#[cfg(unix)]
fn what_runs_comes_to_its_end_when_the_program_is_told_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let options = |more: &[&'static str]| {
        let mut arguments = two();
        arguments.extend(more);
        StartOptions {
            arguments,
            base: Some(folder.path()),
            ..StartOptions::default()
        }
    };
    let mut server = Server::start_with(options(&["--drain", "120"]));
    let mut socket = server.socket("me");
    assert_eq!(
        server.get("/api/health?ready=1").expect_status(200).json()["status"],
        "ok"
    );
    let ids = [
        server.queue(&long(4095), Some("me")),
        server.queue(&long(4096), Some("me")),
    ];
    until(&server, "both to run", || running(&server).len() == 2);
    let waits = server.queue(&workflow::picture(9, "later"), Some("me"));
    let told = std::process::Command::new("kill")
        .args(["-TERM", &server.pid().to_string()])
        .status();
    assert!(told.unwrap().success());
    until(&server, "the probe to say no", || {
        server.get("/api/health?ready=1").status == 503
    });
    assert_eq!(
        server.get("/api/health").expect_status(200).json()["status"],
        "draining"
    );
    assert_eq!(running(&server).len(), 2, "both go on");
    for id in &ids {
        server
            .post("/interrupt", &json!({"prompt_id": id}))
            .expect_status(200);
        socket.until(|message| is_end(message, id));
    }
    until_ended(&mut server);
    until(&server, "its last words", || {
        server.log().contains("nothing runs any more")
    });
    drop(server);
    let server = Server::start_with(options(&[]));
    assert_eq!(server.wait_for(&waits)["status"]["status_str"], "success");
}

#[cfg(unix)]
#[track_caller]
fn until_ended(server: &mut Server) {
    for _ in 0..5000 {
        if let Some(status) = server.ended() {
            assert!(status.success(), "{status}: {}", server.log());
            return;
        }
        thread::park_timeout(Duration::from_millis(4));
    }
    panic!("the program did not end:\n{}", server.log());
}
