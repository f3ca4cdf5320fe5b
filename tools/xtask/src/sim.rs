//! `cargo xtask sim`: builds the simulator in `tools/sim` and hands its arguments on.

use anyhow::Result;

use crate::steps::{cargo, run as run_command};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let call = [
        "run",
        "--release",
        "--locked",
        "--package",
        "fresco-sim",
        "--",
    ];
    run_command(cargo(&call).args(arguments))
}
