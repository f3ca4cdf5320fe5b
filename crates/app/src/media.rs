//! Films and sound: who decodes files that others made.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use fresco_media::{Ffmpeg, Reader, worker};

use crate::env_vars;

/// Runs as the process that decodes, if that is what this one was started for.
pub(crate) fn decode(argv: &[OsString]) -> Option<ExitCode> {
    let (command, words) = argv.get(1..)?.split_first()?;
    if command != worker::COMMAND {
        return None;
    }
    let words: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    Some(worker::main(&words))
}

/// Starts this program again for each file.
pub(crate) fn reader(use_ffmpeg: bool) -> Reader {
    let ffmpeg = if use_ffmpeg {
        let found = Ffmpeg::find(env_vars::get(env_vars::PATH).as_deref());
        if let Some(ffmpeg) = &found {
            tracing::info!("ffmpeg: {}", ffmpeg.program().display());
        } else {
            tracing::warn!("--use-ffmpeg: no ffmpeg and ffprobe in PATH");
        }
        found
    } else {
        None
    };
    let Some(program) = program() else {
        tracing::warn!("films and sound are decoded in this process: its file is not known");
        return Reader::here().with_ffmpeg(ffmpeg);
    };
    Reader::in_process(program).with_ffmpeg(ffmpeg)
}

/// This program, also when its file was replaced by a newer one.
fn program() -> Option<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if cfg!(target_os = "linux") && running.exists() {
        return Some(running);
    }
    std::env::current_exe().ok()
}
