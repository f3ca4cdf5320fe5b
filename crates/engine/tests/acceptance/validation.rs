//! Cases 1 to 14 and 44.

use std::fmt::Write as _;

use fresco_engine::Strategy;
use fresco_graph::json;

use crate::harness::Bench;

/// `ok`, or the prompt-level type and every node problem as `node type(details)`.
#[track_caller]
fn check(script: &str, want: &str) {
    check_targets(script, None, want);
}

#[track_caller]
fn check_targets(script: &str, targets: Option<&[&str]>, want: &str) {
    let problems = |nodes: &fresco_graph::ProblemsByNode| -> Vec<String> {
        nodes
            .iter()
            .flat_map(|(id, n)| {
                n.errors
                    .iter()
                    .map(move |e| format!("{id} {}({})", e.kind, e.details))
            })
            .collect()
    };
    let got = match Bench::new(Strategy::Classic).validate(script, targets) {
        Ok(valid) => {
            let mut parts = vec![format!("ok {}", valid.outputs.join(","))];
            parts.extend(problems(&valid.problems));
            parts.join(" | ")
        }
        Err(e) => {
            let mut parts = vec![e.problem.kind.to_owned()];
            parts.extend(problems(&e.nodes));
            parts.join(" | ")
        }
    };
    assert_eq!(got, want);
}

const FAILED: &str = "prompt_outputs_failed_validation";

#[test]
fn case_01_union_with_own_validator() {
    let bad = format!("{FAILED} | 1 custom_validation_failed(value - not a float)");
    check("1 FloatOnly value=5; 2 SaveAny value=@1", &bad);
    check("1 FloatOnly value=foo; 2 SaveAny value=@1", &bad);
    check("1 FloatOnly value=5.0; 2 SaveAny value=@1", "ok 2");
}

#[test]
fn case_02_linked_types_must_match() {
    let mismatch = |t: &str| {
        format!(
            "{FAILED} | 1 return_type_mismatch(value, received_type({t}) mismatch input_type(IMAGE,FLOAT))"
        )
    };
    check(
        "9 Int value=1; 1 FloatOnly value=@9; 2 SaveAny value=@1",
        &mismatch("INT"),
    );
    check(
        "9 MaskOut value=1; 1 FloatOnly value=@9; 2 SaveAny value=@1",
        &mismatch("MASK"),
    );
    check(
        "9 Float value=1; 1 FloatOnly value=@9; 2 SaveAny value=@1",
        "ok 2",
    );
}

#[test]
fn case_03_validator_sees_link_types() {
    check(
        "9 Int value=1; 1 TypesOnly value=@9; 2 SaveAny value=@1",
        &format!("{FAILED} | 1 custom_validation_failed(value - INT is not FLOAT)"),
    );
    check(
        "9 Float value=1; 1 TypesOnly value=@9; 2 SaveAny value=@1",
        "ok 2",
    );
}

#[test]
fn case_05_a_validator_does_not_replace_the_link_check() {
    check(
        "9 Int value=1; 1 PlainFloat value=@9; 2 SaveAny value=@1",
        &format!(
            "{FAILED} | 1 return_type_mismatch(value, received_type(INT) mismatch input_type(FLOAT))"
        ),
    );
    check(
        "9 Float value=1; 1 PlainFloat value=@9; 2 SaveAny value=@1",
        "ok 2",
    );
}

#[test]
fn case_06_keyword_validator_skips_bounds() {
    check("1 NoSevens a=0.0 b=5.0; 2 SaveAny value=@1", "ok 2");
    check(
        "1 NoSevens a=0.0 b=7.0; 2 SaveAny value=@1",
        &format!("{FAILED} | 1 custom_validation_failed(a) | 1 custom_validation_failed(b)"),
    );
}

#[test]
fn case_07_bad_output_is_dropped() {
    check(
        "1 Image value=1; 2 Save image=@1; 3 Save image=@7",
        "ok 2 | 3 exception_during_validation('7')",
    );
    check(
        "1 Image value=1; 2 Save image=@1; 3 Save image=@7; 7 Image value=2",
        "ok 2,3",
    );
}

#[test]
fn case_08_missing_input_is_blamed_on_its_node() {
    check(
        "1 Image; 2 Average input1=@1; 3 Save image=@2",
        &format!("{FAILED} | 1 required_input_missing(value)"),
    );
}

#[test]
fn case_09_targets() {
    let script = "1 Image value=1; 2 Save image=@1; 3 Save image=@1";
    check_targets(script, Some(&[]), "prompt_no_outputs");
    check_targets(script, Some(&["1"]), "prompt_no_outputs");
    check_targets(script, Some(&["3"]), "ok 3");
}

#[test]
fn case_11_long_lists_are_not_spelled_out() {
    let bench = Bench::new(Strategy::Classic);
    let error = bench
        .validate("1 Types n=1 flag=true pick=a many=zz", None)
        .unwrap_err();
    let problem = &error.nodes["1"].errors[0];
    assert_eq!(problem.details, "many: 'zz' not in (list of length 44)");
    assert!(problem.extra_info["input_config"].is_null());
    check(
        "1 Types n=1 flag=true pick=c",
        &format!("{FAILED} | 1 value_not_in_list(pick: 'c' not in ['a', 'b'])"),
    );
}

#[test]
fn case_12_literals_are_coerced_in_place() {
    let bench = Bench::new(Strategy::Classic);
    let valid = bench
        .validate(r#"1 Types n="3" flag="false" pick=a"#, None)
        .unwrap();
    let inputs = valid.prompt["1"].get("inputs").unwrap();
    assert_eq!(json::to_string(inputs), r#"{"n":3,"flag":true,"pick":"a"}"#);
    let valid = bench.validate("1 Types n=4.7 flag=0 pick=a", None).unwrap();
    assert_eq!(
        json::to_string(valid.prompt["1"].get("inputs").unwrap()),
        r#"{"n":4,"flag":false,"pick":"a"}"#
    );
    check(
        "1 Types n=abc flag=0 pick=a",
        &format!(
            "{FAILED} | 1 invalid_input_type(n, abc, invalid literal for int() with base 10: 'abc')"
        ),
    );
    check(
        "1 Types n=11 flag=0 pick=a",
        &format!("{FAILED} | 1 value_bigger_than_max(n)"),
    );
    check(
        "1 Types n=-1 flag=0 pick=a",
        &format!("{FAILED} | 1 value_smaller_than_min(n)"),
    );
}

#[test]
fn case_13_arrays_are_links() {
    check(
        "1 Types n=[1,2,3] flag=0 pick=a",
        &format!("{FAILED} | 1 bad_linked_input(n)"),
    );
    check(
        r#"1 Types n=1 flag=0 pick={"__value__":["a"]}"#,
        &format!("{FAILED} | 1 value_not_in_list(pick: '['a']' not in ['a', 'b'])"),
    );
    check(r#"1 Types n=1 flag=0 pick={"__value__":"a"}"#, "ok 1");
}

#[test]
fn case_14_static_cycle() {
    check(
        "1 Average input1=@2; 2 Average input1=@1; 3 Save image=@1",
        FAILED,
    );
    check("1 Average input1=@1; 3 Save image=@1", FAILED);
}

#[test]
fn case_44_dynamic_combo() {
    check("1 Dynamic", "ok 1");
    check("1 Dynamic mode=plain", "ok 1");
    check(
        "1 Dynamic mode=scaled",
        &format!("{FAILED} | 1 required_input_missing(factor)"),
    );
    check("1 Dynamic mode=scaled mode.factor=2", "ok 1");
    check("1 Dynamic mode=unknown", "ok 1");
}

#[test]
fn prompt_level_errors() {
    let bench = Bench::new(Strategy::Classic);
    let error = bench.validate("1 Nope a=1", None).unwrap_err();
    assert_eq!(
        error.problem.message,
        "Cannot execute because node Nope does not exist."
    );
    assert_eq!(error.problem.details, "Node ID '#1'");
    check("1 Image value=1", "prompt_no_outputs");
    check("", "prompt_no_outputs");
    let prompt =
        fresco_graph::map! {"4" => fresco_graph::map! {"inputs" => fresco_graph::Map::new()}};
    let error = crate::harness::validate(&bench.registry.snapshot(), prompt, None).unwrap_err();
    assert_eq!(
        error.problem.message,
        "Cannot execute because a node is missing the class_type property."
    );
}

#[test]
fn links_that_lead_nowhere() {
    check(
        "1 Save image=@9",
        &format!("{FAILED} | 1 exception_during_validation('9')"),
    );
    check(
        "1 Image value=1; 2 Average input1=@1.5; 3 Save image=@2",
        &format!("{FAILED} | 2 exception_during_inner_validation(tuple index out of range)"),
    );
}

#[test]
fn ten_thousand_nodes_in_a_row() {
    let mut script = String::from("0 Image value=1");
    for i in 1..10_000 {
        write!(script, "; {i} Average input1=@{}", i - 1).unwrap();
    }
    script += "; end Save image=@9999";
    // A small stack: depth must not depend on the graph.
    let run = move || {
        let mut bench = Bench::new(Strategy::Classic);
        assert_eq!(bench.run(&script).shown("end"), "[1.0]");
    };
    std::thread::Builder::new()
        .stack_size(512 * 1024)
        .spawn(run)
        .unwrap()
        .join()
        .unwrap();
}
