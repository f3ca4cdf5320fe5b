//! Every class's `/object_info` entry against the reference's facts.
//!
//! Left out: our own wording (descriptions, tooltips) and combos that follow the disk.
//!
//! Classes newer than the reference stand in `object_info_new.json`, which was made from pages about them: it has no
//! modules and hidden inputs, few categories, and some types that are not what the ecosystem's own workflows use.

use fresco_graph::object_info::node_info;
use fresco_graph::{Choices, Input, IoType, Map, NoListings, Schema, Value};

use crate::{run, store};

/// Newer classes that no list has; their schema is what the pages about them say.
const PAGES_ONLY: &[&str] = &["SaveConditioning"];

/// Where the pages are wrong, by class and place, and what says so.
const OTHERWISE: &[(&str, &str, &str)] = &[
    (
        "CreateList",
        "input.required.inputs",
        "workflows have inputs.input0, inputs.input1",
    ),
    (
        "CreateList",
        "output",
        "the list takes the type of its inputs, and is a list",
    ),
    (
        "ColorTransfer",
        "input.required.source_stats",
        "the page lists the choices, and target_index for one of them",
    ),
    (
        "StartLoop",
        "input",
        "the page lists the inputs of all modes as one; workflows have mode.num_iterations",
    ),
    (
        "StartLoop",
        "output",
        "an item and a value have the type of what is connected",
    ),
    (
        "EndLoop",
        "input",
        "workflows have terminations.termination0",
    ),
    ("EndLoop", "output_is_list", "what the turns made is a list"),
    (
        "ReferenceMultiLatent",
        "input.optional.images",
        "workflows have images.image0, images.image1",
    ),
    (
        "TextEncodeAceStepAudio1.5",
        "input.optional.temperature",
        "0.85 on the page in most languages, and in workflows",
    ),
    (
        "TextEncodeAceStepAudio1.5",
        "input.optional.top_p",
        "0.9 on the page in most languages, and in workflows",
    ),
    (
        "AnimaLLLiteApply",
        "input.required.strength",
        "the authors' node has a default and a step",
    ),
    (
        "AnimaLLLiteApply",
        "input.required.start_percent",
        "the authors' node has a default and a step",
    ),
    (
        "AnimaLLLiteApply",
        "input.required.end_percent",
        "the authors' node has a default and a step",
    ),
];

/// Whether a difference is one of those.
fn is_otherwise(line: &str) -> bool {
    let place = line.split(':').next().unwrap_or(line);
    // Names of classes may have dots.
    let known = |(class, path, _): &(&str, &str, &str)| {
        let inside = place.strip_prefix(class);
        let inside = inside.and_then(|rest| rest.strip_prefix('.'));
        inside.is_some_and(|rest| rest.starts_with(path))
    };
    OTHERWISE.iter().any(known)
}

/// As [`differences`], for what the pages say: what they do not say is not compared.
fn newer_differences(id: &str, expected: &Value, actual: &Value, found: &mut Vec<String>) {
    let unsaid = |key: &str, value: &Value| {
        matches!(key, "python_module" | "output_matchtypes")
            || (matches!(key, "category" | "display_name")
                && value.as_str().is_none_or(str::is_empty))
    };
    let empty = Map::new();
    let (expected, actual) = (
        expected.as_map().unwrap_or(&empty),
        actual.as_map().unwrap_or(&empty),
    );
    for (key, wanted) in expected {
        if unsaid(key, wanted) {
            continue;
        }
        let has = |value: &Value| -> Value {
            let Some(groups) = value.as_map() else {
                return value.clone();
            };
            let kept = groups.iter().filter(|(name, entries)| {
                let none = entries.as_map().is_some_and(Map::is_empty)
                    || entries.as_list().is_some_and(<[Value]>::is_empty);
                &***name != "hidden" && !none
            });
            kept.map(|(k, v)| (k.clone(), v.clone()))
                .collect::<Map>()
                .into()
        };
        match actual.get(key) {
            Some(value) => differences(&format!("{id}.{key}"), &has(wanted), &has(value), found),
            None => found.push(format!("{id}: lacks `{key}`")),
        }
    }
}

#[test]
fn every_schema_is_the_references() {
    let golden = store::read_json("object_info.json");
    let newer = store::read_json("object_info_new.json");
    let mut found = Vec::new();
    for class in run::registry().iter() {
        let schema = class.schema();
        if schema.description.is_empty() {
            found.push(format!("{}: no description", schema.id));
        }
        let listed = listed_inputs(&schema);
        let actual = plain(&node_info(&schema, &NoListings), &listed);
        if let Some(expected) = newer.get(&schema.id) {
            let expected = plain(expected, &listed);
            let mut own = Vec::new();
            newer_differences(&schema.id, &expected, &actual, &mut own);
            // Texts of one line may say so or not.
            own.retain(|line| !line.ends_with("has `multiline`: false") && !is_otherwise(line));
            found.extend(own);
            continue;
        }
        if PAGES_ONLY.contains(&&*schema.id) {
            continue;
        }
        let Some(expected) = golden.get(&schema.id) else {
            // Of extensions that are built in, and our own; their rooms test them.
            if schema.module.starts_with("custom_nodes.") || &*schema.module == "fresco" {
                continue;
            }
            if NEWER.contains(&&*schema.id) {
                continue;
            }
            found.push(format!("{}: the reference has no such class", schema.id));
            continue;
        };
        let expected = with_newer(&schema.id, &plain(expected, &listed));
        differences(&schema.id, &expected, &actual, &mut found);
    }
    assert!(
        found.is_empty(),
        "{} differences:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn every_input_has_a_tooltip_of_whole_sentences() {
    fn look(class: &str, input: &Input, wrong: &mut Vec<String>) {
        let text = input.options.get("tooltip").and_then(Value::as_str);
        let text = text.unwrap_or_default();
        let begins = text.starts_with(|c: char| !c.is_whitespace());
        if !begins || !text.ends_with('.') {
            wrong.push(format!("{class}.{}: {text:?}", input.name));
        }
        for inner in input.inner() {
            look(class, inner, wrong);
        }
    }
    let mut wrong = Vec::new();
    for class in run::registry().iter() {
        let schema = class.schema();
        for input in &schema.inputs {
            look(&schema.id, input, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn no_class_is_registered_twice() {
    let mut names: Vec<_> = fresco_nodes::all()
        .iter()
        .map(|e| e.class().schema().id.clone())
        .collect();
    names.sort();
    let twice: Vec<_> = names
        .windows(2)
        .filter(|w| w[0] == w[1])
        .map(|w| &w[0])
        .collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// Classes that came after the reference.
const NEWER: &[&str] = &["TextEncodeQwenImage21"];

/// Choices that came after the reference, by class and input: the types of text encoders that newer models have.
const NEWER_CHOICES: &[(&str, &str, &[&str])] = &[
    (
        "CLIPLoader",
        "type",
        &[
            "krea2",
            "flux3",
            "minimax",
            "moss_image",
            "fibo2",
            "mage",
            "boogu",
            "ideogram4",
            "lens",
            "longcat_image",
            "pixeldit",
            "joyimage",
            "cogvideox",
        ],
    ),
    ("DualCLIPLoader", "type", &["ace"]),
];

/// Inputs that came after the reference, by class: their names and types. None has to be connected.
const NEWER_INPUTS: &[(&str, &str, &str)] =
    &[("LTXVAddGuide", "iclora_parameters", "IC_LORA_PARAMETERS")];

/// The same entry with inputs that came later, after those it has.
fn with_inputs(id: &str, entry: Value) -> Value {
    let rows = NEWER_INPUTS.iter().filter(|(class, _, _)| *class == id);
    rows.fold(entry, |entry, (_, name, io)| {
        let mut entry = entry.as_map().cloned().unwrap_or_default();
        for (place, list) in [("input", false), ("input_order", true)] {
            let groups = entry.get(place).and_then(Value::as_map);
            let mut groups = groups.cloned().unwrap_or_default();
            let group = groups.get("optional").cloned();
            let group: Value = if list {
                let names = group.as_ref().and_then(Value::as_list).unwrap_or_default();
                let mut names = names.to_vec();
                names.push((*name).into());
                names.into()
            } else {
                let inputs = group.as_ref().and_then(Value::as_map).cloned();
                let mut inputs = inputs.unwrap_or_default();
                let spec = vec![Value::from(*io)];
                inputs.insert((*name).into(), spec.into());
                inputs.into()
            };
            groups.insert("optional".into(), group);
            entry.insert(place.into(), groups.into());
        }
        entry.into()
    })
}

/// What the reference says of a class, with the choices, inputs and outputs that came later.
fn with_newer(id: &str, expected: &Value) -> Value {
    let expected = &with_inputs(id, expected.clone());
    let rows = NEWER_CHOICES.iter().filter(|(class, _, _)| *class == id);
    let mut entry = rows.fold(expected.clone(), |entry, (_, input, newer)| {
        added(&entry, input, newer)
    });
    if let (true, Value::Map(map)) = (run::NEWER_OUTPUT.contains(&id), &mut entry) {
        let map = std::sync::Arc::make_mut(map);
        for (key, value) in [
            ("output", Value::from("STRING")),
            ("output_is_list", false.into()),
            ("output_name", "STRING".into()),
        ] {
            map.insert(key.into(), vec![value].into());
        }
    }
    entry
}

/// The same value with more choices for an input, wherever it stands.
fn added(value: &Value, input: &str, newer: &[&str]) -> Value {
    let Value::Map(map) = value else {
        return value.clone();
    };
    let entries = map.iter().map(|(key, value)| {
        let value = match value {
            Value::List(spec) if &**key == input => {
                let mut spec = spec.to_vec();
                if let Some(Value::List(choices)) = spec.first() {
                    let mut choices = choices.to_vec();
                    choices.extend(newer.iter().map(|choice| Value::from(*choice)));
                    spec[0] = choices.into();
                }
                spec.into()
            }
            value => added(value, input, newer),
        };
        (key.clone(), value)
    });
    entries.collect::<Map>().into()
}

/// Names of inputs whose entries come from the disk, inner ones included.
fn listed_inputs(schema: &Schema) -> Vec<String> {
    fn add(input: &Input, names: &mut Vec<String>) {
        let listed = matches!(&input.ty, IoType::List(Choices::Listed(_)))
            || matches!(&input.choices, Some(Choices::Listed(_)));
        if listed {
            names.push(input.name.to_string());
        }
        for inner in input.inner() {
            add(inner, names);
        }
    }
    let mut names = Vec::new();
    for input in &schema.inputs {
        add(input, &mut names);
    }
    names
}

/// An entry without wording, without disk entries, and with `[type]` for `[type, {}]`.
fn plain(value: &Value, listed: &[String]) -> Value {
    match value {
        Value::Map(m) => m
            .iter()
            .filter(|(k, v)| {
                let wording = matches!(&***k, "tooltip" | "output_tooltips")
                    || (&***k == "description" && v.as_str().is_some());
                // A choice that brings no inputs may say so or not.
                let nothing = &***k == "required" && v.as_map().is_some_and(Map::is_empty);
                !wording && !nothing
            })
            .map(|(k, v)| {
                let mut v = plain(v, listed);
                if listed.iter().any(|n| **n == **k)
                    && let Value::List(spec) = &v
                {
                    v = without_entries(spec);
                }
                (k.clone(), v)
            })
            .collect::<Map>()
            .into(),
        Value::List(l) => {
            let items: Vec<Value> = l.iter().map(|v| plain(v, listed)).collect();
            match items.as_slice() {
                [ty, Value::Map(m)] if m.is_empty() => vec![ty.clone()].into(),
                _ => items.into(),
            }
        }
        other => other.clone(),
    }
}

/// `[[entries..], options]` or `["COMBO", {options: entries}]` with the entries and a default taken from them gone.
fn without_entries(spec: &[Value]) -> Value {
    let ty = match spec.first() {
        Some(Value::List(_)) => Value::from("(listed)"),
        Some(other) => other.clone(),
        None => Value::Null,
    };
    match spec.get(1).and_then(Value::as_map) {
        Some(options) => {
            let mut options = options.clone();
            options.shift_remove("options");
            options.shift_remove("default");
            if options.is_empty() {
                vec![ty].into()
            } else {
                vec![ty, options.into()].into()
            }
        }
        None => vec![ty].into(),
    }
}

fn differences(at: &str, expected: &Value, actual: &Value, found: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Map(e), Value::Map(a)) => {
            for (key, e) in &**e {
                match a.get(key) {
                    Some(a) => differences(&format!("{at}.{key}"), e, a, found),
                    None => found.push(format!("{at}: lacks `{key}`: {e:?}")),
                }
            }
            for (key, v) in a.iter().filter(|(k, _)| !e.contains_key(*k)) {
                found.push(format!("{at}: has `{key}`: {v:?}"));
            }
            // Clients show inputs in the order of the object.
            if !e.keys().eq(a.keys()) && e.len() == a.len() && e.keys().all(|k| a.contains_key(k)) {
                found.push(format!("{at}: keys in another order"));
            }
        }
        (Value::List(e), Value::List(a)) if e.len() == a.len() => {
            for (i, (e, a)) in e.iter().zip(a.iter()).enumerate() {
                differences(&format!("{at}[{i}]"), e, a, found);
            }
        }
        _ => {
            let same_kind = std::mem::discriminant(expected) == std::mem::discriminant(actual);
            if !same_kind || expected != actual {
                found.push(format!("{at}: {actual:?}, the reference has {expected:?}"));
            }
        }
    }
}
