//! Validation: one prompt in, one text out.
//! Prompts of hostile size and random graphs are in `scheduling.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::needless_raw_string_hashes,
    clippy::format_push_string,
    reason = "a test may panic; expected texts are written by expect-test"
)]

mod inputs;
mod nodes;

use std::sync::Arc;

use expect_test::{Expect, expect};
use fresco_graph::{
    Args, Choices, Cx, Flow, Form, Input, Map, NoListings, NodeClass, NodeError, NodeOutput,
    NodeRegistry, Output, PromptLimits, Resources, Rules, Schema, Validator, ValidatorInputs,
    Value, Verdict, json,
};

type Check = fn(&Args, &Map) -> Result<Verdict, NodeError>;

/// A class that is only declared, with or without a validator.
struct Fixture {
    schema: Schema,
    validator: Option<(Validator, Check)>,
}

impl NodeClass for Fixture {
    fn schema(&self) -> Arc<Schema> {
        Arc::new(self.schema.clone())
    }
    fn call(&self, _: Args, _: &Cx) -> Result<Flow, NodeError> {
        Ok(Flow::Done(NodeOutput::default()))
    }
    fn validator(&self) -> Option<Arc<ValidatorInputs>> {
        self.validator.map(|(v, _)| Arc::new(v.into()))
    }
    fn validate(&self, args: Args, types: &Map, _: &Cx) -> Result<Verdict, NodeError> {
        self.validator
            .map_or(Ok(Verdict::Ok), |(_, check)| check(&args, types))
    }
}

fn v1(id: &str) -> Schema {
    Schema::new(id, Form::V1)
}

fn v3(id: &str) -> Schema {
    Schema::new(id, Form::V3)
}

fn out(mut schema: Schema) -> Schema {
    schema.output_node = true;
    schema
}

fn fixed(entries: &[&str]) -> Choices {
    Choices::Fixed(Arc::new(entries.iter().map(|e| Value::from(*e)).collect()))
}

/// Accepts floats only, by value or by the type of the link.
fn floats_only(args: &Args, types: &Map) -> Result<Verdict, NodeError> {
    for (name, value) in &args.0 {
        let ok = match types.get(name) {
            Some(ty) => ty.as_str() == Some("FLOAT"),
            None => matches!(value, Value::Float(_) | Value::Null),
        };
        if !ok {
            return Ok(Verdict::Because(format!("{name} is no float")));
        }
    }
    Ok(Verdict::Ok)
}

fn below_seven(args: &Args, _: &Map) -> Result<Verdict, NodeError> {
    let bad = args
        .0
        .values()
        .any(|v| v.as_f64().is_some_and(|f| f >= 7.0));
    Ok(if bad { Verdict::Rejected } else { Verdict::Ok })
}

fn names_large_ones(args: &Args, _: &Map) -> Result<Verdict, NodeError> {
    let large = args.0.iter();
    let large = large.filter(|(_, v)| v.as_f64().is_some_and(|f| f >= 7.0));
    let wrong = large.map(|(name, v)| (name.clone(), format!("{v:?} is too large")));
    Ok(Verdict::Inputs(wrong.collect()))
}

fn always_ok(_: &Args, _: &Map) -> Result<Verdict, NodeError> {
    Ok(Verdict::Ok)
}

fn raises(_: &Args, _: &Map) -> Result<Verdict, NodeError> {
    Err(NodeError::value_error("the validator broke"))
}

fn registry() -> NodeRegistry {
    let mut registry = NodeRegistry::new();
    let mut add = |schema, validator| registry.add_class(Arc::new(Fixture { schema, validator }));
    for ty in ["INT", "FLOAT", "MASK", "IMAGE", "COMBO", "*", "INT,STRING"] {
        add(v1(&format!("Give {ty}")).output(Output::new(ty)), None);
    }
    add(
        v1("Give list").output(Output::combo(fixed(&["a", "b"]), "list")),
        None,
    );
    add(v3("GiveV3").output(Output::new("INT")), None);
    let number = |ty: &str| {
        Input::new("n", ty)
            .option("default", 1)
            .option("min", 0)
            .option("max", 10)
    };
    for ty in [
        "INT",
        "FLOAT",
        "STRING",
        "BOOLEAN",
        "IMAGE",
        "IMAGE,FLOAT",
        "*",
        "COMFY_MATCHTYPE_V3",
    ] {
        let input = if matches!(ty, "INT" | "FLOAT") {
            number(ty)
        } else {
            Input::new("n", ty)
        };
        add(
            out(v1(&format!("Take {ty}"))
                .input(input)
                .output(Output::new("X"))),
            None,
        );
    }
    add(
        out(v1("Take combo").input(Input::combo("c", fixed(&["a", "b"])))),
        None,
    );
    add(
        out(v3("Take combo v3").input(Input::combo("c", fixed(&["a", "b"])))),
        None,
    );
    let many: Vec<String> = (0..44).map(|i| format!("o{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    add(
        out(v1("Take many").input(Input::combo("c", fixed(&many)))),
        None,
    );
    add(
        out(v1("Take bare combo").input(Input::new("c", "COMBO"))),
        None,
    );
    add(
        out(v1("Bounded text").input(Input::new("t", "STRING").option("min", 1))),
        None,
    );
    add(
        v1("Middle")
            .input(Input::new("x", "INT"))
            .output(Output::new("INT")),
        None,
    );
    add(
        out(v1("Two")
            .input(Input::new("a", "INT"))
            .input(Input::new("b", "INT").optional())),
        None,
    );
    add(
        v1("Ring")
            .input(Input::new("x", "INT").optional())
            .output(Output::new("INT")),
        None,
    );
    add(
        out(v3("Grow").input(Input::autogrow(
            "ag",
            Input::new("f", "FLOAT").option("max", 5),
            "f",
            2,
            4,
        ))),
        None,
    );
    add(
        out(v3("Dyn").input(Input::dynamic_combo(
            "combo",
            vec![
                ("o1", vec![Input::new("s", "STRING")]),
                (
                    "o4",
                    vec![Input::dynamic_combo(
                        "sub",
                        vec![(
                            "p1",
                            vec![
                                Input::new("fx", "FLOAT"),
                                Input::new("opt", "INT").optional(),
                            ],
                        )],
                    )],
                ),
            ],
        ))),
        None,
    );
    add(
        out(v3("Slot").input(Input::dynamic_slot(
            "sl",
            "IMAGE",
            vec![Input::new("w", "INT")],
        ))),
        None,
    );

    let params = |params| Validator {
        params,
        ..Validator::default()
    };
    add(
        out(v1("Own").input(Input::new("n", "IMAGE,FLOAT").option("max", 1))),
        Some((params(&["n"]), floats_only)),
    );
    add(
        out(v1("Own float").input(Input::new("n", "FLOAT"))),
        Some((params(&["n"]), floats_only)),
    );
    let typed = Validator {
        params: &["n", "input_types"],
        all: false,
        input_types: true,
    };
    add(
        out(v1("Own types").input(Input::new("n", "IMAGE,FLOAT"))),
        Some((typed, floats_only)),
    );
    let all = Validator {
        all: true,
        ..Validator::default()
    };
    let unit = |name: &str| {
        Input::new(name, "FLOAT")
            .option("min", 0.0)
            .option("max", 1.0)
    };
    add(
        out(v1("Own all").input(unit("a")).input(unit("b"))),
        Some((all, below_seven)),
    );
    add(
        out(v1("Own named").input(unit("a")).input(unit("b"))),
        Some((all, names_large_ones)),
    );
    add(
        out(v1("Own multi").input(Input::combo("c", fixed(&["a", "b"])))),
        Some((params(&["c"]), always_ok)),
    );
    add(
        out(v1("Own raises").input(Input::new("n", "INT"))),
        Some((params(&["n"]), raises)),
    );
    add(
        v1("Own inner")
            .input(Input::new("n", "INT"))
            .output(Output::new("INT")),
        Some((params(&["n"]), raises)),
    );
    registry
}

fn run(prompt: &str, targets: Option<&[&str]>) -> String {
    let targets: Option<Vec<Arc<str>>> = targets.map(|t| t.iter().map(|s| Arc::from(*s)).collect());
    let rules = Rules {
        registry: &Arc::new(registry()),
        listings: &NoListings,
        resources: &Arc::new(Resources::default()),
        limits: PromptLimits {
            nodes: 1000,
            inputs: 1000,
        },
    };
    let prompt = json::parse(prompt).unwrap().as_map().unwrap().clone();
    let (mut text, problems) = match rules.validate(prompt, targets.as_deref()) {
        Ok(valid) => {
            let mut text = format!("ok {}\n", valid.outputs.join(","));
            for (id, node) in valid.prompt.iter() {
                let inputs = node.get("inputs").map(json::to_string).unwrap_or_default();
                text += &format!("{id} {inputs}\n");
            }
            (text, valid.problems)
        }
        Err(e) => {
            assert!(e.problem.extra_info.is_empty());
            (
                format!(
                    "{}: {} [{}]\n",
                    e.problem.kind, e.problem.message, e.problem.details
                ),
                e.nodes,
            )
        }
    };
    for (id, node) in &problems {
        text += &format!(
            "#{id} {} <- {}\n",
            node.class,
            node.dependent_outputs.join(",")
        );
        for e in &node.errors {
            let extra = json::to_string(&e.extra_info.clone().into());
            text += &format!("  {}: {} [{}]\n    {extra}\n", e.kind, e.message, e.details);
        }
    }
    text
}

#[track_caller]
fn check(prompt: &str, want: Expect) {
    want.assert_eq(&run(prompt, None));
}

/// One output node of a class with the given inputs.
#[track_caller]
fn one(class: &str, inputs: &str, want: Expect) {
    check(
        &format!(r#"{{"1": {{"class_type": "{class}", "inputs": {inputs}}}}}"#),
        want,
    );
}

/// An output node whose input `n` is linked to slot 0 of a source.
#[track_caller]
fn linked(source: &str, class: &str, want: Expect) {
    check(
        &format!(
            r#"{{"1": {{"class_type": "{source}", "inputs": {{}}}}, "2": {{"class_type": "{class}", "inputs": {{"n": ["1", 0]}}}}}}"#
        ),
        want,
    );
}

// Whole prompts.

#[test]
fn a_node_without_a_class() {
    check(
        r#"{"1": {"class_type": "Take INT", "inputs": {"n": 1}}, "7": {"inputs": {}}}"#,
        expect![[r#"
            invalid_prompt: Cannot execute because a node is missing the class_type property. [Node ID '#7']
        "#]],
    );
    check(
        r#"{"7": 3}"#,
        expect![[r#"
        invalid_prompt: Cannot execute because a node is missing the class_type property. [Node ID '#7']
    "#]],
    );
}

#[test]
fn a_class_nobody_has_even_where_nothing_needs_it() {
    check(
        r#"{"1": {"class_type": "Take INT", "inputs": {"n": 1}}, "9": {"class_type": "Gone", "inputs": {}}}"#,
        expect![[r#"
            invalid_prompt: Cannot execute because node Gone does not exist. [Node ID '#9']
        "#]],
    );
    check(
        r#"{"9": {"class_type": 5}}"#,
        expect![[r#"
        invalid_prompt: Cannot execute because node 5 does not exist. [Node ID '#9']
    "#]],
    );
}

#[test]
fn nothing_to_do() {
    check(
        "{}",
        expect![[r#"
        prompt_no_outputs: Prompt has no outputs []
    "#]],
    );
    check(
        r#"{"1": {"class_type": "Give INT", "inputs": {}}}"#,
        expect![[r#"
            prompt_no_outputs: Prompt has no outputs []
        "#]],
    );
    let prompt = r#"{"1": {"class_type": "Take INT", "inputs": {"n": 1}}, "2": {"class_type": "Give INT", "inputs": {}}}"#;
    let none = run(prompt, Some(&[]));
    assert_eq!(none, "prompt_no_outputs: Prompt has no outputs []\n");
    assert_eq!(run(prompt, Some(&["2"])), none);
    assert_eq!(run(prompt, Some(&["404"])), none);
    expect![[r#"
        ok 1
        1 {"n":1}
        2 {}
    "#]]
    .assert_eq(&run(prompt, Some(&["1", "404"])));
}

#[test]
fn only_targets_are_looked_at() {
    let prompt = r#"{"1": {"class_type": "Take INT", "inputs": {"n": 1}}, "2": {"class_type": "Take INT", "inputs": {}}}"#;
    expect![[r#"
        ok 1
        1 {"n":1}
        2 {}
    "#]]
    .assert_eq(&run(prompt, Some(&["1"])));
    expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Required input is missing: n]
        #2 Take INT <- 2
          required_input_missing: Required input is missing [n]
            {"input_name":"n"}
    "#]].assert_eq(&run(prompt, Some(&["2"])));
}

#[test]
fn bad_outputs_are_dropped_when_others_are_good() {
    // Case 7: one output depends on a node that is gone.
    check(
        r#"{"1": {"class_type": "Give INT", "inputs": {}}, "2": {"class_type": "Take INT", "inputs": {"n": ["1", 0]}},
            "3": {"class_type": "Take INT", "inputs": {"n": ["99", 0]}}}"#,
        expect![[r#"
            ok 2
            1 {}
            2 {"n":["1",0]}
            3 {"n":["99",0]}
            #3 Take INT <- 3
              exception_during_validation: Exception when validating node ['99']
                {"exception_type":"KeyError","traceback":["KeyError: '99'"]}
        "#]],
    );
}

#[test]
fn the_error_is_on_the_node_that_has_it() {
    // Case 8; details of the whole only repeat what is wrong with outputs themselves.
    check(
        r#"{"1": {"class_type": "Middle", "inputs": {}}, "2": {"class_type": "Middle", "inputs": {"x": ["1", 0]}},
            "3": {"class_type": "Take INT", "inputs": {"n": ["2", 0]}}, "4": {"class_type": "Two", "inputs": {"a": ["1", 0], "b": "z"}}}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Failed to convert an input value to a INT value: b, z, invalid literal for int() with base 10: 'z']
            #1 Middle <- 3,4
              required_input_missing: Required input is missing [x]
                {"input_name":"x"}
            #4 Two <- 4
              invalid_input_type: Failed to convert an input value to a INT value [b, z, invalid literal for int() with base 10: 'z']
                {"input_name":"b","input_config":["INT",{}],"received_value":"z","exception_message":"invalid literal for int() with base 10: 'z'"}
        "#]],
    );
}

#[test]
fn unreachable_nodes_may_be_wrong() {
    check(
        r#"{"1": {"class_type": "Take INT", "inputs": {"n": 1}}, "2": {"class_type": "Middle", "inputs": {"x": "no"}}, "3": {"class_type": "Middle"}}"#,
        expect![[r#"
            ok 1
            1 {"n":1}
            2 {"x":"no"}
            3 
        "#]],
    );
}

#[test]
fn prompts_have_a_size() {
    let mut text = String::from(r#"{"o": {"class_type": "Take INT", "inputs": {"n": 1}}"#);
    for i in 0..1000 {
        text += &format!(r#", "{i}": {{"class_type": "Give INT", "inputs": {{}}}}"#);
    }
    check(
        &(text + "}"),
        expect![[r#"
        invalid_prompt: Cannot execute because the prompt has too many nodes. [1001 nodes, the limit is 1000]
    "#]],
    );
    let many: Vec<String> = (0..1001).map(|i| format!(r#""x{i}": 1"#)).collect();
    one(
        "Take INT",
        &format!("{{{}}}", many.join(",")),
        expect![[r#"
            invalid_prompt: Cannot execute because the prompt has too many inputs. [1001 inputs, the limit is 1000]
        "#]],
    );
}
