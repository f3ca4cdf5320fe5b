//! `cargo xtask fuzz`: libFuzzer on one target, with the stable compiler.
//!
//! What the `cargo fuzz` program would do is a handful of compiler flags, so they stand here and nothing has to be
//! installed. `RUSTC_BOOTSTRAP` unlocks the address sanitizer on a stable toolchain.

use std::fs;

use anyhow::{Result, bail};

use crate::{
    steps::{cargo, command, run as run_command},
    tree,
};

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

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

fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(tree::root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let stem = path.file_stem().expect("a listed file has a name");
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let names = targets()?;
    let [target, seconds] = arguments else {
        bail!(
            "usage: cargo xtask fuzz TARGET SECONDS; targets: {}",
            names.join(", ")
        );
    };
    if !names.contains(target) {
        bail!("no target {target:?}; there are {}", names.join(", "));
    }
    let seconds: u32 = seconds.parse()?;
    let fuzz = tree::root().join("fuzz");
    let build = fuzz.join("target");
    // A target triple keeps the flags away from build scripts and macros, which must run here.
    run_command(
        cargo(&["build", "--release", "--target", TRIPLE, "--bin", target])
            .args(["--features", target])
            .current_dir(&fuzz)
            .env("CARGO_TARGET_DIR", &build)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", FLAGS.join(" ")),
    )?;
    let corpus = fuzz.join("corpus").join(target);
    let artifacts = fuzz.join("artifacts").join(target);
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&artifacts)?;
    let seeds = fuzz.join("seeds").join(target);
    let program = build.join(TRIPLE).join("release").join(target);
    let mut call = command(&program.to_string_lossy(), &[]);
    call.current_dir(&fuzz).arg(&corpus);
    if seeds.is_dir() {
        call.arg(&seeds);
    }
    call.arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-rss_limit_mb=4096", "-timeout=10", "-print_final_stats=1"]);
    run_command(&mut call)
}
