//! Pictures from a full-size model: seconds per step, decoding, memory, loading, cancelling.
//!
//! The model is a synthetic SD1.5 checkpoint in f16 (`cargo xtask synth sd15 FILE`, or any real one): the arithmetic is the
//! same whatever the weights are. Everything is measured from outside, as a client sees it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use fresco_tests::{
    Server, Socket, StartOptions,
    workflow::{TextToImage, text_to_image},
};
use serde_json::json;

use crate::{
    Measurement, process,
    run::{self, CLIENT, Run},
    table::Table,
};

pub(crate) const MEASUREMENTS: &[Measurement] = &[("pictures", sd15)];

/// Where the checkpoint is; the bench command writes one there first.
pub(crate) const MODEL: &str = "FRESCO_SD15";

struct Bench {
    server: Server,
    socket: Socket,
}

impl Bench {
    /// Runs a prompt to its end. `at_step` is called after each step.
    fn run(&mut self, what: &TextToImage<'_>, at_step: impl FnMut(&Server, usize)) -> Result<Run> {
        let more = json!({"extra_data": {"preview_method": "latent2rgb"}});
        let prompt = text_to_image(what);
        run::run(
            &self.server,
            &mut self.socket,
            (&prompt, &more),
            "3",
            at_step,
        )
    }
}

/// A base folder whose checkpoints are the model's folder.
pub(crate) fn base_with(model: &Path) -> Result<tempfile::TempDir> {
    let base = tempfile::tempdir()?;
    let folder = model.parent().context("the model is in no folder")?;
    let config = format!("bench:\n  checkpoints: {}\n", folder.display());
    fs::write(base.path().join("paths.yaml"), config)?;
    Ok(base)
}

/// Reads the file once, so that loading is measured with a warm page cache.
fn warm(model: &Path) -> Result<u64> {
    Ok(std::io::copy(
        &mut fs::File::open(model)?,
        &mut std::io::sink(),
    )?)
}

fn sd15(table: &mut Table) -> Result<()> {
    let model = PathBuf::from(std::env::var_os(MODEL).with_context(|| format!("set {MODEL}"))?);
    let model = fs::canonicalize(model)?;
    let file_mb = warm(&model)? as f64 / 1e6;
    let base = base_with(&model)?;
    let paths = base.path().join("paths.yaml");
    let server = Server::start_with(StartOptions {
        arguments: vec!["--extra-model-paths-config", &paths.to_string_lossy()],
        base: Some(base.path()),
        ..StartOptions::default()
    });
    let socket = server.socket(CLIENT);
    let mut bench = Bench { server, socket };
    let name = model.file_name().context("the model has no name")?;
    let name = name.to_string_lossy().into_owned();
    let picture = |size: u32, steps: u32, seed: u64| TextToImage {
        checkpoint: &name,
        width: size,
        height: size,
        steps,
        seed,
        ..TextToImage::default()
    };

    let run = bench.run(&picture(64, 6, 1), |_, _| {})?;
    let step = run.step()?;
    let loaded = run.steps.first().context("no step ended")? - step;
    table.row(
        "load to first step, warm cache",
        loaded,
        "s",
        Some(2.0),
        "over 8 s",
    );
    table.row("64x64, cfg 7, per step", step, "s", Some(0.5), "1.62 s");
    ensure!(run.previews >= 5, "only {} previews came", run.previews);
    let pid = bench.server.pid();
    let peak = process::peak_mb(pid)? / file_mb;
    let what = "peak memory of the load and a 64x64 picture";
    table.row(what, peak, "x file", Some(1.35), "");

    for (size, steps, target, reference) in [(256, 5, 2.4, "4.76 s"), (512, 4, 9.5, "20.1 s")] {
        let run = bench.run(&picture(size, steps, 2), |_, _| {})?;
        let what = format!("{size}x{size}, cfg 7, per step");
        table.row(what, run.step()?, "s", Some(target), reference);
        let (most, from) = match size {
            512 => (Some(7.0), "19.3 s"),
            _ => (None, "6.2 s"),
        };
        let what = format!("VAE decode {size}x{size}");
        table.row(what, run.node("8")?, "s", most, from);
    }
    let resident = process::memory_mb(pid)?;
    table.row(
        "resident memory after a 512x512 picture",
        resident / file_mb,
        "x file",
        Some(1.3),
        "2.4 x file",
    );
    let peak = process::peak_mb(pid)?;
    table.row("peak memory", peak / file_mb, "x file", None, "3.6 x file");

    let mut sizes = Vec::new();
    for seed in 100..110 {
        bench.run(&picture(64, 2, seed), |_, _| {})?;
        sizes.push(process::memory_mb(pid)?);
    }
    let growth = sizes[9] - sizes[1];
    let what = "memory after ten runs, more than after two";
    table.row(what, growth, "MB", Some(5.0), "");

    // From the interrupt, sent right after a step, to its event.
    let mut asked = None;
    let begun = Instant::now();
    let run = bench.run(&picture(256, 20, 77), |server, step| {
        if step == 2 {
            asked = Some(begun.elapsed().as_secs_f64());
            server.post("/interrupt", &json!({}));
        }
    })?;
    ensure!(run.interrupted, "the run was not interrupted");
    let asked = asked.context("the run ended before its second step")?;
    let what = "256x256: interrupt to its event";
    table.row(what, run.end - asked, "s", None, "");
    Ok(())
}
