//! What a prompt may take: its texts and tensors have a budget, and what does not fit is an error of its node.

use fresco_tests::limits::{MemoryGroup, Trials};
use fresco_tests::{Server, StartOptions, server};
use serde_json::{Value, json};

/// Twenty texts of 8 MB each from a prompt of a few kilobytes; their lengths are shown.
fn texts() -> Value {
    let concatenate = |a: Value, b: Value| {
        let inputs = json!({"string_a": a, "string_b": b, "delimiter": ""});
        json!({"class_type": "StringConcatenate", "inputs": inputs})
    };
    let mut prompt = json!({"d0": concatenate(json!("x".repeat(1000)), json!(""))});
    for i in 1..=13 {
        let before = json!([format!("d{}", i - 1), 0]);
        prompt[format!("d{i}")] = concatenate(before.clone(), before);
    }
    for i in 0..20 {
        prompt[format!("t{i}")] = concatenate(json!(["d13", 0]), json!(i.to_string()));
        let length =
            json!({"class_type": "StringLength", "inputs": {"string": [format!("t{i}"), 0]}});
        prompt[format!("l{i}")] = length;
        let shown = json!({"class_type": "PreviewAny", "inputs": {"source": [format!("l{i}"), 0]}});
        prompt[format!("p{i}")] = shown;
    }
    prompt
}

fn error_of(entry: &Value) -> Option<&Value> {
    let messages = entry["status"]["messages"].as_array()?;
    let error = messages.iter().find(|m| m[0] == "execution_error")?;
    Some(&error[1])
}

#[test]
fn texts_of_a_prompt_have_one_budget() {
    let server = Server::with(&["--max-prompt-memory", "0.1"]);
    let id = server.queue(&texts(), None);
    let entry = server.wait_for(&id);
    let error = error_of(&entry).expect("the texts are too many");
    let node = error["node_id"].as_str().unwrap_or_default();
    assert!(node.starts_with('t'), "{node}");
    assert_eq!(error["exception_type"], "MemoryError");
    let message = error["exception_message"].as_str().unwrap_or_default();
    assert!(message.contains("--max-prompt-memory"), "{message}");
    drop(server);

    let roomy = Server::with(&["--max-prompt-memory", "1"]);
    let id = roomy.queue(&texts(), None);
    let entry = roomy.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
}

/// In a group of 2 GiB, with inputs that leave room for themselves and not for a result. Groups can only be made by some
/// users; elsewhere the kernel does not count for us, and there is nothing to see. `cargo xtask memory-limits` runs all nodes.
#[test]
fn operations_on_large_inputs_do_not_end_the_server() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let group = match MemoryGroup::new(2 << 30) {
        Ok(group) => group,
        Err(error) => {
            eprintln!("no memory group can be made here: {error}");
            return;
        }
    };
    let program = group.wrapper(&server::program(), folder.path());
    let program = program.expect("a script can be written");
    let server = Server::start_with(StartOptions {
        program: Some(&program),
        ..StartOptions::default()
    });
    let trials = Trials::new(server.get("/object_info").json(), 1100 << 20);
    for class in ["LatentAdd", "LatentMultiply", "LatentBlend", "InvertMask"] {
        let prompt = trials.prompt(class, false).expect("it needs no model");
        let id = server.queue(&prompt, None);
        let entry = server.wait_for(&id);
        let error = error_of(&entry).expect("there is no room for a result");
        assert_eq!(error["node_id"], "node", "{class}: {error}");
        let message = error["exception_message"].as_str().unwrap_or_default();
        assert!(message.contains("not enough memory"), "{class}: {message}");
    }
    let small = Trials::new(server.get("/object_info").json(), 1 << 20);
    let prompt = small.prompt("LatentAdd", false);
    let id = server.queue(&prompt.expect("it needs no model"), None);
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
}
