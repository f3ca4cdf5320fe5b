//! A request body as it comes: parsed, validated against all nodes, and written back.
#![no_main]

use std::sync::{Arc, LazyLock};

use fresco_graph::{NoListings, PromptLimits, NodeRegistry, Resources, Rules, Value, json};
use libfuzzer_sys::fuzz_target;

static REGISTRY: LazyLock<Arc<NodeRegistry>> = LazyLock::new(|| {
    let mut registry = NodeRegistry::new();
    registry.add(&fresco_nodes::all());
    Arc::new(registry)
});

fuzz_target!(|data: &[u8]| {
    let Ok(value) = json::parse_bytes(data) else {
        return;
    };
    // What was read once must be read again from our own text, to the same text.
    let text = json::to_string(&value);
    let again = json::parse(&text).expect("our own text parses");
    assert_eq!(json::to_string(&again), text);
    if let Some(prompt) = value.get("prompt").and_then(Value::as_map) {
        let rules = Rules {
            registry: &REGISTRY,
            listings: &NoListings,
            resources: &Arc::new(Resources::default()),
            limits: PromptLimits::default(),
        };
        let _ = rules.validate(prompt.clone(), None);
    }
});
