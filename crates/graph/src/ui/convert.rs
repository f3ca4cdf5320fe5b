//! From a file of any kind to a prompt.

use super::defs::NodeDefs;
use super::options::{ConvertError, Options, Warnings};
use super::{parse, resolve, rewrite};
use crate::{Map, Value};

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

/// A prompt, and what had to be skipped or guessed to get it.
#[derive(Clone, Debug)]
pub struct Converted {
    pub prompt: Map,
    pub warnings: Vec<String>,
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
