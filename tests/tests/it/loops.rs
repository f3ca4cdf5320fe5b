//! Loops by HTTP: turns by number, over ranges and lists, inside of each other; and what is no loop.

use fresco_tests::Server;
use serde_json::{Value, json};

fn start(mode: &Value) -> Value {
    let mut inputs = mode.clone();
    inputs["cache_iterations"] = json!(false);
    json!({"class_type": "StartLoop", "inputs": inputs})
}

fn end(inputs: &Value) -> Value {
    json!({"class_type": "EndLoop", "inputs": inputs})
}

fn joined(a: &Value, b: &Value) -> Value {
    json!({"class_type": "StringConcatenate", "inputs": {"string_a": a, "string_b": b, "delimiter": ""}})
}

fn shown(source: &Value) -> Value {
    json!({"class_type": "PreviewAny", "inputs": {"source": source}})
}

/// What node 9 shows.
#[track_caller]
fn shows(server: &Server, prompt: &Value) -> Vec<String> {
    let history = server.wait_for(&server.queue(prompt, None));
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    let text = history["outputs"]["9"]["text"].as_array().cloned();
    let text = text.unwrap_or_default().into_iter();
    text.map(|text| text.as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn a_value_goes_from_turn_to_turn() {
    let server = Server::start();
    for (turns, accumulate, expected) in [
        (4, false, vec!["sxxxx"]),
        (3, true, vec!["sx", "sxx", "sxxx"]),
        (1, true, vec!["sx"]),
        (0, true, vec![]),
    ] {
        let prompt = json!({
            "1": start(&json!({"mode": "simple", "mode.num_iterations": turns, "initial_iteration_value": "s"})),
            "2": joined(&json!(["1", 4]), &json!("x")),
            "3": end(&json!({"output_value": ["2", 0], "next_iteration_value": ["2", 0], "accumulate": accumulate})),
            "9": shown(&json!(["3", 0])),
        });
        assert_eq!(shows(&server, &prompt), expected, "{turns} {accumulate}");
    }
}

#[test]
fn ranges_and_lists() {
    let server = Server::start();
    let range = json!({
        "1": start(&json!({"mode": "For", "mode.start_iteration_index": 2, "mode.max_iteration": 8, "mode.step": 3})),
        "3": end(&json!({"output_value": ["1", 0], "accumulate": true})),
        "9": shown(&json!(["3", 0])),
    });
    assert_eq!(shows(&server, &range), ["2", "5"]);
    let first = |slot: usize| {
        let mut prompt = range.clone();
        prompt["3"]["inputs"]["output_value"] = json!(["1", slot]);
        shows(&server, &prompt)
    };
    assert_eq!(first(1), ["True", "False"]);
    assert_eq!(first(2), ["False", "True"]);
    let list = json!({
        "0": {"class_type": "CreateList", "inputs": {"inputs.input0": "a", "inputs.input1": "b", "inputs.input2": "c"}},
        "1": start(&json!({"mode": "List", "mode.list": ["0", 0]})),
        "2": joined(&json!("item "), &json!(["1", 3])),
        "3": end(&json!({"output_value": ["2", 0], "accumulate": true})),
        "9": shown(&json!(["3", 0])),
    });
    assert_eq!(shows(&server, &list), ["item a", "item b", "item c"]);
}

#[test]
fn loops_inside_of_loops() {
    let server = Server::start();
    let prompt = json!({
        "1": start(&json!({"mode": "simple", "mode.num_iterations": 2, "initial_iteration_value": ">"})),
        "2": start(&json!({"mode": "simple", "mode.num_iterations": 3, "initial_iteration_value": ["1", 4],
            "parent_iteration": ["1", 0]})),
        "4": joined(&json!(["2", 4]), &json!("i")),
        "5": end(&json!({"output_value": ["4", 0], "next_iteration_value": ["4", 0]})),
        "6": joined(&json!(["5", 0]), &json!("o")),
        "7": end(&json!({"output_value": ["6", 0], "next_iteration_value": ["6", 0]})),
        "9": shown(&json!(["7", 0])),
    });
    assert_eq!(shows(&server, &prompt), [">iiioiiio"]);
}

#[test]
fn what_is_saved_in_a_loop_is_saved_in_each_turn() {
    let server = Server::start();
    let prompt = json!({
        "1": start(&json!({"mode": "simple", "mode.num_iterations": 3})),
        "2": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": ["1", 0]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "turn"}},
        "3": end(&json!({"output_value": ["1", 0], "accumulate": true, "terminations.termination0": ["2", 0]})),
        "9": shown(&json!(["3", 0])),
    });
    assert_eq!(shows(&server, &prompt), ["0", "1", "2"]);
    let saved = std::fs::read_dir(server.base.join("output")).unwrap();
    let saved = saved
        .flatten()
        .filter(|file| file.file_name().to_string_lossy().starts_with("turn_"));
    assert_eq!(saved.count(), 3);
    // Turns are run again unless the loop was told to keep them.
    assert_eq!(shows(&server, &prompt), ["0", "1", "2"]);
    let saved = std::fs::read_dir(server.base.join("output"))
        .unwrap()
        .flatten()
        .count();
    assert!(saved >= 6, "{saved}");
}

#[test]
fn what_is_no_loop_is_an_error_that_says_why() {
    let server = Server::start();
    let simple = || start(&json!({"mode": "simple", "mode.num_iterations": 2}));
    for (nodes, words) in [
        (
            json!({"3": end(&json!({"output_value": ["8", 0]})), "8": joined(&json!("a"), &json!("b"))}),
            "no StartLoop",
        ),
        (
            json!({"1": simple(), "3": shown(&json!(["1", 0]))}),
            "no end",
        ),
        (
            json!({"1": simple(), "2": simple(), "8": joined(&json!(["1", 0]), &json!(["2", 0])),
                "3": end(&json!({"output_value": ["8", 0]}))}),
            "several loops",
        ),
        (
            json!({"1": start(&json!({"mode": "simple", "mode.num_iterations": 1_000_000})),
                "3": end(&json!({"output_value": ["1", 0]}))}),
            "10000",
        ),
    ] {
        let mut prompt = nodes.clone();
        prompt["9"] = shown(&json!(["3", 0]));
        let answer = server.post("/prompt", &json!({"prompt": prompt}));
        // Types that do not fit are refused at once, the rest when it runs.
        let said = if answer.status == 200 {
            let id = answer.json()["prompt_id"].as_str().unwrap().to_owned();
            let history = server.wait_for(&id);
            assert_eq!(
                history["status"]["status_str"], "error",
                "{words}: {history}"
            );
            history.to_string()
        } else {
            continue;
        };
        assert!(said.contains(words), "{words:?}: {said}");
    }
}
