//! The harness can fail: wrong expectations must be noticed.

use std::sync::Arc;

use fresco_graph::{
    Cx, Map, Node, NodeError, NodeOutput, NodeRegistry, NodeResult, Resources, Value,
};
use fresco_graph::{entry, json, map};
use fresco_nodes::types::{Image, tensor};

use crate::run::check;
use crate::store::{Case, Tensors};

/// Adds a half to a picture; refuses a flag.
#[derive(Node)]
#[node(id = "AddHalf", outputs("IMAGE", "INT"))]
struct AddHalf {
    image: Image,
    #[input(optional)]
    refuse: Option<bool>,
}

impl Node for AddHalf {
    fn run(self, _: &Cx) -> NodeResult {
        if self.refuse == Some(true) {
            return Err(NodeError::value_error("refused"));
        }
        let sum = self.image.0.add_scalar(0.5);
        Ok(NodeOutput::slots(vec![tensor(sum), 3.into()]).with_ui(map! {"text" => vec!["shown"]}))
    }
}

fn parse(text: &str) -> Value {
    json::parse(text).expect("the test's own JSON")
}

fn case(extra: Map) -> Case {
    let text = r#"{"image": {"$tensor": {"stream": "", "shape": [1, 2, 2, 1], "map": "const", "scale": 0.25}}}"#;
    let mut inputs = parse(text).as_map().expect("an object").clone();
    inputs.extend(extra);
    Case {
        id: "AddHalf/0".into(),
        class: "AddHalf".into(),
        inputs,
        outputs: None,
        error: None,
        ui: None,
        hidden: None,
    }
}

#[track_caller]
fn found(case: &Case) -> String {
    let resources = Arc::new(Resources::default());
    check(
        &*entry::<AddHalf>().class(),
        case,
        &Tensors::default(),
        &NodeRegistry::new(),
        resources,
    )
    .join("\n")
}

#[track_caller]
fn outputs(text: &str) -> String {
    let mut case = case(map! {});
    case.outputs = Some(parse(text));
    found(&case)
}

#[test]
fn right_outputs_pass_and_wrong_ones_do_not() {
    let good = r#"[[{"$const": 0.75, "shape": [1, 2, 2, 1], "dtype": "F32"}], [3]]"#;
    assert_eq!(outputs(good), "");
    for (wrong, word) in [
        (good.replace("0.75", "0.7500301"), "4 of 4 elements differ"),
        (good.replace("2, 2, 1", "2, 1, 2"), "shape [1, 2, 2, 1]"),
        (good.replace("[3]", "[4]"), "3, golden 4"),
        (good.replace("[3]", "[3.0]"), "3, golden 3.0"),
        (good.replace("[3]", "[3, 3]"), "1 elements, golden 2"),
        (good.replace("[3]", "[\"3\"]"), "golden \"3\""),
        (good.replace("], [3]", "]"), "2 elements, golden 1"),
        ("[[1], [3]]".into(), "golden 1"),
    ] {
        let text = outputs(&wrong);
        assert!(text.contains(word), "{wrong}: {text:?}");
    }
}

#[test]
fn errors_are_compared_both_ways() {
    let mut refusing = case(map! {"refuse" => true});
    assert!(found(&refusing).contains("refused"), "an unexpected error");
    refusing.error = Some(parse(r#"{"type": "ValueError", "message": "refused"}"#));
    assert_eq!(found(&refusing), "");
    refusing.error = Some(parse(r#"{"type": "ValueError", "message": "other"}"#));
    assert!(found(&refusing).contains("golden ValueError"));
    refusing.error = Some(parse(r#"{"type": "RuntimeError", "message": "torch"}"#));
    assert_eq!(found(&refusing), "", "library messages are not matched");

    let mut quiet = case(map! {});
    quiet.error = Some(parse(r#"{"type": "RuntimeError", "message": "torch"}"#));
    assert!(found(&quiet).contains("should have failed"));
}

#[test]
fn what_a_node_shows_is_compared() {
    let mut case = case(map! {});
    case.ui = Some(map! {"text" => vec!["shown"]}.into());
    assert_eq!(found(&case), "");
    case.ui = Some(map! {"text" => vec![Value::from("hidden")]}.into());
    assert!(found(&case).contains(".ui.text[0]"));
}

#[test]
fn lists_run_once_per_element() {
    let one = case(map! {}).inputs["image"].clone();
    let mut case = case(map! {"image" => map! {"$list" => vec![one.clone(), one]}});
    let golden = r#"[[{"$const": 0.75, "shape": [1, 2, 2, 1]}, {"$const": 0.75, "shape": [1, 2, 2, 1]}], [3, 3]]"#;
    case.outputs = Some(parse(golden));
    assert_eq!(found(&case), "");
}
