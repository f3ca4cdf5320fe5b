//! UI workflow to API prompt: what the editor saves, flattened to what the engine runs.
//!
//! The rules are those of front-end 1.35.9. Everything here reads a file a stranger wrote:
//! a wrong type is skipped with a warning, sizes are bounded, nothing recurses with the input.
//!
//! ```
//! use fresco_graph::{json, ui};
//! let info = json::parse(r#"{"Const": {"input": {"required": {"value": ["INT", {"default": 1}]}}, "output": ["INT"]}}"#)?;
//! let file = json::parse(r#"{"nodes": [{"id": 3, "type": "Const", "widgets_values": [7]}], "links": []}"#)?;
//! let done = ui::convert(&file, &ui::NodeDefs::new(&info), &ui::Options::default()).expect("it is well formed");
//! assert_eq!(json::to_string(&done.prompt["3"]), r#"{"inputs":{"value":7},"class_type":"Const","_meta":{"title":"Const"}}"#);
//! # Ok::<(), json::JsonError>(())
//! ```

mod defs;
mod file;
mod group;
mod parse;
mod promote;
mod resolve;
mod rewrite;
mod room;
mod widgets;

pub use defs::NodeDefs;
pub use file::{Workflow, read, read_texts};
pub use rewrite::Now;

use std::sync::Arc;

use crate::{Map, Value};

/// Subgraphs may nest this deep.
pub const MAX_DEPTH: usize = 64;
/// Longer ids are refused: they are repeated in the path of every inner node.
const MAX_ID: usize = 200;
/// So are paths of ids longer than this.
const MAX_PATH: usize = 1000;
/// A longer type is no type; without a bound, comparing the alternatives of two could take minutes.
const MAX_TYPE: usize = 256;
/// Input slots of all nodes together: a subgraph with many inputs used many times is small as a file only.
const MAX_SLOTS: usize = 4_000_000;
/// Warnings beyond this many are counted, not kept.
const MAX_WARNINGS: usize = 200;

/// What kind of file somebody handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkflowKind {
    /// What the editor saves: needs [`convert`].
    Ui,
    /// Id to `{class_type, inputs}`: can be run as it is.
    Api,
    /// A body of `POST /prompt`: the API form is under `prompt`.
    Request,
    /// The API form under `output`, the editor's under `workflow`.
    Both,
    /// None of these.
    Unknown,
}

/// How to convert.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides which alternative of `{a|b}` is taken; the same seed takes the same.
    pub seed: u64,
    /// Strip comments and choose alternatives in texts whose input says `dynamicPrompts`, as the editor does.
    pub dynamic_prompts: bool,
    /// Fill `%Node.widget%` and, with [`Options::now`], `%date:..%` in the file names of Save nodes.
    pub text_replacements: bool,
    /// The local time for `%date:..%`; without it those are left alone.
    pub now: Option<Now>,
    /// An input fed by a muted node keeps its widget value (front-end 1.58) instead of losing it (1.35).
    pub keep_widgets_of_muted: bool,
    /// Also send values that only the editor shows (audio players, previews), as front-end 1.35 does.
    pub display_values: bool,
    /// Name the class of nodes that nobody knows here, which the editor does not.
    pub name_unknown: bool,
    /// Files that expand to more nodes are refused.
    pub max_nodes: usize,
    /// So are those that expand to more bytes: a long text in a subgraph that is used many times is small as a file only.
    pub max_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            dynamic_prompts: true,
            text_replacements: true,
            now: None,
            keep_widgets_of_muted: false,
            display_values: true,
            name_unknown: false,
            max_nodes: 100_000,
            max_bytes: 256 << 20,
        }
    }
}

/// A prompt, and what had to be skipped or guessed to get it.
#[derive(Clone, Debug)]
pub struct Converted {
    pub prompt: Map,
    pub warnings: Vec<String>,
}

/// Why a file has no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    #[error("this is not a workflow saved by the editor: it has no list of nodes")]
    NotUi,
    #[error("this is neither a workflow nor a prompt")]
    Unknown,
    #[error("subgraph {name:?} contains itself")]
    Recursive { name: String },
    #[error("subgraphs nest deeper than {limit} levels at node {node}")]
    TooDeep { node: String, limit: usize },
    #[error("the workflow expands to more than {limit} nodes")]
    TooLarge { limit: usize },
    #[error("the workflow expands to more than {limit} bytes")]
    TooLong { limit: usize },
    #[error("the links of the workflow take too long to follow")]
    TooTangled,
}

/// Says what kind of file `value` is.
pub fn detect(value: &Value) -> WorkflowKind {
    let Some(map) = value.as_map() else {
        return WorkflowKind::Unknown;
    };
    if matches!(map.get("nodes"), Some(Value::List(_))) {
        return WorkflowKind::Ui;
    }
    if is_prompt(map) {
        return WorkflowKind::Api;
    }
    let holds_prompt = |key: &str| map.get(key).and_then(Value::as_map).is_some_and(is_prompt);
    if holds_prompt("prompt") {
        return WorkflowKind::Request;
    }
    let editor = map.get("workflow");
    let empty = map
        .get("output")
        .and_then(Value::as_map)
        .is_some_and(Map::is_empty);
    if editor.is_some() && holds_prompt("output")
        || empty && editor.and_then(Value::as_map).is_some()
    {
        return WorkflowKind::Both;
    }
    WorkflowKind::Unknown
}

/// Nodes by id. Some may be damaged, which is told node by node; if none is whole, this is JSON of something else.
fn is_prompt(map: &Map) -> bool {
    let whole = |node: &Value| {
        let Some(node) = node.as_map() else {
            return false;
        };
        let class = node.get("class_type").and_then(Value::as_str).unwrap_or("");
        let inputs = match node.get("inputs") {
            Some(inputs) => inputs.as_map().is_some(),
            // A node without inputs has nothing else either; a record of some other kind does.
            None => node
                .keys()
                .all(|key| matches!(&**key, "class_type" | "_meta" | "is_changed")),
        };
        inputs && class.chars().any(|c| !c.is_ascii_digit())
    };
    map.values().all(|n| n.get("class_type").is_some()) && map.values().any(whole)
}

/// Flattens a workflow of [`WorkflowKind::Ui`].
pub fn convert(
    workflow: &Value,
    defs: &NodeDefs,
    options: &Options,
) -> Result<Converted, ConvertError> {
    if detect(workflow) != WorkflowKind::Ui {
        return Err(ConvertError::NotUi);
    }
    let mut warnings = Warnings::default();
    let mut file = parse::File::parse(workflow, defs, options, &mut warnings)?;
    rewrite::apply(&mut file, options, &mut warnings)?;
    let prompt = resolve::flatten(&file, options, &mut warnings)?;
    Ok(Converted {
        prompt,
        warnings: warnings.finish(),
    })
}

/// The prompt of a file of any kind: converted if it is the editor's, taken out if it is there.
pub fn prompt_of(
    value: &Value,
    defs: &NodeDefs,
    options: &Options,
) -> Result<Converted, ConvertError> {
    let found = match detect(value) {
        WorkflowKind::Ui => return convert(value, defs, options),
        WorkflowKind::Api => Some(value),
        WorkflowKind::Request => value.get("prompt"),
        WorkflowKind::Both => value.get("output"),
        WorkflowKind::Unknown => None,
    };
    let prompt = found.and_then(Value::as_map).ok_or(ConvertError::Unknown)?;
    Ok(Converted {
        prompt: prompt.clone(),
        warnings: Vec::new(),
    })
}

/// Collects warnings; a hostile file cannot make an endless list.
#[derive(Default)]
struct Warnings {
    list: Vec<String>,
    dropped: usize,
}

impl Warnings {
    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.list.len() < MAX_WARNINGS {
            let mut text = text();
            if let Some((end, _)) = text.char_indices().nth(300) {
                text.truncate(end);
                text.push_str("..");
            }
            self.list.push(text);
        } else {
            self.dropped += 1;
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.dropped > 0 {
            self.list.push(format!("{} more warnings", self.dropped));
        }
        self.list
    }
}

/// An id as text: files have numbers, texts and now and then a whole float.
fn id_text(value: Option<&Value>) -> Option<Arc<str>> {
    let text: Arc<str> = match value? {
        Value::Str(s) => s.clone(),
        Value::Int(i) => i.to_string().into(),
        Value::Float(f) if f.is_finite() && f.fract() == 0.0 && f.abs() < 1e15 => {
            (*f as i64).to_string().into()
        }
        _ => return None,
    };
    (!text.is_empty() && text.len() <= MAX_ID).then_some(text)
}

/// A slot number or mode; anything absurd is as if it were not there.
fn small_int(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Int(i) => i64::try_from(*i).ok(),
        Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e15 => Some(*f as i64),
        Value::Str(s) => s.parse().ok(),
        _ => None,
    }
}

fn text(value: Option<&Value>) -> Option<Arc<str>> {
    match value? {
        Value::Str(s) => Some(s.clone()),
        _ => None,
    }
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_list).unwrap_or(&[])
}

/// A slot's type as text; lists and numbers occur in old files.
fn type_text(value: Option<&Value>) -> Arc<str> {
    match value {
        Some(Value::Str(s)) if s.len() <= MAX_TYPE => s.clone(),
        Some(Value::List(_)) => "COMBO".into(),
        // The editor writes its "any type" as 0 or -1 in places.
        _ => "*".into(),
    }
}
