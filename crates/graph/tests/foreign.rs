//! Classes that are not the program's own: their declarations change, fail, and come and go.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fresco_graph::{
    Args, Cx, Declaration, Flow, Form, Input, Map, NoListings, NodeClass, NodeError, NodeOutput,
    NodeRegistry, PromptClasses, PromptLimits, Resources, Rules, Schema, json,
};

/// Declares what it is told to, and counts how often it is asked.
struct Pack {
    owner: Arc<str>,
    known: Arc<Schema>,
    declared: Mutex<Result<Arc<Schema>, NodeError>>,
    asked: AtomicUsize,
}

fn schema(max: i64) -> Arc<Schema> {
    let mut schema = Schema::new("P", Form::V1).input(Input::new("n", "INT").option("max", max));
    schema.output_node = true;
    Arc::new(schema)
}

fn pack() -> Arc<Pack> {
    Arc::new(Pack {
        owner: "pack".into(),
        known: schema(1),
        declared: Mutex::new(Ok(schema(1))),
        asked: AtomicUsize::new(0),
    })
}

impl NodeClass for Pack {
    fn schema(&self) -> Arc<Schema> {
        self.known.clone()
    }
    fn describe(&self) -> Result<Declaration, NodeError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let schema = self.declared.lock().unwrap().clone()?;
        Ok(Declaration {
            scheduling: schema.clone(),
            schema,
        })
    }
    fn owner(&self) -> Option<&Arc<str>> {
        Some(&self.owner)
    }
    fn call(&self, _: Args, _: &Cx) -> Result<Flow, NodeError> {
        Ok(Flow::Done(NodeOutput::default()))
    }
}

fn prompt(text: &str) -> Map {
    json::parse(text).unwrap().as_map().unwrap().clone()
}

const TWO: &str =
    r#"{"1":{"class_type":"P","inputs":{"n":5}},"2":{"class_type":"P","inputs":{"n":5}}}"#;

fn check(registry: &Arc<NodeRegistry>) -> String {
    let rules = Rules {
        registry,
        listings: &NoListings,
        resources: &Arc::new(Resources::default()),
        limits: PromptLimits::default(),
    };
    match rules.validate(prompt(TWO), None) {
        Ok(valid) => format!("ok {}", valid.outputs.join(",")),
        Err(error) => error.to_string(),
    }
}

fn registry(pack: &Arc<Pack>) -> Arc<NodeRegistry> {
    let mut registry = NodeRegistry::new();
    registry.add_class(pack.clone());
    Arc::new(registry)
}

#[test]
fn a_schema_is_asked_once_for_each_prompt() {
    let pack = pack();
    let registry = registry(&pack);
    assert!(check(&registry).contains("bigger than max of 1"));
    assert_eq!(pack.asked.load(Ordering::SeqCst), 1);
    *pack.declared.lock().unwrap() = Ok(schema(9));
    assert_eq!(check(&registry), "ok 1,2");
    assert_eq!(pack.asked.load(Ordering::SeqCst), 2);
}

#[test]
fn a_declaration_that_fails_is_the_nodes_problem_and_passes() {
    let pack = pack();
    let registry = registry(&pack);
    *pack.declared.lock().unwrap() = Err(NodeError::value_error("no such folder"));
    let text = check(&registry);
    assert!(
        text.contains("Exception when validating node: no such folder"),
        "{text}"
    );
    *pack.declared.lock().unwrap() = Ok(schema(9));
    assert_eq!(check(&registry), "ok 1,2");
}

#[test]
fn whoever_holds_a_list_keeps_it() {
    let pack = pack();
    let before = registry(&pack);
    let classes = PromptClasses::new(before.clone());
    let mut after = (*before).clone();
    assert!(after.checks_wait(&prompt(TWO)));
    after.remove_owned("another");
    assert_eq!(after.len(), 1);
    after.remove_owned("pack");
    assert!(after.is_empty() && !after.checks_wait(&prompt(TWO)));
    assert!(classes.get("P").is_some());
    assert!(check(&Arc::new(after)).contains("node P does not exist"));
}
