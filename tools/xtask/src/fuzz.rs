//! `cargo xtask fuzz`: libFuzzer on the targets of `fuzz`, with the stable compiler.
//!
//! What the `cargo fuzz` program would do is a handful of compiler flags, so they stand here and nothing has to be
//! installed. `RUSTC_BOOTSTRAP` unlocks the address sanitizer on a stable toolchain.
//!
//! A run starts from `fuzz/seeds/TARGET` (written by people) and `fuzz/corpora/TARGET.tar.gz` (found by earlier runs, made
//! small), and works in `fuzz/corpus`, which git ignores. `--keep` makes the archives anew from what was found.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    steps::{cargo, command, run as run_command},
    tree,
};

/// Sanitizers of the stable toolchain come for this one.
pub(crate) const TRIPLE: &str = "x86_64-unknown-linux-gnu";

const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "-Zsanitizer=address",
];

const USAGE: &str = "usage: cargo xtask fuzz [--minutes N] [--keep] [TARGET...]";

/// Archives of inputs are committed, so they stay small: larger inputs are left out first.
const MOST_KEPT_BYTES: u64 = 256 << 10;

struct Options {
    minutes: f64,
    keep: bool,
    targets: Vec<String>,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = read(arguments, &targets()?)?;
    // All are built before the first runs: one that does not compile is found at once.
    for name in &options.targets {
        build(name)?;
    }
    let mut failed = Vec::new();
    for name in &options.targets {
        println!("fuzz: {name} for {} min", options.minutes);
        if let Err(error) = fuzz(name, options.minutes) {
            println!("fuzz: {name}: {error:#}");
            failed.push(name.as_str());
        }
        if options.keep {
            keep(name)?;
        }
    }
    if !failed.is_empty() {
        bail!(
            "findings in {}; the inputs are in fuzz/artifacts",
            failed.join(", ")
        );
    }
    println!("fuzz: no findings");
    Ok(())
}

fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder().join("fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let stem = path.file_stem().expect("a listed file has a name");
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn read(arguments: &[String], names: &[String]) -> Result<Options> {
    let mut options = Options {
        minutes: 1.0,
        keep: false,
        targets: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--minutes" => {
                let number = rest.next().context(USAGE)?;
                options.minutes = number
                    .parse()
                    .with_context(|| format!("--minutes takes a number, not {number:?}"))?;
            }
            "--keep" => options.keep = true,
            name if names.iter().any(|n| n == name) => options.targets.push(name.to_owned()),
            name => bail!(
                "no target {name:?}; there are {}\n{USAGE}",
                names.join(", ")
            ),
        }
    }
    if options.targets.is_empty() {
        options.targets = names.to_vec();
    }
    Ok(options)
}

fn folder() -> PathBuf {
    tree::root().join("fuzz")
}

fn program(target: &str) -> PathBuf {
    let build = folder().join("target");
    build.join(TRIPLE).join("release").join(target)
}

fn build(target: &str) -> Result<()> {
    // A target triple keeps the flags away from build scripts and macros, which must run here.
    run_command(
        cargo(&["build", "--release", "--target", TRIPLE, "--bin", target])
            .args(["--features", target])
            .current_dir(folder())
            .env("CARGO_TARGET_DIR", folder().join("target"))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", FLAGS.join(" ")),
    )
}

/// The program of a target. SQLite has two tables of one name in one file, which the sanitizer takes for a mistake.
fn fuzzer(target: &str) -> Command {
    let mut call = command(&program(target).to_string_lossy(), &[]);
    call.current_dir(folder())
        .env("ASAN_OPTIONS", "detect_odr_violation=0");
    call
}

fn fuzz(target: &str, minutes: f64) -> Result<()> {
    let corpus = corpus(target)?;
    let artifacts = folder().join("artifacts").join(target);
    fs::create_dir_all(&artifacts)?;
    let seeds = folder().join("seeds").join(target);
    let mut call = fuzzer(target);
    call.arg(&corpus);
    if seeds.is_dir() {
        call.arg(&seeds);
    }
    call.arg(format!("-max_total_time={}", (minutes * 60.0) as u64))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-rss_limit_mb=4096", "-timeout=10", "-print_final_stats=1"]);
    run_command(&mut call)
}

/// The folder a run works in, with what earlier runs found.
fn corpus(target: &str) -> Result<PathBuf> {
    let corpus = folder().join("corpus").join(target);
    fs::create_dir_all(&corpus)?;
    let kept = archive(target);
    if kept.is_file() {
        let arguments = ["-xzf", &text(&kept), "-C", &text(&corpus)];
        run_command(&mut command("tar", &arguments))?;
    }
    Ok(corpus)
}

fn archive(target: &str) -> PathBuf {
    folder().join("corpora").join(format!("{target}.tar.gz"))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Keeps the fewest inputs that reach everything that was reached, smallest first, as far as they fit.
fn keep(target: &str) -> Result<()> {
    let small = folder().join("corpus").join(format!("{target}.small"));
    if small.is_dir() {
        fs::remove_dir_all(&small)?;
    }
    fs::create_dir_all(&small)?;
    let mut call = fuzzer(target);
    call.arg("-merge=1").arg(&small);
    call.arg(folder().join("corpus").join(target));
    run_command(&mut call)?;
    let mut files = Vec::new();
    for entry in fs::read_dir(&small)? {
        let entry = entry?;
        files.push((entry.metadata()?.len(), entry.file_name()));
    }
    files.sort();
    let mut total = 0;
    for (size, name) in &files {
        total += size;
        if total > MOST_KEPT_BYTES {
            fs::remove_file(small.join(name))?;
        }
    }
    let archive = archive(target);
    fs::create_dir_all(archive.parent().expect("an archive has a folder"))?;
    // The same files give the same bytes, whoever packs them and when.
    let pack = [
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--use-compress-program=gzip -9n",
        "-cf",
        &text(&archive),
        "-C",
        &text(&small),
        ".",
    ];
    run_command(&mut command("tar", &pack))?;
    fs::remove_dir_all(&small)?;
    Ok(())
}
