//! The ecosystem's own workflows: which have all their nodes here, and whether those can be sent to run.
//!
//! `tests/gold/templates.json` has their names and classes. The files themselves come with a Python package; where the
//! variable `FRESCO_TEMPLATES` names the folder of them, as `cargo xtask templates` does, each is converted and checked
//! with files of its names standing in for models, pictures and sounds.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and prints what it counted"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_files::dirs::DirType;
use fresco_files::{Dirs, annotated};
use fresco_graph::object_info::node_info;
use fresco_graph::ui::{self, NodeDefs};
use fresco_graph::{
    Declared, Listings, Map, NodeRegistry, PromptLimits, Resources, Rules, Value, json,
};

/// Templates that had all their nodes when this was last looked at. It may grow, and must not shrink.
const FULL: usize = 202;

/// Templates that have all their nodes and still cannot be sent, and why.
const REFUSED: [(&str, &str); 2] = [
    (
        "image_flux3_klein_image_edit",
        "SaveImage has no output in the reference",
    ),
    (
        "image_flux3_klein_distilled_image_edit",
        "SaveImage has no output in the reference",
    ),
];

/// What the editor draws and never sends.
const EDITOR_ONLY: [&str; 4] = ["MarkdownNote", "Note", "PrimitiveNode", "Reroute"];

fn registry() -> NodeRegistry {
    let mut registry = NodeRegistry::new();
    registry.add(&fresco_nodes::all());
    registry
}

/// Templates with the classes they use, most used first.
fn templates() -> Vec<(String, Vec<String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gold/templates.json");
    let file = json::parse(&fs::read_to_string(path).unwrap()).unwrap();
    let classes = file.get("classes").unwrap().as_list().unwrap();
    let class = |place: &Value| {
        let place = usize::try_from(place.as_int().unwrap()).unwrap();
        classes[place].as_str().unwrap().to_owned()
    };
    let all = file.get("templates").unwrap().as_map().unwrap();
    all.iter()
        .map(|(name, places)| {
            let places = places.as_list().unwrap();
            (name.to_string(), places.iter().map(class).collect())
        })
        .collect()
}

fn missing_classes(registry: &NodeRegistry, classes: &[String]) -> Vec<String> {
    let lacks =
        |class: &&String| registry.get(class).is_none() && !EDITOR_ONLY.contains(&class.as_str());
    classes.iter().filter(lacks).cloned().collect()
}

#[test]
fn templates_keep_their_nodes() {
    let registry = registry();
    let all = templates();
    assert_eq!(all.len(), 259);
    let mut full = 0;
    let mut alone: BTreeMap<String, usize> = BTreeMap::new();
    for (_, classes) in &all {
        match missing_classes(&registry, classes).as_slice() {
            [] => full += 1,
            [one] => *alone.entry(one.clone()).or_default() += 1,
            _ => {}
        }
    }
    println!("{full} of {} templates have all their nodes", all.len());
    println!("what alone is missing, and how often: {alone:?}");
    assert!(
        full >= FULL,
        "{full} templates have all their nodes, and {FULL} had"
    );
}

/// Lists that hold exactly what a prompt asks for.
struct Placeholders(BTreeMap<String, BTreeSet<String>>);

impl Listings for Placeholders {
    fn list(&self, source: &str) -> Vec<String> {
        if source.starts_with("devices/") {
            return vec!["cpu".into()];
        }
        let found = self.0.get(source);
        found.into_iter().flatten().cloned().collect()
    }
}

impl Placeholders {
    fn of(prompt: &Map, registry: &NodeRegistry) -> Self {
        let mut lists: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in prompt.values() {
            let class = node.get("class_type").and_then(Value::as_str).unwrap_or("");
            let (Some(class), Some(inputs)) = (
                registry.get(class),
                node.get("inputs").and_then(Value::as_map),
            ) else {
                continue;
            };
            for input in Declared::new(&class.schema(), inputs).inputs() {
                if let (Some(source), Some(Value::Str(value))) =
                    (input.source(), inputs.get(&input.name))
                {
                    lists
                        .entry(source.into())
                        .or_default()
                        .insert(value.to_string());
                }
            }
        }
        Self(lists)
    }
}

/// Empty files for all texts of a prompt that look like names of them.
fn place_files(prompt: &Map, dirs: &Dirs) {
    let inputs = prompt.values().filter_map(|n| n.get("inputs")?.as_map());
    for text in inputs.flat_map(Map::values).filter_map(Value::as_str) {
        let (name, _) = annotated::split(text);
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
        let is_ending = ending.chars().all(|c| c.is_ascii_alphanumeric());
        if text.len() > 200 || !(2..=5).contains(&ending.len()) || !is_ending {
            continue;
        }
        if let Ok(path) = annotated::path(dirs, text, DirType::Input) {
            let _ = fs::create_dir_all(path.parent().unwrap());
            let _ = fs::write(path, b"");
        }
    }
}

struct Checker {
    registry: Arc<NodeRegistry>,
    defs: NodeDefs,
    dirs: Dirs,
    resources: Arc<Resources>,
}

impl Checker {
    fn new(base: &Path) -> Self {
        let registry = Arc::new(registry());
        let mut defs = NodeDefs::default();
        for class in registry.iter() {
            let schema = class.schema();
            let info = node_info(&schema, &fresco_graph::NoListings);
            defs.insert(&schema.id, &info);
        }
        let dirs = Dirs::under(base);
        let mut resources = Resources::default();
        resources.insert(dirs.clone());
        Self {
            registry,
            defs,
            dirs,
            resources: Arc::new(resources),
        }
    }

    /// What keeps a workflow from running, in words; nothing if it may.
    fn problems(&self, file: &Value) -> Vec<String> {
        let options = ui::Options {
            name_unknown: true,
            ..ui::Options::default()
        };
        let found = match ui::read(file, &self.defs, &options) {
            Ok(found) => found,
            Err(e) => return vec![format!("cannot be converted: {e}")],
        };
        place_files(&found.prompt, &self.dirs);
        let listings = Placeholders::of(&found.prompt, &self.registry);
        let rules = Rules {
            registry: &self.registry,
            listings: &listings,
            resources: &self.resources,
            limits: PromptLimits::default(),
        };
        let problems = match rules.validate(found.prompt, None) {
            Ok(valid) => valid.problems,
            Err(error) if error.nodes.is_empty() => return vec![error.to_string()],
            Err(error) => error.nodes,
        };
        let mut lines = Vec::new();
        for (id, node) in &problems {
            for e in &node.errors {
                lines.push(format!(
                    "node {id} ({}): {}: {}",
                    node.class, e.message, e.details
                ));
            }
        }
        lines
    }
}

#[test]
fn templates_can_be_sent() {
    let Some(folder) = std::env::var_os("FRESCO_TEMPLATES").map(PathBuf::from) else {
        println!("FRESCO_TEMPLATES is not set: `cargo xtask templates` says how");
        return;
    };
    let base = tempfile::tempdir().unwrap();
    let checker = Checker::new(base.path());
    let (mut full, mut valid, mut there) = (0, 0, 0);
    let mut refused = Vec::new();
    let all = templates();
    for (name, classes) in &all {
        let path = folder.join(format!("{name}.json"));
        let Ok(text) = fs::read_to_string(&path) else {
            println!("{name}: the package has no such file");
            continue;
        };
        there += 1;
        if !missing_classes(&checker.registry, classes).is_empty() {
            continue;
        }
        full += 1;
        let problems = match json::parse(&text) {
            Ok(file) => checker.problems(&file),
            Err(e) => vec![e.to_string()],
        };
        if problems.is_empty() {
            valid += 1;
        } else if let Some((_, why)) = REFUSED.iter().find(|(known, _)| known == name) {
            println!("{name}: {why}");
        } else {
            refused.push(format!("{name}:\n    {}", problems.join("\n    ")));
        }
    }
    println!("{there} of {} files are in {}", all.len(), folder.display());
    println!(
        "{full} of {} have all their nodes, {valid} validate",
        all.len()
    );
    assert!(
        refused.is_empty(),
        "{} are refused:\n{}",
        refused.len(),
        refused.join("\n")
    );
}
