//! The hard rules that shipped clients taught us (clients.md section 6).

use fresco_tests::{Frame, Server, workflow};
use serde_json::{Value, json};

use crate::sequences::greeted;

#[test]
fn rule_1_bodies_are_json_whatever_the_content_type() {
    let server = Server::start();
    let types: [&[(&str, &str)]; 4] = [
        &[],
        &[("Content-Type", "text/plain")],
        &[("Content-Type", "application/x-www-form-urlencoded")],
        &[("Content-Type", "text/plain;charset=UTF-8")],
    ];
    for (index, headers) in types.into_iter().enumerate() {
        let body = json!({"prompt": workflow::picture(index as u64, "rule1")}).to_string();
        let answer = server.request("POST", "/prompt", headers, body.as_bytes());
        assert_eq!(answer.status, 200, "{headers:?}: {}", answer.text());
    }
    server
        .request("POST", "/interrupt", &[], b"")
        .expect_status(200);
    server
        .request("POST", "/api/interrupt", &[], b"")
        .expect_status(200);
}

#[test]
fn rule_2_type_is_the_first_key() {
    let server = Server::start();
    let mut socket = server.socket("rule2");
    let id = server.queue(&workflow::picture(2, "rule2"), Some("rule2"));
    loop {
        match socket.frame() {
            Frame::Text(message, text) => {
                assert!(
                    text.starts_with("{\"type\":") || text.starts_with("{ \"type\""),
                    "{text}"
                );
                if fresco_tests::socket::is_end(&message, &id) {
                    return;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn rule_4_history_is_complete_before_the_end_is_told() {
    let server = Server::start();
    let mut socket = greeted(&server, "rule4");
    let good = workflow::picture(4, "rule4");
    let bad = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "../no"}},
    });
    for (prompt, outcome) in [(&good, "success"), (&good, "success"), (&bad, "error")] {
        let id = server.queue(prompt, Some("rule4"));
        socket.until(|m| {
            m["type"] == "status" && m["data"]["status"]["exec_info"]["queue_remaining"] == 0
        });
        let history = server.get(&format!("/history/{id}")).json();
        let status = &history[&id]["status"];
        assert_eq!(status["status_str"], outcome, "{history}");
        assert_eq!(status["completed"], outcome == "success");
        assert!(status["messages"].as_array().unwrap().len() >= 3);
        socket.run(&id);
    }
}

#[test]
fn rule_5_a_cached_run_has_its_outputs_in_the_history() {
    let server = Server::start();
    let prompt = workflow::picture(5, "rule5");
    let first = server.wait_for(&server.queue(&prompt, None));
    let second = server.wait_for(&server.queue(&prompt, None));
    assert_eq!(first["outputs"], second["outputs"]);
    assert_eq!(
        first["outputs"]["3"]["images"][0]["filename"],
        "rule5_00001_.png"
    );
}

#[test]
fn rule_7_ids_numbers_and_errors_are_always_there() {
    let server = Server::start();
    let body = json!({"prompt": workflow::picture(7, "rule7"), "prompt_id": "my own id"});
    let answer = server.post("/prompt", &body).expect_status(200).json();
    assert_eq!(answer["prompt_id"], "my own id");
    assert!(answer["number"].is_number());
    assert_eq!(answer["node_errors"], json!({}));
    let id = server.queue(&workflow::picture(8, "rule7"), None);
    let parts: Vec<usize> = id.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12], "{id}");
}

#[test]
fn rule_8_entries_have_five_parts_and_no_secrets() {
    let server = Server::start();
    let slow = server.queue(&workflow::chain(3000, 256, 8), None);
    let body = json!({
        "prompt": workflow::picture(8, "rule8"),
        "client_id": "rule8",
        "extra_data": {
            "auth_token_comfy_org": "SECRET-TOKEN", "api_key_comfy_org": "SECRET-KEY",
            "extra_pnginfo": {"workflow": {"id": "w"}},
        },
    });
    let answer = server.post("/prompt", &body).expect_status(200).json();
    let id = answer["prompt_id"].as_str().unwrap().to_owned();
    let queue = server.get("/queue").json();
    let items: Vec<&Value> = ["queue_running", "queue_pending"]
        .iter()
        .flat_map(|key| queue[key].as_array().unwrap())
        .collect();
    assert_eq!(items.len(), 2);
    for item in items {
        assert_eq!(item.as_array().unwrap().len(), 5);
    }
    assert!(!queue.to_string().contains("SECRET"));
    server
        .post("/interrupt", &json!({"prompt_id": slow}))
        .expect_status(200);
    let entry = server.wait_for(&id);
    let prompt = entry["prompt"].as_array().unwrap();
    assert_eq!(prompt.len(), 5);
    assert_eq!(prompt[3]["client_id"], "rule8");
    assert!(prompt[3]["create_time"].is_i64());
    assert!(!server.get("/history").text().contains("SECRET"));
    let picture =
        fresco_tests::picture::read_file(&server.base.join("output/rule8_00001_.png")).unwrap();
    assert!(
        picture
            .texts
            .iter()
            .all(|(_, text)| !text.contains("SECRET"))
    );
    assert_eq!(picture.texts[0].0, "prompt");
    assert_eq!(picture.texts[1].0, "workflow");
}

#[test]
fn rule_9_unknown_keys_are_ignored() {
    let server = Server::start();
    let body = json!({"prompt": workflow::picture(9, "rule9"), "what": {"is": "this"}});
    let answer = server.request(
        "POST",
        "/prompt?clientId=rule9&unknown=1",
        &[("Comfy-Usage-Source", "test"), ("Comfy-User", "")],
        body.to_string().as_bytes(),
    );
    answer.expect_status(200);
    server
        .post("/queue", &json!({"cancel": []}))
        .expect_status(200);
    server.get("/queue?x=y").expect_status(200);
}

#[test]
fn rule_10_a_second_socket_replaces_the_first() {
    let server = Server::start();
    let first = greeted(&server, "twin");
    let mut second = greeted(&server, "twin");
    first.close();
    for colour in 0..3 {
        let id = server.queue(&workflow::picture(colour, "rule10"), Some("twin"));
        assert!(
            second
                .run(&id)
                .iter()
                .any(|m| m["type"] == "execution_success")
        );
    }
}

#[test]
fn rule_11_unknown_paths_are_not_the_front_page() {
    let server = Server::start();
    for path in [
        "/no/such/page",
        "/api/no-such-route",
        "/viewvideo",
        "/docs/X/en.md",
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(!answer.text().contains("<html"), "{path}");
    }
    server.get("/").expect_status(200);
}

#[test]
fn rule_12_both_forms_and_encoded_names() {
    let server = Server::start();
    for path in [
        "/prompt",
        "/queue",
        "/history",
        "/object_info",
        "/system_stats",
        "/features",
        "/settings",
        "/users",
        "/embeddings",
        "/models",
        "/extensions",
        "/i18n",
    ] {
        let bare = server.get(path).expect_status(200);
        let long = server.get(&format!("/api{path}")).expect_status(200);
        assert_eq!(
            bare.header("content-type"),
            long.header("content-type"),
            "{path}"
        );
        if path != "/system_stats" {
            assert_eq!(bare.text(), long.text(), "{path}");
        }
    }
    let saved = server.request(
        "POST",
        "/api/userdata/workflows%2Fmine.json",
        &[],
        b"{\"a\":1}",
    );
    assert_eq!(saved.expect_status(200).json(), "workflows/mine.json");
    let path = server.base.join("user/default/workflows/mine.json");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "{\"a\":1}");
    let back = server
        .get("/userdata/workflows%2Fmine.json")
        .expect_status(200);
    assert_eq!(back.text(), "{\"a\":1}");
}

#[test]
fn rule_13_node_descriptions_are_those_of_the_reference() {
    let server = Server::start();
    let ours = server.get("/object_info").expect_status(200);
    let gold = concat!(env!("CARGO_MANIFEST_DIR"), "/gold/object_info.json");
    let gold: Value = serde_json::from_slice(&std::fs::read(gold).unwrap()).unwrap();
    let ours = ours.json();
    let ours = ours.as_object().unwrap();
    assert!(ours.len() > 100, "only {} nodes", ours.len());
    for (name, info) in ours {
        let Some(reference) = gold.get(name) else {
            continue;
        };
        for group in info["input"].as_object().unwrap().keys() {
            let names: Vec<&String> = info["input"][group].as_object().unwrap().keys().collect();
            assert_eq!(json!(names), info["input_order"][group], "{name}.{group}");
        }
        let mut order = reference["input_order"].clone();
        // Newer workflows give it what a LoRA says; the golden is older.
        if name == "LTXVAddGuide" {
            order["optional"] = json!(["iclora_parameters"]);
        }
        assert_eq!(info["input_order"], order, "{name}");
        // Newer workflows link what it shows; it had no output when the golden was made.
        let newer_output = name == "PreviewAny";
        if newer_output {
            assert_eq!(info["output"], json!(["STRING"]), "{name}");
        } else {
            assert_eq!(info["output"], reference["output"], "{name}");
        }
        assert_eq!(info["output_node"], reference["output_node"], "{name}");
        assert_eq!(info["category"], reference["category"], "{name}");
        let one = server
            .get(&format!("/object_info/{}", name.replace(' ', "%20")))
            .json();
        assert_eq!(&one[name], info, "{name}");
    }
}

#[test]
fn rule_14_cancelled_is_a_known_status_and_the_limit_a_number() {
    let server = Server::start();
    let path = "/api/jobs?status=completed,failed,cancelled&limit=64&offset=0";
    let jobs = server.get(path).expect_status(200).json();
    assert_eq!(jobs["jobs"], json!([]));
    assert_eq!(jobs["pagination"]["limit"], 64);
    assert_eq!(jobs["pagination"]["has_more"], false);
    server.get("/api/jobs?status=sleeping").expect_status(400);
}
