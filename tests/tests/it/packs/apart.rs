//! Packs in processes of their own, and what they may write.

use super::*;

fn process_of(rig: &Rig, name: &str) -> Value {
    let report = rig.server.get("/api/packs").json();
    let processes = report["processes"].as_array().unwrap();
    let one = processes.iter().find(|process| process["name"] == name);
    one.unwrap_or_else(|| panic!("no {name} in {report}"))["process"].clone()
}

#[test]
fn packs_of_two_processes_exchange_tensors_and_nothing_of_their_own() {
    let thing = json!({
        "1": node("PackExpand", json!({"text": "hi"})), "2": node("ApartUnwrap", json!({"thing": ["1", 1]})),
        "9": show(json!(["2", 0]))});
    let image = json!({
        "1": node("EmptyImage", json!({"width": 16, "height": 8, "batch_size": 1, "color": 255})),
        "2": node("PackDarken", json!({"image": ["1", 0]})), "3": node("ApartPass", json!({"image": ["2", 0]})),
        "8": node("PreviewImage", json!({"images": ["3", 0]})), "9": show(json!(["3", 1]))});
    let Some(rig) = Rig::start(&["plain", "apart"], &[]) else {
        return;
    };
    assert_eq!(text_of(&rig.shown(&thing)), "kept apart");
    drop(rig);

    let rig = Rig::start(&["plain", "apart"], &["--isolate-packs", "apart"]).unwrap();
    let (shared, own) = (process_of(&rig, "shared"), process_of(&rig, "apart"));
    assert_ne!(shared, own);
    assert_eq!(rig.pack("apart")["process"], "apart");
    let error = rig.error(&thing);
    assert_eq!(error["node_type"], "ApartUnwrap");
    let text = error["exception_message"].as_str().unwrap();
    for word in [
        "custom_nodes.plain",
        "custom_nodes.apart",
        "--isolate-packs",
    ] {
        assert!(text.contains(word), "{text}");
    }
    if has_module(&python().unwrap(), "numpy") {
        let shown = rig.shown(&image);
        assert_eq!(text_of(&shown), format!("[1, 8, 16, 3] {own}"));
    }
    // One ends, the other does not notice.
    let count = json!({"1": node("PackCount", json!({})), "9": show(json!(["1", 0]))});
    assert_eq!(text_of(&rig.shown(&count)), "1: 1");
    let mut dying = count.clone();
    dying["8"] = node("ApartDie", json!({}));
    let error = rig.error(&dying);
    assert_eq!(error["exception_type"], "fresco.WorkerDied", "{error}");
    assert_eq!(process_of(&rig, "shared"), shared);
    let ended = rig.pack("apart");
    assert_eq!(
        (&ended["ends"], &rig.pack("plain")["ends"]),
        (&json!(1), &json!(0))
    );
    assert!(
        ended["last_end"].as_str().unwrap().contains("code 5"),
        "{ended}"
    );
    let shown = text_of(&rig.shown(&count)).to_owned();
    assert!(shown == "1: 2" || shown == "1: 3", "{shown}");
}

#[test]
fn each_pack_can_have_a_process_and_handlers_run_one_after_the_other() {
    let Some(python) = python() else { return };
    if !has_module(&python, "aiohttp") {
        return;
    }
    for arguments in [&[][..], &["--isolate-packs", "all"]] {
        let rig = Rig::start(&["plain", "seeds", "served"], arguments).unwrap();
        let add =
            json!({"1": node("PackAdd", json!({"a": 1, "b": 0})), "9": show(json!(["1", 1]))});
        assert_eq!(text_of(&rig.shown(&add)), "2022 0.0", "{arguments:?}");
        assert_eq!(rig.server.get("/served/item/7").text(), "7");
        let report = rig.server.get("/api/packs").json();
        let count = report["processes"].as_array().unwrap().len();
        assert_eq!(count, if arguments.is_empty() { 1 } else { 3 });
        assert_eq!(report["state"], "ready");
    }
}

/// A server whose temporary files and caches are elsewhere than its base folder.
fn fenced(arguments: &[&str]) -> Option<Rig> {
    let python = python()?;
    let base = base_with(&["plain", "hostile"]);
    for folder in ["tmp", "home"] {
        std::fs::create_dir_all(base.path().join(folder)).unwrap();
    }
    let place = |name: &str| base.path().join(name).to_str().unwrap().to_owned();
    let (tmp, home) = (place("tmp"), place("home"));
    let mut all = vec!["--python", python.to_str().unwrap()];
    all.extend(arguments);
    let server = Server::start_with(StartOptions {
        arguments: all,
        base: Some(base.path()),
        environment: vec![("TMPDIR", tmp.as_str()), ("HOME", home.as_str())],
        ..StartOptions::default()
    });
    server.get("/extensions").expect_status(200);
    Some(Rig { server, base })
}

#[test]
fn what_is_written_outside_is_named_and_can_be_refused() {
    let hostile = |how: &str| json!({"9": node("Hostile", json!({"how": how}))});
    let Some(rig) = fenced(&[]) else { return };
    let outside = rig.base.path().join("outside.txt");
    let named = std::fs::canonicalize(rig.base.path()).unwrap();
    let named = named.join("outside.txt").to_str().unwrap().to_owned();
    assert_eq!(
        rig.shown(&hostile("write_outside"))["text"],
        json!(["written"])
    );
    assert!(outside.is_file());
    assert_eq!(rig.pack("hostile")["writes_outside"], json!([named]));
    assert_eq!(rig.pack("plain")["writes_outside"], json!([]));
    let line = format!("[hostile] writes outside its folders: {named}");
    assert!(rig.server.log().contains(&line), "{}", rig.server.log());
    drop(rig);

    let rig = fenced(&["--fence-packs"]).unwrap();
    let outside = rig.base.path().join("outside.txt");
    let error = rig.error(&hostile("write_outside"));
    assert_eq!(error["exception_type"], "PermissionError", "{error}");
    let text = error["exception_message"].as_str().unwrap();
    assert!(
        text.contains("hostile") && text.contains("outside.txt"),
        "{text}"
    );
    assert!(!outside.exists());
    for own in ["custom_nodes/hostile/own.txt", "output/own.txt"] {
        assert!(rig.base.path().join(own).is_file(), "{own}");
    }
    // Not by another program either, where the system can see to it.
    rig.run(&hostile("write_outside_by_the_system"));
    let unfenced = rig.server.log().contains("Landlock");
    assert_eq!(outside.exists(), unfenced, "{}", rig.server.log());
}
