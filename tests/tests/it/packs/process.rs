//! The process of the packs: what becomes of values when it ends, and what it costs.

use super::*;

#[test]
fn values_of_a_process_that_ended_are_made_again() {
    let Some(rig) = Rig::start(&["plain", "hostile", "many"], &[]) else {
        return;
    };
    let prompt = json!({
        "1": node("PackExpand", json!({"text": "hi"})), "2": node("PackUnwrap", json!({"thing": ["1", 1]})),
        "3": node("ManyNever", json!({"value": 1})), "8": node("ManyShow", json!({"value": ["3", 0]})), "9": show(json!(["2", 0]))});
    assert_eq!(text_of(&rig.shown(&prompt)), "kept in 2");
    // With the same nodes: results of a prompt are kept as long as prompts have its nodes.
    let mut killing = prompt.clone();
    killing["7"] = node("Hostile", json!({"how": "kill"}));
    let error = rig.error(&killing);
    assert_eq!(error["exception_type"], "fresco.WorkerDied");
    let entry = rig.run(&prompt);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    let messages = entry["status"]["messages"].as_array().unwrap();
    let cached = messages
        .iter()
        .find(|m| m[0] == "execution_cached")
        .unwrap();
    let nodes = cached[1]["nodes"].to_string();
    // A number is still known; an object is not.
    assert!(
        nodes.contains("\"3\"") && !nodes.contains("\"1\""),
        "{nodes}"
    );
    assert_eq!(text_of(&entry["outputs"]["9"]), "kept in 2");
}

#[test]
fn memory_that_a_pack_eats_is_the_packs() {
    let Some(rig) = Rig::start(&["plain", "eater"], &["--max-pack-memory", "0.6"]) else {
        return;
    };
    let prompt = |megabytes: u32| json!({"9": node("Eater", json!({"megabytes": megabytes}))});
    assert_eq!(rig.shown(&prompt(20))["text"], json!([20]));
    let error = rig.error(&prompt(4000));
    let kind = error["exception_type"].as_str().unwrap();
    assert!(
        kind == "MemoryError" || kind == "fresco.WorkerDied",
        "{error}"
    );
    let add = json!({"1": node("PackAdd", json!({"a": 1, "b": 2})), "9": show(json!(["1", 1]))});
    assert_eq!(text_of(&rig.shown(&add)), "1 2.0");
}

#[test]
fn a_pack_whose_import_never_ends_is_left_out() {
    let base = base_with(&["slow_import", "plain"]);
    std::fs::write(base.path().join("input/wait"), "").unwrap();
    let Some(rig) = Rig::starting(base, &["--pack-import-seconds", "1"]) else {
        return;
    };
    rig.server.get("/extensions").expect_status(200);
    let slow = rig.pack("slow_import");
    assert_eq!(slow["state"], "failed", "{slow}");
    assert!(
        slow["error"].as_str().unwrap().contains("too long"),
        "{slow}"
    );
    assert_eq!(rig.pack("plain")["state"], "loaded");
}

#[test]
fn output_of_nodes_is_in_the_log_once() {
    let Some(rig) = Rig::start(&["plain"], &[]) else {
        return;
    };
    rig.shown(
        &json!({"1": node("PackAdd", json!({"a": 4_711, "b": 2})), "9": show(json!(["1", 1]))}),
    );
    let logs = rig.server.get("/internal/logs").json().to_string();
    assert_eq!(logs.matches("showing 4711 2.0").count(), 1, "{logs}");
}

#[test]
fn main_py_starts_the_program() {
    let Some(python) = python() else { return };
    let base = base_with(&["plain"]);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/main.py");
    std::fs::copy(source, base.path().join("main.py")).unwrap();
    // Twice on one port, one right after the other was killed, as the reference's tests do.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for _ in 0..2 {
        let output = base.path().join("results");
        let mut child = Command::new(&python)
            .arg("main.py")
            .args(["--output-directory", output.to_str().unwrap()])
            .args([
                "--listen",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--cpu",
            ])
            .current_dir(base.path())
            .env("FRESCO_BIN", fresco_tests::server::program())
            .env("FRESCO_NO_STARTER", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let began = Instant::now();
        let add =
            json!({"1": node("PackAdd", json!({"a": 1, "b": 2})), "9": show(json!(["1", 1]))});
        let id = loop {
            let connection = fresco_tests::http::Connection::open(address);
            let answer = connection
                .ok()
                .and_then(|mut c| c.post("/prompt", &json!({"prompt": add})).ok());
            if let Some(answer) = answer {
                break answer.expect_status(200).json()["prompt_id"].clone();
            }
            assert!(
                began.elapsed() < Duration::from_mins(2),
                "the program does not answer"
            );
            std::thread::park_timeout(Duration::from_millis(20));
        };
        let id = id.as_str().unwrap().to_owned();
        loop {
            let mut connection = fresco_tests::http::Connection::open(address).unwrap();
            let history = connection.get(&format!("/history/{id}")).unwrap().json();
            if !history[&id].is_null() {
                assert_eq!(history[&id]["outputs"]["9"]["text"], json!(["1 2.0"]));
                break;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        child.kill().unwrap();
        // Not waited for: the next one starts at once.
        std::thread::spawn(move || child.wait());
    }
    // The last one is ended with the process that it is.
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let began = Instant::now();
    while std::net::TcpStream::connect(address).is_ok() {
        assert!(began.elapsed() < Duration::from_mins(1));
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Kilobytes that a process has in memory, of its own and shared.
fn resident(process: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn a_process_without_torch_is_small_and_comes_back_soon() {
    let Some(rig) = Rig::start(&["plain", "hostile"], &[]) else {
        return;
    };
    let add = json!({"1": node("PackAdd", json!({"a": 1, "b": 2})), "9": show(json!(["1", 1]))});
    rig.shown(&add);
    let process = rig.server.get("/api/packs").json()["process"]
        .as_u64()
        .unwrap();
    let kilobytes = resident(process);
    eprintln!("a worker without torch has {kilobytes} kB");
    // With numpy, pillow and aiohttp, which packs find imported.
    assert!(kilobytes > 0 && kilobytes < 90 * 1024, "{kilobytes} kB");
    rig.error(&json!({"9": node("Hostile", json!({"how": "kill"}))}));
    let began = Instant::now();
    assert_eq!(text_of(&rig.shown(&add)), "1 2.0");
    let took = began.elapsed();
    eprintln!("a killed worker was back in {took:?}");
}
