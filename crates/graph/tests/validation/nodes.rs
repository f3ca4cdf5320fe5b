//! The class's own validator, exceptions, cycles, and inputs that depend on inputs.

use expect_test::expect;

use super::{check, linked, one, run};

// execution.md 3.2.5, the class's own validator.

#[test]
fn own_validator_on_a_union() {
    // Case 1: a union is not coerced, and bounds are the validator's business.
    one(
        "Own",
        r#"{"n": 5}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Custom validation failed for node: n - n is no float]
        #1 Own <- 1
          custom_validation_failed: Custom validation failed for node [n - n is no float]
            {"input_name":"n"}
    "#]],
    );
    one(
        "Own",
        r#"{"n": "foo"}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Custom validation failed for node: n - n is no float]
        #1 Own <- 1
          custom_validation_failed: Custom validation failed for node [n - n is no float]
            {"input_name":"n"}
    "#]],
    );
    one(
        "Own",
        r#"{"n": 5.0}"#,
        expect![[r#"
        ok 1
        1 {"n":5.0}
    "#]],
    );
    // Case 2: links are still checked by type.
    linked(
        "Give INT",
        "Own",
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Return type mismatch between linked nodes: n, received_type(INT) mismatch input_type(IMAGE,FLOAT)]
        #2 Own <- 2
          return_type_mismatch: Return type mismatch between linked nodes [n, received_type(INT) mismatch input_type(IMAGE,FLOAT)]
            {"input_name":"n","input_config":["IMAGE,FLOAT",{"max":1}],"received_type":"INT","linked_node":["1",0]}
    "#]],
    );
    assert!(run(r#"{"1": {"class_type": "Give MASK", "inputs": {}}, "2": {"class_type": "Own", "inputs": {"n": ["1", 0]}}}"#, None)
        .contains("return_type_mismatch"));
}

#[test]
fn own_validator_that_wants_types() {
    // Case 3: it replaces the check of links.
    linked(
        "Give INT",
        "Own types",
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Custom validation failed for node: n - n is no float]
        #2 Own types <- 2
          custom_validation_failed: Custom validation failed for node [n - n is no float]
            {"input_name":"n"}
    "#]],
    );
    linked(
        "Give FLOAT",
        "Own types",
        expect![[r#"
        ok 2
        1 {}
        2 {"n":["1",0]}
    "#]],
    );
}

#[test]
fn own_validator_on_a_plain_type() {
    // Case 5.
    assert!(run(r#"{"1": {"class_type": "Give INT", "inputs": {}}, "2": {"class_type": "Own float", "inputs": {"n": ["1", 0]}}}"#, None)
        .contains("return_type_mismatch"));
    linked(
        "Give FLOAT",
        "Own float",
        expect![[r#"
        ok 2
        1 {}
        2 {"n":["1",0]}
    "#]],
    );
}

#[test]
fn own_validator_that_takes_everything() {
    // Case 6.
    one(
        "Own all",
        r#"{"a": 0.0, "b": 5.0}"#,
        expect![[r#"
        ok 1
        1 {"a":0.0,"b":5.0}
    "#]],
    );
    one(
        "Own all",
        r#"{"a": 0.0, "b": 7.0}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Custom validation failed for node: a
        Custom validation failed for node: b]
        #1 Own all <- 1
          custom_validation_failed: Custom validation failed for node [a]
            {"input_name":"a"}
          custom_validation_failed: Custom validation failed for node [b]
            {"input_name":"b"}
    "#]],
    );
    // It may say which input is wrong.
    one(
        "Own named",
        r#"{"a": 0.0, "b": 7.0}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Custom validation failed for node: b - 7.0 is too large]
        #1 Own named <- 1
          custom_validation_failed: Custom validation failed for node [b - 7.0 is too large]
            {"input_name":"b"}
    "#]],
    );
    // It runs beside other errors, over what is there.
    one(
        "Own all",
        r#"{"b": 7.0}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Required input is missing: a
        Custom validation failed for node: b]
        #1 Own all <- 1
          required_input_missing: Required input is missing [a]
            {"input_name":"a"}
          custom_validation_failed: Custom validation failed for node [b]
            {"input_name":"b"}
    "#]],
    );
}

// execution.md 3.3, exceptions.

#[test]
fn exceptions_at_the_output() {
    one(
        "Take INT",
        r#"{"n": ["12", 0]}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: '12']
        #1 Take INT <- 1
          exception_during_validation: Exception when validating node ['12']
            {"exception_type":"KeyError","traceback":["KeyError: '12'"]}
    "#]],
    );
    one(
        "Take INT",
        r#"{"n": [12, 0]}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: 12]
        #1 Take INT <- 1
          exception_during_validation: Exception when validating node [12]
            {"exception_type":"KeyError","traceback":["KeyError: 12"]}
    "#]],
    );
    one(
        "Take INT",
        r#"{"n": [["a"], 0]}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: unhashable type: 'list']
            #1 Take INT <- 1
              exception_during_validation: Exception when validating node [unhashable type: 'list']
                {"exception_type":"TypeError","traceback":["TypeError: unhashable type: 'list'"]}
        "#]],
    );
    one(
        "Bounded text",
        r#"{"t": "x"}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: '<' not supported between instances of 'str' and 'int']
            #1 Bounded text <- 1
              exception_during_validation: Exception when validating node ['<' not supported between instances of 'str' and 'int']
                {"exception_type":"TypeError","traceback":["TypeError: '<' not supported between instances of 'str' and 'int'"]}
        "#]],
    );
    one(
        "Own raises",
        r#"{"n": 1}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: the validator broke]
        #1 Own raises <- 1
          exception_during_validation: Exception when validating node [the validator broke]
            {"exception_type":"ValueError","traceback":["ValueError: the validator broke"]}
    "#]],
    );
    check(
        r#"{"1": {"class_type": "Take INT"}}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: 'inputs']
        #1 Take INT <- 1
          exception_during_validation: Exception when validating node ['inputs']
            {"exception_type":"KeyError","traceback":["KeyError: 'inputs'"]}
    "#]],
    );
    check(
        r#"{"1": {"class_type": "Take INT", "inputs": 3}}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: 'inputs']
            #1 Take INT <- 1
              exception_during_validation: Exception when validating node ['inputs']
                {"exception_type":"KeyError","traceback":["KeyError: 'inputs'"]}
        "#]],
    );
}

#[test]
fn slots_out_of_range() {
    let slot = |source: &str, slot: &str| {
        run(
            &format!(
                r#"{{"1": {{"class_type": "{source}", "inputs": {{}}}}, "2": {{"class_type": "Take INT", "inputs": {{"n": ["1", {slot}]}}}}}}"#
            ),
            None,
        )
    };
    expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: tuple index out of range]
        #2 Take INT <- 2
          exception_during_validation: Exception when validating node [tuple index out of range]
            {"exception_type":"IndexError","traceback":["IndexError: tuple index out of range"]}
    "#]].assert_eq(&slot("Give INT", "1"));
    expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: list index out of range]
        #2 Take INT <- 2
          exception_during_validation: Exception when validating node [list index out of range]
            {"exception_type":"IndexError","traceback":["IndexError: list index out of range"]}
    "#]].assert_eq(&slot("GiveV3", "1"));
    expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: tuple index out of range]
        #2 Take INT <- 2
          exception_during_validation: Exception when validating node [tuple index out of range]
            {"exception_type":"IndexError","traceback":["IndexError: tuple index out of range"]}
    "#]].assert_eq(&slot("Give INT", "-2"));
    expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: tuple indices must be integers or slices, not str]
        #2 Take INT <- 2
          exception_during_validation: Exception when validating node [tuple indices must be integers or slices, not str]
            {"exception_type":"TypeError","traceback":["TypeError: tuple indices must be integers or slices, not str"]}
    "#]].assert_eq(&slot("Give INT", "\"0\""));
    expect![[r#"
        ok 2
        1 {}
        2 {"n":["1",0.0]}
    "#]]
    .assert_eq(&slot("Give INT", "0.0"));
    expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Exception when validating node: tuple indices must be integers or slices, not NoneType]
        #2 Take INT <- 2
          exception_during_validation: Exception when validating node [tuple indices must be integers or slices, not NoneType]
            {"exception_type":"TypeError","traceback":["TypeError: tuple indices must be integers or slices, not NoneType"]}
    "#]].assert_eq(&slot("Give INT", "null"));
    // Python counts from the end, and true is one.
    assert!(slot("Give INT", "-1").starts_with("ok"));
    assert!(slot("Give INT", "false").starts_with("ok"));
}

#[test]
fn exceptions_inside() {
    // The node that raised has the problem; input and link are those that led to it.
    check(
        r#"{"1": {"class_type": "Middle", "inputs": {"x": ["404", 0]}}, "2": {"class_type": "Take INT", "inputs": {"n": ["1", 0]}}}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation []
            #1 Middle <- 2
              exception_during_inner_validation: Exception when validating inner node ['404']
                {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"exception_message":"'404'","exception_type":"KeyError","traceback":["KeyError: '404'"],"linked_node":["1",0]}
        "#]],
    );
    check(
        r#"{"1": {"class_type": "Middle"}, "2": {"class_type": "Take INT", "inputs": {"n": ["1", 0]}}}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation []
            #1 Middle <- 2
              exception_during_inner_validation: Exception when validating inner node ['inputs']
                {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"exception_message":"'inputs'","exception_type":"KeyError","traceback":["KeyError: 'inputs'"],"linked_node":["1",0]}
        "#]],
    );
    check(
        r#"{"1": {"class_type": "Own inner", "inputs": {"n": 1}}, "2": {"class_type": "Take INT", "inputs": {"n": ["1", 0]}}}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation []
            #1 Own inner <- 2
              exception_during_inner_validation: Exception when validating inner node [the validator broke]
                {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"exception_message":"the validator broke","exception_type":"ValueError","traceback":["ValueError: the validator broke"],"linked_node":["1",0]}
        "#]],
    );
}

// execution.md 3.4, cycles.

#[test]
fn cycles_have_no_culprit() {
    // Case 14.
    let ring = r#""1": {"class_type": "Ring", "inputs": {"x": ["2", 0]}}, "2": {"class_type": "Ring", "inputs": {"x": ["1", 0]}}"#;
    check(
        &format!(r#"{{{ring}, "3": {{"class_type": "Take INT", "inputs": {{"n": ["1", 0]}}}}}}"#),
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation []
        "#]],
    );
    // Other outputs still run, and one that is wrong besides says so.
    check(
        &format!(
            r#"{{{ring}, "3": {{"class_type": "Two", "inputs": {{"a": ["1", 0], "b": "q"}}}}, "4": {{"class_type": "Take INT", "inputs": {{"n": 1}}}}}}"#
        ),
        expect![[r#"
            ok 4
            1 {"x":["2",0]}
            2 {"x":["1",0]}
            3 {"a":["1",0],"b":"q"}
            4 {"n":1}
            #3 Two <- 3
              invalid_input_type: Failed to convert an input value to a INT value [b, q, invalid literal for int() with base 10: 'q']
                {"input_name":"b","input_config":["INT",{}],"received_value":"q","exception_message":"invalid literal for int() with base 10: 'q'"}
        "#]],
    );
    check(
        r#"{"1": {"class_type": "Ring", "inputs": {"x": ["1", 0]}}, "3": {"class_type": "Take INT", "inputs": {"n": ["1", 0]}}}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation []
        "#]],
    );
}

// execution.md 15.5, inputs that depend on inputs.

#[test]
fn dynamic_combos() {
    // Case 44.
    one(
        "Dyn",
        "{}",
        expect![[r#"
        ok 1
        1 {}
    "#]],
    );
    one(
        "Dyn",
        r#"{"combo": "zz", "combo.s": 5}"#,
        expect![[r#"
        ok 1
        1 {"combo":"zz","combo.s":5}
    "#]],
    );
    one(
        "Dyn",
        r#"{"combo": "o1"}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Required input is missing: s]
        #1 Dyn <- 1
          required_input_missing: Required input is missing [s]
            {"input_name":"combo.s"}
    "#]],
    );
    one(
        "Dyn",
        r#"{"combo": "o1", "combo.s": 5}"#,
        expect![[r#"
        ok 1
        1 {"combo":"o1","combo.s":"5"}
    "#]],
    );
    one(
        "Dyn",
        r#"{"combo": "o4", "combo.sub": "p1"}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Required input is missing: fx]
            #1 Dyn <- 1
              required_input_missing: Required input is missing [fx]
                {"input_name":"combo.sub.fx"}
        "#]],
    );
    one(
        "Dyn",
        r#"{"combo": "o4", "combo.sub": "p1", "combo.sub.fx": "1.5", "combo.sub.opt": "x"}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Failed to convert an input value to a INT value: combo.sub.opt, x, invalid literal for int() with base 10: 'x']
            #1 Dyn <- 1
              invalid_input_type: Failed to convert an input value to a INT value [combo.sub.opt, x, invalid literal for int() with base 10: 'x']
                {"input_name":"combo.sub.opt","input_config":["INT",{}],"received_value":"x","exception_message":"invalid literal for int() with base 10: 'x'"}
        "#]],
    );
    one(
        "Dyn",
        r#"{"combo": "o4"}"#,
        expect![[r#"
        ok 1
        1 {"combo":"o4"}
    "#]],
    );
}

#[test]
fn growing_inputs() {
    one(
        "Grow",
        "{}",
        expect![[r#"
        ok 1
        1 {}
    "#]],
    );
    one(
        "Grow",
        r#"{"ag.f0": "1", "ag.f3": 6, "ag.f4": "not declared"}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Value 6.0 bigger than max of 5: ag.f3]
            #1 Grow <- 1
              value_bigger_than_max: Value 6.0 bigger than max of 5 [ag.f3]
                {"input_name":"ag.f3","input_config":["FLOAT",{"max":5}],"received_value":6.0}
        "#]],
    );
}

#[test]
fn slots_that_bring_inputs() {
    one(
        "Slot",
        "{}",
        expect![[r#"
        ok 1
        1 {}
    "#]],
    );
    one(
        "Slot",
        r#"{"sl": 1}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Required input is missing: w]
        #1 Slot <- 1
          required_input_missing: Required input is missing [w]
            {"input_name":"sl.w"}
    "#]],
    );
    one(
        "Slot",
        r#"{"sl": 1, "sl.w": "5"}"#,
        expect![[r#"
        ok 1
        1 {"sl":1,"sl.w":5}
    "#]],
    );
}
