//! `cargo xtask templates`: the ecosystem's own workflows, converted and checked, or run with reduced models.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::ci;
use crate::steps::{cargo, run as run_command};

const PACKAGE: &str = "comfyui-workflow-templates-json";
/// Before a part of the names of templates: run these.
const RUN: &str = "--run";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let run = arguments.iter().position(|argument| argument == RUN);
    let (folder, part) = match run {
        None => (arguments, None),
        Some(at) => (&arguments[..at], Some(&arguments[at + 1..])),
    };
    let folder = match folder {
        [] => installed()?,
        [folder] => PathBuf::from(folder),
        _ => bail!("templates takes one folder"),
    };
    let inner = folder.join("templates");
    let folder = if inner.is_dir() { inner } else { folder };
    let folder = folder
        .canonicalize()
        .with_context(|| format!("cannot open {}", folder.display()))?;
    match part {
        None => check(&folder),
        Some([]) => ci::run_templates(&folder, ""),
        Some([part]) => ci::run_templates(&folder, part),
        Some(_) => bail!("{RUN} takes one part of a name"),
    }
}

fn check(folder: &Path) -> Result<()> {
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
