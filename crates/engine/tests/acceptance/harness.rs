//! Runs prompts written in one line and renders what happened.
//!
//! `1 Image value=255; 2 Save image=@1` is node 1 of class Image with a literal and node 2 linked to slot 0 of node 1
//! (`@1.2` is slot 2). Values are JSON; a bare word is text.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fresco_engine::*;
use fresco_graph::{json, *};

use crate::fixtures;

/// Keeps every event as one short line, and the progress of prompts.
#[derive(Default)]
pub struct Recorder(
    pub Mutex<Vec<String>>,
    Mutex<BTreeMap<Arc<str>, ProgressRegistry>>,
);

impl EventSink for Recorder {
    fn emit(&self, event: Event) {
        let line = match event.kind {
            EventKind::Status { remaining } => format!("status {remaining}"),
            EventKind::Queue { paused } => format!("queue {paused}"),
            EventKind::Start { .. } => "start".into(),
            EventKind::Cached { nodes, .. } => format!("cached {}", nodes.join(",")),
            EventKind::Executing { node, display } if node == display => {
                format!("executing {node}")
            }
            EventKind::Executing { node, display } => format!("executing {node}({display})"),
            EventKind::Ended => "ended".into(),
            EventKind::NodeProgress(progress) => {
                let mut all = self.1.lock().unwrap();
                let all = all.entry(event.prompt_id.clone().unwrap()).or_default();
                all.apply(progress);
                let shown = |p: &NodeProgress| {
                    let state = if p.state == NodeState::Running {
                        ""
                    } else {
                        "+"
                    };
                    format!("{}{state}", p.ids.node)
                };
                match all.len() {
                    0..=100 => format!(
                        "state {}",
                        all.nodes().map(shown).collect::<Vec<_>>().join(",")
                    ),
                    _ => "state many".into(),
                }
            }
            EventKind::Progress {
                ids,
                value,
                max,
                preview,
            } => {
                format!(
                    "progress {} {value}/{max}{}",
                    ids.node,
                    if preview.is_some() { " picture" } else { "" }
                )
            }
            EventKind::Preview { ids, .. } => format!("preview {}", ids.node),
            EventKind::Executed { node, output, .. } => {
                format!("executed {node} {}", json::to_string(&output))
            }
            EventKind::Success { .. } => "success".into(),
            EventKind::Error(f) => format!("error {} {}: {}", f.node, f.kind, f.message.trim_end()),
            EventKind::Blocked { node, message, .. } => format!("blocked {node}: {message}"),
            EventKind::Interrupted { node, .. } => format!("interrupted {node}"),
            EventKind::Downgraded { message } => format!("downgraded {message}"),
            EventKind::Text { node, text } => format!("text {node} {text}"),
            EventKind::Bytes { event, .. } => format!("bytes {event}"),
            EventKind::Custom { event, .. } => format!("custom {event}"),
        };
        self.0.lock().unwrap().push(line);
    }
}

pub struct Bench {
    pub executor: Executor,
    pub recorder: Arc<Recorder>,
    pub registry: Arc<LiveRegistry>,
    /// Of the next run; each has its own.
    pub control: RunControl,
    pub with_client: bool,
    pub extra_data: Map,
    count: usize,
}

/// What one prompt did.
pub struct Done {
    pub outcome: JobOutcome,
    pub events: Vec<String>,
}

impl Done {
    /// Nodes that were executed, in order: an `executing` event named them.
    pub fn ran(&self) -> String {
        let names: Vec<&str> = self
            .events
            .iter()
            .filter_map(|e| e.strip_prefix("executing "))
            .collect();
        names.join(" ")
    }

    pub fn cached(&self) -> &str {
        self.events
            .iter()
            .find_map(|e| e.strip_prefix("cached "))
            .unwrap_or("")
    }

    /// The `value` lists of an output node's UI.
    pub fn shown(&self, node: &str) -> String {
        match self.outcome.outputs.get(node) {
            Some(ui) => json::to_string(ui.get("value").unwrap_or(&Value::Null)),
            None => "-".into(),
        }
    }

    pub fn error(&self) -> &str {
        self.events
            .iter()
            .find_map(|e| e.strip_prefix("error "))
            .unwrap_or("")
    }

    /// Events without progress states.
    pub fn story(&self) -> String {
        self.events
            .iter()
            .filter(|e| !e.starts_with("state"))
            .cloned()
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

pub fn config(
    registry: &Arc<LiveRegistry>,
    recorder: &Arc<Recorder>,
    cache: Strategy,
) -> ExecutorConfig {
    ExecutorConfig {
        registry: registry.clone(),
        resources: Arc::default(),
        memory: Arc::new(NoModels),
        sink: recorder.clone(),
        cache,
        preview_method: "none".into(),
        disable_smart_memory: false,
        max_prompt_memory: u64::MAX,
    }
}

impl Bench {
    pub fn new(cache: Strategy) -> Self {
        Self::with_memory(cache, Arc::new(NoModels))
    }

    pub fn with_memory(cache: Strategy, memory: Arc<dyn MemoryRoom>) -> Self {
        Self::with_config(|config| ExecutorConfig {
            memory,
            cache,
            ..config
        })
    }

    pub fn with_config(change: impl FnOnce(ExecutorConfig) -> ExecutorConfig) -> Self {
        let mut registry = NodeRegistry::new();
        registry.add(fixtures::NODES);
        let registry = LiveRegistry::new(registry);
        let recorder = Arc::new(Recorder::default());
        let config = change(config(&registry, &recorder, Strategy::Classic));
        let executor = Executor::new(config);
        Self {
            executor,
            recorder,
            registry,
            control: RunControl::default(),
            with_client: true,
            extra_data: Map::new(),
            count: 0,
        }
    }

    pub fn validate(
        &self,
        script: &str,
        targets: Option<&[&str]>,
    ) -> Result<ValidPrompt, PromptError> {
        validate(&self.registry.snapshot(), parse(script), targets)
    }

    pub fn run(&mut self, script: &str) -> Done {
        self.run_targets(script, None)
    }

    #[track_caller]
    pub fn run_targets(&mut self, script: &str, targets: Option<&[&str]>) -> Done {
        let valid = self
            .validate(script, targets)
            .unwrap_or_else(|e| panic!("{e}"));
        self.count += 1;
        let job = RunJob {
            prompt_id: format!("p{}", self.count).into(),
            prompt: valid.prompt,
            extra_data: self.extra_data.clone(),
            outputs: valid.outputs,
            sensitive: Map::new(),
            client: self.with_client.then(|| "me".into()),
        };
        self.recorder.0.lock().unwrap().clear();
        let control = std::mem::take(&mut self.control);
        let outcome = self.executor.run(&job, &control);
        let events = std::mem::take(&mut *self.recorder.0.lock().unwrap());
        Done { outcome, events }
    }
}

pub fn validate(
    registry: &Arc<NodeRegistry>,
    prompt: Map,
    targets: Option<&[&str]>,
) -> Result<ValidPrompt, PromptError> {
    let resources = Arc::default();
    let rules = Rules {
        registry,
        listings: &NoListings,
        resources: &resources,
        limits: PromptLimits::default(),
    };
    let targets: Option<Vec<Arc<str>>> = targets.map(|t| t.iter().map(|s| Arc::from(*s)).collect());
    rules.validate(prompt, targets.as_deref())
}

pub fn parse(script: &str) -> Map {
    script
        .split(';')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(parse_node)
        .collect()
}

fn parse_node(text: &str) -> (Arc<str>, Value) {
    let mut words = text.split_whitespace();
    let (id, class) = (words.next().unwrap(), words.next().unwrap());
    let inputs: Map = words
        .map(|w| {
            let (name, value) = w.split_once('=').unwrap();
            (Arc::from(name), parse_value(value))
        })
        .collect();
    (
        id.into(),
        map! {"class_type" => class, "inputs" => inputs}.into(),
    )
}

fn parse_value(text: &str) -> Value {
    match text.strip_prefix('@') {
        Some(link) => {
            let (id, slot) = link.split_once('.').unwrap_or((link, "0"));
            vec![Value::from(id), Value::from(slot.parse::<i64>().unwrap())].into()
        }
        None => json::parse(text).unwrap_or_else(|_| text.into()),
    }
}
