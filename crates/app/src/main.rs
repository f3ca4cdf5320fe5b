//! The `fresco` binary: settings, assembly, logging. See `cli.rs` for the commands and `serve.rs` for how the rooms meet.

mod accepted_flags;
mod assembly;
mod cli;
mod convert;
mod doctor;
mod effort;
mod env_vars;
mod file_limit;
mod front;
mod front_end;
mod http_client;
mod layers;
mod listings;
mod logging;
mod media;
mod memory;
mod memory_guard;
mod memory_room;
mod memory_table;
mod model_file;
mod models;
mod nodes;
mod pack_list;
mod pack_queue;
mod pack_tools;
mod packs;
mod python;
mod quantize;
mod report;
mod run;
mod serve;
mod settings;
mod signals;
mod starter;
mod tls;
mod value_codec;
mod worker;
mod workers;
mod workflow_file;
mod workflow_plan;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches as _};

use cli::{Cli, LogArgs, ServeArgs, Task};
use layers::Layers;
use logging::Audience;
use settings::{ServeSettings, UsageError};

/// What was typed cannot be meant.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    fresco_tensor::return_large_storage();
    let argv: Vec<OsString> = std::env::args_os().collect();
    // Before anything is opened: that process is to have nothing but its file.
    if let Some(code) = media::decode(&argv) {
        return code;
    }
    match start(&argv) {
        Ok(code) => code,
        Err(error) => {
            let code = if error.is::<UsageError>() { USAGE } else { 1 };
            // If even this cannot be written, the code still says it.
            let _ = writeln!(
                std::io::stderr().lock(),
                "fresco: {}",
                logging::chain(error.as_ref())
            );
            ExitCode::from(code)
        }
    }
}

fn start(argv: &[OsString]) -> anyhow::Result<ExitCode> {
    let command = cli::command();
    // Parsed twice: the settings file is in the base directory, which the command line may name.
    let typed = command
        .clone()
        .try_get_matches_from(argv)
        .unwrap_or_else(|e| e.exit());
    let file = layers::file(&base(&typed))?;
    let unknown = layers::unknown(&command, &file);
    let layers = Layers {
        variable: &env_vars::get,
        file,
    };
    let matches = layers::parse(command, argv, &layers).unwrap_or_else(|e| e.exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());

    let audience = match &cli.command {
        Some(Task::Run(args)) if args.quiet => Audience::QuietRun,
        Some(Task::Run(_)) => Audience::Run,
        _ => Audience::Server,
    };
    let logs = logging::start(log_args(&cli), audience);
    file_limit::become_an_error();
    for option in unknown {
        tracing::warn!("the settings file has an option that does not exist: {option}");
    }
    for (name, reason) in without_effect(&matches) {
        tracing::warn!("--{name} has no effect: {reason}");
    }
    let argv = || without_secrets(argv);
    match cli.command {
        None => serve_with(cli.serve, logs, argv()),
        Some(Task::Serve(args)) => serve_with(*args, logs, argv()),
        Some(Task::Worker(args)) => worker::worker(*args),
        Some(Task::Run(args)) => run::run(*args),
        Some(Task::Convert(args)) => convert::convert(args).map(|()| ExitCode::SUCCESS),
        Some(Task::Quantize(args)) => quantize::quantize(&args).map(|()| ExitCode::SUCCESS),
        Some(Task::Nodes(args)) => nodes::nodes(args).map(|()| ExitCode::SUCCESS),
        Some(Task::Memory(args)) => memory::memory(&args),
        Some(Task::Packs(args)) => packs::packs(args),
        Some(Task::Models(args)) => models::models(*args),
        Some(Task::Doctor(args)) => doctor::doctor(
            &ServeSettings::resolve(args.serve)?,
            args.workflow.as_deref(),
        ),
    }
}

fn serve_with(
    args: ServeArgs,
    logs: fresco_server::LogRing,
    argv: Vec<String>,
) -> anyhow::Result<ExitCode> {
    serve::serve(ServeSettings::resolve(args)?, logs, argv)
}

/// The base directory as far as it is known before the settings file is.
fn base(typed: &ArgMatches) -> PathBuf {
    let matches = typed.subcommand().map_or(typed, |(_, matches)| matches);
    matches
        .try_get_one::<PathBuf>("base_directory")
        .ok()
        .flatten()
        .cloned()
        .or_else(|| env_vars::path(&env_vars::of_option("base-directory")))
        .unwrap_or_else(layers::default_base)
}

fn log_args(cli: &Cli) -> &LogArgs {
    match &cli.command {
        None => &cli.serve.log,
        Some(Task::Serve(args)) => &args.log,
        Some(Task::Doctor(args)) => &args.serve.log,
        Some(Task::Worker(args)) => &args.log,
        Some(Task::Run(args)) => &args.log,
        Some(Task::Convert(args)) => &args.log,
        Some(Task::Quantize(args)) => &args.log,
        Some(Task::Nodes(args)) => &args.log,
        Some(Task::Memory(args)) => &args.log,
        Some(Task::Packs(args)) => &args.log,
        Some(Task::Models(args)) => &args.log,
    }
}

/// The command line as `/system_stats` may show it.
fn without_secrets(argv: &[OsString]) -> Vec<String> {
    let mut shown = Vec::with_capacity(argv.len());
    let mut hide = false;
    for word in argv {
        let word = word.to_string_lossy();
        shown.push(match word.strip_prefix("--token") {
            _ if hide => "***".to_owned(),
            Some(rest) if rest.starts_with('=') => "--token=***".to_owned(),
            _ => without_password(&word),
        });
        hide = !hide && word == "--token";
    }
    shown
}

/// Addresses without what stands between `://` and `@`.
fn without_password(word: &str) -> String {
    let mut shown = String::with_capacity(word.len());
    for (at, part) in word.split("://").enumerate() {
        if at == 0 {
            shown.push_str(part);
            continue;
        }
        // Of several addresses each has its own.
        let own = part.split([',', '/']).next().unwrap_or(part);
        shown.push_str("://");
        match own.rfind('@') {
            Some(end) => {
                shown.push_str("***");
                shown.push_str(&part[end..]);
            }
            None => shown.push_str(part),
        }
    }
    shown
}

/// Accepted flags that were given.
fn without_effect(matches: &ArgMatches) -> Vec<(&'static str, &'static str)> {
    let matches = matches.subcommand().map_or(matches, |(_, matches)| matches);
    let given = |name: &&str| {
        // Commands without these flags do not know the names.
        let known = matches.try_contains_id(name).is_ok();
        known && matches.value_source(name) == Some(ValueSource::CommandLine)
    };
    accepted_flags::accepted()
        .filter(|(name, _)| given(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_not_shown() {
        let shown = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            without_secrets(&words).join(" ")
        };
        assert_eq!(
            shown("fresco --token a --port 1"),
            "fresco --token *** --port 1"
        );
        assert_eq!(shown("fresco --token=a"), "fresco --token=***");
        assert_eq!(
            shown("fresco --token --token --port"),
            "fresco --token *** --port"
        );
        assert_eq!(shown("fresco --token-file f"), "fresco --token-file f");
        assert_eq!(
            shown("fresco --nats nats://me:pass@a:1,tls://x@b --nats=nats://c"),
            "fresco --nats nats://***@a:1,tls://***@b --nats=nats://c"
        );
    }
}
