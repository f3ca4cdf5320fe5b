//! A run as one line of text, so that a test reads like the sequence it checks.

use serde_json::Value;

/// One word per message, progress left out: the server may merge progress frames.
pub(crate) fn outline(messages: &[Value]) -> String {
    let words: Vec<String> = messages.iter().filter_map(word).collect();
    words.join(" | ")
}

fn word(message: &Value) -> Option<String> {
    let data = &message["data"];
    let text = |value: &Value| value.as_str().unwrap_or("null").to_owned();
    Some(match message["type"].as_str()? {
        "progress_state" | "progress" => return None,
        "status" => format!("status {}", data["status"]["exec_info"]["queue_remaining"]),
        "execution_start" => "start".to_owned(),
        "execution_cached" => {
            let nodes: Vec<String> = data["nodes"].as_array()?.iter().map(text).collect();
            format!("cached [{}]", nodes.join(","))
        }
        "executing" => format!("executing {}", text(&data["node"])),
        "executed" => format!("executed {}", text(&data["node"])),
        "execution_success" => "success".to_owned(),
        "execution_error" => format!("error {}", text(&data["node_id"])),
        "execution_interrupted" => "interrupted".to_owned(),
        other => other.to_owned(),
    })
}

/// State of every node in the last progress frame: `1 finished, 2 running`.
pub(crate) fn last_progress(messages: &[Value]) -> String {
    let Some(last) = messages
        .iter()
        .rfind(|message| message["type"] == "progress_state")
    else {
        return String::new();
    };
    let nodes = last["data"]["nodes"].as_object().unwrap();
    let words: Vec<String> = nodes
        .iter()
        .map(|(id, node)| format!("{id} {}", node["state"].as_str().unwrap()))
        .collect();
    words.join(", ")
}
