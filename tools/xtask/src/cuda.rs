//! `cargo xtask cuda`: compiles the CUDA kernels, or checks that the committed machine code is what their sources make. With `--launches` alone it writes what
//! Rust knows of their parameters, without the compiler.
//!
//! What the program embeds is committed, so building it needs no compiler for kernels; changing a kernel and CI do. The
//! compiler comes as a Python package and needs no GPU.

use anyhow::{Result, bail, ensure};

use crate::{
    install,
    steps::{command, run as run_command},
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "kernels are compiled on Linux on x86-64 only, so that everyone gets the same bytes"
    );
    if let Some(flag) = arguments.iter().find(|a| !ALLOWED.contains(&a.as_str())) {
        bail!("{flag:?} is none of {}", ALLOWED.join(", "));
    }
    if arguments.iter().any(|a| a == LAUNCHES) {
        return run_command(command("python3", &["tools/cuda/build.py"]).args(arguments));
    }
    let python = install::kernel_compiler()?;
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    let mut build = command(
        &python.to_string_lossy(),
        &["tools/cuda/build.py", "--jobs", &jobs.to_string()],
    );
    run_command(build.args(arguments))
}

const LAUNCHES: &str = "--launches";

const ALLOWED: &[&str] = &["--check", "--all", "--verbose", "--no-cache", LAUNCHES];
