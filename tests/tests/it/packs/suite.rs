//! Graphs as an execution test of the reference would run them, with pictures as tensors: loops, lazy inputs, caching, types.

use super::*;

fn rig(arguments: &[&str]) -> Option<Rig> {
    let python = python()?;
    if !has_module(&python, "numpy") {
        return None;
    }
    Rig::start(&["suite"], arguments)
}

fn picture(content: &str) -> Value {
    node("SuiteImage", json!({"content": content, "batch": 1}))
}

fn level(source: Value) -> Value {
    node("SuiteLevel", json!({"image": source}))
}

/// The servers that the reference's tests run against.
const SERVERS: [&[&str]; 4] = [
    &["--cpu"],
    &["--cpu", "--cache-lru", "0"],
    &["--cpu", "--cache-lru", "100"],
    &["--cpu", "--cache-none"],
];

impl Rig {
    /// Which nodes ran, by the messages of one prompt.
    fn ran(&self, prompt: &Value) -> Vec<String> {
        let mut socket = self.server.socket("watcher");
        let id = self.server.queue(prompt, Some("watcher"));
        let messages = socket.run(&id);
        let mut names: Vec<String> = messages
            .iter()
            .filter(|m| m["type"] == "executing" && m["data"]["prompt_id"] == json!(id))
            .filter_map(|m| m["data"]["node"].as_str())
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        names
    }

    fn refused(&self, prompt: &Value) -> bool {
        let answer = self.server.post("/prompt", &json!({"prompt": prompt}));
        assert!(
            answer.status == 200 || answer.status == 400,
            "{}",
            answer.text()
        );
        answer.status == 400
    }
}

#[test]
fn graphs_run_on_every_kind_of_cache() {
    for server in SERVERS {
        let Some(rig) = rig(server) else { return };
        let keeps = !server.contains(&"--cache-none");
        // Lazy: the picture that the mask does not want is not made.
        let mix = |mask: f64| {
            json!({
                "1": picture("BLACK"), "2": picture("WHITE"), "3": node("SuiteMask", json!({"value": mask})),
                "4": node("SuiteMix", json!({"first": ["1", 0], "second": ["2", 0], "mask": ["3", 0]})), "9": level(json!(["4", 0]))})
        };
        let shown = rig.shown(&mix(0.25));
        assert_eq!(
            (&shown["level"], &shown["tensor"]),
            (&json!([0.25]), &json!([true]))
        );
        assert_eq!(shown["shape"], json!([[1, 64, 64, 3]]));
        let ran = rig.ran(&mix(0.0));
        assert!(!ran.contains(&"2".to_owned()), "{server:?}: {ran:?}");
        let ran = rig.ran(&mix(0.25));
        if server.len() > 1 && keeps && server[2] == "0" {
            // An empty cache keeps what the last prompt had.
        } else if keeps && server.len() > 1 {
            assert!(ran.is_empty(), "{server:?}: {ran:?}");
        } else if !keeps {
            assert_eq!(ran.len(), 5, "{server:?}: {ran:?}");
        }
        // A change check with a literal and a link.
        let scaled = |value: f64| json!({"1": picture("WHITE"), "2": node("SuiteScaled", json!({"image": ["1", 0], "value": value})), "9": level(json!(["2", 0]))});
        assert_eq!(rig.shown(&scaled(0.5))["level"], json!([0.5]));
        let again = rig.ran(&scaled(0.5));
        assert_eq!(again.is_empty(), keeps, "{server:?}: {again:?}");
        let always = json!({"1": picture("WHITE"), "2": node("SuiteChanged", json!({"image": ["1", 0], "always": true})), "9": level(json!(["2", 0]))});
        rig.shown(&always);
        assert!(rig.ran(&always).contains(&"2".to_owned()));
        // As many pictures as there are links.
        let mut average =
            json!({"1": picture("BLACK"), "2": picture("WHITE"), "9": level(json!(["3", 0]))});
        average["3"] = node(
            "SuiteAverage",
            json!({"input1": ["1", 0], "input2": ["2", 0], "input3": ["2", 0], "input4": ["2", 0]}),
        );
        assert_eq!(rig.shown(&average)["level"], json!([0.75]));
        for (value, want) in [(0.1, 0.1), (0.2, 0.2), (0.3, 0.3)] {
            let mixed = json!({
                "1": node("SuiteMixed", json!({"value": value})), "8": level(json!(["1", 1])), "9": level(json!(["1", 0]))});
            let entry = rig.run(&mixed);
            assert_eq!(entry["outputs"]["9"]["level"], json!([want]), "{entry}");
            assert_eq!(entry["outputs"]["8"]["level"], json!([1.0]));
        }
    }
}

#[test]
fn loops_accumulations_and_cycles() {
    let Some(rig) = rig(&["--cpu"]) else { return };
    // Five turns: a counter, a picture that gets darker, and a list that grows.
    let looped = json!({
        "1": picture("WHITE"), "2": node("SuiteInt", json!({"value": 0})),
        "open": node("SuiteOpen", json!({"go_on": true, "value0": ["2", 0], "value1": ["1", 0]})),
        "less": node("SuiteLess", json!({"a": ["open", 1], "b": 5})),
        "dark": node("SuiteScaled", json!({"image": ["open", 2], "value": 0.5})),
        "list": node("SuiteGather", json!({"value": ["dark", 0], "gathered": ["open", 3]})),
        "close": node("SuiteClose", json!({"flow": ["open", 0], "go_on": ["less", 0], "value0": ["less", 1], "value1": ["dark", 0], "value2": ["list", 0]})),
        "all": node("SuiteSpread", json!({"gathered": ["close", 2]})),
        "8": level(json!(["all", 0])), "9": level(json!(["close", 1]))});
    let entry = rig.run(&looped);
    assert_eq!(
        entry["status"]["status_str"],
        "success",
        "{entry}\n{}",
        rig.server.log()
    );
    assert_eq!(entry["outputs"]["9"]["level"], json!([0.031]), "{entry}");
    assert_eq!(
        entry["outputs"]["8"]["level"],
        json!([0.5, 0.25, 0.125, 0.062, 0.031])
    );
    let cycle = json!({
        "1": picture("BLACK"), "2": picture("WHITE"), "3": node("SuiteCycle", json!({"first": ["1", 0], "second": ["2", 0]})),
        "9": level(json!(["3", 0]))});
    assert_eq!(rig.error(&cycle)["node_id"], "3");
    // What is blocked does not run; with words it is an error of the node.
    let blocked = |words: bool| {
        json!({
            "1": picture("BLACK"), "2": node("SuiteBlock", json!({"value": ["1", 0], "block": true, "words": words})),
            "9": level(json!(["2", 0]))})
    };
    let entry = rig.run(&blocked(false));
    assert_eq!(entry["status"]["status_str"], "success");
    assert!(entry["outputs"]["9"].is_null(), "{entry}");
    let mut socket = rig.server.socket("me");
    let id = rig.server.queue(&blocked(true), Some("me"));
    let messages = socket.run(&id);
    let told = messages.iter().find(|m| m["type"] == "execution_error");
    let told = told.unwrap_or_else(|| panic!("{messages:?}"));
    assert_eq!(
        told["data"]["exception_message"],
        "Execution Blocked: blocked here"
    );
    let entry = rig.server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
}

#[test]
fn types_and_validators() {
    let Some(rig) = rig(&["--cpu"]) else { return };
    let sources = json!({
        "int": node("SuiteInt", json!({"value": 1})), "float": node("SuiteFloat", json!({"value": 1.0})),
        "image": picture("WHITE"), "mask": node("SuiteMask", json!({"value": 1.0}))});
    let prompt = |class: &str, a: Value, b: Value| {
        let mut prompt = sources.clone();
        prompt["2"] = node(class, json!({"a": a, "b": b}));
        prompt["9"] = level(json!(["2", 0]));
        prompt
    };
    for class in ["SuiteKinds", "SuiteSubset"] {
        for (source, refused) in [
            ("int", true),
            ("mask", true),
            ("float", false),
            ("image", false),
        ] {
            let prompt = prompt(class, json!([source, 0]), json!(["float", 0]));
            assert_eq!(rig.refused(&prompt), refused, "{class} {source}");
        }
    }
    assert!(rig.refused(&prompt("SuiteKinds", json!("text"), json!(1.0))));
    assert!(rig.refused(&prompt("SuiteKinds", json!(5), json!(1.0))));
    let fine = prompt("SuiteKinds", json!(0.5), json!(["float", 0]));
    assert_eq!(rig.shown(&fine)["level"], json!([0.5]));
    let fine = prompt("SuiteSubset", json!(["image", 0]), json!(["float", 0]));
    assert_eq!(rig.shown(&fine)["level"], json!([1.0]));
}

#[test]
fn sleeps_of_an_expansion_run_together() {
    let Some(rig) = rig(&["--cpu"]) else { return };
    let prompt = json!({"1": picture("WHITE"), "9": node("SuiteParallel", json!({"image": ["1", 0], "count": 5, "seconds": 0.8}))});
    rig.run(&json!({"1": picture("WHITE"), "9": node("SuiteParallel", json!({"image": ["1", 0], "count": 1, "seconds": 0.01}))}));
    let mut socket = rig.server.socket("watcher");
    let mut other = rig.server.socket("other");
    let id = rig.server.queue(&prompt, Some("watcher"));
    let messages = socket.run(&id);
    assert!(messages.iter().any(|m| running_at_once(m) >= 5));
    let moved = messages.iter().filter(|m| m["type"] == "progress_state");
    assert!(moved.count() > 5);
    // Another client hears nothing of it.
    while let Some(frame) = other.next_within(Duration::from_millis(50)) {
        if let fresco_tests::socket::Frame::Text(message, _) = frame {
            assert!(
                message["type"] != "progress_state" && message["type"] != "progress",
                "{message}"
            );
        }
    }
}

#[test]
fn networks_of_a_packs_own() {
    let Some(rig) = rig(&["--cpu"]) else { return };
    let prompt = json!({
        "1": picture("WHITE"), "2": node("SuiteNetwork", json!({"image": ["1", 0]})), "8": level(json!(["2", 0])),
        "9": node("SuiteText", json!({"text": ["2", 1]}))});
    let entry = rig.run(&prompt);
    assert_eq!(entry["outputs"]["8"]["level"], json!([0.0]), "{entry}");
    assert_eq!(
        entry["outputs"]["9"]["text"][0],
        "[True, True, 1000, True, ['cpu', 'cpu'], []]"
    );
}
