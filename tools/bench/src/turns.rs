//! Two programs in one run: an older one (`FRESCO_OLD`) and the present one stay up side by side and take turns at the same
//! work, so that what else the machine does falls on both alike. A row is the new one's share of the old one's figure, of the
//! best of all turns and of the middle one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use fresco_tests::{
    Server, StartOptions,
    server::NO_STARTER,
    workflow::{TextToImage, text_to_image},
};
use serde_json::{Value, json};

use crate::{
    Measurement,
    picture::{MODEL, base_with},
    process,
    table::Table,
};

pub(crate) const MEASUREMENTS: &[Measurement] =
    &[("starter", starter), ("sd15", sd15), ("prompts", prompts)];

/// Names the older program.
const OLD: &str = "FRESCO_OLD";
/// More than before by less than this is within what two runs of one program differ by.
const MOST: f64 = 1.03;

struct Pair {
    old: Server,
    new: Server,
}

impl Pair {
    fn start(arguments: &[&str], base: Option<[&Path; 2]>) -> Result<Self> {
        let path = std::env::var_os(OLD);
        let path = PathBuf::from(path.with_context(|| format!("{OLD} names no older program"))?);
        let start = |program, base| {
            Server::start_with(StartOptions {
                arguments: arguments.to_vec(),
                base,
                program,
                environment: vec![(NO_STARTER, "0")],
            })
        };
        Ok(Self {
            old: start(Some(&path), base.map(|[old, _]| old)),
            new: start(None, base.map(|[_, new]| new)),
        })
    }

    /// What `work` takes, `turns` times each after one turn that does not count. Who goes first changes.
    fn compare(
        &self,
        table: &mut Table,
        what: &str,
        turns: u64,
        work: impl Fn(&Server, u64) -> Result<f64>,
    ) -> Result<()> {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for turn in 0..=turns {
            let mut one = |new_one: bool| -> Result<()> {
                let (server, taken) = if new_one {
                    (&self.new, &mut new)
                } else {
                    (&self.old, &mut old)
                };
                let took = work(server, turn)?;
                if turn > 0 {
                    taken.push(took);
                }
                Ok(())
            };
            one(turn % 2 == 0)?;
            one(turn % 2 == 1)?;
        }
        old.sort_by(f64::total_cmp);
        new.sort_by(f64::total_cmp);
        let share = |at: usize| new[at] / old[at];
        eprintln!("  {what}: old {old:.4?}, new {new:.4?}");
        table.row(format!("{what}: best"), share(0), "x old", Some(MOST), "");
        let middle = share(old.len() / 2);
        table.row(format!("{what}: middle"), middle, "x old", None, "");
        Ok(())
    }

    fn compare_memory(
        &self,
        table: &mut Table,
        what: &str,
        ask: fn(u32) -> Result<f64>,
    ) -> Result<()> {
        let share = ask(self.new.pid())? / ask(self.old.pid())?;
        table.row(what, share, "x old", Some(MOST), "");
        Ok(())
    }
}

/// Processor time in place of the clock's: what neighbours take is not in it.
fn run(server: &Server, prompt: &Value) -> Result<f64> {
    let before = process::cpu_ms(server.pid())?;
    let id = server.queue(prompt, None);
    let entry = server.wait_for(&id);
    let succeeded = entry["status"]["status_str"] == "success";
    ensure!(succeeded, "failed: {entry}");
    Ok(process::cpu_ms(server.pid())? - before)
}

fn starter(table: &mut Table) -> Result<()> {
    let pair = Pair::start(&[], None)?;
    pair.compare(
        table,
        "starter, 256x256, 10 steps, CPU time",
        12,
        |server, turn| {
            let prompt = text_to_image(&TextToImage {
                checkpoint: "fresco-starter.safetensors",
                width: 256,
                height: 256,
                steps: 10,
                seed: turn,
                ..TextToImage::default()
            });
            run(server, &prompt)
        },
    )?;
    pair.compare_memory(table, "starter: peak memory", process::peak_mb)
}

fn sd15(table: &mut Table) -> Result<()> {
    let model = PathBuf::from(std::env::var_os(MODEL).with_context(|| format!("set {MODEL}"))?);
    let model = fs::canonicalize(model)?;
    let bases = [base_with(&model)?, base_with(&model)?];
    let paths = bases[0].path().join("paths.yaml");
    let paths = paths.to_string_lossy();
    let pair = Pair::start(
        &["--extra-model-paths-config", &paths],
        Some([bases[0].path(), bases[1].path()]),
    )?;
    let name = model.file_name().context("the model has no name")?;
    let name = name.to_string_lossy();
    for (size, steps, turns) in [(64, 6, 10), (256, 3, 6), (512, 1, 3)] {
        let what = format!("SD1.5, {size}x{size}, {steps} steps and decoding, CPU time");
        pair.compare(table, &what, turns, |server, turn| {
            let prompt = text_to_image(&TextToImage {
                checkpoint: &name,
                width: size,
                height: size,
                steps,
                seed: turn,
                ..TextToImage::default()
            });
            run(server, &prompt)
        })?;
        let what = format!("SD1.5, {size}x{size}: peak memory so far");
        pair.compare_memory(table, &what, process::peak_mb)?;
    }
    pair.compare_memory(table, "SD1.5: resident memory", process::memory_mb)
}

/// Small prompts that wait in the queue together.
fn prompts(table: &mut Table) -> Result<()> {
    const PROMPTS: u64 = 500;
    let pair = Pair::start(&[], None)?;
    let what = "500 small prompts queued, CPU time";
    pair.compare(table, what, 8, |server, turn| {
        let before = process::cpu_ms(server.pid())?;
        let colours = turn * PROMPTS..(turn + 1) * PROMPTS;
        let queue = |colour: u64| {
            let image = json!({"width": 64, "height": 64, "batch_size": 1, "color": colour});
            let saved = json!({"images": ["1", 0], "filename_prefix": "turn"});
            let prompt = json!({
                "1": {"class_type": "EmptyImage", "inputs": image},
                "2": {"class_type": "SaveImage", "inputs": saved},
            });
            server.queue(&prompt, None)
        };
        let waiting: Vec<String> = colours.map(queue).collect();
        for id in &waiting {
            server.wait_for(id);
        }
        Ok(process::cpu_ms(server.pid())? - before)
    })?;
    pair.compare_memory(table, "small prompts: resident memory", process::memory_mb)
}
