//! Packs that misbehave, one way after the other: each is named in the log, at `/api/packs` and on the node, and all else
//! goes on.

use super::*;

fn hostile(how: &str) -> Value {
    json!({"9": node("Hostile", json!({"how": how}))})
}

fn add() -> Value {
    json!({"1": node("PackAdd", json!({"a": 1, "b": 2})), "9": show(json!(["1", 1]))})
}

#[test]
fn ends_of_every_kind_are_named_everywhere() {
    let Some(rig) = Rig::start(&["plain", "hostile"], &[]) else {
        return;
    };
    for (number, (how, word)) in [
        ("close", "code 0"),
        ("fork_and_die", "SIGSEGV"),
        ("exit", "code 3"),
        ("garbage", "impossible length"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = rig.error(&hostile(how));
        assert_eq!(error["exception_type"], "fresco.WorkerDied", "{error}");
        let message = error["exception_message"].as_str().unwrap();
        assert!(
            message.contains(word) && message.contains("custom_nodes.hostile"),
            "{how}: {message}"
        );
        // Not what another pack wrote before it.
        assert!(!message.contains("showing"), "{how}: {message}");
        let pack = rig.pack("hostile");
        assert_eq!(pack["ends"], number + 1, "{how}: {pack}");
        assert!(pack["last_end"].as_str().unwrap().contains(word), "{pack}");
        assert_eq!(rig.pack("plain")["ends"], 0);
        // A native prompt runs while the process is away, one of the other pack when it is back.
        let id = rig
            .server
            .queue(&fresco_tests::workflow::picture(1, "native"), None);
        assert_eq!(rig.server.wait_for(&id)["status"]["status_str"], "success");
        rig.server
            .post("/fresco/packs/restart", &json!({}))
            .expect_status(200);
        assert_eq!(text_of(&rig.shown(&add())), "1 2.0", "{how}");
    }
    let log = rig.server.log();
    let named = "ended while it ran Hostile of custom_nodes.hostile";
    assert!(log.matches(named).count() >= 4, "{log}");
}

#[test]
fn what_does_not_end_the_process() {
    let Some(rig) = Rig::start(&["plain", "hostile"], &[]) else {
        return;
    };
    let process = || rig.server.get("/api/packs").json()["process"].clone();
    let before = process();
    // Both halves of a process give back a result; that of the copy is not heard.
    assert_eq!(
        rig.shown(&hostile("fork_and_answer"))["text"],
        json!(["first"])
    );
    assert_eq!(rig.shown(&hostile("threads"))["text"], json!(["started"]));
    // A value deeper than any message stays where it is.
    rig.run(&hostile("deep"));
    assert_eq!(text_of(&rig.shown(&add())), "1 2.0");
    assert_eq!(process(), before);
    assert_eq!(rig.pack("hostile")["ends"], 0);
}

#[test]
fn a_node_that_prints_for_ever_is_interrupted_and_cut() {
    let Some(rig) = Rig::start(&["plain", "hostile"], &[]) else {
        return;
    };
    let mut socket = rig.server.socket("watcher");
    let id = rig.server.queue(&hostile("print_forever"), Some("watcher"));
    socket.until(|m| m["type"] == "hostile.began");
    while !rig.server.log().contains("[hostile] writes more than 1 MB") {
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let began = Instant::now();
    rig.server.post("/interrupt", &json!({})).expect_status(200);
    let entry = rig.server.wait_for(&id);
    let took = began.elapsed();
    assert!(
        entry.to_string().contains("execution_interrupted"),
        "{entry}"
    );
    assert!(took < HEEDED, "{took:?}");
    assert_eq!(text_of(&rig.shown(&add())), "1 2.0");
}

#[test]
fn a_node_that_does_not_heed_the_interrupt_is_named() {
    let Some(rig) = Rig::start(&["plain", "hostile"], &[]) else {
        return;
    };
    let process = || rig.server.get("/api/packs").json()["process"].clone();
    let before = process();
    let mut socket = rig.server.socket("watcher");
    let id = rig.server.queue(&hostile("sleep"), Some("watcher"));
    socket.until(|m| m["type"] == "hostile.began");
    rig.server.post("/interrupt", &json!({})).expect_status(200);
    let entry = rig.server.wait_for(&id);
    assert!(
        entry.to_string().contains("execution_interrupted"),
        "{entry}"
    );
    // After the time of grace the process is a fresh one.
    let began = Instant::now();
    while process() == before || rig.pack("hostile")["state"] != "loaded" {
        assert!(
            began.elapsed() < Duration::from_mins(1),
            "{}",
            rig.server.log()
        );
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let pack = rig.pack("hostile");
    assert!(
        pack["last_end"].as_str().unwrap().contains("heed"),
        "{pack}"
    );
    let log = rig.server.log();
    assert!(
        log.contains("Hostile of custom_nodes.hostile ignores the interrupt"),
        "{log}"
    );
    assert_eq!(text_of(&rig.shown(&add())), "1 2.0");
}

#[test]
fn a_pack_for_another_python_says_which() {
    let Some(rig) = Rig::start(&["plain", "newer_python", "nothing"], &[]) else {
        return;
    };
    let pack = rig.pack("newer_python");
    assert_eq!(pack["state"], "failed");
    let error = pack["error"].as_str().unwrap();
    assert!(
        error.contains("SyntaxError") && error.contains("needs Python >=3.99"),
        "{error}"
    );
    assert!(
        rig.server
            .log()
            .contains("[newer_python] cannot be imported")
    );
    // What a pack without nodes has for the page is served all the same.
    assert_eq!(rig.pack("nothing")["state"], "failed");
    let extensions = rig.server.get("/extensions").json();
    let script = "/extensions/nothing/nothing.js";
    assert!(
        extensions.as_array().unwrap().contains(&json!(script)),
        "{extensions}"
    );
    rig.server.get(script).expect_status(200);
    assert_eq!(text_of(&rig.shown(&add())), "1 2.0");
}
