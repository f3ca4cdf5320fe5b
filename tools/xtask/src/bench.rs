//! `cargo xtask bench`: builds the release program and hands it to the measuring program in `tools/bench`.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use crate::{
    steps::{cargo, run as run_command},
    tree,
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Some(group) = arguments.first() else {
        bail!(
            "usage: cargo xtask bench (server | sd15 | kernels | memory | starter | transformers | gpu | turns | media | workers | packs | models | cluster | over-http) [MEASUREMENT]"
        );
    };
    let mut build = vec!["build", "--release", "--locked"];
    let packages: &[&str] = match group.as_str() {
        "kernels" | "transformers" | "gpu" => &["fresco-bench"],
        "sd15" | "memory" | "turns" => &["fresco", "fresco-bench", "fresco-synth"],
        _ => &["fresco", "fresco-bench"],
    };
    build.extend(packages.iter().flat_map(|package| ["--package", package]));
    run_command(&mut cargo(&build))?;
    let release = tree::target_dir().join("release");
    let suffix = env::consts::EXE_SUFFIX;
    let bench = release.join(format!("fresco-bench{suffix}"));
    let mut command = crate::steps::command(&bench.to_string_lossy(), &[]);
    if env::var_os("FRESCO_BIN").is_none() {
        command.env("FRESCO_BIN", release.join(format!("fresco{suffix}")));
    }
    if matches!(group.as_str(), "sd15" | "memory" | "turns") && env::var_os(MODEL).is_none() {
        command.env(MODEL, made_up_model(&release)?);
    }
    run_command(command.args(arguments))
}

/// The variable that names a checkpoint to measure with.
const MODEL: &str = "FRESCO_SD15";

/// A full-size checkpoint with made-up weights, written once: what is measured does not depend on them.
fn made_up_model(release: &Path) -> Result<PathBuf> {
    let folder = tree::target_dir().join("bench");
    fs::create_dir_all(&folder)?;
    let model = folder.join("sd15.safetensors");
    if !model.is_file() {
        let synth = release.join(format!("fresco-synth{}", env::consts::EXE_SUFFIX));
        let mut command = crate::steps::command(&synth.to_string_lossy(), &["sd15"]);
        run_command(command.arg(&model))?;
    }
    Ok(model)
}
