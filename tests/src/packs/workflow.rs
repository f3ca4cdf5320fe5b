//! Our workflows for packs: what stands in their files, and how one went.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// What is expected of a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    Runs,
    /// It needs what is not here (a network's inside, weights, CUDA, a service), so it may end with an error, but must end.
    Needs(String),
}

/// A request to a route of a pack.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub body: Value,
    pub status: u16,
    /// A text that the answer must contain.
    pub contains: String,
}

/// A workflow of ours for a pack.
#[derive(Clone, Debug)]
pub struct Workflow {
    pub name: String,
    pub expectation: Expectation,
    /// Other packs that it needs; without them it is left out.
    pub with: Vec<String>,
    /// Model files that are made for it: `FOLDER/NAME`.
    pub models: Vec<String>,
    /// A prompt of built-in nodes that makes files which the other prompt reads.
    pub before: Value,
    /// In API format; nothing if it is only requests. `{base}` in its texts stands for the base folder.
    pub prompt: Value,
    /// Built-in nodes that make the same pictures.
    pub twin: Value,
    /// What nodes must show, by node.
    pub shows: Map<String, Value>,
    pub requests: Vec<Request>,
}

/// What may stand in the file of a workflow; "about" is for its readers.
const KEYS: &[&str] = &[
    "about", "expect", "needs", "with", "models", "before", "prompt", "twin", "shows", "requests",
];

/// How a workflow went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkflowResult {
    /// To its end; how much its pictures differ from those of its twin, if it has one.
    Ran {
        difference: Option<u8>,
    },
    Failed(String),
    /// It did not end within its limit.
    Hung(String),
    /// Another pack that it needs is not here.
    LeftOut(String),
}

impl Workflow {
    /// Whether this result is as good as what is expected.
    pub fn accepts(&self, result: &WorkflowResult) -> bool {
        match result {
            WorkflowResult::Ran { .. } | WorkflowResult::LeftOut(_) => true,
            WorkflowResult::Failed(_) => matches!(self.expectation, Expectation::Needs(_)),
            WorkflowResult::Hung(_) => false,
        }
    }

    fn parse(name: String, text: &[u8]) -> Result<Self> {
        let file: Map<String, Value> = serde_json::from_slice(text)?;
        if let Some(key) = file.keys().find(|key| !KEYS.contains(&key.as_str())) {
            bail!("it must not have the key {key:?}");
        }
        let text = |key: &str| file.get(key).and_then(Value::as_str);
        let get = |key: &str| file.get(key).cloned().unwrap_or_default();
        let texts = |key: &str| -> Vec<String> {
            let list = file.get(key).and_then(Value::as_array);
            let list = list.into_iter().flatten().filter_map(Value::as_str);
            list.map(str::to_owned).collect()
        };
        let expectation = match (text("expect"), text("needs")) {
            (Some("runs"), None) => Expectation::Runs,
            (None, Some(needs)) => Expectation::Needs(needs.to_owned()),
            _ => bail!(r#"it must have either "expect": "runs" or "needs": "a reason""#),
        };
        let requests = get("requests");
        let requests = requests.as_array().into_iter().flatten();
        let requests: Vec<Request> = requests.map(Request::parse).collect::<Result<_>>()?;
        let prompt = get("prompt");
        ensure!(
            prompt.is_object() || !requests.is_empty(),
            "it must have a prompt or requests"
        );
        Ok(Self {
            name,
            expectation,
            with: texts("with"),
            models: texts("models"),
            before: get("before"),
            prompt,
            twin: get("twin"),
            shows: get("shows").as_object().cloned().unwrap_or_default(),
            requests,
        })
    }
}

impl Request {
    fn parse(request: &Value) -> Result<Self> {
        let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
        let status = request["status"].as_u64().unwrap_or(200);
        let request = Self {
            method: text("method"),
            path: text("path"),
            body: request["body"].clone(),
            status: u16::try_from(status).context("a request's status")?,
            contains: text("contains"),
        };
        ensure!(
            !request.method.is_empty() && request.path.starts_with('/'),
            "a request must have a method and a path"
        );
        Ok(request)
    }
}

/// The workflows for a pack, in order of their names; none if there is no folder for it.
pub fn read_workflows(folder: &Path, pack: &str) -> Result<Vec<Workflow>> {
    let folder = folder.join(pack);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let name = path.file_stem().context("a file has a name")?;
        let name = name.to_string_lossy().into_owned();
        let workflow = Workflow::parse(name, &fs::read(&path)?);
        found.push(workflow.with_context(|| format!("cannot read {}", path.display()))?);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workflow_of_ours_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("real-packs");
        let mut count = 0;
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_dir() {
                let pack = entry.file_name().to_string_lossy().into_owned();
                count += read_workflows(&folder, &pack).unwrap().len();
            }
        }
        assert!(count > 0);
    }

    #[test]
    fn a_workflow_that_hangs_is_never_as_expected() {
        let text = br#"{"about": "x", "needs": "CUDA", "prompt": {}}"#;
        let workflow = Workflow::parse("x".to_owned(), text).unwrap();
        assert!(workflow.accepts(&WorkflowResult::Failed("no CUDA".to_owned())));
        assert!(!workflow.accepts(&WorkflowResult::Hung("120 s".to_owned())));
        let both = br#"{"about": "x", "needs": "CUDA", "expect": "runs", "prompt": {}}"#;
        assert!(Workflow::parse("x".to_owned(), both).is_err());
    }
}
