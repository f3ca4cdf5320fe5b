//! Runs every node that needs no model in a memory group: `memory_limits MEBIBYTES [INPUTS [CLASS]]`, with inputs of
//! INPUTS MiB each, or of half the group's size.
//!
//! Every prompt must end, with a result or an error, and the server must live. `cargo xtask memory-limits` builds what is
//! needed.

#![expect(
    clippy::print_stdout,
    reason = "a driver reports to the person who started it"
)]

use std::collections::BTreeMap;
use std::env;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fresco_tests::limits::{MemoryGroup, Trial, Trials};
use fresco_tests::{Connection, Server, StartOptions, server};
use serde_json::{Value, json};

/// A prompt that takes longer is interrupted: this is about memory.
const LONG: Duration = Duration::from_mins(1);
/// What an interrupt may take.
const STOP: Duration = Duration::from_mins(1);

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (size, inputs, only) = match words.as_slice() {
        [size] => (*size, None, None),
        [size, inputs] => (*size, Some(*inputs), None),
        [size, inputs, class] => (*size, Some(*inputs), Some(*class)),
        _ => bail!("usage: memory_limits MEBIBYTES [INPUTS [CLASS]]"),
    };
    let mebibytes = |text: &str| -> Result<u64> {
        let number = text.parse::<u64>().context("sizes are numbers of MiB")?;
        Ok(number << 20)
    };
    let bytes = mebibytes(size)?;
    let inputs = inputs.map_or(Ok(bytes / 2), mebibytes)?;
    let folder = tempfile::tempdir()?;
    let group = MemoryGroup::new(bytes).context("cannot make a memory group here")?;
    let program = group.wrapper(&server::program(), folder.path())?;
    let start = || {
        Server::start_with(StartOptions {
            program: Some(&program),
            ..StartOptions::default()
        })
    };
    let mut server = start();
    let trials = Trials::new(server.get("/object_info").json(), inputs).all();
    let mut deaths = Vec::new();
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for trial in &trials {
        if only.is_some_and(|only| only != trial.class) {
            continue;
        }
        let begun = Instant::now();
        let end = run(&server, trial);
        println!(
            "{:6.1} s  {:<9} {} ({}){}",
            begun.elapsed().as_secs_f64(),
            end.word(),
            trial.class,
            trial.variant,
            end.detail()
        );
        *ends.entry(end.word()).or_default() += 1;
        if matches!(end, End::Dead | End::Stuck) {
            deaths.push(format!(
                "{} ({}): {}",
                trial.class,
                trial.variant,
                end.word()
            ));
            drop(server);
            server = start();
        }
    }
    drop(server);
    let count: usize = ends.values().sum();
    println!(
        "a group of {size} MiB, inputs of {} MiB, {count} prompts: {ends:?}",
        inputs >> 20
    );
    if let Some(peak) = group.peak() {
        println!("most memory at once: {} MiB", peak >> 20);
    }
    if !deaths.is_empty() {
        bail!(
            "{} prompts ended the server:\n{}",
            deaths.len(),
            deaths.join("\n")
        );
    }
    Ok(())
}

enum End {
    Result,
    Error(String),
    /// Not accepted.
    Refused(String),
    /// Took too long and was interrupted.
    Long,
    /// Took too long and did not heed the interrupt.
    Stuck,
    Dead,
}

impl End {
    fn word(&self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Error(_) => "error",
            Self::Refused(_) => "refused",
            Self::Long => "long",
            Self::Stuck => "STUCK",
            Self::Dead => "DEAD",
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::Error(text) | Self::Refused(text) => {
                let text: String = text.chars().take(160).collect();
                format!(": {}", text.replace('\n', " "))
            }
            _ => String::new(),
        }
    }
}

fn run(server: &Server, trial: &Trial) -> End {
    let Ok(mut connection) = Connection::open(server.address) else {
        return End::Dead;
    };
    let Ok(answer) = connection.post("/prompt", &json!({ "prompt": trial.prompt })) else {
        return End::Dead;
    };
    if answer.status != 200 {
        return End::Refused(String::from_utf8_lossy(&answer.body).into_owned());
    }
    let id = answer.json()["prompt_id"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let begun = Instant::now();
    let mut interrupted = None;
    loop {
        let Ok(answer) = connection.get(&format!("/history/{id}")) else {
            return End::Dead;
        };
        let history = answer.json();
        if !history[&id].is_null() {
            return ended(&history[&id], interrupted.is_some());
        }
        match interrupted {
            None if begun.elapsed() > LONG => {
                if connection.request("POST", "/interrupt", &[], b"").is_err() {
                    return End::Dead;
                }
                interrupted = Some(Instant::now());
            }
            Some(at) if at.elapsed() > STOP => return End::Stuck,
            _ => {}
        }
        thread::park_timeout(Duration::from_millis(20));
    }
}

fn ended(entry: &Value, interrupted: bool) -> End {
    let status = &entry["status"];
    if status["status_str"] == "success" {
        return End::Result;
    }
    let messages = status["messages"].as_array();
    let message = |kind: &str| {
        let found = messages?.iter().find(|m| m[0] == kind)?;
        Some(found[1].clone())
    };
    match message("execution_error") {
        Some(error) => End::Error(format!(
            "{} {}",
            error["node_id"].as_str().unwrap_or_default(),
            error["exception_message"].as_str().unwrap_or_default()
        )),
        None if interrupted => End::Long,
        None => End::Error(status.to_string()),
    }
}
