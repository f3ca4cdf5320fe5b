//! What is known of packs.

use std::fmt::Write as _;
use std::sync::Arc;

use fresco_graph::{Map, Value, map};

/// How far a pack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Waiting,
    Loading,
    Loaded,
    Failed,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Failed => "failed",
        }
    }
}

/// One pack.
#[derive(Clone, Debug)]
pub struct PackReport {
    pub name: String,
    pub path: String,
    pub module: String,
    pub state: State,
    pub error: Option<String>,
    pub trace: Option<String>,
    pub seconds: f64,
    pub classes: Vec<String>,
    /// Names of built-in nodes that it wanted to replace.
    pub ignored: Vec<String>,
    /// Classes of other packs that it replaced: name and whose it was.
    pub overridden: Vec<(String, String)>,
    /// Folders with scripts for the front-end, by mount name.
    pub web: Vec<(String, String)>,
    /// Classes that could not say what they declare and are left out: name and why.
    pub undescribed: Vec<(String, String)>,
    /// How often the process ended while it ran a node of this pack, and how the last time.
    pub ends: u64,
    pub last_end: Option<String>,
    /// What it wrote outside of the folders that are for packs.
    pub outside: Vec<String>,
}

impl PackReport {
    /// With what it wrote last, and the name of its process.
    pub(crate) fn to_value(&self, log: &[String], process: &str) -> Value {
        let texts = |list: &[String]| list.iter().map(Value::from).collect::<Vec<_>>();
        map! {
            "name" => &self.name,
            "path" => &self.path,
            "python_module" => &self.module,
            "state" => self.state.name(),
            "error" => self.error.clone(),
            "traceback" => self.trace.clone(),
            "seconds" => self.seconds,
            "nodes" => texts(&self.classes),
            "ignored" => texts(&self.ignored),
            "overridden" => self.overridden.iter().map(|(name, _)| Value::from(name)).collect::<Vec<_>>(),
            "log" => texts(log),
            "web" => self.web.iter().map(|(name, _)| Value::from(name)).collect::<Vec<_>>(),
            "process" => process,
            "left_out" => self
                .undescribed
                .iter()
                .map(|(class, why)| (Arc::from(class.as_str()), Value::from(why)))
                .collect::<Map>(),
            "ends" => self.ends,
            "last_end" => self.last_end.clone(),
            "writes_outside" => texts(&self.outside),
        }
        .into()
    }

    /// Takes what the process says of it.
    pub(crate) fn update(&mut self, said: &Map) {
        let text = |key: &str| said.get(key).and_then(Value::as_str).map(str::to_owned);
        let texts = |key: &str| -> Vec<String> {
            let list = said.get(key).and_then(Value::as_list).unwrap_or_default();
            list.iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        let pairs = |key: &str| -> Vec<(String, String)> {
            let list = said.get(key).and_then(Value::as_list).unwrap_or_default();
            let pair = |value: &Value| match value.as_list()? {
                [Value::Str(a), Value::Str(b)] => Some((a.to_string(), b.to_string())),
                _ => None,
            };
            list.iter().filter_map(pair).collect()
        };
        let ok = said.get("ok").is_some_and(Value::truthy);
        self.state = if ok { State::Loaded } else { State::Failed };
        self.error = text("error");
        self.trace = text("trace");
        self.seconds = said.get("seconds").and_then(Value::as_f64).unwrap_or(0.0);
        self.classes = texts("classes");
        self.ignored = texts("ignored");
        self.overridden = pairs("overridden");
        self.web = pairs("web");
        self.undescribed.clear();
    }
}

/// The process that runs packs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There are no packs.
    Idle,
    Starting,
    Ready,
    /// It ended and comes back.
    Restarting,
    /// It cannot run; why.
    Unavailable(Arc<str>),
}

impl Phase {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Restarting => "restarting",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// The table that the reference prints.
pub(crate) fn import_times(packs: &[PackReport]) -> String {
    let mut rows: Vec<&PackReport> = packs.iter().collect();
    rows.sort_by(|a, b| {
        a.seconds
            .total_cmp(&b.seconds)
            .then_with(|| a.path.cmp(&b.path))
    });
    let mut text = String::from("\nImport times for custom nodes:");
    for pack in rows {
        let failed = if pack.state == State::Failed {
            " (IMPORT FAILED)"
        } else {
            ""
        };
        let _ = write!(
            text,
            "\n{:6.1} seconds{failed}: {}",
            pack.seconds, pack.path
        );
    }
    text.push('\n');
    text
}
