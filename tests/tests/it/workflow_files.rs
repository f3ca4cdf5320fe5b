//! `POST /fresco/workflow`: files people drop, whole and broken.

use std::fs;
use std::path::Path;

use fresco_tests::{Server, chance::Chance, http::Response, workflow};
use serde_json::{Value, json};

const PATH: &str = "/fresco/workflow";

fn inspect(server: &Server, bytes: &[u8]) -> Response {
    server.request("POST", PATH, &[], bytes)
}

fn gold(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gold/ui2api");
    fs::read(folder.join(name)).unwrap()
}

fn ids(list: &Value, key: &str) -> Vec<String> {
    let list = list.as_array().unwrap();
    list.iter()
        .map(|n| n[key].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn an_editor_file_becomes_a_prompt() {
    let server = Server::start();
    let models = server.base.join("models/checkpoints");
    fs::create_dir_all(models.join("sub")).unwrap();
    for name in [
        "other.safetensors",
        "sub/SD_XL_base_1.0.ckpt",
        "v2.safetensors",
    ] {
        fs::write(models.join(name), "x").unwrap();
    }
    let file = gold("sdxl_revision_text_prompts.ui.json");
    let found = inspect(&server, &file).expect_status(200).json();
    assert_eq!(found["kind"], "ui");
    let sent: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(found["workflow"], sent);
    let prompt = found["prompt"].as_object().unwrap();
    let classes: Vec<&Value> = prompt.values().map(|n| &n["class_type"]).collect();
    assert!(classes.contains(&&json!("KSampler")) && classes.contains(&&json!("SaveImage")));
    assert!(!classes.contains(&&json!("MarkdownNote")));
    let models = found["missing"]["models"].as_array().unwrap();
    let model = models
        .iter()
        .find(|m| m["class_type"] == "CheckpointLoaderSimple")
        .unwrap();
    assert_eq!(model["input"], "ckpt_name");
    assert_eq!(model["folder"], "checkpoints");
    assert_eq!(model["wanted"], "sd_xl_base_1.0.safetensors");
    let order = [
        "sub/SD_XL_base_1.0.ckpt",
        "other.safetensors",
        "v2.safetensors",
    ];
    assert_eq!(model["choices"], json!(order));
    let node = model["node_id"].as_str().unwrap();
    assert_eq!(prompt[node]["class_type"], "CheckpointLoaderSimple");
}

#[test]
fn a_missing_model_is_named_with_its_address_and_only_a_likely_other() {
    let server = Server::start();
    let models = server.base.join("models/checkpoints");
    fs::create_dir_all(&models).unwrap();
    for name in ["landscapes.safetensors", "flux1-dev-fp8.safetensors"] {
        fs::write(models.join(name), "x").unwrap();
    }
    let loader = |id: u32, name: &str, url: &str| {
        let model = json!({"name": name, "url": url, "directory": "checkpoints"});
        json!({"id": id, "type": "CheckpointLoaderSimple", "widgets_values": [name], "properties": {"models": [model]}})
    };
    let file = json!({"links": [], "version": 0.4, "nodes": [
        loader(1, "flux1-dev.safetensors", "https://example.com/flux1-dev.safetensors?download=true"),
        loader(2, "sd_xl_base_1.0.safetensors", "javascript:alert(1)"),
    ]});
    let found = server.post(PATH, &file).expect_status(200).json();
    let models = &found["missing"]["models"];
    assert_eq!(models[0]["closest"], "flux1-dev-fp8.safetensors");
    assert_eq!(
        models[0]["url"],
        "https://example.com/flux1-dev.safetensors?download=true"
    );
    // Nothing here is like it, and such an address is none.
    assert_eq!(models[1]["closest"], Value::Null);
    assert_eq!(models[1]["url"], Value::Null);
    assert_eq!(models[1]["choices"].as_array().unwrap().len(), 2);
}

#[test]
fn json_of_something_else_is_no_workflow() {
    let server = Server::start();
    for other in [
        json!({"5": {"class_type": 5}}),
        json!({"5": {"class_type": ""}}),
        json!({"5": {"class_type": "5"}}),
        json!({"person": {"class_type": "person", "age": 5}}),
        json!({"prompt": {"5": {}}}),
        json!({"prompt": {}, "number": 5}),
        json!({"output": {"5": 5}, "workflow": 5}),
        json!({"5": 5}),
        json!([5]),
    ] {
        let answer = server.post(PATH, &other).expect_status(400).json();
        assert_eq!(answer["error"]["type"], "invalid_workflow", "{other}");
    }
}

#[test]
fn every_editor_file_is_read_and_what_it_lacks_is_named() {
    let server = Server::start();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gold/ui2api");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().ends_with(".ui.json") {
            let found = inspect(&server, &fs::read(&path).unwrap()).expect_status(200);
            let found = found.json();
            for node in found["missing"]["nodes"].as_array().unwrap() {
                let id = node["id"].as_str().unwrap();
                assert_eq!(found["prompt"][id]["class_type"], node["class_type"]);
                assert!(!node["title"].as_str().unwrap().is_empty());
            }
            seen += 1;
        }
    }
    assert!(seen > 50);
}

#[test]
fn a_prompt_is_checked_for_what_is_not_here() {
    let server = Server::start();
    fs::create_dir_all(server.base.join("input/sub")).unwrap();
    fs::create_dir_all(server.base.join("output")).unwrap();
    fs::write(server.base.join("input/sub/there.png"), "x").unwrap();
    fs::write(server.base.join("output/made.png"), "x").unwrap();
    let load = |name: &str| json!({"class_type": "LoadImage", "inputs": {"image": name}});
    let prompt = json!({
        "1": load("sub/there.png"), "2": load("made.png [output]"), "3": load("gone.png"),
        "4": load("../../etc/passwd"), "5": load("gone.png [output]"),
        "6": {"class_type": "PackNode", "inputs": {"ckpt_name": "x"}, "_meta": {"title": "My node"}},
        "7": {"class_type": "PackNode"},
        "8": {"class_type": "KSampler", "inputs": {"sampler_name": "dream", "model": ["9", 0]}},
        "9": {"class_type": "LoraLoader", "inputs": {"lora_name": "a.safetensors", "model": ["6", 0]}},
        "10": {"class_type": 7, "inputs": []},
        "11": {"class_type": "LoadImage", "inputs": "odd"},
    });
    let found = server.post(PATH, &prompt).expect_status(200).json();
    assert_eq!(found["kind"], "api");
    assert_eq!(found["workflow"], Value::Null);
    assert_eq!(found["prompt"], prompt);
    let missing = &found["missing"];
    assert_eq!(ids(&missing["files"], "node_id"), ["3", "4", "5"]);
    assert_eq!(ids(&missing["nodes"], "id"), ["6", "7", "10"]);
    assert_eq!(ids(&missing["nodes"], "title"), ["My node", "PackNode", ""]);
    assert_eq!(ids(&missing["models"], "node_id"), ["9"]);
    assert_eq!(missing["models"][0]["choices"], json!([]));
    let warnings = found["warnings"].to_string();
    assert!(warnings.contains("dream"), "{warnings}");
    // As a request and under both names it is the same prompt.
    let body = json!({"prompt": prompt, "client_id": "x"});
    let again = server.post("/api/fresco/workflow", &body);
    assert_eq!(again.expect_status(200).json()["prompt"], prompt);
}

#[test]
fn pictures_give_back_what_made_them() {
    let server = Server::start();
    let prompt = workflow::smallest(7, "inspected");
    let editor = json!({"nodes": [], "links": [], "version": 0.4});
    let body = json!({"prompt": prompt, "extra_data": {"extra_pnginfo": {"workflow": editor}}});
    let queued = server.post("/prompt", &body).expect_status(200).json();
    server.wait_for(queued["prompt_id"].as_str().unwrap());
    let png = fs::read(server.base.join("output/inspected_00001_.png")).unwrap();
    let found = inspect(&server, &png).expect_status(200).json();
    assert_eq!(
        (&found["kind"], &found["workflow"]),
        (&json!("ui"), &editor)
    );
    assert_eq!(found["prompt"], prompt);
    // A copy without its texts: a preview made by the server.
    let plain = server.get("/view?filename=inspected_00001_.png&preview=webp;90");
    let error = inspect(&server, &plain.expect_status(200).body)
        .expect_status(400)
        .json();
    assert_eq!(error["error"]["type"], "invalid_workflow");
    let details = error["error"]["details"].as_str().unwrap();
    assert!(details.contains("carries no workflow"), "{details}");
}

#[test]
fn what_is_no_workflow_is_refused_with_a_reason() {
    let server = Server::start();
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let cases: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"{}".to_vec(),
        b"null".to_vec(),
        b"7".to_vec(),
        b"\"text\"".to_vec(),
        b"\xff\xfe\x00".to_vec(),
        b"\x89PNG\r\n\x1a\n".to_vec(),
        b"\x89PNG\r\n\x1a\n\xff\xff\xff\xfftEXt".to_vec(),
        b"RIFF\x00\x00\x00\x00WEBPEXIF\xff\xff\xff\xff".to_vec(),
        br#"{"prompt": 7}"#.to_vec(),
        br#"{"output": {}, "x": 1}"#.to_vec(),
        deep.into_bytes(),
    ];
    for bytes in cases {
        let shown: String = String::from_utf8_lossy(&bytes).chars().take(40).collect();
        let answer = inspect(&server, &bytes);
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
        let error = answer.json();
        assert_eq!(error["error"]["type"], "invalid_workflow", "{shown}");
        assert!(!error["error"]["details"].as_str().unwrap().is_empty());
    }
    let small = Server::with(&["--max-upload-size", "0.01"]);
    assert_eq!(inspect(&small, &vec![b' '; 20_000]).status, 413);
    assert_eq!(server.get(PATH).status, 404);
    assert_eq!(server.request("DELETE", PATH, &[], &[]).status, 405);
}

/// Bytes of real files, cut, doubled and overwritten: an answer comes, 200 or 400, and the server lives on.
#[test]
fn damaged_files_are_answered() {
    let server = Server::start();
    let mut chance = Chance::new(Chance::seed());
    let mut seeds = vec![
        gold("01_get_started_text_to_image.ui.json"),
        gold("02_qwen_Image_edit_subgraphed.ui.json"),
        gold("flux_fill_outpaint_example.api.json"),
    ];
    let id = server.queue(&workflow::smallest(9, "damaged"), None);
    server.wait_for(&id);
    seeds.push(fs::read(server.base.join("output/damaged_00001_.png")).unwrap());
    for round in 0..100 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..=chance.below(4) {
            let at = chance.below(bytes.len() as u64) as usize;
            match chance.below(4) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] = chance.below(256) as u8,
                2 => bytes[at] = b"{}[]\",:0"[chance.below(8) as usize],
                _ => {
                    let end = (at + chance.below(200) as usize).min(bytes.len());
                    let part = bytes[at..end].to_vec();
                    let to = chance.below(bytes.len() as u64) as usize;
                    bytes.splice(to..to, part);
                }
            }
        }
        let answer = inspect(&server, &bytes);
        assert!(
            matches!(answer.status, 200 | 400),
            "{}: {}",
            answer.status,
            answer.text()
        );
        answer.json();
    }
    server.get("/health").expect_status(200);
}

/// A packed text as a chunk of a PNG.
fn packed(key: &str, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
    encoder
        .add_ztxt_chunk(key.to_owned(), text.to_owned())
        .unwrap();
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&[0]).unwrap();
    writer.finish().unwrap();
    let at = bytes.windows(4).position(|w| w == b"zTXt").unwrap() - 4;
    let length = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 12 + length as usize].to_vec()
}

/// Small files that are large once they are read.
#[test]
fn what_grows_without_end_is_refused() {
    let server = Server::start();
    let long = "x".repeat(1 << 20);
    let file = |uses: usize| {
        let nodes: Vec<Value> = (0..uses).map(|id| json!({"id": id, "type": "d"})).collect();
        let inside = json!([{"id": 1, "type": "CLIPTextEncode", "widgets_values": [long]}]);
        let definition = json!({"id": "d", "nodes": inside, "links": []});
        json!({"nodes": nodes, "links": [], "definitions": {"subgraphs": [definition]}})
    };
    let found = server.post(PATH, &file(3)).expect_status(200).json();
    assert_eq!(found["prompt"].as_object().unwrap().len(), 3);
    let error = server.post(PATH, &file(300)).expect_status(400).json();
    assert_eq!(error["error"]["type"], "invalid_workflow");
    let details = error["error"]["details"].as_str().unwrap();
    assert!(details.contains("expands"), "{details}");

    // After so much nothing is unpacked any more, and what is behind it is not found.
    let bomb = packed("z", &"x".repeat((16 << 20) + 1));
    let prompt = packed("prompt", &workflow::smallest(1, "x").to_string());
    let picture = |bombs: usize| {
        let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
        bytes.extend(bomb.repeat(bombs));
        bytes.extend(&prompt);
        bytes
    };
    assert_eq!(inspect(&server, &picture(2)).status, 200);
    let error = inspect(&server, &picture(200)).expect_status(400).json();
    let details = error["error"]["details"].as_str().unwrap();
    assert!(details.contains("carries no workflow"), "{details}");
    server.get("/health").expect_status(200);
}
