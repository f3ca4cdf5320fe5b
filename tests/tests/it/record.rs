//! The record of what was run: how much of it is kept, and what happens when its files are touched or cannot grow.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fresco_tests::{Server, StartOptions, http::PATIENCE, server::program, workflow};
use serde_json::json;

fn start(base: &Path) -> Server {
    Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    })
}

fn database(base: &Path) -> PathBuf {
    base.join("user/fresco.db")
}

#[track_caller]
fn wait_until(server: &Server, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: {}", server.log());
        thread::park_timeout(Duration::from_millis(10));
    }
}

fn queued(server: &Server) -> Vec<String> {
    let queue = server.get("/queue").expect_status(200).json();
    let pending = queue["queue_pending"].as_array().unwrap();
    pending
        .iter()
        .map(|item| item[1].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn errors_show_the_beginning_of_long_inputs() {
    let server = Server::start();
    let long = "x".repeat(2_000_000);
    let prompt = json!({
        "1": {"class_type": "RegexReplace", "inputs": {
            "string": long, "regex_pattern": "(", "replace": "short"}},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
    });
    let id = server.queue(&prompt, None);
    let entry = server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "error");
    let messages = entry["status"]["messages"].as_array().unwrap();
    let inputs = &messages.last().unwrap()[1]["current_inputs"];
    let shown = inputs["string"][0].as_str().unwrap();
    assert!(
        shown.len() < 70_000 && shown.starts_with("xxx"),
        "{}",
        shown.len()
    );
    assert!(shown.ends_with("(cut: 2000000 bytes in all)"));
    assert_eq!(inputs["replace"][0], "short");
}

#[test]
fn a_deleted_database_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path());
    let done = server.queue(&workflow::picture(1, "a"), None);
    server.wait_for(&done);
    server
        .post("/fresco/queue", &json!({"paused": true}))
        .expect_status(200);
    let before = server.queue(&workflow::picture(2, "a"), None);
    let path = database(folder.path());
    fs::remove_file(&path).unwrap();
    fs::remove_file(path.with_file_name("fresco.db-wal")).unwrap();
    wait_until(&server, "the file is back", || path.exists());
    let after = server.queue(&workflow::picture(3, "a"), None);
    assert!(server.log().contains("was deleted"), "{}", server.log());
    server.kill();

    let server = start(folder.path());
    assert_eq!(queued(&server), [before.clone(), after.clone()]);
    server
        .post("/fresco/queue", &json!({"paused": false}))
        .expect_status(200);
    for id in [&done, &before, &after] {
        assert_eq!(server.wait_for(id)["status"]["status_str"], "success");
    }
}

#[test]
fn a_replaced_database_stops_prompts_with_the_reason_until_it_is_clear_which_counts() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    server
        .post("/fresco/queue", &json!({"paused": true}))
        .expect_status(200);
    let before = server.queue(&workflow::picture(1, "a"), None);
    let path = database(folder.path());
    let other = folder.path().join("other");
    fs::write(&other, "a backup, perhaps").unwrap();
    fs::rename(&other, &path).unwrap();
    let body = json!({"prompt": workflow::picture(2, "a")});
    let refused = server.post("/prompt", &body).expect_status(503).json();
    assert_eq!(refused["error"]["type"], "not_accepted");
    let details = refused["error"]["details"].as_str().unwrap();
    assert!(details.contains("was replaced"), "{details}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "a backup, perhaps");
    fs::remove_file(&path).unwrap();
    wait_until(&server, "prompts are accepted again", || {
        server.post("/prompt", &body).status == 200
    });
    assert_eq!(queued(&server)[0], before);
}

#[test]
#[cfg(unix)]
fn a_limit_on_the_size_of_files_is_an_error_and_no_end() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("limited");
    let limited = format!(
        "#!/bin/bash\nulimit -f 2048\nexec {} \"$@\"\n",
        program().display()
    );
    fs::write(&script, limited).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::start_with(StartOptions {
        program: Some(&script),
        ..StartOptions::default()
    });
    let large = json!({
        "1": {"class_type": "EmptyLatentImage", "inputs": {"width": 2048, "height": 2048, "batch_size": 4}},
        "2": {"class_type": "SaveLatent", "inputs": {"samples": ["1", 0], "filename_prefix": "large"}},
    });
    let id = server.queue(&large, None);
    let entry = server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "error", "{entry}");
    let body = vec![b'x'; 3 << 20];
    let stored = server.request("POST", "/userdata/large.bin", &[], &body);
    assert!(stored.status >= 400, "{}", stored.status);
    let id = server.queue(&workflow::picture(2, "small"), None);
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
    // Prompts until the database has no room for one more.
    let prompt = json!({
        "prompt": workflow::picture(1, "a"),
        "extra_data": {"long": "x".repeat(3 << 19)},
    });
    let answers = (0..10).map(|_| server.post("/prompt", &prompt));
    let refused = answers.into_iter().find(|answer| answer.status != 200);
    let refused = refused.unwrap().expect_status(503).json();
    assert_eq!(refused["error"]["type"], "not_accepted");
    server.get("/queue").expect_status(200);
}
