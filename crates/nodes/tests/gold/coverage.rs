//! Every class that has goldens exists.

use fresco_graph::Value;

use crate::{run, store};

/// Classes with goldens that are not there yet, each with the reason.
const EXCUSED: &[(&str, &str)] = &[];

#[test]
fn every_class_with_goldens_is_there() {
    let registry = run::registry();
    let index = store::read_json("nodes/index.json");
    let classes = index.get("classes").and_then(Value::as_map);
    let classes = classes.expect("the index lists classes");
    let excused = |name: &str| EXCUSED.iter().any(|(n, _)| *n == name);
    let missing: Vec<_> = classes
        .keys()
        .filter(|name| registry.get(name).is_none() && !excused(name))
        .collect();
    assert!(missing.is_empty(), "neither there nor excused: {missing:?}");
    let stale: Vec<_> = EXCUSED
        .iter()
        .filter(|(name, _)| registry.get(name).is_some() || !classes.contains_key(*name))
        .collect();
    assert!(stale.is_empty(), "excused without need: {stale:?}");
}
