//! `cargo xtask templates`: the ecosystem's own workflows, converted and checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{cargo, run as run_command};

const PACKAGE: &str = "comfyui-workflow-templates-json";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let folder = match arguments {
        [] => installed()?,
        [folder] => PathBuf::from(folder),
        _ => bail!("templates takes one folder"),
    };
    let inner = folder.join("templates");
    let folder = if inner.is_dir() { inner } else { folder };
    let folder = folder
        .canonicalize()
        .with_context(|| format!("cannot open {}", folder.display()))?;
    run_command(
        cargo(&[
            "test",
            "--locked",
            "--package",
            "fresco-nodes",
            "--test",
            "templates",
            "--",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("FRESCO_TEMPLATES", folder),
    )
}

/// Where Python has the package.
fn installed() -> Result<PathBuf> {
    let module = PACKAGE.replace('-', "_");
    let call = format!("import os, {module} as m; print(os.path.dirname(m.__file__))");
    let output = Command::new("python3").args(["-c", &call]).output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8(output.stdout)?;
            Ok(Path::new(text.trim()).to_owned())
        }
        _ => bail!(
            "Python has no {PACKAGE}: run `pip install {PACKAGE}`, or name the folder of the templates"
        ),
    }
}
