//! `fresco run`: one workflow, no server. Progress on standard error, what was made on standard output.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use anyhow::{Context as _, bail};
use fresco_engine::store::{HistoryRecord, JobStore, Limits, StorePath};
use fresco_engine::{
    Engine, EngineConfig, Event, EventKind, EventSink, NodeProgress, NodeState, ProgressRegistry,
    Submission, WorkerConfig,
};
use fresco_files::Dirs;
use fresco_files::dirs::check_writable;
use fresco_graph::{Map, PromptLimits, Value, json, lock, map};

use fresco_memory::ModelRegistry;
use fresco_models::detect::Families;
use fresco_nodes::admission;

use crate::assembly::Assembly;
use crate::cli::RunArgs;
use crate::effort::{Effort, measured_speed};
use crate::settings::{ExecSettings, FolderSettings};
use crate::signals::{StopSignal, StopSignals};
use crate::workflow_file;

/// Nobody interrupts a run from outside, so a node may take its time.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let exec = ExecSettings::resolve(&args.exec)?;
    exec.memory.register_devices()?;
    let assembly = Assembly::open(&FolderSettings::resolve(args.dirs))?;
    assembly.dirs.create_input();
    assembly.dirs.create_output()?;
    // Now, and not after an hour of computing.
    check_writable(&assembly.dirs.output)?;
    // Not emptied first: a server may be using it.
    assembly.dirs.create_temp()?;

    let bytes = workflow_file::read(&args.file)?;
    let defs = assembly.node_defs();
    let mut found = workflow_file::understand(&bytes, &defs, false)
        .with_context(|| args.file.display().to_string())?;
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    for assignment in &args.set {
        let knows = |class: &str, input: &str| knows_input(&assembly, class, input);
        workflow_file::set(&mut found.prompt, assignment, knows)
            .with_context(|| format!("--set {assignment}"))?;
    }

    let unknown = workflow_file::unknown_nodes(&found.prompt, &assembly.registry.snapshot());
    if !unknown.is_empty() {
        bail!(
            "{}: these nodes have a class that Fresco does not know: {}; nodes of Python packs run only in a server",
            args.file.display(),
            unknown.join(", ")
        );
    }

    let memory = exec.memory.registry();
    let effort = large_effort(&found.prompt, &assembly, &memory)?;
    if let Some(effort) = &effort
        && !args.yes
    {
        ask(effort)?;
    }

    let (events, happens) = mpsc::channel();
    listen_for_signals(events.clone())?;
    if let Some(effort) = effort.filter(|_| args.yes) {
        tracing::info!("{effort}");
    }
    let show = !args.quiet && std::io::stderr().is_terminal();
    let bar = Arc::new(Bar {
        events: Mutex::new(Some(events)),
        total: found.prompt.len(),
        show,
        nodes: Mutex::default(),
        drawn: Mutex::default(),
    });
    let store = JobStore::open(&StorePath::Memory, Limits::default())?;
    let engine = Engine::start(EngineConfig {
        executor: assembly.executor(&exec, memory, bar.clone())?,
        workers: vec![WorkerConfig::local()],
        listings: assembly.listings.clone(),
        jobs: Arc::new(store.clone()),
        limits: PromptLimits::default(),
        hang_grace: GRACE,
    })
    .context("cannot start the worker")?;
    let valid = engine.validate(found.prompt, None).map_err(|mut error| {
        if let Some(class) = error
            .unknown_class
            .as_ref()
            .filter(|_| crate::packs::has_packs(&assembly))
        {
            error.problem.message = format!(
                "Cannot execute because node {class} is not known. Python packs are not running: `fresco run` starts \
                 none. Start the server and post the workflow to it."
            );
        }
        error
    })?;
    for (id, node) in &valid.problems {
        for problem in &node.errors {
            tracing::warn!(
                "node {id} ({}) is left out: {}: {}",
                node.class,
                problem.message,
                problem.details
            );
        }
    }
    let mut extra_data = Map::new();
    if let Some(workflow) = found.editor {
        extra_data.insert(
            "extra_pnginfo".into(),
            map! { "workflow" => workflow }.into(),
        );
    }
    let ticket = engine.submit_blocking(
        valid,
        Submission {
            extra_data,
            ..Submission::default()
        },
    )?;
    let prompt_id = ticket.prompt_id.clone();
    let stopped = match happens.recv() {
        Ok(RunEvent::Stop(signal)) => {
            bar.clear();
            tracing::warn!("{}: stopping", signal.name());
            stop(&engine, &happens);
            Some(signal)
        }
        // An error means that the engine broke down, and the record below says what it knows.
        Ok(RunEvent::Ended) | Err(_) => None,
    };
    bar.clear();
    let record = store
        .history_get(&prompt_id)
        .wait()
        .context("the engine stopped")??;
    engine.stop(GRACE);
    let record = record.context("the workflow ended without a record")?;
    let code = report(&record, &assembly.dirs)?;
    Ok(match stopped {
        Some(signal) if !record.end.is_finished() => ExitCode::from(signal.exit_code()),
        _ => code,
    })
}

/// Interrupts until the end comes: the prompt may not have begun yet. A node that does not heed it is left behind after a while.
fn stop(engine: &Engine, happens: &mpsc::Receiver<RunEvent>) {
    const AGAIN: Duration = Duration::from_millis(100);
    loop {
        engine.interrupt(None);
        match happens.recv_timeout(AGAIN) {
            Ok(RunEvent::Stop(_)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(RunEvent::Ended) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// What somebody should know before so much is begun; none for what is usual.
fn large_effort(
    prompt: &Map,
    assembly: &Assembly,
    memory: &ModelRegistry,
) -> anyhow::Result<Option<String>> {
    let found = admission::assess(prompt, &assembly.folders, &Families::default(), memory);
    let Some(effort) = Effort::of(&found, prompt) else {
        return Ok(None);
    };
    let speed = measured_speed()?;
    let free = fresco_tensor::available_memory();
    Ok(effort
        .is_large(speed, free)
        .then(|| effort.describe(speed, free)))
}

/// A person decides; a script has to have decided before.
fn ask(effort: &str) -> anyhow::Result<()> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        bail!("{effort}; --yes runs it all the same");
    }
    let mut terminal = std::io::stderr().lock();
    write!(terminal, "{effort}.\nRun it? [y/N] ")
        .and_then(|()| terminal.flush())
        .context("cannot ask on the terminal")?;
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    if !matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        bail!("nothing was run");
    }
    Ok(())
}

/// The first signal is passed on; a second one ends the program at once.
#[expect(
    clippy::disallowed_methods,
    reason = "a second signal means that the orderly end takes too long; there is nothing to save"
)]
fn listen_for_signals(events: mpsc::Sender<RunEvent>) -> anyhow::Result<()> {
    const CANNOT: &str = "cannot listen for signals";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(CANNOT)?;
    let mut signals = {
        let _inside = runtime.enter();
        StopSignals::listen()
    };
    let listen = async move {
        let first = signals.next().await;
        // The main thread may have ended meanwhile.
        let _ = events.send(RunEvent::Stop(first));
        let second = signals.next().await;
        tracing::warn!("{}: stopped at once", second.name());
        std::process::exit(second.exit_code().into());
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(listen))
        .context(CANNOT)?;
    Ok(())
}

fn knows_input(assembly: &Assembly, class: &str, input: &str) -> bool {
    let Some(info) = assembly.node_info(class) else {
        return false;
    };
    let group = |name| {
        info.get("input")
            .and_then(|i| i.get(name))
            .and_then(|g| g.get(input))
            .is_some()
    };
    group("required") || group("optional")
}

fn report(record: &HistoryRecord, dirs: &Dirs) -> anyhow::Result<ExitCode> {
    let outputs = json::parse(&record.outputs).context("the record cannot be read")?;
    let mut out = std::io::stdout().lock();
    let person = std::io::stdout().is_terminal();
    for made in listed(&outputs, dirs) {
        let (line, sentence) = made.report();
        // Programs get the bare path; people get a sentence, on whichever of the two they look at.
        match sentence {
            Some(sentence) if person => writeln!(out, "{sentence}"),
            Some(sentence) => {
                tracing::info!("{sentence}");
                writeln!(out, "{line}")
            }
            None => writeln!(out, "{line}"),
        }
        .context("cannot write to standard output")?;
    }
    if record.end.is_finished() {
        return Ok(ExitCode::SUCCESS);
    }
    let messages = json::parse(&record.messages).unwrap_or_default();
    tracing::error!("{}", failure(&messages));
    Ok(ExitCode::FAILURE)
}

/// Something that a node gave out.
#[derive(Debug, PartialEq, Eq)]
enum Made {
    /// A file by its whole path; a preview goes when a server starts.
    File {
        path: String,
        preview: bool,
    },
    Value(String),
}

impl Made {
    /// The line for programs, and the line for people.
    fn report(&self) -> (&str, Option<String>) {
        match self {
            Self::File { path, preview } => {
                let what = if *preview { "preview" } else { "saved" };
                (path, Some(format!("{what}: {path}")))
            }
            Self::Value(line) => (line, None),
        }
    }
}

/// Files as paths, everything else as `node key: value`.
fn listed(outputs: &Value, dirs: &Dirs) -> Vec<Made> {
    let mut lines = Vec::new();
    for (node, output) in outputs.as_map().into_iter().flatten() {
        for (key, items) in output.as_map().into_iter().flatten() {
            if &**key == "animated" {
                continue;
            }
            for item in items.as_list().unwrap_or_default() {
                lines.push(saved(item, dirs).unwrap_or_else(|| {
                    Made::Value(format!("{node} {key}: {}", json::python_text(item)))
                }));
            }
        }
    }
    lines
}

fn saved(item: &Value, dirs: &Dirs) -> Option<Made> {
    let name = item.get("filename")?.as_str()?;
    let kind = item.get("type")?.as_str()?;
    let folder = dirs.by_type(kind)?;
    let below = item
        .get("subfolder")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let path = folder.join(Path::new(below)).join(name);
    // Whole, so that it can be opened from anywhere; a working directory that is gone leaves it as it is.
    let path = std::path::absolute(&path).unwrap_or(path);
    Some(Made::File {
        path: path.display().to_string(),
        preview: kind == "temp",
    })
}

fn failure(messages: &Value) -> String {
    let event = |name: &str| {
        messages
            .as_list()
            .unwrap_or_default()
            .iter()
            .find_map(|m| match m.as_list() {
                Some([Value::Str(event), data]) if &**event == name => Some(data.clone()),
                _ => None,
            })
    };
    if let Some(data) = event("execution_error") {
        let text = |key: &str| {
            data.get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let node = text("node_id");
        let place = if node.is_empty() {
            String::new()
        } else {
            format!("node {node} ({}): ", text("node_type"))
        };
        return format!(
            "{place}{}: {}",
            text("exception_type"),
            text("exception_message")
        );
    }
    match event("execution_interrupted") {
        Some(_) => "the workflow was interrupted".into(),
        None => "the workflow failed".into(),
    }
}

/// What the main thread waits for.
enum RunEvent {
    Ended,
    Stop(StopSignal),
}

/// Listens to the engine: one line that is drawn over and over, and the end.
struct Bar {
    events: Mutex<Option<mpsc::Sender<RunEvent>>>,
    /// Nodes of the prompt; expansions may add some.
    total: usize,
    show: bool,
    nodes: Mutex<ProgressRegistry>,
    /// Text now on the line.
    drawn: Mutex<String>,
}

impl EventSink for Bar {
    fn emit(&self, event: Event) {
        match event.kind {
            EventKind::NodeProgress(progress) if self.show => {
                let mut nodes = lock(&self.nodes);
                nodes.apply(progress);
                let finished = |n: &&NodeProgress| n.state == NodeState::Finished;
                let done = nodes.nodes().filter(finished).count();
                let running = nodes.nodes().find(|n| n.state == NodeState::Running);
                let step = running.map(|n| (&*n.ids.display, n.value, n.max));
                self.draw(line(done, self.total.max(nodes.len()), step));
            }
            EventKind::Ended => {
                let events = lock(&self.events).take();
                if let Some(events) = events {
                    // The main thread may have given up.
                    let _ = events.send(RunEvent::Ended);
                }
            }
            _ => {}
        }
    }
}

impl Bar {
    fn draw(&self, text: String) {
        let mut drawn = lock(&self.drawn);
        if *drawn != text {
            // Erase to the end of the line: the new text may be shorter. A bar that cannot be drawn harms nothing.
            let _ = write!(std::io::stderr().lock(), "\r{text}\x1b[K");
            *drawn = text;
        }
    }

    fn clear(&self) {
        if self.show {
            self.draw(String::new());
        }
    }
}

fn line(done: usize, total: usize, running: Option<(&str, f64, f64)>) -> String {
    const WIDTH: usize = 30;
    let part = running
        .filter(|(_, _, max)| *max > 0.0)
        .map_or(0.0, |(_, value, max)| (value / max).clamp(0.0, 1.0));
    let whole = (done as f64 + part) / total.max(1) as f64;
    let filled = ((whole * WIDTH as f64).floor() as usize).min(WIDTH);
    let bar = "=".repeat(filled) + &" ".repeat(WIDTH - filled);
    let step = match running {
        Some((node, value, max)) if max > 1.0 => format!("  node {node}: {value:.0}/{max:.0}"),
        Some((node, ..)) => format!("  node {node}"),
        None => String::new(),
    };
    format!("[{bar}] {done}/{total}{step}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_up() {
        assert_eq!(line(0, 2, None), format!("[{}] 0/2", " ".repeat(30)));
        assert_eq!(
            line(1, 2, Some(("7", 10.0, 20.0))),
            format!("[{}{}] 1/2  node 7: 10/20", "=".repeat(22), " ".repeat(8))
        );
        assert_eq!(
            line(9, 2, Some(("7", 0.0, 0.0))),
            format!("[{}] 9/2  node 7", "=".repeat(30))
        );
    }

    #[test]
    fn outputs_are_listed_as_paths_or_values() {
        let dirs = Dirs::under(Path::new("/base"));
        let outputs = json::parse(
            r#"{"9":{"images":[{"filename":"a.png","subfolder":"x","type":"output"}],"animated":[false]},
                "4":{"text":["hello"],"images":[{"filename":"b.png","subfolder":"","type":"temp"}]}}"#,
        )
        .unwrap();
        let listed = listed(&outputs, &dirs);
        let told: Vec<_> = listed.iter().map(Made::report).collect();
        assert_eq!(
            told,
            [
                (
                    "/base/output/x/a.png",
                    Some("saved: /base/output/x/a.png".to_owned())
                ),
                ("4 text: hello", None),
                (
                    "/base/temp/b.png",
                    Some("preview: /base/temp/b.png".to_owned())
                ),
            ]
        );
        let relative = super::listed(&outputs, &Dirs::under(Path::new("base")));
        assert!(Path::new(relative[0].report().0).is_absolute());
    }

    #[test]
    fn failures_name_the_node() {
        let read = |text: &str| failure(&json::parse(text).unwrap());
        let error = r#"[["execution_start",{}],["execution_error",{"node_id":"3","node_type":"X","exception_type":"ValueError",
            "exception_message":"bad\n"}]]"#;
        assert_eq!(read(error), "node 3 (X): ValueError: bad");
        assert_eq!(
            read(r#"[["execution_interrupted",{}]]"#),
            "the workflow was interrupted"
        );
        assert_eq!(read("[]"), "the workflow failed");
    }
}
