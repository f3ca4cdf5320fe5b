//! The converter against the editor's own flattening of the public templates, and against what nobody should save.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod hostile;
mod rules;

use std::fs;
use std::path::PathBuf;

use fresco_graph::ui::{NodeDefs, Options, convert};
use fresco_graph::{Map, Value, json};

fn gold(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/gold")
        .join(name)
}

fn load(path: &std::path::Path) -> Value {
    json::parse(&fs::read_to_string(path).unwrap()).unwrap()
}

fn defs() -> NodeDefs {
    NodeDefs::new(&load(&gold("object_info.json")))
}

fn pairs() -> Vec<(String, Value, Value)> {
    let mut pairs: Vec<_> = fs::read_dir(gold("ui2api"))
        .unwrap()
        .filter_map(|e| {
            let path = e.unwrap().path();
            let name = path
                .file_name()?
                .to_str()?
                .strip_suffix(".ui.json")?
                .to_string();
            let api = path.with_file_name(format!("{name}.api.json"));
            Some((name, load(&path), load(&api)))
        })
        .collect();
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    pairs
}

/// Equal, but for white space around texts.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => a.trim() == b.trim(),
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w)))
        }
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
        }
        _ => a == b,
    }
}

fn differences(ours: &Map, theirs: &Map, out: &mut Vec<String>) {
    for (id, node) in theirs {
        let Some(have) = ours.get(id) else {
            out.push(format!("{id}: missing"));
            continue;
        };
        if have.get("class_type") != node.get("class_type") {
            out.push(format!("{id}: class"));
        }
        let empty = Map::new();
        let inputs = |n: &Value| {
            n.get("inputs")
                .and_then(Value::as_map)
                .unwrap_or(&empty)
                .clone()
        };
        let (have, want) = (inputs(have), inputs(node));
        for name in have.keys().chain(want.keys()) {
            let (h, w) = (have.get(name), want.get(name));
            if !matches!((h, w), (Some(h), Some(w)) if same(h, w)) {
                out.push(format!("{id}.{name}: {h:?}, not {w:?}"));
            }
        }
    }
    for id in ours.keys().filter(|id| !theirs.contains_key(*id)) {
        out.push(format!("{id}: should not be there"));
    }
}

#[test]
fn templates_come_out_as_the_editor_flattens_them() {
    let defs = defs();
    let mut wrong = Vec::new();
    let pairs = pairs();
    assert!(pairs.len() >= 60, "only {} pairs found", pairs.len());
    for (name, file, want) in pairs {
        let done = convert(&file, &defs, &Options::default()).unwrap();
        let mut out = Vec::new();
        differences(&done.prompt, want.as_map().unwrap(), &mut out);
        wrong.extend(out.into_iter().map(|d| format!("{name} {d}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
