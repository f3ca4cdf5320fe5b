//! Reading what somebody hands in: a prompt, a workflow of the editor, or a picture that carries one.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use fresco_graph::ui::{self, NodeDefs, Workflow};
use fresco_graph::{Map, NodeRegistry, Value, json};

/// Larger files are not workflows.
const MAX_BYTES: u64 = 256 << 20;

/// Reads a file, or standard input for `-`.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .context("cannot read standard input")?;
    } else {
        let file =
            std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        file.take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{} is too large for a workflow", path.display());
    }
    Ok(bytes)
}

/// Makes a prompt of what was read. `prefer_editor`: a picture carries both forms; take the editor's, and write of nodes that
/// are unknown here what the editor writes, which leaves out their class.
pub(crate) fn understand(
    bytes: &[u8],
    defs: &NodeDefs,
    prefer_editor: bool,
) -> anyhow::Result<Workflow> {
    let options = ui::Options {
        now: Some(now()),
        name_unknown: !prefer_editor,
        ..ui::Options::default()
    };
    let texts = fresco_files::read_metadata(bytes);
    if let Some(found) = ui::read_texts(&texts, prefer_editor, defs, &options) {
        return found.context("the workflow in the picture cannot be read");
    }
    if looks_like_picture(bytes) {
        bail!("the picture carries no workflow");
    }
    if fresco_files::metadata::is_film_or_sound(bytes) {
        bail!("the film or sound carries no workflow");
    }
    let value = json::parse_bytes_within(bytes, json::FOREIGN_BYTES)
        .context("this is neither JSON nor a picture")?;
    Ok(ui::read(&value, defs, &options)?)
}

fn now() -> ui::Now {
    let now = jiff::Zoned::now();
    ui::Now {
        year: now.year().unsigned_abs().into(),
        month: now.month().unsigned_abs().into(),
        day: now.day().unsigned_abs().into(),
        hour: now.hour().unsigned_abs().into(),
        minute: now.minute().unsigned_abs().into(),
        second: now.second().unsigned_abs().into(),
    }
}

fn looks_like_picture(bytes: &[u8]) -> bool {
    fresco_files::image::Format::guess(bytes).is_some()
}

/// `NODE.INPUT=VALUE`: the node by id, or by title or class if only one has it.
pub(crate) fn set(
    prompt: &mut Map,
    assignment: &str,
    knows_input: impl Fn(&str, &str) -> bool,
) -> anyhow::Result<()> {
    let (target, text) = assignment
        .split_once('=')
        .with_context(|| format!("'{assignment}' is not of the form NODE.INPUT=VALUE"))?;
    let (node, input) = target
        .split_once('.')
        .with_context(|| format!("'{assignment}' is not of the form NODE.INPUT=VALUE"))?;
    let id = find(prompt, node)?;
    let object = prompt[&id]
        .as_map()
        .with_context(|| format!("node {id} is not an object"))?;
    let class = object
        .get("class_type")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let mut inputs = object
        .get("inputs")
        .and_then(Value::as_map)
        .cloned()
        .unwrap_or_default();
    if !inputs.contains_key(input) && !knows_input(&class, input) {
        let names: Vec<&str> = inputs.keys().map(|k| &**k).collect();
        bail!(
            "node {id} ({class}) has no input '{input}'; it has: {}",
            names.join(", ")
        );
    }
    // What holds text stays text, so that `text=5` is a text; elsewhere JSON is read where it is JSON.
    let value = match inputs.get(input) {
        Some(Value::Str(_)) => Value::from(text),
        _ => json::parse(text).unwrap_or_else(|_| Value::from(text)),
    };
    inputs.insert(input.into(), value);
    let mut object = object.clone();
    object.insert("inputs".into(), inputs.into());
    prompt.insert(id, object.into());
    Ok(())
}

fn find(prompt: &Map, name: &str) -> anyhow::Result<Arc<str>> {
    if let Some((id, _)) = prompt.get_key_value(name) {
        return Ok(id.clone());
    }
    let called = |node: &Value| {
        node.get("class_type").and_then(Value::as_str) == Some(name)
            || node
                .get("_meta")
                .and_then(|m| m.get("title"))
                .and_then(Value::as_str)
                == Some(name)
    };
    let found: Vec<&Arc<str>> = prompt
        .iter()
        .filter(|(_, node)| called(node))
        .map(|(id, _)| id)
        .collect();
    match found[..] {
        [id] => Ok(id.clone()),
        [] => bail!("unknown node '{name}'; the workflow has: {}", names(prompt)),
        _ => {
            let ids: Vec<&str> = found.iter().map(|id| &***id).collect();
            bail!(
                "several nodes are called '{name}': use one of the ids {}",
                ids.join(", ")
            )
        }
    }
}

/// Nodes whose class this program does not have, each with its id, its title where that says more, and its class.
pub(crate) fn unknown_nodes(prompt: &Map, registry: &NodeRegistry) -> Vec<String> {
    let unknown = |(id, node): (&Arc<str>, &Value)| {
        let class = node.get("class_type")?.as_str()?;
        if registry.get(class).is_some() {
            return None;
        }
        let title = node.get("_meta").and_then(|m| m.get("title")?.as_str());
        Some(match title.filter(|title| *title != class) {
            Some(title) => format!("node {id} \"{title}\" ({class})"),
            None => format!("node {id} ({class})"),
        })
    };
    prompt.iter().filter_map(unknown).collect()
}

fn names(prompt: &Map) -> String {
    let name = |(id, node): (&Arc<str>, &Value)| {
        format!(
            "{id} ({})",
            node.get("class_type")
                .and_then(Value::as_str)
                .unwrap_or("?")
        )
    };
    let mut names: Vec<String> = prompt.iter().take(20).map(name).collect();
    if prompt.len() > names.len() {
        names.push(format!("{} more", prompt.len() - names.len()));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: &str = r#"{"1":{"class_type":"EmptyImage","inputs":{"width":64,"name":"a"},"_meta":{"title":"Blank"}},
        "2":{"class_type":"SaveImage","inputs":{"images":["1",0]}},"3":{"class_type":"SaveImage","inputs":{}}}"#;

    fn prompt() -> Map {
        json::parse(PROMPT).unwrap().as_map().unwrap().clone()
    }

    #[track_caller]
    fn sets(assignment: &str, node: &str, expected: &str) {
        let mut prompt = prompt();
        set(&mut prompt, assignment, |_, input| input == "color").unwrap();
        assert_eq!(
            json::to_string(prompt[node].get("inputs").unwrap()),
            expected,
            "{assignment}"
        );
    }

    #[test]
    fn inputs_are_set_by_id_title_or_class() {
        sets("1.width=128", "1", r#"{"width":128,"name":"a"}"#);
        sets("Blank.width=1.5", "1", r#"{"width":1.5,"name":"a"}"#);
        sets("EmptyImage.name=5", "1", r#"{"width":64,"name":"5"}"#);
        sets("1.name=a=b.c", "1", r#"{"width":64,"name":"a=b.c"}"#);
        sets(
            "1.color=not json",
            "1",
            r#"{"width":64,"name":"a","color":"not json"}"#,
        );
        sets("2.images=[\"9\",1]", "2", r#"{"images":["9",1]}"#);
    }

    #[test]
    fn what_cannot_be_set_says_why() {
        let fails = |assignment: &str| {
            set(&mut prompt(), assignment, |_, _| false)
                .unwrap_err()
                .to_string()
        };
        assert!(fails("nonsense").contains("NODE.INPUT=VALUE"));
        assert!(fails("1=3").contains("NODE.INPUT=VALUE"));
        assert!(fails("9.x=1").contains("1 (EmptyImage), 2 (SaveImage)"));
        assert!(fails("SaveImage.x=1").contains("ids 2, 3"));
        assert!(fails("1.hight=1").contains("it has: width, name"));
    }

    #[test]
    fn files_are_understood() {
        let defs = NodeDefs::new(&Value::Null);
        let read = |text: &str| understand(text.as_bytes(), &defs, false);
        assert_eq!(read(PROMPT).unwrap().prompt.len(), 3);
        assert_eq!(
            read(&format!("{{\"prompt\":{PROMPT}}}"))
                .unwrap()
                .prompt
                .len(),
            3
        );
        assert!(
            read("{")
                .err()
                .unwrap()
                .to_string()
                .contains("neither JSON nor a picture")
        );
        assert!(read("[]").is_err());
        assert!(read("").is_err());
    }

    #[test]
    fn pictures_carry_workflows() {
        let defs = NodeDefs::new(&Value::Null);
        let picture = |text: &[(&str, &str)]| {
            let text: Vec<_> = text
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect();
            let picture =
                fresco_files::Picture::new(1, 1, fresco_files::Pixels::Rgb, &[1, 2, 3]).unwrap();
            fresco_files::encode_png(&picture, &text, 4).unwrap()
        };
        let editor = r#"{"nodes":[],"links":[],"version":0.4}"#;
        let both = picture(&[("prompt", PROMPT), ("workflow", editor)]);
        let found = understand(&both, &defs, false).unwrap();
        assert_eq!(found.prompt.len(), 3);
        assert!(found.editor.is_some());
        assert_eq!(understand(&both, &defs, true).unwrap().prompt.len(), 0);
        let damaged = picture(&[("prompt", PROMPT), ("workflow", "{")]);
        assert_eq!(understand(&damaged, &defs, true).unwrap().prompt.len(), 3);
        let error = understand(&picture(&[]), &defs, false).err().unwrap();
        assert!(error.to_string().contains("carries no workflow"), "{error}");
        assert!(understand(&picture(&[("prompt", "{")]), &defs, false).is_err());
    }
}
