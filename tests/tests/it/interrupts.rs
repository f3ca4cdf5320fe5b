//! Prompts that are interrupted inside one long operation of one node.

use fresco_tests::{Server, socket::is_end};
use serde_json::{Value, json};

/// Interrupts a prompt while `node` runs; it must end by itself, as interrupted, everywhere that is told.
#[track_caller]
fn interrupt_in(server: &Server, prompt: &Value, node: &str) {
    let mut socket = server.socket("watcher");
    let id = server.queue(prompt, Some("watcher"));
    socket.until(|message| message["type"] == "executing" && message["data"]["node"] == node);
    server.post("/interrupt", &json!({})).expect_status(200);
    let messages = socket.until(|message| is_end(message, &id));
    let told = |kind: &str| messages.iter().any(|message| message["type"] == kind);
    assert!(told("execution_interrupted"), "{messages:?}");
    assert!(!told("execution_error"), "{messages:?}");
    let entry = server.wait_for(&id);
    let last = entry["status"]["messages"].as_array().unwrap().last();
    assert_eq!(last.unwrap()[0], "execution_interrupted");
    assert_eq!(last.unwrap()[1]["node_id"], node);
    let job = server.get(&format!("/api/jobs/{id}")).json();
    assert_eq!(job["status"], "cancelled");
    assert!(!server.log().contains("abandoned"), "{}", server.log());
}

#[test]
fn a_pattern_that_looks_through_the_whole_text_at_every_place() {
    let server = Server::start();
    let prompt = json!({
        "1": {"class_type": "RegexMatch", "inputs": {
            "string": "ab".repeat(300_000), "regex_pattern": "(?=[a-z]*[0-9])b",
            "case_insensitive": false, "multiline": false, "dotall": false}},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
    });
    interrupt_in(&server, &prompt, "1");
}

#[test]
fn a_mask_that_grows_in_thousands_of_steps() {
    let server = Server::start();
    let prompt = json!({
        "1": {"class_type": "SolidMask", "inputs": {"value": 0.0, "width": 4096, "height": 4096}},
        "2": {"class_type": "SolidMask", "inputs": {"value": 1.0, "width": 8, "height": 8}},
        "3": {"class_type": "MaskComposite", "inputs": {
            "destination": ["1", 0], "source": ["2", 0], "x": 0, "y": 0, "operation": "add"}},
        "4": {"class_type": "GrowMask", "inputs": {
            "mask": ["3", 0], "expand": 8000, "tapered_corners": true}},
        "5": {"class_type": "MaskToImage", "inputs": {"mask": ["4", 0]}},
        "6": {"class_type": "PreviewImage", "inputs": {"images": ["5", 0]}},
    });
    interrupt_in(&server, &prompt, "4");
    // The next one runs as if nothing had been.
    let after = server.queue(&fresco_tests::workflow::picture(7, "after"), None);
    assert_eq!(server.wait_for(&after)["status"]["status_str"], "success");
}
