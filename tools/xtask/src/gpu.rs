//! `cargo xtask gpu`: the tests of GPUs on cards that are not there, whose kernels run on the processor.

use anyhow::{Result, ensure};

use crate::{
    ci, install,
    steps::{command, run as run_command},
    tree,
};

/// Tests of `crates/tensor/tests/gpu` that take seconds there.
const QUICK: &str = "binary(=gpu) - test(/copies_go_around|repeated_steps|attention_is|one_pass|heads_are|group_norm_is|rows_are_rounded|whole_numbers|convolutions_are|linear_layers|groups/)";
/// Those and some that take minutes.
const ALL: &str = "binary(=gpu) - test(/copies_go_around|repeated_steps/)";
/// Cases of the memory room, whose first device is then the emulated one.
const MEMORY: &str =
    "package(fresco-memory) & binary(=registry) - test(/vram_states|everything_holds/)";
/// Loads by the built program, counted and disturbed.
const LOADING: &str = "package(fresco-tests) & binary(=it) & test(/^(loading|shares)::/)";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments {
        [] => tests(QUICK).map(drop),
        [flag] if flag == "--all" => tests(ALL).map(drop),
        _ => anyhow::bail!("usage: cargo xtask gpu [--all]"),
    }
}

/// Runs the quick ones and gives the runner's closing counts.
pub(crate) fn quick() -> Result<Vec<String>> {
    tests(QUICK)
}

fn tests(filter: &str) -> Result<Vec<String>> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "GPUs are emulated on Linux on x86-64 only"
    );
    install::cpp_compiler()?;
    let folder = tree::target_dir().join("emulated");
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    let script = ["tools/cuda/emulate.py", "--jobs", &jobs.to_string()];
    run_command(command("python3", &script).arg(&folder))?;
    let mut counts = ci::tests_on_gpu(&folder, filter)?;
    counts.extend(ci::tests_on_gpu(&folder, MEMORY)?);
    counts.extend(ci::tests_on_gpu(&folder, LOADING)?);
    Ok(counts)
}
