//! `/prompt`, `/queue`, `/history`, `/interrupt`, `/free`, `/object_info`, `/system_stats`, `/features`.

use axum::body::Body;
use fresco_engine::store::Limits as StoreLimits;
use fresco_graph::Value;

use crate::harness::{Rig, chain, picture, rig, rig_limited, rig_with};

fn remaining(value: &Value) -> i128 {
    value
        .get("exec_info")
        .unwrap()
        .get("queue_remaining")
        .unwrap()
        .as_int()
        .unwrap()
}

async fn refuse(rig: &Rig, body: &str, kind: &str) -> Value {
    let value = rig
        .post("/prompt", body.to_owned())
        .await
        .expect(400)
        .json();
    let error = value.get("error").unwrap();
    assert_eq!(error.get("type").unwrap().as_str(), Some(kind), "{value:?}");
    assert!(error.get("extra_info").unwrap().as_map().is_some());
    assert!(value.get("node_errors").unwrap().as_map().is_some());
    value
}

#[tokio::test]
async fn a_prompt_runs_and_is_recorded() {
    let rig = rig();
    let got = rig
        .post("/prompt", format!("{{\"prompt\":{}}}", picture(7)))
        .await
        .expect(200)
        .json();
    let id = got.get("prompt_id").unwrap().as_str().unwrap().to_owned();
    assert_eq!(id.len(), 36);
    assert_eq!(got.get("number").unwrap().as_int(), Some(0));
    assert!(got.get("node_errors").unwrap().as_map().unwrap().is_empty());
    let entry = rig.finish(&id).await;
    let item = entry.get("prompt").unwrap().as_list().unwrap();
    assert_eq!(item.len(), 5);
    assert_eq!(item[1].as_str(), Some(id.as_str()));
    assert!(item[3].get("create_time").unwrap().as_int().is_some());
    assert_eq!(item[4], Value::from(vec!["2"]));
    let images = entry
        .get("outputs")
        .unwrap()
        .get("2")
        .unwrap()
        .get("images")
        .unwrap();
    assert_eq!(
        images.as_list().unwrap()[0]
            .get("filename")
            .unwrap()
            .as_str(),
        Some("7.png")
    );
    let status = entry.get("status").unwrap();
    assert_eq!(status.get("status_str").unwrap().as_str(), Some("success"));
    assert_eq!(status.get("completed").unwrap().as_bool(), Some(true));
    let kinds: Vec<&str> = status
        .get("messages")
        .unwrap()
        .as_list()
        .unwrap()
        .iter()
        .map(|m| m.as_list().unwrap()[0].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["execution_start", "execution_cached", "execution_success"]
    );
    assert!(
        entry
            .get("meta")
            .unwrap()
            .get("2")
            .unwrap()
            .get("real_node_id")
            .is_some()
    );
    assert_eq!(remaining(&rig.get("/prompt").await.json()), 0);
}

#[tokio::test]
async fn content_types_and_own_ids_do_not_matter() {
    let rig = rig();
    for kind in ["", "text/plain", "application/x-www-form-urlencoded"] {
        let body = format!("{{\"prompt\":{},\"prompt_id\":\"my {kind}\"}}", picture(1));
        let headers: &[(&str, &str)] = &[("content-type", kind)];
        let got = rig
            .ask(
                "POST",
                "/prompt",
                &headers[usize::from(kind.is_empty())..],
                body,
            )
            .await
            .expect(200);
        assert_eq!(
            got.json().get("prompt_id").unwrap().as_str(),
            Some(format!("my {kind}").as_str())
        );
    }
    let body = format!(
        "{{\"prompt\":{},\"prompt_id\":null,\"number\":2}}",
        picture(1)
    );
    let got = rig.post("/prompt", body).await.expect(200).json();
    assert_eq!(
        got.get("prompt_id").unwrap().as_str().unwrap().len(),
        36,
        "null is absent"
    );
    assert!(matches!(got.get("number"), Some(Value::Float(n)) if *n == 2.0));
}

#[tokio::test]
async fn the_counter_counts_every_request() {
    let rig = rig();
    refuse(&rig, "{}", "no_prompt").await;
    refuse(&rig, r#"{"prompt":{}}"#, "prompt_no_outputs").await;
    let number = |front: &str| format!("{{\"prompt\":{}{front}}}", picture(1));
    let post = async |body: String| {
        rig.post("/prompt", body)
            .await
            .expect(200)
            .json()
            .get("number")
            .cloned()
            .unwrap()
    };
    assert_eq!(post(number("")).await, Value::from(2));
    assert_eq!(post(number(",\"front\":true")).await, Value::from(-3));
    assert_eq!(post(number(",\"number\":-1.5")).await, Value::from(-1.5));
    assert_eq!(post(number("")).await, Value::from(4));
}

#[tokio::test]
async fn bad_prompts_have_the_names_of_the_reference() {
    let rig = rig();
    let value = refuse(&rig, "{}", "no_prompt").await;
    assert_eq!(
        value.get("error").unwrap().get("message").unwrap().as_str(),
        Some("No prompt provided")
    );
    assert_eq!(
        value.get("error").unwrap().get("details").unwrap().as_str(),
        Some("No prompt provided")
    );
    let value = refuse(&rig, r#"{"prompt":{"1":{"inputs":{}}}}"#, "invalid_prompt").await;
    assert_eq!(
        value.get("error").unwrap().get("details").unwrap().as_str(),
        Some("Node ID '#1'")
    );
    refuse(
        &rig,
        r#"{"prompt":{"1":{"class_type":"Nope","inputs":{}}}}"#,
        "invalid_prompt",
    )
    .await;
    refuse(
        &rig,
        r#"{"prompt":{"1":{"class_type":"Number","inputs":{"value":1}}}}"#,
        "prompt_no_outputs",
    )
    .await;
    let targets = format!(
        "{{\"prompt\":{},\"partial_execution_targets\":[]}}",
        picture(1)
    );
    refuse(&rig, &targets, "prompt_no_outputs").await;
    let value = refuse(
        &rig,
        &format!("{{\"prompt\":{}}}", picture(5000)),
        "prompt_outputs_failed_validation",
    )
    .await;
    let node = value.get("node_errors").unwrap().get("1").unwrap();
    assert_eq!(node.get("class_type").unwrap().as_str(), Some("Number"));
    assert_eq!(
        node.get("dependent_outputs").unwrap(),
        &Value::from(vec!["2"])
    );
    let error = &node.get("errors").unwrap().as_list().unwrap()[0];
    assert_eq!(
        error.get("type").unwrap().as_str(),
        Some("value_bigger_than_max")
    );
    for body in [
        "",
        "{",
        "[1]",
        "nul",
        "{\"prompt\":[]}",
        "{\"prompt\":1}",
        "{\"prompt\":{},\"extra_data\":3}",
    ] {
        refuse(&rig, body, "invalid_prompt").await;
    }
    let deep = format!(
        "{{\"prompt\":{}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    refuse(&rig, &deep, "invalid_prompt").await;
    // Nothing of this harmed the worker.
    let id = rig.queue(&picture(3), None).await;
    rig.finish(&id).await;
}

#[tokio::test]
async fn the_queue_shows_five_elements_without_secrets() {
    let rig = rig();
    let running = rig.queue(&chain(1, "Wait"), None).await;
    rig.until_event(&running, "executing").await;
    let body = format!(
        "{{\"prompt\":{},\"client_id\":\"me\",\"extra_data\":{{\"auth_token_comfy_org\":\"s3cret\",\"k\":1}}}}",
        picture(1)
    );
    let waiting = rig.post("/prompt", body).await.expect(200).json();
    let waiting = waiting.get("prompt_id").unwrap().as_str().unwrap();
    let got = rig.get("/queue").await.expect(200);
    assert!(!got.text().contains("s3cret"));
    let queue = got.json();
    let item = |key: &str| {
        queue.get(key).unwrap().as_list().unwrap()[0]
            .as_list()
            .unwrap()
            .to_vec()
    };
    assert_eq!(item("queue_running")[1].as_str(), Some(running.as_str()));
    let pending = item("queue_pending");
    assert_eq!(pending.len(), 5);
    assert_eq!(pending[1].as_str(), Some(waiting));
    assert_eq!(pending[3].get("client_id").unwrap().as_str(), Some("me"));
    assert!(pending[3].get("create_time").is_some());
    assert_eq!(remaining(&rig.get("/prompt").await.json()), 2);

    // An id that is not running stops nothing; pending items are never interrupted.
    rig.post("/interrupt", format!("{{\"prompt_id\":\"{waiting}\"}}"))
        .await
        .expect(200);
    rig.post(
        "/queue",
        format!("{{\"delete\":[\"{waiting}\",\"unknown\"],\"cancel\":1}}"),
    )
    .await
    .expect(200);
    assert_eq!(remaining(&rig.get("/prompt").await.json()), 1);
    rig.queue(&picture(1), None).await;
    rig.post("/queue", "{\"clear\":true}").await.expect(200);
    assert_eq!(remaining(&rig.get("/prompt").await.json()), 1);
    rig.post("/interrupt", format!("{{\"prompt_id\":\"{running}\"}}"))
        .await
        .expect(200);
    let entry = rig.finish(&running).await;
    assert_eq!(
        entry
            .get("status")
            .unwrap()
            .get("status_str")
            .unwrap()
            .as_str(),
        Some("error")
    );
}

#[tokio::test]
async fn interrupt_takes_any_object_or_nothing() {
    let rig = rig();
    for body in ["", "{", "{}", "{\"prompt_id\":null,\"client_id\":\"x\"}"] {
        rig.post("/interrupt", body).await.expect(200);
    }
    rig.post("/interrupt", "[1]").await.expect(500);
}

#[tokio::test]
async fn history_is_paged_as_in_the_reference() {
    let rig = rig();
    for i in 0..5 {
        let body = format!("{{\"prompt\":{},\"prompt_id\":\"h{i}\"}}", picture(i));
        rig.post("/prompt", body).await.expect(200);
        rig.finish(&format!("h{i}")).await;
    }
    for (query, want) in [
        ("", "h0 h1 h2 h3 h4"),
        ("?max_items=2", "h3 h4"),
        ("?max_items=2&offset=1", "h1 h2"),
        ("?offset=2", "h2 h3 h4"),
        ("?offset=0", "h0 h1 h2 h3 h4"),
        ("?offset=5", ""),
        ("?max_items=9&offset=4", "h4"),
        ("?max_items=0", ""),
        ("?max_items=0&offset=0", "h0"),
    ] {
        let history = rig
            .get(&format!("/history{query}"))
            .await
            .expect(200)
            .json();
        let keys: Vec<&str> = history
            .as_map()
            .unwrap()
            .keys()
            .map(AsRef::as_ref)
            .collect();
        assert_eq!(keys.join(" "), want, "{query}");
    }
    rig.get("/history?max_items=x").await.expect(500);
    rig.get("/history?offset=1.5").await.expect(500);
    assert_eq!(rig.get("/history/nobody").await.expect(200).text(), "{}");
    rig.post("/history", "{\"delete\":[\"h1\",\"nobody\"]}")
        .await
        .expect(200);
    assert!(
        rig.get("/history/h1")
            .await
            .json()
            .as_map()
            .unwrap()
            .is_empty()
    );
    rig.post("/history", "{\"clear\":true}").await.expect(200);
    assert_eq!(rig.get("/history").await.text(), "{}");
}

#[tokio::test]
async fn a_full_queue_says_so() {
    let rig = rig_limited(
        StoreLimits {
            max_pending: 1,
            ..StoreLimits::default()
        },
        |_, _| {},
    );
    let running = rig.queue(&chain(1, "Wait"), None).await;
    rig.until_event(&running, "executing").await;
    rig.queue(&picture(1), None).await;
    let got = rig
        .post("/prompt", format!("{{\"prompt\":{}}}", picture(2)))
        .await
        .expect(429)
        .json();
    assert_eq!(
        got.get("error").unwrap().get("type").unwrap().as_str(),
        Some("queue_full")
    );
    rig.post("/interrupt", "").await.expect(200);
}

#[tokio::test]
async fn object_info_is_sent_again_only_when_it_changed() {
    let rig = rig();
    let first = rig.get("/object_info").await.expect(200);
    let tag = first.header("etag").unwrap().to_owned();
    assert_eq!(first.header("cache-control"), Some("no-cache"));
    let ask = async |known: &str| {
        let headers = [("if-none-match", known)];
        rig.ask("GET", "/api/object_info", &headers, Body::empty())
            .await
    };
    let same = ask(&tag).await.expect(304);
    assert!(same.body.is_empty());
    assert_eq!(same.header("etag"), Some(&*tag));
    ask("\"another\"").await.expect(200);
    std::fs::create_dir_all(rig.base.join("models/vae")).unwrap();
    std::fs::write(rig.base.join("models/vae/new.safetensors"), "x").unwrap();
    let changed = ask(&tag).await.expect(200);
    assert!(changed.text().contains("new.safetensors"));
    assert_ne!(changed.header("etag"), Some(&*tag));
}

#[tokio::test]
async fn object_info_follows_the_disk() {
    let rig = rig();
    let all = rig.get("/object_info").await.expect(200).json();
    let names: Vec<&str> = all.as_map().unwrap().keys().map(AsRef::as_ref).collect();
    assert_eq!(names, ["Number", "Show", "Fail", "Wait", "Steps", "Pick"]);
    let entries = |info: &Value| {
        let spec = info
            .get("Pick")
            .unwrap()
            .get("input")
            .unwrap()
            .get("required")
            .unwrap()
            .get("name")
            .unwrap();
        spec.as_list().unwrap()[0].clone()
    };
    assert_eq!(entries(&all), Value::from(Vec::<Value>::new()));
    std::fs::create_dir_all(rig.base.join("models/vae")).unwrap();
    std::fs::write(rig.base.join("models/vae/a.safetensors"), "x").unwrap();
    assert_eq!(
        entries(&rig.get("/object_info").await.json()),
        Value::from(vec!["a.safetensors"])
    );
    let one = rig.get("/object_info/Pick").await.expect(200).json();
    assert_eq!(entries(&one), Value::from(vec!["a.safetensors"]));
    assert_eq!(one.as_map().unwrap().len(), 1);
    assert_eq!(rig.get("/object_info/Nope").await.expect(200).text(), "{}");
    assert_eq!(
        all.get("Number"),
        rig.get("/object_info/Number").await.json().get("Number")
    );
}

#[tokio::test]
async fn features_and_stats_have_their_keys() {
    let rig = rig_with(|c, _| c.argv = vec!["fresco".into(), "--cpu".into()]);
    let got = rig.get("/features").await.expect(200);
    assert_eq!(
        got.text(),
        r#"{"supports_preview_metadata":true,"supports_memory_events":true,"supports_fresco_events":true,"max_upload_size":104857600,"extension":{"manager":{"supports_v4":true}}}"#
    );
    let given = rig_with(|c, _| c.max_upload_given = true);
    assert!(given.get("/features").await.text().contains("104857600.0"));
    let stats = rig.get("/system_stats").await.expect(200).json();
    let system = stats.get("system").unwrap().as_map().unwrap();
    let keys: Vec<&str> = system.keys().map(AsRef::as_ref).collect();
    assert_eq!(
        keys,
        [
            "os",
            "ram_total",
            "ram_free",
            "comfyui_version",
            "required_frontend_version",
            "installed_templates_version",
            "required_templates_version",
            "python_version",
            "pytorch_version",
            "embedded_python",
            "argv"
        ]
    );
    assert_eq!(system["comfyui_version"].as_str(), Some("0.7.0"));
    assert_eq!(system["argv"], Value::from(vec!["fresco", "--cpu"]));
    let secret = rig_with(|c, _| {
        c.argv = ["--token", "s3cret", "--token=s3cret", "--cpu"]
            .map(str::to_owned)
            .into();
    });
    let shown = secret.get("/system_stats").await.expect(200);
    assert!(
        shown
            .text()
            .contains(r#"["--token","***","--token=***","--cpu"]"#)
    );
    let devices = stats.get("devices").unwrap().as_list().unwrap();
    assert_eq!(devices.len(), 1);
    assert!(devices[0].get("index").unwrap().is_null());
    assert!(devices[0].get("torch_vram_free").is_some());
}
