//! The first minute of a new user: start, the first picture of the starter model, the next ones, memory.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fresco_tests::{
    Server, StartOptions,
    server::NO_STARTER,
    workflow::{TextToImage, text_to_image},
};

use crate::{Measurement, process, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[("first", first)];

const MODEL: &str = "fresco-starter.safetensors";

fn first(table: &mut Table) -> Result<()> {
    let begun = Instant::now();
    let server = Server::start_with(StartOptions {
        environment: vec![(NO_STARTER, "0")],
        ..StartOptions::default()
    });
    table.row("start", server.start_time.as_secs_f64(), "s", Some(0.2), "");
    let listed = server.get("/models/checkpoints").json();
    let there = listed
        .as_array()
        .is_some_and(|names| names.iter().any(|n| n == MODEL));
    ensure!(there, "{MODEL} is not among {listed}");
    let run = |seed: u64| -> Result<f64> {
        let prompt = text_to_image(&TextToImage {
            checkpoint: MODEL,
            positive: "a red apple",
            negative: "",
            width: 256,
            height: 256,
            steps: 20,
            cfg: 4.0,
            seed,
            ..TextToImage::default()
        });
        let asked = Instant::now();
        let id = server.queue(&prompt, None);
        let entry = server.wait_for(&id);
        ensure!(
            entry["status"]["status_str"] == "success",
            "failed: {entry}"
        );
        Ok(asked.elapsed().as_secs_f64())
    };
    let one = run(1)?;
    let whole = begun.elapsed().as_secs_f64();
    table.row("start to first picture", whole, "s", Some(60.0), "");
    table.row("first picture, 20 steps, 256x256", one, "s", Some(8.0), "");
    let mut next = (2..7).map(run).collect::<Result<Vec<f64>>>()?;
    next.sort_by(f64::total_cmp);
    let middle = *next.get(2).context("five pictures were made")?;
    table.row("each one after it", middle, "s", Some(8.0), "");
    let memory = process::peak_mb(server.pid())?;
    table.row("peak memory", memory, "MB", None, "");
    Ok(())
}
