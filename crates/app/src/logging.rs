//! The log: lines on standard error, the last of them kept for the front-end's panel.
//!
//! Plain messages, because test harnesses and people's scripts look for whole lines of the reference; problems say first
//! what they are.

use std::fmt::{self, Write as _};
use std::io::{IsTerminal as _, Write as _};

use fresco_server::LogRing;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::{LogArgs, Verbosity};
use crate::env_vars;

/// Who reads the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    Server,
    /// There is only one prompt, so that lines need not say which they are about.
    Run,
    /// The same, of a run that is to say nothing unless something is wrong or the command line asks for more.
    QuietRun,
}

/// Starts logging for the process and gives the kept lines.
pub(crate) fn start(args: &LogArgs, audience: Audience) -> LogRing {
    let ring = LogRing::default();
    let colour = std::io::stderr().is_terminal() && env_vars::get(env_vars::NO_COLOR).is_none();
    let lines = Lines {
        ring: ring.clone(),
        stdout: args.log_stdout,
        colour,
        one_prompt: audience != Audience::Server,
    };
    let (ours, others) = match args.verbose {
        Verbosity::Info if audience == Audience::QuietRun => (LevelFilter::WARN, LevelFilter::WARN),
        Verbosity::Debug => (LevelFilter::DEBUG, LevelFilter::INFO),
        Verbosity::Info => (LevelFilter::INFO, LevelFilter::WARN),
        Verbosity::Warning => (LevelFilter::WARN, LevelFilter::WARN),
        Verbosity::Error | Verbosity::Critical => (LevelFilter::ERROR, LevelFilter::ERROR),
    };
    // What happens to the connection is said by `fresco_cluster`, once; its library says it with every try.
    let nats = match args.verbose {
        Verbosity::Debug => LevelFilter::INFO,
        _ => LevelFilter::OFF,
    };
    let filter = Targets::new()
        .with_default(others)
        .with_target("async_nats", nats)
        .with_target("fresco", ours);
    // A second call, in tests, keeps the first one's log.
    let _ = tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init();
    ring
}

struct Lines {
    ring: LogRing,
    /// All but errors go to standard output.
    stdout: bool,
    colour: bool,
    one_prompt: bool,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        let line = line(level, event, self.one_prompt);
        self.ring.push(&line);
        // A log that cannot be written must not end the program.
        let _ = if self.stdout && level != Level::ERROR {
            std::io::stdout().lock().write_all(line.as_bytes())
        } else {
            let paint = match level {
                Level::ERROR => "\x1b[31m",
                Level::WARN => "\x1b[33m",
                _ => "",
            };
            let mut to = std::io::stderr().lock();
            if self.colour && !paint.is_empty() {
                write!(to, "{paint}{line}\x1b[0m")
            } else {
                to.write_all(line.as_bytes())
            }
        };
    }
}

fn line(level: Level, event: &Event<'_>, one_prompt: bool) -> String {
    let mut text = Text {
        message: String::new(),
        fields: String::new(),
        one_prompt,
    };
    event.record(&mut text);
    let before = match level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        _ => "",
    };
    let mut line = before.to_owned();
    tame(&mut line, &text.message);
    tame(&mut line, &text.fields);
    line.push('\n');
    line
}

/// Longest message or list of fields; the last few hundred lines are kept in memory.
const LONGEST: usize = 20_000;

/// Adds a text that may hold names from elsewhere: such a name cannot begin a line that looks like ours, and cannot talk to
/// the terminal.
fn tame(line: &mut String, text: &str) {
    for (at, c) in text.char_indices() {
        if at >= LONGEST {
            line.push_str("..");
            return;
        }
        match c {
            '\n' => line.push_str("\n  "),
            '\t' => line.push(c),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
}

struct Text {
    message: String,
    fields: String,
    one_prompt: bool,
}

impl Text {
    fn shows(&self, field: &Field) -> bool {
        !(self.one_prompt && field.name() == "prompt")
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else if self.shows(field) {
            let _ = write!(self.fields, " {}={value}", field.name());
        }
    }

    /// An error with all its causes: printed once, here.
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let _ = write!(self.fields, " {}={}", field.name(), chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else if self.shows(field) {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}

/// `what: why: why`.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_plain_and_kept() {
        let ring = LogRing::default();
        let lines = Lines {
            ring: ring.clone(),
            stdout: false,
            colour: false,
            one_prompt: false,
        };
        let filter = Targets::new()
            .with_default(LevelFilter::WARN)
            .with_target("fresco", LevelFilter::INFO);
        let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("To see the GUI go to: {}", "http://127.0.0.1:8188");
            tracing::info!(target: "fresco_engine::worker", n = 3, name = "x", "took");
            tracing::debug!("not shown");
            tracing::info!(target: "hyper", "not shown");
            tracing::warn!(target: "hyper", "odd");
            let error = std::io::Error::other("inner");
            tracing::error!(error = &error as &dyn std::error::Error, "failed");
            tracing::warn!(prompt = "a\nerror: b\r\x1b[31m", "c\nd\u{9b}");
        });
        let kept: Vec<_> = ring.entries().into_iter().map(|e| e.text).collect();
        assert_eq!(
            kept,
            [
                "To see the GUI go to: http://127.0.0.1:8188\n",
                "took n=3 name=x\n",
                "warning: odd\n",
                "error: failed error=inner\n",
                "warning: c\n  d\\u{9b} prompt=a\n  error: b\\r\\u{1b}[31m\n",
            ]
        );
        let mut line = String::new();
        tame(&mut line, &"x".repeat(2 * LONGEST));
        assert_eq!(line.len(), LONGEST + "..".len());
    }
}
