//! `/fresco/queue`: pausing, holding and ordering what waits, through restarts; and `/fresco/outputs/delete`.

use std::fs;
use std::thread;

use fresco_tests::{Server, StartOptions, workflow};
use serde_json::{Value, json};

const PATH: &str = "/fresco/queue";

fn queue(server: &Server, id: &str) {
    let body = json!({"prompt": workflow::smallest(id.len() as u64, id), "prompt_id": id});
    server.post("/prompt", &body).expect_status(200);
}

fn change(server: &Server, body: &Value) -> Value {
    server.post(PATH, body).expect_status(200).json()
}

fn state(server: &Server) -> Value {
    server.get(PATH).expect_status(200).json()
}

/// Ids in the order in which they ended.
fn ended(server: &Server) -> Vec<String> {
    let history = server.get("/history").expect_status(200).json();
    history.as_object().unwrap().keys().cloned().collect()
}

fn pending(server: &Server) -> Vec<String> {
    let queue = server.get("/queue").expect_status(200).json();
    let pending = queue["queue_pending"].as_array().unwrap();
    pending
        .iter()
        .map(|item| item[1].as_str().unwrap().to_owned())
        .collect()
}

fn job(server: &Server, id: &str) -> Value {
    server
        .get(&format!("/api/jobs/{id}"))
        .expect_status(200)
        .json()
}

#[test]
fn a_paused_queue_accepts_and_waits() {
    let server = Server::start();
    let idle = json!({"paused": false, "order": [], "held": []});
    assert_eq!(state(&server), idle);
    let paused = change(&server, &json!({"paused": true}));
    assert_eq!(paused, json!({"paused": true, "order": [], "held": []}));
    for id in ["a", "b", "c"] {
        queue(&server, id);
    }
    // What runs is handed out when it is accepted or never; nothing was.
    assert_eq!(state(&server)["order"], json!(["a", "b", "c"]));
    assert!(ended(&server).is_empty());
    assert_eq!(job(&server, "a")["status"], "pending");
    assert_eq!(
        server.get("/prompt").json()["exec_info"]["queue_remaining"],
        3
    );
    // Twice the same is no mistake.
    change(&server, &json!({"paused": true}));
    assert_eq!(change(&server, &json!({"paused": false}))["paused"], false);
    server.wait_for("c");
    assert_eq!(ended(&server), ["a", "b", "c"]);
    assert_eq!(state(&server), idle);
}

#[test]
fn order_pause_and_holds_survive_a_power_cut() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        Server::start_with(StartOptions {
            base: Some(folder.path()),
            ..StartOptions::default()
        })
    };
    let mut server = start();
    change(&server, &json!({"paused": true}));
    for id in ["a", "b", "c", "d"] {
        queue(&server, id);
    }
    let wanted = json!({"order": ["d", "b"], "hold": ["b", "a"], "release": ["a"]});
    let there = json!({"paused": true, "order": ["d", "b", "a", "c"], "held": ["b"]});
    assert_eq!(change(&server, &wanted), there);
    assert_eq!(pending(&server), ["d", "b", "a", "c"]);
    server.kill();
    let mut server = {
        drop(server);
        start()
    };
    assert_eq!(state(&server), there);
    assert_eq!(job(&server, "b")["held"], true);
    assert_eq!(job(&server, "a")["held"], Value::Null);
    let list = server.get("/api/jobs?limit=10").json();
    let held: Vec<&Value> = list["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|j| j["held"] == true)
        .map(|j| &j["id"])
        .collect();
    assert_eq!(held, [&json!("b")]);
    // New ones still go to the end and to the front.
    queue(&server, "e");
    let body = json!({"prompt": workflow::smallest(3, "f"), "prompt_id": "f", "front": true});
    server.post("/prompt", &body).expect_status(200);
    assert_eq!(pending(&server), ["f", "d", "b", "a", "c", "e"]);
    assert!(server.terminate().success());
    drop(server);
    let server = start();
    change(&server, &json!({"paused": false}));
    server.wait_for("e");
    assert_eq!(ended(&server), ["f", "d", "a", "c", "e"]);
    change(&server, &json!({"release": ["b"]}));
    server.wait_for("b");
    assert_eq!(job(&server, "b")["status"], "completed");
    assert_eq!(job(&server, "b")["held"], Value::Null);
}

#[test]
fn the_queue_is_ordered_while_a_prompt_runs() {
    let server = Server::start();
    let mut socket = server.socket("watch");
    let running = server.queue(&workflow::chain(3000, 256, 4), Some("watch"));
    socket.until(|m| m["type"] == "executing" && m["data"]["node"] == "3");
    for id in ["a", "b", "c"] {
        queue(&server, id);
    }
    // The running one and one that never was are passed over, and so is a second mention.
    let wanted = json!({"order": [running, "c", "nobody", "b", "c"]});
    assert_eq!(
        change(&server, &wanted)["order"],
        json!(["c", "b", "a"]),
        "{running}"
    );
    change(&server, &json!({"hold": [running, "nobody"]}));
    assert_eq!(state(&server)["held"], json!([]));
    let stop = json!({"prompt_id": running});
    server.post("/interrupt", &stop).expect_status(200);
    server.wait_for("a");
    assert_eq!(ended(&server), [running.as_str(), "c", "b", "a"]);
}

#[test]
fn a_held_prompt_can_be_cancelled_deleted_and_cleared() {
    let server = Server::start();
    change(&server, &json!({"paused": true}));
    for id in ["a", "b", "c", "d"] {
        queue(&server, id);
    }
    change(&server, &json!({"hold": ["a", "b", "c"]}));
    change(&server, &json!({"paused": false}));
    server.wait_for("d");
    let answer = server.post("/api/jobs/a/cancel", &json!({}));
    assert_eq!(answer.expect_status(200).json()["cancelled"], true);
    assert_eq!(job(&server, "a")["status"], "cancelled");
    assert_eq!(job(&server, "a")["held"], Value::Null);
    server
        .post("/queue", &json!({"delete": ["b"]}))
        .expect_status(200);
    assert_eq!(state(&server)["order"], json!(["c"]));
    server
        .post("/queue", &json!({"clear": true}))
        .expect_status(200);
    let idle = json!({"paused": false, "order": [], "held": []});
    assert_eq!(state(&server), idle);
    // The id may come again, and is not held then.
    queue(&server, "c");
    server.wait_for("c");
}

#[test]
fn sockets_that_ask_for_it_are_told() {
    let server = Server::start();
    let mut asking = server.socket("asking");
    let mut quiet = server.socket("quiet");
    for (socket, flag) in [(&mut asking, "true"), (&mut quiet, "1")] {
        socket.until(|m| m["type"] == "status");
        let text =
            format!(r#"{{"type": "feature_flags", "data": {{"supports_fresco_events": {flag}}}}}"#);
        socket.send(&text);
        let reply = socket.message();
        assert_eq!(reply["data"]["supports_fresco_events"], true);
    }
    change(&server, &json!({"paused": true}));
    change(&server, &json!({"paused": false, "order": ["x"]}));
    let kinds = |socket: &mut fresco_tests::Socket, count: usize| {
        let messages: Vec<Value> = (0..count).map(|_| socket.message()).collect();
        messages
    };
    let told: Vec<Value> = kinds(&mut asking, 4)
        .into_iter()
        .filter(|m| m["type"] == "fresco_queue")
        .map(|m| m["data"].clone())
        .collect();
    assert_eq!(told, [json!({"paused": true}), json!({"paused": false})]);
    for message in kinds(&mut quiet, 2) {
        assert_eq!(message["type"], "status");
    }
}

#[test]
fn wishes_that_make_no_sense_change_nothing() {
    let server = Server::start();
    change(&server, &json!({"paused": true}));
    queue(&server, "a");
    queue(&server, "b");
    for bad in [
        json!({}),
        json!([]),
        json!(null),
        json!({"paused": 1}),
        json!({"paused": "true"}),
        json!({"paused": false, "order": "a"}),
        json!({"order": ["b", 7]}),
        json!({"hold": {"a": true}}),
        json!({"release": null}),
        json!({"order": ["b"], "pause": true}),
    ] {
        let error = server.post(PATH, &bad).expect_status(400).json();
        assert_eq!(error["error"]["type"], "invalid_queue_change", "{bad}");
        let there = json!({"paused": true, "order": ["a", "b"], "held": []});
        assert_eq!(state(&server), there, "{bad}");
    }
    assert_eq!(server.request("POST", PATH, &[], b"{").status, 400);
    // Foreign pages have no say.
    let evil = [("Origin", "http://evil.example")];
    let answer = server.request("POST", PATH, &evil, br#"{"paused":false}"#);
    assert_eq!(answer.status, 403);
    assert_eq!(state(&server)["paused"], true);
}

#[test]
fn long_lists_are_read_once_or_refused() {
    let server = Server::start();
    change(&server, &json!({"paused": true}));
    for id in ["a", "b"] {
        queue(&server, id);
    }
    // The same again and again is the same.
    let again = vec!["b"; 300_000];
    let there = change(&server, &json!({"order": again, "hold": again}));
    assert_eq!(there["order"], json!(["b", "a"]));
    assert_eq!(there["held"], json!(["b"]));
    // More than can wait is a mistake, and changes nothing.
    let many: Vec<String> = (0..100_001).map(|n| n.to_string()).collect();
    for key in ["order", "hold", "release"] {
        let body = json!({"paused": false, key: many});
        let error = server.post(PATH, &body).expect_status(400).json();
        assert_eq!(error["error"]["type"], "invalid_queue_change");
    }
    assert_eq!(state(&server), there);
}

#[test]
fn many_at_once_lose_nothing() {
    let server = Server::start();
    change(&server, &json!({"paused": true}));
    let ids: Vec<String> = (0..24).map(|n| format!("job-{n}")).collect();
    thread::scope(|scope| {
        for part in ids.chunks(6) {
            let server = &server;
            let ids = &ids;
            scope.spawn(move || {
                for id in part {
                    queue(server, id);
                    change(server, &json!({"order": [id]}));
                    change(server, &json!({"hold": ids}));
                    change(server, &json!({"release": ids}));
                }
            });
        }
    });
    let there = state(&server);
    let mut order = pending(&server);
    assert_eq!(there["order"], json!(order));
    assert_eq!(there["held"], json!([]));
    change(&server, &json!({"paused": false}));
    for id in &ids {
        server.wait_for(id);
    }
    assert_eq!(ended(&server), order);
    order.sort_unstable();
    let mut all = ids.clone();
    all.sort_unstable();
    assert_eq!(order, all);
}

#[test]
fn files_are_deleted_inside_their_folders_only() {
    let server = Server::start();
    let output = server.base.join("output");
    fs::create_dir_all(output.join("sub")).unwrap();
    fs::create_dir_all(server.base.join("input")).unwrap();
    fs::write(server.base.join("secret.png"), "x").unwrap();
    fs::write(output.join("a.png"), "x").unwrap();
    fs::write(output.join("sub/b.png"), "x").unwrap();
    fs::write(output.join("sub/stays.png"), "x").unwrap();
    fs::write(server.base.join("input/c.png"), "x").unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(server.base.join("secret.png"), output.join("link.png"))
            .unwrap();
        std::os::unix::fs::symlink(&server.base, output.join("up")).unwrap();
    }
    let file = |name: &str, sub: &str, kind: &str| json!({"filename": name, "subfolder": sub, "type": kind});
    let good = [
        file("a.png", "", "output"),
        file("b.png", "sub", "output"),
        file("c.png", "", "input"),
    ];
    let bad = [
        file("a.png", "", "output"),
        file("gone.png", "", "temp"),
        file("secret.png", "..", "output"),
        file("../secret.png", "", "output"),
        file("sub/stays.png", "", "output"),
        file("..\\secret.png", "", "output"),
        file("secret.png", "up", "output"),
        file("link.png", "", "output"),
        file("sub", "", "output"),
        file("", "", "output"),
        file("..", "", "output"),
        file("a\u{0}.png", "", "output"),
        file("/etc/passwd", "", "output"),
        file("passwd", "/etc", "output"),
    ];
    let all: Vec<&Value> = good.iter().chain(&bad).collect();
    let answer = server.post("/fresco/outputs/delete", &json!({"files": all}));
    let answer = answer.expect_status(200).json();
    assert_eq!(answer["deleted"], json!(good));
    let failed = answer["failed"].as_array().unwrap();
    let named: Vec<&Value> = failed.iter().map(|f| &f["file"]).collect();
    assert_eq!(named, bad.iter().collect::<Vec<_>>());
    for entry in failed {
        let reason = entry["reason"].as_str().unwrap();
        let root = server.base.to_string_lossy();
        assert!(!reason.is_empty() && !reason.contains(&*root), "{reason}");
    }
    assert_eq!(failed[0]["reason"], "there is no such file");
    assert!(server.base.join("secret.png").is_file());
    assert!(output.join("sub/stays.png").is_file());
    assert!(!output.join("a.png").exists() && !output.join("sub/b.png").exists());
    // What is not understood deletes nothing, not even what was.
    let stays = file("stays.png", "sub", "output");
    for bad in [
        json!({}),
        json!({"files": {}}),
        json!({"files": [stays, 7]}),
        json!({"files": [stays, file("x", "", "models")]}),
        json!({"files": [stays, {"filename": "x"}]}),
        json!({"files": [stays, {"filename": 7, "type": "output"}]}),
        json!({"files": [stays, {"type": "output"}]}),
    ] {
        let error = server.post("/fresco/outputs/delete", &bad);
        assert_eq!(
            error.expect_status(400).json()["error"]["type"],
            "invalid_deletion"
        );
    }
    assert!(output.join("sub/stays.png").is_file());
}
