//! The contract of classes, rule by rule, as the reference's own execution tests would try it.

use fresco_tests::socket::Frame;

use super::*;

fn image(side: u32) -> Value {
    node(
        "EmptyImage",
        json!({"width": side, "height": side, "batch_size": 1, "color": 16_777_215}),
    )
}

fn cached(messages: &Value) -> Vec<String> {
    let messages = messages["status"]["messages"].as_array().unwrap();
    let cached = messages.iter().find(|m| m[0] == "execution_cached");
    let nodes = cached.map(|m| m[1]["nodes"].as_array().unwrap().clone());
    let mut names: Vec<String> = nodes
        .unwrap_or_default()
        .iter()
        .map(|n| n.as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn results_of_every_form() {
    let Some(rig) = Rig::start(&["many", "plain"], &[]) else {
        return;
    };
    let shown = |how: &str, slot: u32| {
        let prompt = json!({
            "1": node("ManyArity", json!({"how": how})), "9": node("ManyShow", json!({"value": ["1", slot]}))});
        rig.shown(&prompt)["text"][0].clone()
    };
    for (how, slot, want) in [
        ("few", 0, "1"),
        ("few", 1, "None"),
        ("many", 1, "2"),
        ("list", 1, "5"),
        ("text", 0, "'a'"),
        ("text", 1, "'b'"),
        ("dict", 0, "None"),
        ("none", 0, "None"),
    ] {
        assert_eq!(shown(how, slot), want, "{how} {slot}");
    }
    let blocked = json!({
        "1": node("ManyArity", json!({"how": "blocked"})), "9": node("ManyShow", json!({"value": ["1", 0]}))});
    let entry = rig.run(&blocked);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    assert!(entry["outputs"]["9"].is_null());
    for how in ["generator", "number"] {
        let prompt = json!({
            "1": node("ManyBadResult", json!({"how": how})), "9": node("ManyShow", json!({"value": ["1", 0]}))});
        assert_eq!(rig.error(&prompt)["exception_type"], "TypeError", "{how}");
    }
}

#[test]
fn change_checks_and_validators_of_every_form() {
    let Some(rig) = Rig::start(&["many", "plain"], &[]) else {
        return;
    };
    let file = rig.base.path().join("input/watched");
    std::fs::write(&file, "1").unwrap();
    let run = |class: &str| {
        let inputs = json!({"value": 1, "file": file.to_str().unwrap()});
        let prompt = json!({"1": node(class, inputs), "9": show(json!(["1", 0]))});
        let entry = rig.run(&prompt);
        assert_eq!(
            entry["status"]["status_str"],
            "success",
            "{entry}\n{}",
            rig.server.log()
        );
        cached(&entry).contains(&"1".to_owned())
    };
    for (class, second) in [
        ("ManyNever", true),
        ("ManyBytes", true),
        ("ManyNan", false),
        ("ManyInstance", false),
        ("ManyMtime", true),
    ] {
        assert!(!run(class), "{class}");
        assert_eq!(run(class), second, "{class}");
    }
    let later = std::time::SystemTime::now() + Duration::from_secs(5);
    let opened = std::fs::File::options().write(true).open(&file).unwrap();
    opened.set_modified(later).unwrap();
    assert!(!run("ManyMtime"));
    for class in [
        "ManyValidClass",
        "ManyValidStatic",
        "ManyValidPlain",
        "ManyValidAsync",
        "ManyValidAll",
    ] {
        let post = |value: i64| {
            let prompt = json!({"9": node(class, json!({"value": value}))});
            rig.server.post("/prompt", &json!({"prompt": prompt}))
        };
        // Its own rule holds in place of the bounds.
        assert_eq!(post(6).status, 200, "{class}");
        let refused = post(7);
        assert_eq!(refused.status, 400, "{class}");
        let errors = refused.json()["node_errors"]["9"]["errors"].clone();
        assert_eq!(errors[0]["type"], "custom_validation_failed", "{class}");
        assert!(errors[0]["details"].to_string().contains("no sevens"));
    }
    // One that looks at types alone leaves the bounds to the server.
    let prompt = json!({"9": node("ManyValidTypes", json!({"value": 6}))});
    let refused = rig.server.post("/prompt", &json!({"prompt": prompt}));
    assert_eq!(refused.status, 400);
}

#[test]
fn objects_keep_their_state_as_the_cache_says() {
    let count = json!({
        "1": node("ManyState", json!({})), "9": node("ManyShow", json!({"value": ["1", 0]}))});
    let Some(rig) = Rig::start(&["many"], &[]) else {
        return;
    };
    for want in ["1", "2"] {
        assert_eq!(rig.shown(&count)["text"][0], want);
    }
    let fresh = Rig::start(&["many"], &["--cache-none"]).unwrap();
    for _ in 0..2 {
        assert_eq!(fresh.shown(&count)["text"][0], "1");
    }
}

#[test]
fn numbers_lists_and_blockers() {
    let Some(rig) = Rig::start(&["many", "plain"], &[]) else {
        return;
    };
    let add = |a: Value| {
        let prompt =
            json!({"1": node("PackAdd", json!({"a": a, "b": 1.0})), "9": show(json!(["1", 1]))});
        rig.shown(&prompt)["text"][0].clone()
    };
    assert_eq!(
        add(json!(18_446_744_073_709_551_615_u64)),
        "18446744073709551615 1.0"
    );
    let raw = r#"{"prompt":{"1":{"class_type":"PackAdd","inputs":{"a":-18446744073709551615,"b":1e400}},"9":{"class_type":"PackShow","inputs":{"text":["1",1]}}}}"#;
    let headers = [("Content-Type", "application/json")];
    let answer = rig
        .server
        .request("POST", "/prompt", &headers, raw.as_bytes());
    let id = answer.expect_status(200).json()["prompt_id"].clone();
    let entry = rig.server.wait_for(id.as_str().unwrap());
    assert_eq!(
        entry["outputs"]["9"]["text"][0], "-18446744073709551615 inf",
        "{entry}"
    );
    // A blocker in a list of three keeps its place: the second call does not run.
    let list = json!({
        "1": node("ManyList", json!({"count": 3})), "2": node("PackAdd", json!({"a": ["1", 0], "b": 0})),
        "9": node("ManyShow", json!({"value": ["2", 1]}))});
    assert_eq!(rig.shown(&list)["text"], json!(["'0 0.0'", "'2 0.0'"]));
    let plain = json!({
        "1": node("ManyArity", json!({"how": "few"})),
        "2": node("ManyGather", json!({"values": ["1", 0], "other": 7})), "9": show(json!(["2", 0]))});
    assert_eq!(rig.shown(&plain)["text"][0], "([1], [7])");
}

#[test]
fn expansions_with_pictures_as_literals() {
    let Some(rig) = Rig::start(&["many", "plain"], &[]) else {
        return;
    };
    let prompt = json!({
        "1": image(64), "2": node("ManyExpand", json!({"value": ["1", 0]})), "8": node("PreviewImage", json!({"images": ["2", 1]})),
        "9": show(json!(["2", 0]))});
    let shown = rig.shown(&prompt);
    let told = text_of(&shown);
    assert!(
        told.ends_with("2.0.1.1 of 2, shown at 2"),
        "graphs are counted: {told}"
    );
    // A node that expands into a copy of itself, taken from the running graph with its literals.
    let looped = json!({
        "1": image(64), "2": node("ManyLoop", json!({"start": ["1", 0], "times": 3})),
        "3": node("ManyExpand", json!({"value": ["2", 0]})), "8": node("PreviewImage", json!({"images": ["2", 0]})),
        "9": show(json!(["2", 1]))});
    let shown = rig.shown(&looped);
    assert_eq!(
        text_of(&shown),
        "2.0.0.Again.0.0.Again.0.0.Again",
        "{shown}"
    );
    let nested = json!({
        "1": image(64), "2": node("ManyExpand", json!({"value": ["1", 0]})),
        "3": node("ManyLoop", json!({"start": ["2", 1], "times": 2})), "8": node("PreviewImage", json!({"images": ["3", 0]})),
        "9": show(json!(["3", 1]))});
    rig.shown(&nested);
}

#[test]
fn asynchronous_nodes_progress_and_failures() {
    let Some(rig) = Rig::start(&["many"], &[]) else {
        return;
    };
    let all = |class: &str, seconds: f64| {
        let mut prompt = json!({});
        for tag in 1..=3 {
            prompt[tag.to_string()] = node(class, json!({"seconds": seconds, "tag": tag}));
            prompt[(tag + 6).to_string()] =
                node("ManyShow", json!({"value": [tag.to_string(), 0]}));
        }
        prompt
    };
    rig.shown(&all("ManySleep", 0.01));
    let mut socket = rig.server.socket("watcher");
    let id = rig.server.queue(&all("ManySleep", 1.0), Some("watcher"));
    let messages = socket.run(&id);
    assert!(messages.iter().any(|m| running_at_once(m) >= 3));
    for tag in ["1", "2", "3"] {
        let states: Vec<&Value> = messages
            .iter()
            .filter(|m| m["type"] == "progress_state")
            .filter_map(|m| m["data"]["nodes"].get(tag))
            .filter(|n| n["state"] == "running")
            .collect();
        assert!(states.len() > 3, "{tag}: {}", states.len());
        let last = states.last().unwrap();
        assert_eq!(last["max"].as_f64(), Some(1.0));
        assert!(last["value"].as_f64().unwrap() > 0.3, "{last}");
    }
    // Two at a time, by a lock that the class has for all prompts.
    for _ in 0..2 {
        let began = Instant::now();
        rig.shown(&all("ManyLimited", 0.4));
        assert!(began.elapsed() >= Duration::from_millis(780));
        rig.server
            .post("/free", &json!({"free_memory": true, "wait": true}));
    }
    // A node that blocks the thread of nodes delays the others; a native one does not.
    let mut blocked = all("ManySleep", 0.3);
    blocked["4"] = node("ManyBlock", json!({"seconds": 0.6}));
    blocked["5"] = node("ManyShow", json!({"value": ["4", 0]}));
    let began = Instant::now();
    rig.run(&blocked);
    assert!(began.elapsed() >= Duration::from_millis(590));
    let error = rig.error(&all("ManyAsyncFail", 0.05));
    assert_eq!(error["exception_type"], "ValueError");
    assert!(
        error["exception_message"]
            .as_str()
            .unwrap()
            .starts_with("failed later")
    );
    rig.shown(&all("ManySleep", 0.02));
}

#[test]
fn progress_and_messages_reach_whom_they_are_for() {
    let Some(python) = python() else { return };
    let rig = Rig::start(&["many"], &[]).unwrap();
    let mut mine = rig.server.socket("mine");
    let mut other = rig.server.socket("other");
    let thread = json!({
        "1": node("ManyThread", json!({"steps": 4})), "9": node("ManyShow", json!({"value": ["1", 0]}))});
    let id = rig.server.queue(&thread, Some("mine"));
    let messages = mine.run(&id);
    let bars: Vec<&Value> = messages
        .iter()
        .filter(|m| m["type"] == "progress" && m["data"]["node"] == "1")
        .collect();
    assert!(!bars.is_empty(), "{messages:?}");
    assert_eq!(bars.last().unwrap()["data"]["max"], 4);
    // What is for one client goes to that one, in the order in which it was said.
    let prompt = json!({"9": node("ManySend", json!({"to": "other"}))});
    let id = rig.server.queue(&prompt, Some("mine"));
    let messages = mine.run(&id);
    let kinds: Vec<&str> = messages
        .iter()
        .filter_map(|m| m["type"].as_str())
        .filter(|kind| kind.starts_with("many."))
        .collect();
    assert_eq!(kinds, ["many.all"]);
    let seen = other.until(|m| m["type"] == "many.one");
    assert!(seen.iter().any(|m| m["type"] == "many.all"), "{seen:?}");
    let shown = rig.server.wait_for(&id)["outputs"]["9"]["text"].clone();
    assert_eq!(shown, json!(["mine", false]));
    assert!(
        rig.server.log().contains("many.bad"),
        "a message that is none"
    );
    if !has_module(&python, "PIL") {
        return;
    }
    mine.send(r#"{"type": "feature_flags", "data": {"supports_preview_metadata": true}}"#);
    mine.until(|message| message["type"] == "feature_flags");
    let id = rig
        .server
        .queue(&json!({"9": node("ManyPreview", json!({}))}), Some("mine"));
    let mut frames = Vec::new();
    loop {
        match mine.frame() {
            Frame::Binary(bytes) => frames.push(bytes),
            Frame::Text(message, _) if fresco_tests::socket::is_end(&message, &id) => break,
            Frame::Text(..) => {}
            Frame::Closed => panic!("closed"),
        }
    }
    // In the order in which they were sent: plain, described, and bytes of the pack's own.
    let [plain, described, own] = &frames[..] else {
        panic!("{} frames", frames.len());
    };
    assert_eq!(plain[..8], [0, 0, 0, 1, 0, 0, 0, 1], "a plain JPEG");
    assert_eq!(plain[8..10], [0xff, 0xd8]);
    assert_eq!(described[..4], [0, 0, 0, 4], "a preview and what it is of");
    let about = u32::from_be_bytes(described[4..8].try_into().unwrap()) as usize;
    let said: Value = serde_json::from_slice(&described[8..8 + about]).unwrap();
    assert_eq!(
        said,
        json!({"node_id": "9", "prompt_id": id, "image_type": "image/png"})
    );
    assert_eq!(described[8 + about..12 + about], *b"\x89PNG");
    assert_eq!(own[..], *b"\x00\x00\x00\x4down bytes");
    assert!(
        rig.server
            .log()
            .contains("a message of kind 78 was not sent")
    );
    // They were for one client.
    while let Some(frame) = other.next_within(Duration::from_millis(50)) {
        assert!(matches!(frame, Frame::Text(..)), "{frame:?}");
    }
}

#[test]
fn the_queue_as_packs_see_it() {
    let Some(rig) = Rig::start(&["many"], &[]) else {
        return;
    };
    let prompt = |how: &str| json!({"9": node("ManyQueue", json!({"how": how}))});
    let shown = rig.shown(&prompt("once"));
    assert_eq!(shown["text"], json!([6, ["9"], ["9"], 1]));
    let id = rig.server.queue(&prompt("again"), None);
    let entry = rig.server.wait_for(&id);
    let again = format!("again-{id}");
    assert_eq!(entry["outputs"]["9"]["text"][4], json!([again]), "{entry}");
    let entry = rig.server.wait_for(&again);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    // A flag acts after the prompt: results are forgotten.
    let kept = json!({"1": node("ManyNever", json!({"value": 1})), "9": node("ManyShow", json!({"value": ["1", 0]}))});
    rig.shown(&kept);
    assert_eq!(cached(&rig.run(&kept)), ["1", "9"]);
    rig.shown(&prompt("free"));
    assert_eq!(cached(&rig.run(&kept)), Vec::<String>::new());
}

#[test]
fn classes_of_the_host_can_be_extended() {
    let Some(python) = python() else { return };
    if !has_module(&python, "numpy") || !has_module(&python, "PIL") {
        return;
    }
    let rig = Rig::start(&["many", "plain"], &[]).unwrap();
    let save = json!({
        "1": image(16), "9": node("ManySave", json!({"images": ["1", 0], "filename_prefix": "own"}))});
    let shown = rig.shown(&save);
    assert_eq!(shown["images"][0]["filename"], "own_many_00001_.png");
    let file = rig.base.path().join("output/own_many_00001_.png");
    let content = std::fs::read(&file).unwrap();
    assert!(String::from_utf8_lossy(&content).contains("ManySave"));
    std::fs::copy(&file, rig.base.path().join("input/given.png")).unwrap();
    let info = rig.server.get("/object_info/ManyLoad").json();
    assert_eq!(
        info["ManyLoad"]["input"]["required"]["image"][0],
        json!(["given.png"])
    );
    let load = json!({
        "1": node("ManyLoad", json!({"image": "given.png"})), "8": node("PreviewImage", json!({"images": ["1", 0]})),
        "9": show(json!(["1", 2]))});
    assert_eq!(text_of(&rig.shown(&load)), "given.png");
    let refused =
        json!({"1": node("ManyLoad", json!({"image": "none.png"})), "9": show(json!(["1", 2]))});
    let refused = rig.server.post("/prompt", &json!({"prompt": refused}));
    assert_eq!(refused.status, 400);
    // A built-in class from Python gives what the native node gives.
    let scale = json!({"image": ["1", 0], "upscale_method": "bilinear", "width": 24, "height": 12, "crop": "disabled"});
    let prompt = json!({
        "1": node("LoadImage", json!({"image": "given.png"})), "2": node("ManyScale", json!({"image": ["1", 0]})),
        "3": node("ImageScale", scale), "7": node("SaveImage", json!({"images": ["2", 0], "filename_prefix": "a"})),
        "8": node("SaveImage", json!({"images": ["2", 1], "filename_prefix": "b"})),
        "9": node("SaveImage", json!({"images": ["3", 0], "filename_prefix": "c"}))});
    rig.shown(&prompt);
    let pixels = |name: &str| {
        let path = rig.base.path().join(format!("output/{name}_00001_.png"));
        picture_of(&std::fs::read(path).unwrap())
    };
    let (first, second, native) = (pixels("a"), pixels("b"), pixels("c"));
    assert!(first == second && second == native);
}

/// The bytes of a picture's rows.
pub(super) fn picture_of(file: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    pixels
}

#[test]
fn pictures_that_are_only_passed_on_are_not_copied() {
    let Some(python) = python() else { return };
    let rig = Rig::start(&["many", "plain"], &[]).unwrap();
    let written = || rig.server.get("/fresco/packs").json()["memory_files"]["written"].clone();
    // 48 MB through five nodes of the process: it goes there once.
    let big = node(
        "EmptyImage",
        json!({"width": 2048, "height": 2048, "batch_size": 1, "color": 255}),
    );
    let mut prompt = json!({"1": big, "9": node("ImageInvert", json!({"image": ["6", 0]})), "99": node("PreviewImage", json!({"images": ["9", 0]}))});
    for step in 2..=6 {
        prompt[step.to_string()] = node("ManyPass", json!({"image": [(step - 1).to_string(), 0]}));
    }
    // The first picture has the process import what it needs for tensors.
    rig.run(&json!({
        "1": image(64), "2": node("ManyPass", json!({"image": ["1", 0]})), "9": node("PreviewImage", json!({"images": ["2", 0]}))}));
    let resident = || rig.server.get("/fresco/packs").json()["memory"]["resident"].as_u64();
    let (before, memory) = (written().as_u64().unwrap(), resident());
    let entry = rig.run(&prompt);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    assert_eq!(written().as_u64().unwrap(), before + 1);
    if let (Some(memory), Some(after)) = (memory, resident()) {
        let (size, grown) = (2048 * 2048 * 12, after.saturating_sub(memory));
        assert!(grown < 2 * size, "{grown} bytes more");
    }
    // The same value comes back, so that what follows it is not made again.
    let small = json!({
        "1": image(256), "2": node("ManyPassOnce", json!({"image": ["1", 0]})),
        "3": node("ManyPass", json!({"image": ["2", 0]})), "9": node("PreviewImage", json!({"images": ["3", 0]}))});
    rig.shown(&small);
    let before = written().as_u64().unwrap();
    for _ in 0..3 {
        rig.shown(&small);
    }
    assert_eq!(written().as_u64().unwrap(), before);
    if !has_module(&python, "numpy") {
        return;
    }
    // One changed number is seen, and stays where it was changed.
    let edit = |how: &str| {
        let prompt = json!({
            "1": image(256), "2": node("ManyEdit", json!({"image": ["1", 0], "how": how})),
            "8": node("SaveImage", json!({"images": ["1", 0], "filename_prefix": format!("{how}-before")})),
            "9": node("SaveImage", json!({"images": ["2", 0], "filename_prefix": format!("{how}-after")}))});
        rig.shown(&prompt);
        let pixel = |name: String| {
            let path = rig.base.path().join(format!("output/{name}_00001_.png"));
            picture_of(&std::fs::read(path).unwrap())[0]
        };
        (
            pixel(format!("{how}-before")),
            pixel(format!("{how}-after")),
        )
    };
    assert_eq!(edit("change"), (255, 63));
    assert_eq!(edit("same"), (255, 255));
    let bare = json!({
        "1": image(64), "2": node("ManyBare", json!({"image": ["1", 0]})), "9": node("ManyShow", json!({"value": ["2", 0]}))});
    assert!(text_of(&rig.shown(&bare)).contains("[64, 64, 3]"));
}
