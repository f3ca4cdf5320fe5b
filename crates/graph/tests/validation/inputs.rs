//! What can be wrong with one input.

use expect_test::expect;

use super::{check, linked, one, run};

#[test]
fn required_inputs() {
    one(
        "Take INT",
        "{}",
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Required input is missing: n]
        #1 Take INT <- 1
          required_input_missing: Required input is missing [n]
            {"input_name":"n"}
    "#]],
    );
    one(
        "Two",
        r#"{"a": 1}"#,
        expect![[r#"
        ok 1
        1 {"a":1}
    "#]],
    );
    // Null is a value.
    one(
        "Take IMAGE",
        r#"{"n": null}"#,
        expect![[r#"
        ok 1
        1 {"n":null}
    "#]],
    );
}

#[test]
fn lists_that_are_no_links() {
    one(
        "Take INT",
        r#"{"n": [1, 2, 3]}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Bad linked input, must be a length-2 list of [node_id, slot_index]: n]
        #1 Take INT <- 1
          bad_linked_input: Bad linked input, must be a length-2 list of [node_id, slot_index] [n]
            {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"received_value":[1,2,3]}
    "#]],
    );
    one(
        "Take IMAGE",
        r#"{"n": []}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Bad linked input, must be a length-2 list of [node_id, slot_index]: n]
        #1 Take IMAGE <- 1
          bad_linked_input: Bad linked input, must be a length-2 list of [node_id, slot_index] [n]
            {"input_name":"n","input_config":["IMAGE",{}],"received_value":[]}
    "#]],
    );
}

#[test]
fn types_must_match() {
    linked(
        "Give INT",
        "Take IMAGE",
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Return type mismatch between linked nodes: n, received_type(INT) mismatch input_type(IMAGE)]
        #2 Take IMAGE <- 2
          return_type_mismatch: Return type mismatch between linked nodes [n, received_type(INT) mismatch input_type(IMAGE)]
            {"input_name":"n","input_config":["IMAGE",{}],"received_type":"INT","linked_node":["1",0]}
    "#]],
    );
    linked(
        "Give COMBO",
        "Take INT",
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Return type mismatch between linked nodes: n, received_type(COMBO) mismatch input_type(INT)]
        #2 Take INT <- 2
          return_type_mismatch: Return type mismatch between linked nodes [n, received_type(COMBO) mismatch input_type(INT)]
            {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"received_type":"COMBO","linked_node":["1",0]}
    "#]],
    );
    for (source, class) in [
        ("Give INT", "Take INT"),
        ("Give INT,STRING", "Take INT"),
        ("Give FLOAT", "Take IMAGE,FLOAT"),
        ("Give *", "Take IMAGE"),
        ("Give IMAGE", "Take *"),
        ("Give IMAGE", "Take COMFY_MATCHTYPE_V3"),
    ] {
        let text = run(
            &format!(
                r#"{{"1": {{"class_type": "{source}", "inputs": {{}}}}, "2": {{"class_type": "{class}", "inputs": {{"n": ["1", 0]}}}}}}"#
            ),
            None,
        );
        assert!(text.starts_with("ok 2\n"), "{source} -> {class}: {text}");
    }
}

#[test]
fn a_combo_output_and_a_list_input() {
    let combo = |source: &str, class: &str| {
        run(
            &format!(
                r#"{{"1": {{"class_type": "{source}", "inputs": {{}}}}, "2": {{"class_type": "{class}", "inputs": {{"c": ["1", 0]}}}}}}"#
            ),
            None,
        )
    };
    assert!(combo("Give list", "Take combo").starts_with("ok"));
    assert!(combo("Give list", "Take combo v3").starts_with("ok"));
    expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Return type mismatch between linked nodes: c, received_type(COMBO) mismatch input_type(['a', 'b'])]
        #2 Take combo <- 2
          return_type_mismatch: Return type mismatch between linked nodes [c, received_type(COMBO) mismatch input_type(['a', 'b'])]
            {"input_name":"c","input_config":[["a","b"],{}],"received_type":"COMBO","linked_node":["1",0]}
    "#]].assert_eq(&combo("Give COMBO", "Take combo"));
    assert!(combo("Give list", "Take many").contains("return_type_mismatch"));
}

#[test]
fn a_mismatched_source_is_not_visited() {
    check(
        r#"{"1": {"class_type": "Middle", "inputs": {}}, "2": {"class_type": "Take IMAGE", "inputs": {"n": ["1", 0]}}}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Return type mismatch between linked nodes: n, received_type(INT) mismatch input_type(IMAGE)]
            #2 Take IMAGE <- 2
              return_type_mismatch: Return type mismatch between linked nodes [n, received_type(INT) mismatch input_type(IMAGE)]
                {"input_name":"n","input_config":["IMAGE",{}],"received_type":"INT","linked_node":["1",0]}
        "#]],
    );
}

#[test]
fn literals_become_what_is_declared() {
    // Case 12.
    one(
        "Take INT",
        r#"{"n": "3"}"#,
        expect![[r#"
        ok 1
        1 {"n":3}
    "#]],
    );
    one(
        "Take INT",
        r#"{"n": 4.7}"#,
        expect![[r#"
        ok 1
        1 {"n":4}
    "#]],
    );
    one(
        "Take BOOLEAN",
        r#"{"n": "false"}"#,
        expect![[r#"
        ok 1
        1 {"n":true}
    "#]],
    );
    one(
        "Take FLOAT",
        r#"{"n": 3}"#,
        expect![[r#"
        ok 1
        1 {"n":3.0}
    "#]],
    );
    one(
        "Take STRING",
        r#"{"n": {"a": [true, null, 5.0]}}"#,
        expect![[r#"
            ok 1
            1 {"n":"{'a': [True, None, 5.0]}"}
        "#]],
    );
    one(
        "Take INT",
        r#"{"n": {"__value__": "5"}}"#,
        expect![[r#"
        ok 1
        1 {"n":5}
    "#]],
    );
    one(
        "Take IMAGE,FLOAT",
        r#"{"n": "5"}"#,
        expect![[r#"
        ok 1
        1 {"n":"5"}
    "#]],
    );
}

#[test]
fn literals_that_cannot_be_converted() {
    one(
        "Take INT",
        r#"{"n": "abc"}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Failed to convert an input value to a INT value: n, abc, invalid literal for int() with base 10: 'abc']
        #1 Take INT <- 1
          invalid_input_type: Failed to convert an input value to a INT value [n, abc, invalid literal for int() with base 10: 'abc']
            {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"received_value":"abc","exception_message":"invalid literal for int() with base 10: 'abc'"}
    "#]],
    );
    one(
        "Take INT",
        r#"{"n": null}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Failed to convert an input value to a INT value: n, None, int() argument must be a string, a bytes-like object or a real number, not 'NoneType']
        #1 Take INT <- 1
          invalid_input_type: Failed to convert an input value to a INT value [n, None, int() argument must be a string, a bytes-like object or a real number, not 'NoneType']
            {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"received_value":null,"exception_message":"int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"}
    "#]],
    );
    one(
        "Take FLOAT",
        r#"{"n": {"a": 1}}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Failed to convert an input value to a FLOAT value: n, {'a': 1}, float() argument must be a string or a real number, not 'dict']
        #1 Take FLOAT <- 1
          invalid_input_type: Failed to convert an input value to a FLOAT value [n, {'a': 1}, float() argument must be a string or a real number, not 'dict']
            {"input_name":"n","input_config":["FLOAT",{"default":1,"min":0,"max":10}],"received_value":{"a":1},"exception_message":"float() argument must be a string or a real number, not 'dict'"}
    "#]],
    );
    one(
        "Take INT",
        r#"{"n": NaN}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Failed to convert an input value to a INT value: n, nan, cannot convert float NaN to integer]
        #1 Take INT <- 1
          invalid_input_type: Failed to convert an input value to a INT value [n, nan, cannot convert float NaN to integer]
            {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"received_value":null,"exception_message":"cannot convert float NaN to integer"}
    "#]],
    );
}

#[test]
fn bounds() {
    one(
        "Take INT",
        r#"{"n": -1}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Value -1 smaller than min of 0: n]
        #1 Take INT <- 1
          value_smaller_than_min: Value -1 smaller than min of 0 [n]
            {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"received_value":-1}
    "#]],
    );
    one(
        "Take FLOAT",
        r#"{"n": 10.5}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Value 10.5 bigger than max of 10: n]
        #1 Take FLOAT <- 1
          value_bigger_than_max: Value 10.5 bigger than max of 10 [n]
            {"input_name":"n","input_config":["FLOAT",{"default":1,"min":0,"max":10}],"received_value":10.5}
    "#]],
    );
    one(
        "Take INT",
        r#"{"n": 10}"#,
        expect![[r#"
        ok 1
        1 {"n":10}
    "#]],
    );
    one(
        "Take FLOAT",
        r#"{"n": NaN}"#,
        expect![[r#"
        ok 1
        1 {"n":null}
    "#]],
    );
    one(
        "Take INT",
        r#"{"n": 18446744073709551616}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Value 18446744073709551616 bigger than max of 10: n]
        #1 Take INT <- 1
          value_bigger_than_max: Value 18446744073709551616 bigger than max of 10 [n]
            {"input_name":"n","input_config":["INT",{"default":1,"min":0,"max":10}],"received_value":18446744073709551616}
    "#]],
    );
}

#[test]
fn membership() {
    one(
        "Take combo",
        r#"{"c": "z"}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Value not in list: c: 'z' not in ['a', 'b']]
        #1 Take combo <- 1
          value_not_in_list: Value not in list [c: 'z' not in ['a', 'b']]
            {"input_name":"c","input_config":[["a","b"],{}],"received_value":"z"}
    "#]],
    );
    one(
        "Take combo v3",
        r#"{"c": 5}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Value not in list: c: '5' not in ['a', 'b']]
        #1 Take combo v3 <- 1
          value_not_in_list: Value not in list [c: '5' not in ['a', 'b']]
            {"input_name":"c","input_config":["COMBO",{"options":["a","b"]}],"received_value":5}
    "#]],
    );
    one(
        "Take many",
        r#"{"c": "z"}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Value not in list: c: 'z' not in (list of length 44)]
        #1 Take many <- 1
          value_not_in_list: Value not in list [c: 'z' not in (list of length 44)]
            {"input_name":"c","input_config":null,"received_value":"z"}
    "#]],
    );
    one(
        "Take bare combo",
        r#"{"c": "a"}"#,
        expect![[r#"
        prompt_outputs_failed_validation: Prompt outputs failed validation [Value not in list: c: 'a' not in []]
        #1 Take bare combo <- 1
          value_not_in_list: Value not in list [c: 'a' not in []]
            {"input_name":"c","input_config":["COMBO",{"options":[]}],"received_value":"a"}
    "#]],
    );
    one(
        "Take combo",
        r#"{"c": "b"}"#,
        expect![[r#"
        ok 1
        1 {"c":"b"}
    "#]],
    );
    // Case 13: several at once are compared as one value, unless the class looks itself.
    one(
        "Take combo",
        r#"{"c": {"__value__": ["a"]}}"#,
        expect![[r#"
            prompt_outputs_failed_validation: Prompt outputs failed validation [Value not in list: c: '['a']' not in ['a', 'b']]
            #1 Take combo <- 1
              value_not_in_list: Value not in list [c: '['a']' not in ['a', 'b']]
                {"input_name":"c","input_config":[["a","b"],{}],"received_value":["a"]}
        "#]],
    );
    one(
        "Own multi",
        r#"{"c": {"__value__": ["a"]}}"#,
        expect![[r#"
        ok 1
        1 {"c":["a"]}
    "#]],
    );
}

#[test]
fn undeclared_inputs_are_not_looked_at() {
    one(
        "Take INT",
        r#"{"n": 1, "zzz": [1, 2, 3], "yyy": ["404", 0]}"#,
        expect![[r#"
            ok 1
            1 {"n":1,"zzz":[1,2,3],"yyy":["404",0]}
        "#]],
    );
}
