//! `cargo xtask docgen`: pages the program writes about itself, kept in the tree so that they can be read on the web.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{ci, steps, tree};

struct Page {
    path: &'static str,
    arguments: &'static [&'static str],
    frame: fn(&str) -> String,
}

const PAGES: &[Page] = &[];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let check = arguments.iter().any(|argument| argument == "--check");
    if PAGES.is_empty() {
        return Ok(());
    }
    steps::run(&mut steps::cargo(&[
        "build",
        "--package",
        "fresco",
        "--locked",
    ]))?;
    let mut stale = Vec::new();
    for page in PAGES {
        let text = (page.frame)(&output(page.arguments)?);
        let path = tree::root().join(page.path);
        if fs::read_to_string(&path).is_ok_and(|found| found == text) {
            continue;
        }
        if check {
            stale.push(page.path);
        } else {
            write(&path, &text)?;
        }
    }
    if !stale.is_empty() {
        bail!(
            "out of date: {}; run `cargo xtask docgen`",
            stale.join(", ")
        );
    }
    Ok(())
}

fn output(arguments: &[&str]) -> Result<String> {
    let program = ci::program();
    let output = Command::new(&program)
        .args(arguments)
        .env("COLUMNS", "110")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        bail!(
            "{} {}: {}",
            program.display(),
            arguments.join(" "),
            output.status
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("docgen: wrote {}", path.display());
    Ok(())
}
