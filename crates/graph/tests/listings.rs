//! Combos whose entries are asked of a disk, which may be slow or silent.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use fresco_graph::{
    Args, Choices, Cx, Flow, Form, Input, Listings, Map, NodeClass, NodeError, NodeOutput,
    NodeRegistry, PromptLimits, Resources, Rules, Schema, Validator, ValidatorInputs, json,
};

fn listed() -> Input {
    Input::combo("model", Choices::Listed("models/vae".into()))
}

fn fixed() -> Input {
    Input::combo("model", Choices::Fixed(Arc::default()))
}

#[test]
fn nested_listings_are_found() {
    let schema = |input: Input| Schema::new("X", Form::V3).input(input);
    let found = |input: Input| schema(input).has_listings();
    assert!(found(listed()));
    assert!(!found(fixed()));
    assert!(found(Input::dynamic_combo(
        "c",
        vec![("a", vec![fixed(), listed()])]
    )));
    assert!(found(Input::autogrow("g", listed(), "p", 1, 3)));
    assert!(Schema::new("X", Form::V1).input(listed()).has_listings());
}

struct Class {
    schema: Schema,
    validator: Option<Validator>,
}

impl NodeClass for Class {
    fn schema(&self) -> Arc<Schema> {
        Arc::new(self.schema.clone())
    }
    fn call(&self, _: Args, _: &Cx) -> Result<Flow, NodeError> {
        Ok(Flow::Done(NodeOutput::default()))
    }
    fn validator(&self) -> Option<Arc<ValidatorInputs>> {
        self.validator.map(|inputs| Arc::new(inputs.into()))
    }
}

fn registry() -> NodeRegistry {
    let mut registry = NodeRegistry::new();
    let mut add = |name: &str, input: Input, validator| {
        let mut schema = Schema::new(name, Form::V1).input(input);
        schema.output_node = true;
        registry.add_class(Arc::new(Class { schema, validator }));
    };
    let own = Validator {
        params: &["model"],
        all: false,
        input_types: false,
    };
    add("Listed", listed(), None);
    add("Plain", Input::new("n", "INT"), None);
    add("Own", Input::new("n", "INT"), Some(own));
    registry
}

fn prompt(class: &str, inputs: &str) -> Map {
    let text = format!(r#"{{"1": {{"class_type": "{class}", "inputs": {inputs}}}}}"#);
    json::parse(&text).unwrap().as_map().unwrap().clone()
}

/// Prompts without lists and without rules of their own are checked where they come in.
#[test]
fn what_may_ask_a_disk_waits() {
    let registry = registry();
    for (class, waits) in [
        ("Listed", true),
        ("Own", true),
        ("Plain", false),
        ("No", false),
    ] {
        assert_eq!(registry.checks_wait(&prompt(class, "{}")), waits, "{class}");
    }
}

/// What a disk gave last, and what it gives to a caller who waits.
struct Silent {
    last: &'static [&'static str],
    now: Option<&'static [&'static str]>,
}

impl Listings for Silent {
    fn list(&self, _: &str) -> Vec<String> {
        self.last.iter().map(ToString::to_string).collect()
    }
    fn renewed(&self, _: &str) -> Option<Vec<String>> {
        let names = self.now?;
        Some(names.iter().map(ToString::to_string).collect())
    }
    fn trouble(&self, source: &str) -> Option<String> {
        Some(format!("{source} does not answer"))
    }
}

fn check(listings: &Silent) -> Result<(), String> {
    let rules = Rules {
        registry: &Arc::new(registry()),
        listings,
        resources: &Arc::new(Resources::default()),
        limits: PromptLimits::default(),
    };
    let prompt = prompt("Listed", r#"{"model": "new.safetensors"}"#);
    rules
        .validate(prompt, None)
        .map(drop)
        .map_err(|error| error.to_string())
}

#[test]
fn an_entry_that_is_not_known_yet_is_asked_for_once_more() {
    let known = Silent {
        last: &["new.safetensors"],
        now: None,
    };
    assert_eq!(check(&known), Ok(()));
    let came = Silent {
        last: &["old.safetensors"],
        now: Some(&["new.safetensors"]),
    };
    assert_eq!(check(&came), Ok(()));
    for now in [None, Some(&["old.safetensors"][..])] {
        let last = &["old.safetensors"];
        let error = check(&Silent { last, now }).unwrap_err();
        assert!(
            error.contains(
                "'new.safetensors' not in ['old.safetensors']; models/vae does not answer"
            ),
            "{error}"
        );
    }
}
