//! `cargo xtask synth`: builds the program in `tools/synth` and hands its arguments on.

use std::env;

use anyhow::Result;

use crate::steps::{cargo, run as run_command};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let call = [
        "run",
        "--release",
        "--locked",
        "--package",
        "fresco-synth",
        "--",
    ];
    // Paths are meant from where the command was typed, not from the root of the tree.
    run_command(
        cargo(&call)
            .args(arguments)
            .current_dir(env::current_dir()?),
    )
}
