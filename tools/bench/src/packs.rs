//! What Python packs cost: the start, a node that does nothing, memory, and coming back.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use fresco_tests::{Server, StartOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Measurement, process, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[
    ("start", start),
    ("pass", pass),
    ("process", process_size),
    ("crashes", crashes),
];

/// Nodes in a row of one prompt, and how often it runs.
const ROW: usize = 100;
const RUNS: usize = 10;
/// Ends of the process, one after the other.
const ENDS: usize = 1000;

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

fn base(packs: &[&str]) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packs");
    for pack in packs {
        copy(
            &source.join(pack),
            &folder.path().join("custom_nodes").join(pack),
        )?;
    }
    Ok(folder)
}

fn server(base: &TempDir) -> Server {
    Server::start_with(StartOptions {
        base: Some(base.path()),
        ..StartOptions::default()
    })
}

/// Seconds from the start of the process until the nodes are listed; the middle of five.
fn until_listed(packs: &[&str]) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let base = base(packs)?;
        let begun = Instant::now();
        let server = server(&base);
        server.get("/object_info").expect_status(200);
        times.push(begun.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[2])
}

fn start(table: &mut Table) -> Result<()> {
    let (without, with) = (until_listed(&[])?, until_listed(&["plain"])?);
    table.row(
        "start to /object_info without packs",
        without,
        "s",
        None,
        "",
    );
    let more = (with - without).max(0.0);
    table.row("one small pack adds", more, "s", Some(0.15), "");
    Ok(())
}

fn run(server: &Server, prompt: &Value) -> Result<f64> {
    let begun = Instant::now();
    let id = server.queue(prompt, None);
    let entry = server.wait_for(&id);
    let took = begun.elapsed().as_secs_f64();
    ensure!(entry["status"]["status_str"] == "success", "{entry}");
    Ok(took)
}

/// A picture through so many nodes that give it back.
fn row(nodes: usize) -> Value {
    let mut prompt = json!({
        "0": {"class_type": "EmptyImage", "inputs": {"width": 1024, "height": 1024, "batch_size": 1, "color": 255}}});
    for number in 1..=nodes {
        prompt[number.to_string()] =
            json!({"class_type": "ManyPass", "inputs": {"image": [(number - 1).to_string(), 0]}});
    }
    prompt["end"] = json!({"class_type": "ManySize", "inputs": {"image": [nodes.to_string(), 0]}});
    prompt
}

fn pass(table: &mut Table) -> Result<()> {
    let base = base(&["many"])?;
    let server = server(&base);
    server.get("/extensions").expect_status(200);
    let (one, all) = (row(1), row(ROW + 1));
    run(&server, &all)?;
    let (mut short, mut long) = (0.0, 0.0);
    for _ in 0..RUNS {
        short += run(&server, &one)?;
        long += run(&server, &all)?;
    }
    let each = (long - short) * 1000.0 / (ROW * RUNS) as f64;
    table.row(
        "a Python node that gives back a picture of 1024x1024, each of 1,000",
        each,
        "ms",
        Some(1.5),
        "",
    );
    Ok(())
}

fn worker(server: &Server) -> Result<u32> {
    let report = server.get("/api/packs").json();
    let process = report["process"].as_u64().context("no process of packs")?;
    Ok(u32::try_from(process)?)
}

fn process_size(table: &mut Table) -> Result<()> {
    let base = base(&["plain", "hostile"])?;
    let server = server(&base);
    server.get("/extensions").expect_status(200);
    let add = json!({
        "1": {"class_type": "PackAdd", "inputs": {"a": 1, "b": 2}},
        "9": {"class_type": "PackShow", "inputs": {"text": ["1", 1]}}});
    run(&server, &add)?;
    let memory = process::memory_mb(worker(&server)?)?;
    table.row(
        "memory of a process without torch",
        memory,
        "MB",
        Some(60.0),
        "",
    );
    let kill = json!({"9": {"class_type": "Hostile", "inputs": {"how": "kill"}}});
    let id = server.queue(&kill, None);
    server.wait_for(&id);
    let back = run(&server, &add)?;
    table.row(
        "a killed process is back, with a prompt",
        back,
        "s",
        Some(1.0),
        "",
    );
    Ok(())
}

fn crashes(table: &mut Table) -> Result<()> {
    let base = base(&["plain", "hostile"])?;
    let server = server(&base);
    server.get("/extensions").expect_status(200);
    let end = json!({"9": {"class_type": "Hostile", "inputs": {"how": "exit"}}});
    let (mut at_first, mut slowest) = (0.0, 0.0_f64);
    for number in 0..ENDS {
        let before = worker(&server)?;
        let id = server.queue(&end, None);
        server.wait_for(&id);
        // After the first end the process comes back at once, after the second with a pause; a person who restarts it ends
        // both the pause and the count.
        if number % 2 == 1 {
            server.post("/fresco/packs/restart", &json!({}));
        }
        let begun = Instant::now();
        loop {
            let report = server.get("/api/packs").json();
            if report["state"] == "ready" && report["process"] != before {
                break;
            }
            ensure!(
                begun.elapsed() < Duration::from_mins(1),
                "it does not come back: {report}"
            );
            std::thread::park_timeout(Duration::from_millis(5));
        }
        slowest = slowest.max(begun.elapsed().as_secs_f64());
        // Until then fill the rings of messages and events that are kept of the last prompts.
        if number == ENDS / 2 {
            at_first = process::memory_mb(server.pid())?;
        }
    }
    let more = process::memory_mb(server.pid())? - at_first;
    table.row(
        "the slowest of 1,000 returns after an end",
        slowest,
        "s",
        Some(1.0),
        "",
    );
    table.row(
        "memory of the server after 1,000 ends, more than after 500",
        more,
        "MB",
        Some(5.0),
        "",
    );
    Ok(())
}
