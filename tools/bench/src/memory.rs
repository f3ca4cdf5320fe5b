//! The memory room with full-size models and with many small ones: planning, keeping, ejecting, streaming, a long run.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use fresco_tests::{
    Server, StartOptions, picture,
    tiny::Tiny,
    workflow::{TextToImage, text_to_image},
};
use serde_json::{Value, json};

use crate::{Measurement, process, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[
    ("planner", crate::planner::planner),
    ("thousand", thousand),
    ("keep", keep),
    ("eject", eject),
    ("stream", stream),
];

/// Where the full-size checkpoint is; the bench command writes one there first.
const MODEL: &str = "FRESCO_SD15";

/// A server on a base folder with some checkpoints in it.
struct Bench {
    server: Server,
    base: tempfile::TempDir,
}

impl Bench {
    /// Full-size checkpoints are links to one file: other names, so other models.
    fn with_copies(names: &[&str], flags: &[&str]) -> Result<Self> {
        let model = std::env::var_os(MODEL).with_context(|| format!("set {MODEL}"))?;
        let model = fs::canonicalize(PathBuf::from(model))?;
        let beside = model.parent().context("the model is in no folder")?;
        // On the same file system, so that links are possible.
        let base = tempfile::tempdir_in(beside)?;
        let folder = base.path().join("models/checkpoints");
        fs::create_dir_all(&folder)?;
        for name in names {
            fs::hard_link(&model, folder.join(name))?;
        }
        Ok(Self::start(base, flags))
    }

    fn start(base: tempfile::TempDir, flags: &[&str]) -> Self {
        let server = Server::start_with(StartOptions {
            arguments: flags.to_vec(),
            base: Some(base.path()),
            ..StartOptions::default()
        });
        Self { server, base }
    }

    /// Runs a prompt; its picture's path.
    fn run(&self, prompt: &Value) -> Result<PathBuf> {
        let id = self.server.queue(prompt, None);
        let entry = self.server.wait_for(&id);
        ensure!(
            entry["status"]["status_str"] == "success",
            "failed: {}",
            entry["status"]
        );
        let image = &entry["outputs"]["9"]["images"][0]["filename"];
        let image = image.as_str().context("no picture was saved")?;
        Ok(self.base.path().join("output").join(image))
    }

    fn models(&self) -> Vec<Value> {
        let answer = self.server.get("/memory/models").json();
        answer.as_array().cloned().unwrap_or_default()
    }

    /// Bytes read from weight files so far.
    fn read_bytes(&self) -> u64 {
        let models = self.models();
        let read = models.iter().filter_map(|m| m["read_bytes"].as_u64());
        read.sum()
    }

    fn set_policy(&self, policy: &str) {
        for model in self.models() {
            let id = model["weights_id"].as_str().unwrap_or_default();
            let path = format!("/memory/models/{}", id.replace('#', "%23"));
            let body = json!({"policy": policy}).to_string();
            let json = [("content-type", "application/json")];
            let answer = self.server.request("PATCH", &path, &json, body.as_bytes());
            answer.expect_status(200);
        }
    }

    /// What must hold after everything.
    fn check(&self) -> Result<()> {
        let check = self.server.get("/memory/check").json();
        ensure!(check["consistent"] == true, "{check}");
        Ok(())
    }
}

fn small(name: &str, size: u32, seed: u64) -> Value {
    text_to_image(&TextToImage {
        checkpoint: name,
        width: size,
        height: size,
        steps: 1,
        seed,
        ..TextToImage::default()
    })
}

/// The same with a loader that says how long its models stay.
fn retained(name: &str, retention: &str, seed: u64) -> Value {
    let mut prompt = small(name, 64, seed);
    prompt["4"] = json!({"class_type": "CheckpointLoaderSimpleDisTorch2MultiGPU", "inputs": {
        "ckpt_name": name, "compute_device": "cpu", "virtual_vram_gb": 0.0, "donor_device": "cpu",
        "expert_mode_allocations": "", "eject_models": false, "retention": retention}});
    prompt
}

/// Five models on a device with room for two, a thousand prompts in turn.
fn thousand(table: &mut Table) -> Result<()> {
    let base = tempfile::tempdir()?;
    let names: Vec<String> = (0..5).map(|n| format!("m{n}.safetensors")).collect();
    for name in &names {
        Tiny::default().write(base.path(), name)?;
    }
    let folder = base.path().join("models/checkpoints");
    let size = fs::metadata(folder.join(&names[0]))?.len();
    let capacity = 2 * size + (24 << 20);
    let device = format!("sim:0={capacity}");
    let flags = [
        "--sim-device",
        &device,
        "--reserve-vram",
        "0",
        "--inference-reserve",
        "0.01",
    ];
    let bench = Bench::start(base, &flags);
    let pid = bench.server.pid();
    let mut after_warm_up = 0.0;
    let begun = Instant::now();
    let mut lost = 0;
    for turn in 0..1000_u64 {
        let name = &names[(turn % 5) as usize];
        if bench.run(&small(name, 64, turn)).is_err() {
            lost += 1;
        }
        // The ring of events is full by then.
        if turn == 499 {
            after_warm_up = process::memory_mb(pid)?;
        }
    }
    let each = begun.elapsed().as_secs_f64();
    bench.check()?;
    let growth = process::memory_mb(pid)? - after_warm_up;
    let devices = bench.server.get("/memory/devices").json();
    let sim = devices.as_array().and_then(|all| {
        let mut all = all.iter();
        all.find(|device| device["device"] == "sim:0")
    });
    let peak = sim.and_then(|sim| sim["peak"].as_u64());
    let peak = peak.context("no peak of the device")? as f64 / capacity as f64;
    table.row(
        "1,000 prompts, 5 models, room for 2: lost",
        f64::from(lost),
        "",
        Some(0.0),
        "",
    );
    table.row(
        "their device's fullest moment",
        peak,
        "x capacity",
        Some(1.0),
        "",
    );
    table.row(
        "memory after them, more than after 500",
        growth,
        "MB",
        Some(20.0),
        "",
    );
    table.row("time per prompt", each, "ms", None, "");
    Ok(())
}

/// Two full-size checkpoints, both kept, twenty times in turn.
fn keep(table: &mut Table) -> Result<()> {
    let names = ["a.safetensors", "b.safetensors"];
    let bench = Bench::with_copies(&names, &[])?;
    for name in names {
        bench.run(&small(name, 64, 1))?;
    }
    bench.set_policy("keep");
    let before = bench.read_bytes();
    let begun = Instant::now();
    for turn in 0..20_u64 {
        bench.run(&small(names[(turn % 2) as usize], 64, 2 + turn))?;
    }
    let each = begun.elapsed().as_secs_f64() / 20.0;
    bench.check()?;
    let read = (bench.read_bytes() - before) as f64;
    table.row(
        "two SD1.5 kept, 20 switches: read again",
        read / 1e6,
        "MB",
        Some(0.0),
        "",
    );
    table.row(
        "64x64 picture of one step after a switch",
        each,
        "s",
        None,
        "",
    );
    Ok(())
}

/// What an ejected model gives back to the system.
fn eject(table: &mut Table) -> Result<()> {
    let names = ["a.safetensors"];
    let bench = Bench::with_copies(&names, &[])?;
    let pid = bench.server.pid();
    let before = process::memory_mb(pid)?;
    bench.run(&retained(names[0], "keep", 1))?;
    let models = bench.models();
    let host: u64 = models.iter().filter_map(|m| m["host_bytes"].as_u64()).sum();
    let host = host as f64 / 1e6;
    let full = process::memory_mb(pid)?;
    bench.run(&retained(names[0], "eject_after", 2))?;
    let begun = Instant::now();
    let share = |now: f64| (full - now) / host;
    let mut now = process::memory_mb(pid)?;
    while share(now) < 0.95 && begun.elapsed() < Duration::from_secs(1) {
        now = process::memory_mb(pid)?;
    }
    bench.check()?;
    ensure!(
        bench.models().is_empty(),
        "models are left: {:?}",
        bench.models()
    );
    table.row(
        "SD1.5 in memory before it is ejected",
        full - before,
        "MB",
        None,
        "",
    );
    let kept = 100.0 * (1.0 - share(now));
    table.row(
        "of an ejected SD1.5 still resident after a second",
        kept,
        "%",
        Some(5.0),
        "",
    );
    Ok(())
}

/// A checkpoint on a device with a third of its size, against one with room.
fn stream(table: &mut Table) -> Result<()> {
    let names = ["a.safetensors"];
    let pixels = |path: &Path| picture::read_file(path).map(|picture| picture.pixels);
    let mut results = Vec::new();
    for device in ["sim:0=8GiB", "sim:0=540MiB"] {
        let flags = [
            "--sim-device",
            device,
            "--reserve-vram",
            "0",
            "--inference-reserve",
            "0.25",
        ];
        let bench = Bench::with_copies(&names, &flags)?;
        bench.run(&small(names[0], 256, 1))?;
        let begun = Instant::now();
        let path = bench.run(&small(names[0], 256, 2))?;
        let seconds = begun.elapsed().as_secs_f64();
        bench.check()?;
        results.push((pixels(&path)?, seconds));
    }
    let same = results[0].0 == results[1].0;
    let what = "256x256 on a device a third of the model: pixels that differ";
    table.row(what, f64::from(u8::from(!same)), "", Some(0.0), "");
    let ratio = results[1].1 / results[0].1;
    table.row("its time, against a device with room", ratio, "x", None, "");
    Ok(())
}
