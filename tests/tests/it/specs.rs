//! The cases of `tests/specs`, all against one server. What they mean stands in the folder's README.

use std::{fs, io::Cursor, path::Path};

use fresco_tests::{Server, picture};
use serde_json::{Value, json};

#[test]
fn every_case_gives_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("specs");
    let server = Server::start();
    let mut failures = Vec::new();
    let mut cases = 0;
    for area in folders(&folder) {
        for case in folders(&area) {
            let prompt = read(&case.join("workflow.json"));
            let expected = read(&case.join("expect.json"));
            let found = outcome(&server, &prompt);
            if found != expected {
                let name = case.strip_prefix(&folder).unwrap().display();
                failures.push(format!("{name}\n  expected {expected}\n  found    {found}"));
            }
            cases += 1;
        }
    }
    assert!(cases > 10, "only {cases} cases were found");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn folders(parent: &Path) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = fs::read_dir(parent)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    found.sort();
    found
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What became of a prompt, in the form of `expect.json`.
fn outcome(server: &Server, prompt: &Value) -> Value {
    let answer = server.post("/prompt", &json!({ "prompt": prompt }));
    let status = answer.status;
    let answer = answer.json();
    if status != 200 {
        let mut nodes = serde_json::Map::new();
        for (id, node) in answer["node_errors"].as_object().unwrap() {
            let errors = node["errors"].as_array().unwrap();
            let kinds: Vec<&Value> = errors.iter().map(|error| &error["type"]).collect();
            nodes.insert(id.clone(), json!(kinds));
        }
        return json!({"refused": answer["error"]["type"], "node_errors": nodes});
    }
    let entry = server.wait_for(answer["prompt_id"].as_str().unwrap());
    let status = &entry["status"];
    if status["status_str"] == "error" {
        let messages = status["messages"].as_array().unwrap();
        let error = messages.iter().find(|m| m[0] == "execution_error").unwrap();
        return json!({
            "status": "error",
            "node_id": error[1]["node_id"],
            "exception_type": error[1]["exception_type"],
        });
    }
    let mut outputs = serde_json::Map::new();
    for (id, output) in entry["outputs"].as_object().unwrap() {
        let shown = match output["images"].as_array() {
            Some(images) => images.iter().map(|image| look(server, image)).collect(),
            None => output["text"].clone(),
        };
        outputs.insert(id.clone(), shown);
    }
    json!({"status": status["status_str"], "outputs": outputs})
}

fn look(server: &Server, image: &Value) -> Value {
    let path = format!(
        "/view?filename={}&subfolder={}&type={}",
        image["filename"].as_str().unwrap(),
        image["subfolder"].as_str().unwrap(),
        image["type"].as_str().unwrap()
    );
    let bytes = server.get(&path).expect_status(200).body;
    let picture = picture::read(Cursor::new(bytes)).unwrap();
    json!({"size": [picture.width, picture.height], "pixel": &picture.pixels[..3]})
}
