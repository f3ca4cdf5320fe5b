//! The program with packs: how long they take to load, what became of them, and workflows against them.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::Cursor,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::{
    base::Base,
    report::{LeftOutClass, PackResult},
    workflow::{Request, Workflow, WorkflowResult},
};
use crate::{
    Connection, Response, Server, StartOptions,
    picture::{self, Picture},
    server::NO_STARTER,
};

/// How long things may take before they count as a hang.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until all packs have been imported and described.
    pub load: Duration,
    /// A workflow, or its twin.
    pub workflow: Duration,
}

/// What the log says in front of why a class was not described.
const LEFT_OUT: &str = ": INPUT_TYPES failed";
/// How long the program may take to end a prompt that was interrupted.
const AFTER_INTERRUPT: Duration = Duration::from_secs(30);
/// Nothing is fetched while packs run: their usual libraries are told so, and what asks anyway finds no proxy.
const OFFLINE: &[(&str, &str)] = &[
    (NO_STARTER, "0"),
    ("HF_HUB_OFFLINE", "1"),
    ("TRANSFORMERS_OFFLINE", "1"),
    ("http_proxy", "http://127.0.0.1:9"),
    ("https_proxy", "http://127.0.0.1:9"),
    ("HTTP_PROXY", "http://127.0.0.1:9"),
    ("HTTPS_PROXY", "http://127.0.0.1:9"),
];

pub struct Rig {
    pub base: Base,
    server: Server,
    limits: Limits,
    python: Option<String>,
    /// Until the packs were loaded, or the limit.
    pub load_time: Duration,
    /// Why the packs did not get ready.
    pub hung: Option<String>,
}

impl Rig {
    /// Starts the program and waits until its packs are loaded, or until the limit.
    pub fn start(base: Base, python: Option<&str>, limits: Limits) -> Result<Self> {
        let begun = Instant::now();
        let server = start(&base, python)?;
        let mut rig = Self {
            base,
            server,
            limits,
            python: python.map(str::to_owned),
            load_time: Duration::ZERO,
            hung: None,
        };
        rig.wait_until_loaded(begun);
        Ok(rig)
    }

    /// Ends the process and starts another one in the same folder.
    pub fn restart(&mut self) -> Result<()> {
        self.server.kill();
        let begun = Instant::now();
        self.server = start(&self.base, self.python.as_deref())?;
        self.hung = None;
        self.wait_until_loaded(begun);
        Ok(())
    }

    fn wait_until_loaded(&mut self, begun: Instant) {
        let deadline = begun + self.limits.load;
        loop {
            let state = match self.ask("GET", "/api/packs", &Value::Null) {
                Ok(answer) => answer.json()["state"].clone(),
                Err(error) => json!(format!("{error:#}")),
            };
            if state == "ready" || state == "unavailable" || state == "idle" {
                break;
            }
            if Instant::now() > deadline {
                let limit = self.limits.load.as_secs();
                self.hung = Some(format!("not loaded after {limit} s, the state is {state}"));
                break;
            }
            thread::park_timeout(Duration::from_millis(50));
        }
        self.load_time = begun.elapsed();
    }

    /// One request. The harness gives up after a minute, so that a hang is an error here.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Response> {
        let headers = [("Content-Type", "application/json")];
        let mut connection = Connection::open(self.server.address)?;
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        connection.request(method, path, &headers, body.as_bytes())
    }

    fn ask_json(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let answer = self.ask(method, path, body)?;
        serde_json::from_slice(&answer.body)
            .with_context(|| format!("{method} {path} answered {}", answer.status))
    }

    /// Everything that the program and the packs printed.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// What became of each pack.
    pub fn packs(&mut self) -> Result<Vec<PackResult>> {
        let report = self.ask_json("GET", "/api/packs", &Value::Null)?;
        let described = match self.ask_json("GET", "/object_info", &Value::Null) {
            Ok(Value::Object(classes)) => classes,
            Ok(other) => bail!("/object_info is not an object: {other}"),
            Err(error) => {
                self.hung = Some(format!("{error:#}"));
                Map::new()
            }
        };
        let log = self.log();
        let problem = report["problem"].as_str();
        let list = report["packs"].as_array().cloned().unwrap_or_default();
        let results = list.iter().map(|pack| {
            let mut result = pack_result(pack, &described, &log);
            if result.reason.is_none() && result.state != "loaded" {
                result.reason = problem.map(str::to_owned).or_else(|| self.hung.clone());
            }
            result
        });
        Ok(results.collect())
    }

    /// Runs a workflow and its twin, and compares them.
    pub fn run(&mut self, workflow: &Workflow, packs: &BTreeSet<String>) -> WorkflowResult {
        if let Some(absent) = workflow.with.iter().find(|name| !packs.contains(*name)) {
            return WorkflowResult::LeftOut(format!("{absent} is not here"));
        }
        let deadline = Instant::now() + self.limits.workflow;
        match self.try_workflow(workflow, deadline) {
            Ok(difference) => WorkflowResult::Ran { difference },
            Err(error) if Instant::now() >= deadline => self.hung(&error),
            Err(error) => WorkflowResult::Failed(format!("{error:#}")),
        }
    }

    /// Says how a workflow hung, and makes the program usable for the next one.
    fn hung(&mut self, error: &anyhow::Error) -> WorkflowResult {
        let mut text = format!("{error:#}");
        let interrupted = self
            .ask("POST", "/interrupt", &json!({}))
            .and_then(|_| self.wait_until_idle());
        if let Err(problem) = interrupted {
            let _ = write!(text, "; nor did it end when interrupted: {problem:#}");
            if let Err(problem) = self.restart() {
                let _ = write!(text, "; it could not be started again: {problem:#}");
            }
        }
        WorkflowResult::Hung(text)
    }

    fn wait_until_idle(&self) -> Result<()> {
        let deadline = Instant::now() + AFTER_INTERRUPT;
        loop {
            let queue = self.ask_json("GET", "/queue", &Value::Null)?;
            if queue["queue_running"].as_array().is_none_or(Vec::is_empty) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the prompt still runs");
            thread::park_timeout(Duration::from_millis(50));
        }
    }

    fn try_workflow(&self, workflow: &Workflow, deadline: Instant) -> Result<Option<u8>> {
        if !workflow.before.is_null() {
            self.follow(&workflow.before, deadline)
                .context("the prompt before it")?;
        }
        for request in &workflow.requests {
            self.try_request(request)?;
        }
        if workflow.prompt.is_null() {
            return Ok(None);
        }
        let outputs = self.follow(&workflow.prompt, deadline)?;
        for (node, expected) in &workflow.shows {
            for (key, expected) in expected.as_object().into_iter().flatten() {
                let shown = &outputs[node][key];
                ensure!(
                    shown == expected,
                    "node {node} must show {key} = {expected}, not {shown}"
                );
            }
        }
        if workflow.twin.is_null() {
            return Ok(None);
        }
        let twin = self.follow(&workflow.twin, deadline).context("the twin")?;
        let difference = self.compare(&outputs, &twin)?;
        ensure!(
            difference <= 1,
            "its pictures differ from those of built-in nodes by {difference} of 255"
        );
        Ok(Some(difference))
    }

    fn try_request(&self, request: &Request) -> Result<()> {
        let Request {
            method,
            path,
            body,
            status,
            contains,
        } = request;
        let answer = self.ask(method, path, body)?;
        let text = answer.text();
        ensure!(
            answer.status == *status && text.contains(contains),
            "{method} {path} must answer {status} with {contains:?}, not {}: {}",
            answer.status,
            text.chars().take(200).collect::<String>()
        );
        Ok(())
    }

    /// Runs a prompt to its end and gives what its nodes showed.
    fn follow(&self, prompt: &Value, deadline: Instant) -> Result<Value> {
        let base = self.base.path().to_string_lossy();
        let prompt: Value = serde_json::from_str(&prompt.to_string().replace("{base}", &base))?;
        let answer = self.ask("POST", "/prompt", &json!({ "prompt": prompt }))?;
        let accepted = answer.status == 200;
        let answer: Value = serde_json::from_slice(&answer.body).context("/prompt")?;
        if !accepted {
            bail!("refused: {}", refusal(&answer));
        }
        let id = answer["prompt_id"].as_str().unwrap_or_default();
        loop {
            let history = self.ask_json("GET", &format!("/history/{id}"), &Value::Null)?;
            let entry = &history[id];
            if entry["status"]["status_str"] == "success" {
                return Ok(entry["outputs"].clone());
            }
            if !entry.is_null() {
                bail!("{}", failure(entry));
            }
            let limit = self.limits.workflow.as_secs();
            ensure!(Instant::now() < deadline, "not done after {limit} s");
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// The largest difference of a colour, of the pictures of nodes that are in both.
    fn compare(&self, ours: &Value, theirs: &Value) -> Result<u8> {
        let mut difference = 0;
        let mut count = 0;
        for (node, theirs) in theirs.as_object().into_iter().flatten() {
            let theirs = self.pictures(theirs)?;
            let ours = self.pictures(&ours[node])?;
            ensure!(
                ours.len() == theirs.len(),
                "node {node} must show {} pictures, not {}",
                theirs.len(),
                ours.len()
            );
            for (a, b) in ours.iter().zip(&theirs) {
                ensure!(
                    (a.width, a.height) == (b.width, b.height) && a.pixels.len() == b.pixels.len(),
                    "a picture of node {node} must be of {} x {}, not {} x {}",
                    b.width,
                    b.height,
                    a.width,
                    a.height
                );
                let pairs = a.pixels.iter().zip(&b.pixels);
                difference = difference.max(pairs.map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0));
                count += 1;
            }
        }
        ensure!(count > 0, "there is no picture to compare");
        Ok(difference)
    }

    fn pictures(&self, output: &Value) -> Result<Vec<Picture>> {
        let list = output["images"].as_array().into_iter().flatten();
        let read = |image: &Value| {
            let text = |key: &str| image[key].as_str().unwrap_or_default();
            let folder = self.base.path().join(text("type"));
            let path = folder.join(text("subfolder")).join(text("filename"));
            let file = std::fs::read(&path)
                .with_context(|| format!("cannot read the picture {}", path.display()))?;
            picture::read(Cursor::new(file))
        };
        list.map(read).collect()
    }
}

fn start(base: &Base, python: Option<&str>) -> Result<Server> {
    let mut arguments = Vec::new();
    if let Some(python) = python {
        arguments.extend(["--python", python]);
    }
    let mut environment = OFFLINE.to_vec();
    // Packs see no variable that looks like a secret; these are plain.
    environment.push(("PYTHONDONTWRITEBYTECODE", "1"));
    let options = StartOptions {
        arguments,
        base: Some(base.path()),
        environment,
        ..StartOptions::default()
    };
    Server::try_start(&options)
        .map_err(|(status, log)| anyhow::anyhow!("the program ended with {status}: {log:?}"))
}

/// What became of a pack, from its row of `/api/packs`.
fn pack_result(pack: &Value, described: &Map<String, Value>, log: &str) -> PackResult {
    let text = |key: &str| pack[key].as_str().map(str::to_owned);
    let module = text("python_module").unwrap_or_default();
    let nodes = pack["nodes"].as_array().into_iter().flatten();
    let nodes: BTreeSet<&str> = nodes.filter_map(Value::as_str).collect();
    let overridden = pack["overridden"].as_array().into_iter().flatten();
    let overridden: BTreeSet<&str> = overridden.filter_map(Value::as_str).collect();
    let absent = nodes.iter().filter(|name| !described.contains_key(**name));
    let mut left_out: Vec<LeftOutClass> = absent
        .filter(|name| !overridden.contains(**name))
        .map(|name| LeftOutClass {
            class: (*name).to_owned(),
            reason: log_reason(log, &module, name),
        })
        .collect();
    left_out.sort_by(|a, b| a.class.cmp(&b.class));
    PackResult {
        name: text("name").unwrap_or_default(),
        state: text("state").unwrap_or_default(),
        reason: text("error"),
        seconds: pack["seconds"].as_f64().unwrap_or_default(),
        described: nodes.len() - left_out.len(),
        left_out,
        workflows: Vec::new(),
    }
}

/// What the log says of a class that was not described.
fn log_reason(log: &str, module: &str, class: &str) -> String {
    let start = format!("[{module}] {class}{LEFT_OUT}");
    let mut lines = log.lines().rev();
    let found = lines.find_map(|line| line.split_once(&start));
    found.map_or_else(
        || "the log does not say why".to_owned(),
        // What follows may say first what became of the class.
        |(_, rest)| {
            rest.split_once(": ")
                .map_or(rest, |(_, why)| why)
                .to_owned()
        },
    )
}

/// What an answer to a prompt that was refused says.
fn refusal(answer: &Value) -> String {
    let mut parts = vec![answer["error"]["message"].as_str().unwrap_or("").to_owned()];
    for (node, about) in answer["node_errors"].as_object().into_iter().flatten() {
        for error in about["errors"].as_array().into_iter().flatten() {
            let text = |key: &str| error[key].as_str().unwrap_or_default();
            let class = about["class_type"].as_str().unwrap_or_default();
            parts.push(format!(
                "node {node} ({class}): {} {}",
                text("message"),
                text("details")
            ));
        }
    }
    if answer["node_errors"].as_object().is_none_or(Map::is_empty) {
        parts.push(answer["error"]["details"].as_str().unwrap_or("").to_owned());
    }
    parts.retain(|part| !part.is_empty());
    parts.join("; ")
}

/// What a history entry says of a prompt that failed.
fn failure(entry: &Value) -> String {
    let messages = entry["status"]["messages"].as_array();
    let messages = messages.map_or(&[][..], Vec::as_slice);
    let error = messages.iter().find(|m| m[0] == "execution_error");
    let Some(error) = error.map(|message| &message[1]) else {
        return format!("it ended as {}", entry["status"]["status_str"]);
    };
    let text = |key: &str| error[key].as_str().unwrap_or_default().trim();
    let (kind, said) = (text("exception_type"), text("exception_message"));
    format!(
        "node {} ({}): {kind}: {said}",
        text("node_id"),
        text("node_type")
    )
}
