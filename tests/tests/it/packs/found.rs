//! What widely used packs do that once harmed them or others: odd declarations, and questions about names of the host.

use super::*;

#[test]
fn odd_declarations_harm_nobody_else() {
    let base = base_with(&["odd", "plain"]);
    let wait = base.path().join("input/wait");
    std::fs::write(&wait, "").unwrap();
    let Some(rig) = Rig::starting(base, &[]) else {
        return;
    };
    rig.server.get("/extensions").expect_status(200);
    let info = rig.server.get("/object_info").json();
    // A group that lists nothing has no listed inputs; the classes beside it are as ever.
    assert_eq!(info["OddEverything"]["input"], json!({"required": {}}));
    assert_eq!(info["OddEverything"]["output"], json!(["STRING"]));
    assert_eq!(info["PackAdd"]["output_name"], json!(["sum", "text"]));
    assert_eq!(info["OddTypes"]["output"], json!(["*", "STRING"]));
    // Those that do not come back, or list without an end, are left out, and named.
    for (class, why) in [("OddWaits", "longer than"), ("OddEndless", "more than")] {
        assert!(info[class].is_null(), "{info}");
        let said = rig.pack("odd")["left_out"][class].to_string();
        assert!(said.contains(why), "{class}: {said}");
        let log = rig.server.log();
        let named = log
            .lines()
            .any(|line| line.contains(class) && line.contains(why));
        assert!(named, "{log}");
    }
    assert_eq!(rig.pack("odd")["state"], "loaded");
    // Every name is taken where a group takes every name.
    let all = json!({
        "1": node("OddEverything", json!({"one": 1, "two": "b"})), "9": show(json!(["1", 0]))});
    assert_eq!(text_of(&rig.shown(&all)), "one=1, two=b");
    // A type without a hash, which is equal to everything, as an input, as a hidden input and as an output.
    let types = json!({
        "1": node("PackAdd", json!({"a": 1, "b": 2})), "2": node("OddTypes", json!({"value": ["1", 1]})),
        "9": show(json!(["2", 1]))});
    assert_eq!(text_of(&rig.shown(&types)), "1 2.0 in 2");
}

#[test]
fn the_host_has_its_names_and_no_others() {
    let Some(rig) = Rig::start(&["asks"], &[]) else {
        return;
    };
    assert_eq!(
        rig.pack("asks")["state"],
        "loaded",
        "{}",
        rig.pack("asks")["traceback"]
    );
    let shown = rig.shown(&json!({"9": node("AsksReport", json!({}))}));
    let report = &shown["report"][0];
    assert_eq!(report["invented"], json!([]));
    assert_eq!(report["formats"], json!([]));
    assert_eq!(report["endings"].as_array().unwrap().len(), 9);
    for (key, name) in [
        ("built", "HiDreamImageTransformer2DModel"),
        ("called", "HiDreamAttention"),
    ] {
        let words = report[key].as_str().unwrap();
        assert!(
            words.starts_with("Unsupported") && words.contains(name),
            "{words}"
        );
    }
    assert_eq!(report["is"], false);
    assert_eq!(report["seeds"], json!([7, 0]));
    assert_eq!(report["classes"], json!([true, true, true]));
    assert_eq!(report["alias"], true);
    let python = python().unwrap();
    let there: Vec<&str> = ["numpy", "PIL.Image", "aiohttp"]
        .into_iter()
        .filter(|module| has_module(&python, module))
        .collect();
    assert_eq!(report["before"], json!(there));
}

#[test]
fn a_server_says_which_packs_run() {
    let Some(rig) = Rig::start(&["plain", "odd", "fails_to_import"], &[]) else {
        return;
    };
    let late = rig.base.path().join("custom_nodes/late");
    std::fs::create_dir_all(&late).unwrap();
    std::fs::write(late.join("__init__.py"), "").unwrap();
    let url = format!("http://{}", rig.server.address);
    let place = rig.base.path().to_str().unwrap();
    let arguments = ["packs", "list", "--url", &url, "--base-directory", place];
    let (status, text, _) = run_program(&arguments, rig.base.path());
    assert!(status.success(), "{text}");
    let state = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.contains(&format!(" {name} ")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.split("  ").next().unwrap().to_owned()
    };
    assert_eq!(state("plain"), "running");
    assert_eq!(state("fails_to_import"), "failed");
    assert_eq!(state("late"), "not started");
    assert_eq!(state("old"), "disabled");
    assert!(
        text.contains("a_module_that_does_not_exist")
            && text.contains("the node OddEndless is left out"),
        "{text}"
    );
    // Each line of the log is of the pack that wrote it, without colours.
    let log = rig.server.log();
    assert!(log.contains("[odd] red words of odd"), "{log}");
    let traces = log.lines().filter(|line| line.contains("Traceback"));
    for line in traces {
        assert!(line.contains("[fails_to_import]"), "{line}");
    }
    // Where nobody answers, that is said.
    let nobody = [
        "packs",
        "list",
        "--url",
        "http://127.0.0.1:9",
        "--base-directory",
        place,
    ];
    let (status, _, said) = run_program(&nobody, rig.base.path());
    assert!(
        !status.success() && said.contains("no server answers"),
        "{said}"
    );
}

#[test]
fn the_python_may_be_named_from_the_folder_one_is_in() {
    let Some(python) = python() else { return };
    let asked = Command::new(&python)
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .unwrap();
    let absolute = PathBuf::from(String::from_utf8(asked.stdout).unwrap().trim());
    let base = base_with(&["plain"]);
    // Above the base folder, in which the process of the packs starts, and where this path leads nowhere.
    let here = base.path().parent().unwrap().canonicalize().unwrap();
    let up = here.components().skip(1).map(|_| "..");
    let relative: PathBuf = up.map(PathBuf::from).collect();
    let relative = relative.join(absolute.strip_prefix("/").unwrap());
    let arguments = [
        "packs",
        "check",
        "--base-directory",
        base.path().to_str().unwrap(),
        "--python",
        relative.to_str().unwrap(),
    ];
    let (status, text, said) = run_program(&arguments, &here);
    assert!(
        status.success() && text.contains("loaded"),
        "{text}\n{said}"
    );
}
