//! `cargo xtask bench`: builds the release program and hands it to the measuring program in `tools/bench`.

use std::env;

use anyhow::{Result, bail};

use crate::{
    steps::{cargo, run as run_command},
    tree,
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if arguments.is_empty() {
        bail!("usage: cargo xtask bench (server | sd15 | kernels) [MEASUREMENT]");
    }
    run_command(&mut cargo(&[
        "build",
        "--release",
        "--locked",
        "--package",
        "fresco",
        "--package",
        "fresco-bench",
    ]))?;
    let release = tree::target_dir().join("release");
    let suffix = env::consts::EXE_SUFFIX;
    let bench = release.join(format!("fresco-bench{suffix}"));
    let mut command = crate::steps::command(&bench.to_string_lossy(), &[]);
    if env::var_os("FRESCO_BIN").is_none() {
        command.env("FRESCO_BIN", release.join(format!("fresco{suffix}")));
    }
    run_command(command.args(arguments))
}
