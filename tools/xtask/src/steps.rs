//! Running other programs one after another, with their time on the clock.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::tree;

/// A command in the repository root, with colours and progress bars off.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(tree::root())
        .env("CARGO_TERM_PROGRESS_WHEN", "never")
        .stdin(Stdio::null());
    command
}

/// Cargo as a person would start it. `cargo run` describes the package of this program in variables; build scripts that read
/// them (`ring` has one) would otherwise run again whenever a person and this program take turns.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = command("cargo", arguments);
    for (name, _) in env::vars_os() {
        let described = ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|prefix| name.to_string_lossy().starts_with(prefix));
        if described {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    println!("    $ {shown}");
    let status = command
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs a command, passing its output on while keeping the lines that `keep` picks.
pub(crate) fn run_keeping(command: &mut Command, keep: fn(&str) -> bool) -> Result<Vec<String>> {
    let shown = show(command);
    println!("    $ {shown}");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    let (sender, lines) = mpsc::channel();
    let stdout = child.stdout.take().expect("stdout was piped");
    let stderr = child.stderr.take().expect("stderr was piped");
    let readers = [
        thread::spawn({
            let sender = sender.clone();
            move || forward(stdout, &sender)
        }),
        thread::spawn(move || forward(stderr, &sender)),
    ];
    let mut kept = Vec::new();
    for line in lines {
        println!("{line}");
        if keep(&line) {
            kept.push(line.trim().to_owned());
        }
    }
    for reader in readers {
        reader.join().expect("a forwarding thread does not panic");
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(kept)
}

fn forward(stream: impl std::io::Read, sender: &mpsc::Sender<String>) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if sender.send(text).is_err() {
            return;
        }
    }
}

pub(crate) fn show(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

pub(crate) fn present(program: &str, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Names and durations of what ran, for the closing table.
#[derive(Default)]
pub(crate) struct Clock {
    laps: Vec<(&'static str, Duration)>,
}

impl Clock {
    pub(crate) fn step(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        println!("==> {name}");
        let start = Instant::now();
        let result = work();
        let spent = start.elapsed();
        self.laps.push((name, spent));
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        println!(
            "<== {name}: {outcome} in {:.1} s, {:.0} s since the start",
            spent.as_secs_f64(),
            self.all().as_secs_f64()
        );
        result.with_context(|| format!("step {name}"))
    }

    pub(crate) fn print(&self) {
        println!("\nsteps:");
        for (name, spent) in &self.laps {
            println!("  {name:<12} {:>8.1} s", spent.as_secs_f64());
        }
        println!("  {:<12} {:>8.1} s", "all", self.all().as_secs_f64());
    }

    fn all(&self) -> Duration {
        self.laps.iter().map(|(_, spent)| *spent).sum()
    }
}
