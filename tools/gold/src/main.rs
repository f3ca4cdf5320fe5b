//! `cargo xtask gold DIR`: runs every golden of a folder, on the processor and on a simulated device.
//!
//! A golden is a JSON file and, for most, a safetensors file of the same name beside it. Which network it is for the
//! program's own detection tells from the keys in it, or else what it holds; not its name, so that unknown files run too.

#![expect(
    clippy::print_stdout,
    reason = "this program's output is what it prints"
)]

mod golden;
mod hooks;
mod kinds;
mod report;
mod words;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use fresco_tensor::Device;
use fresco_tensor::gpu::Format;

use golden::Golden;
use report::Report;

/// What is to be run.
struct Options {
    folder: PathBuf,
    /// Parts of names; all files if there are none.
    only: Vec<String>,
    /// The processor and a simulated device, if none are named.
    devices: Vec<Device>,
    /// In which GPUs compute, whatever the weights are in.
    format: Option<Format>,
}

fn options() -> Result<Options> {
    let mut arguments = std::env::args().skip(1);
    let mut options = Options {
        folder: PathBuf::from("tests/gold"),
        only: Vec::new(),
        devices: Vec::new(),
        format: None,
    };
    let mut named = false;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => {
                let part = arguments.next().context("--only needs a part of a name")?;
                options.only.push(part);
            }
            "--device" => {
                let name = arguments.next().context("--device needs a name")?;
                options.devices.push(Device::open(&name)?);
            }
            "--format" => {
                options.format = Some(match arguments.next().as_deref() {
                    Some("f32") => Format::F32,
                    Some("f16") => Format::F16,
                    Some("bf16") => Format::Bf16,
                    _ => bail!("--format needs f32, f16 or bf16"),
                });
            }
            other if other.starts_with('-') => {
                bail!(
                    "unknown option {other}; usage: gold [DIR] [--only PART] [--device NAME] [--format F]"
                )
            }
            folder if !named => {
                named = true;
                options.folder = PathBuf::from(folder);
            }
            other => bail!("one folder at a time, not {other} too"),
        }
    }
    Ok(options)
}

/// The names of the goldens in a folder, without `.json`.
fn names(folder: &Path) -> Result<Vec<String>> {
    let list = std::fs::read_dir(folder);
    let list = list.with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in list {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".json") {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    unknown: usize,
    /// Networks whose hooks were tried.
    probed: usize,
}

/// Runs one golden on all devices.
fn run(golden: &Golden, devices: &[(Device, f64)], counts: &mut Counts) {
    let Some(kind) = kinds::of(golden) else {
        counts.unknown += 1;
        println!("{:<40} not recognised", golden.name);
        return;
    };
    let mut worst = 0.0_f64;
    let mut compared = 0;
    let mut wrong: Vec<String> = Vec::new();
    hooks::begin();
    for (device, least) in devices {
        let mut report = Report::new(golden, *least);
        let ran = catch_unwind(AssertUnwindSafe(|| (kind.run)(golden, device, &mut report)));
        match ran {
            Ok(Ok(())) => {}
            Ok(Err(error)) => report.fail(format!("{error:#}")),
            Err(_) => report.fail("it panicked".to_owned()),
        }
        if report.compared() == 0 && report.failures().is_empty() {
            report.fail("nothing was compared".to_owned());
        }
        worst = worst.max(report.worst());
        compared = report.compared();
        let failures = report.failures().iter();
        wrong.extend(failures.map(|failure| format!("on {}: {failure}", device.name())));
        if device.is_cpu() && !report.unseen().is_empty() {
            wrong.push(format!("not compared: {}", report.unseen().join(", ")));
        }
    }
    // What a network says of its hooks does not depend on where it computes.
    let on_cpu = devices.iter().any(|(device, _)| device.is_cpu());
    if on_cpu
        && wrong.is_empty()
        && let Some(found) = hooks::probe(kind, golden)
    {
        counts.probed += 1;
        wrong.extend(found);
    }
    if wrong.is_empty() {
        counts.passed += 1;
        println!(
            "{:<40} ok      {} ({compared} results, at most {worst:.1e} off)",
            golden.name, kind.name
        );
    } else {
        counts.failed += 1;
        println!("{:<40} FAILED  {}", golden.name, kind.name);
        for line in wrong {
            println!("    {line}");
        }
    }
}

fn all() -> Result<bool> {
    let options = options()?;
    let wanted = |name: &String| {
        options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
    };
    let names: Vec<String> = names(&options.folder)?.into_iter().filter(wanted).collect();
    if names.is_empty() {
        bail!("there is no golden in {}", options.folder.display());
    }
    let devices = if options.devices.is_empty() {
        vec![Device::cpu(), Device::register_sim(0, SIM_BYTES)?]
    } else {
        options.devices
    };
    // A GPU adds in another order, and may compute in sixteen bits.
    let in_format = |device: Device| match (device.gpu(), options.format) {
        (None, _) => (device, 0.0),
        (Some(_), None | Some(Format::F32)) => (device, 1e-3),
        (Some(_), Some(format)) => (device.computing_only_in(format), 1e-2),
    };
    let devices: Vec<(Device, f64)> = devices.into_iter().map(in_format).collect();
    let mut counts = Counts::default();
    for name in names {
        match Golden::open(&options.folder, &name) {
            Ok(golden) => run(&golden, &devices, &mut counts),
            Err(error) => {
                counts.failed += 1;
                println!("{name:<40} FAILED\n    {error:#}");
            }
        }
    }
    println!(
        "{} passed, {} failed, {} not recognised; the hooks of {} were tried",
        counts.passed, counts.failed, counts.unknown, counts.probed
    );
    Ok(counts.failed == 0)
}

/// The memory of the simulated device.
const SIM_BYTES: u64 = 8 << 30;

fn main() -> ExitCode {
    match all() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gold: {error:#}");
            ExitCode::FAILURE
        }
    }
}
