//! A command that runs in the background of other steps, on what those leave of the processor.

use std::{
    process::Command,
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, bail};

use crate::steps::{command, show};

/// A command that runs gently and says nothing unless it fails.
pub(crate) struct BackgroundCommand(JoinHandle<Result<()>>);

impl BackgroundCommand {
    pub(crate) fn begin(prepare: impl FnOnce() -> Result<Command> + Send + 'static) -> Self {
        Self(thread::spawn(move || run_gently(&prepare()?)))
    }

    /// Waits for it.
    pub(crate) fn end(self) -> Result<()> {
        self.0.join().expect("running commands does not panic")
    }
}

fn run_gently(work: &Command) -> Result<()> {
    let mut gentle = command("nice", &["-n", "19"]);
    gentle.arg(work.get_program()).args(work.get_args());
    for (name, value) in work.get_envs() {
        if let Some(value) = value {
            gentle.env(name, value);
        }
    }
    let shown = show(&gentle);
    let made = gentle
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        bail!("{shown}: {}\n{said}", made.status);
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_told_with_what_it_said() {
        let shell = |text: &str| command("sh", &["-c", text]);
        let well = BackgroundCommand::begin(move || Ok(shell("true")));
        assert!(well.end().is_ok());
        let ill = BackgroundCommand::begin(move || {
            let mut command = shell("echo $WORD >&2; exit 3");
            command.env("WORD", "heard");
            Ok(command)
        });
        let error = format!("{:#}", ill.end().expect_err("it failed"));
        assert!(error.contains("heard") && error.contains('3'), "{error}");
    }
}
