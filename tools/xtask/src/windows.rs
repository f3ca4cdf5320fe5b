//! `cargo xtask windows`: the program for Windows, built here and tried under wine.
//!
//! What is tried stands in `tests/src/bin/windows.rs`; here is what it needs: the program, a library that wine 8 lacks, a
//! program that holds files open as Windows programs do, and the program for this system to compare pictures with.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Result, ensure};

use crate::{
    ci,
    cross::{self, STD, WINDOWS, WINDOWS_CC},
    install,
    steps::{command, run as run_command},
    tree,
};

const WINE: &[&str] = &["wine", "wine64"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    cross::windows_tools()?;
    install::debian_packages(WINE)?;
    let build = ["build", "--release", "--package", "fresco"];
    run_command(&mut cross::cargo(&build, WINDOWS, STD))?;
    let folder = cross::target_dir().join(WINDOWS).join("release");
    let program = folder.join("fresco.exe");
    ensure!(program.is_file(), "{} was not built", program.display());
    // Windows 10 has it, wine 8 does not; beside the program it is found.
    compile(
        "bcryptprimitives.c",
        folder.join("bcryptprimitives.dll"),
        &["-shared"],
        &["-ladvapi32"],
    )?;
    fs::create_dir_all(tools())?;
    let hold = tools().join("hold.exe");
    compile("hold.c", hold.clone(), &["-municode"], &[])?;
    // The first start makes a folder with all that Windows has, which takes longer than anybody waits for a server.
    run_command(&mut in_wine(command("wine", &["wineboot", "--init"])))?;
    ci::build()?;
    let mut driver = in_wine(ci::tool("windows"));
    driver
        .args(arguments)
        .env("FRESCO_EXE", &program)
        .env("FRESCO_WINE", source("wine.sh"))
        .env("FRESCO_HOLD", &hold);
    run_command(&mut driver)
}

/// No desktop, no offers to install anything, no chatter; and nothing of the wine that a person has.
fn in_wine(mut command: Command) -> Command {
    command
        .env("WINEPREFIX", tools().join("prefix"))
        .env("WINEDLLOVERRIDES", "mscoree,mshtml=")
        .env("WINEDEBUG", "-all");
    command
}

fn tools() -> PathBuf {
    tree::cache_dir().join("windows")
}

fn compile(name: &str, to: PathBuf, before: &[&str], after: &[&str]) -> Result<()> {
    let flags = ["-O2", "-Wall", "-Werror"];
    run_command(
        command(WINDOWS_CC, &flags)
            .args(before)
            .arg("-o")
            .arg(to)
            .arg(source(name))
            .args(after),
    )
}

fn source(name: &str) -> PathBuf {
    tree::root().join("tools/xtask/cross").join(name)
}
