//! Several workers in one process: how much faster jobs go that only wait.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fresco_tests::{Server, StartOptions};
use serde_json::{Value, json};

use crate::{Measurement, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[("waiting", waiting)];

const JOBS: usize = 40;
const SECONDS: f64 = 0.25;

/// A node of a pack that sleeps: it takes no processor, as a GPU that computes does not.
fn sleeper(tag: usize) -> Value {
    json!({
        "1": {"class_type": "PackSleep", "inputs": {"seconds": SECONDS, "tag": format!("job {tag}")}},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
    })
}

fn waiting(table: &mut Table) -> Result<()> {
    let one = run(&["--workers", "sim:0"])?;
    let two = run(&["--workers", "sim:0", "sim:1"])?;
    let ideal = SECONDS * JOBS as f64;
    let name = format!("{JOBS} jobs of {SECONDS} s that wait");
    table.row(
        format!("{name}, one worker"),
        one.as_secs_f64(),
        "s",
        Some(ideal * 1.1),
        "",
    );
    // 1.9 times as many in the same time.
    let target = one.as_secs_f64() / 1.9;
    table.row(
        format!("{name}, two workers"),
        two.as_secs_f64(),
        "s",
        Some(target),
        "",
    );
    table.row(
        "throughput of two workers",
        one.as_secs_f64() / two.as_secs_f64(),
        "times",
        None,
        "",
    );
    Ok(())
}

fn run(workers: &[&str]) -> Result<Duration> {
    let base = tempfile::tempdir()?;
    let pack = base.path().join("custom_nodes/plain");
    fs::create_dir_all(&pack)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packs/plain/__init__.py");
    fs::copy(source, pack.join("__init__.py"))?;
    let mut arguments = vec!["--sim-device", "sim:0=64MiB", "--sim-device", "sim:1=64MiB"];
    arguments.extend(workers);
    let server = Server::start_with(StartOptions {
        arguments,
        base: Some(base.path()),
        ..StartOptions::default()
    });
    // Packs load beside; the first job also starts what they need.
    let deadline = Instant::now() + Duration::from_mins(1);
    while server.get("/object_info/PackSleep").json()["PackSleep"].is_null() {
        ensure!(
            Instant::now() < deadline,
            "the pack does not load:\n{}",
            server.log()
        );
        std::thread::park_timeout(Duration::from_millis(50));
    }
    server.wait_for(&server.queue(&sleeper(0), None));
    let begun = Instant::now();
    let ids: Vec<String> = (1..=JOBS)
        .map(|tag| server.queue(&sleeper(tag), None))
        .collect();
    for id in &ids {
        let entry = server.wait_for(id);
        ensure!(
            entry["status"]["status_str"] == "success",
            "a job failed: {entry}"
        );
    }
    Ok(begun.elapsed())
}
