//! Python packs, from the folder of packs to what clients are told. Skipped with a line where there is no Python.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fresco_tests::{
    Server, StartOptions,
    http::{PATIENCE, multipart},
    server::run_program,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A prompt that an interrupt ends has ended by then, on a machine that does much else too; a process that does not heed it is
/// ended only after five seconds.
const HEEDED: Duration = Duration::from_secs(4);

/// A Python that can run packs: `FRESCO_TEST_PYTHON`, or that of the search path.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("FRESCO_TEST_PYTHON").map(PathBuf::from);
    let path = named.unwrap_or_else(|| PathBuf::from("python3"));
    let script = "import sys; sys.exit(sys.version_info < (3, 10)); import numpy";
    let asked = Command::new(&path)
        .args(["-c", script])
        .stderr(Stdio::null())
        .status();
    if asked.is_ok_and(|status| status.success()) {
        return Some(path);
    }
    eprintln!("skipped: there is no Python 3.10 or newer for packs");
    None
}

fn has_module(python: &Path, module: &str) -> bool {
    let asked = Command::new(python)
        .args(["-c", &format!("import {module}")])
        .stderr(Stdio::null())
        .status();
    let has = asked.is_ok_and(|status| status.success());
    if !has {
        eprintln!("skipped: {module} is not installed in {}", python.display());
    }
    has
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            if entry.file_name() != "__pycache__" {
                copy(&entry.path(), &to.join(entry.file_name()));
            }
        }
    } else {
        std::fs::copy(from, to).unwrap();
    }
}

/// A base folder with these packs.
fn base_with(packs: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs");
    let root = folder.path().join("custom_nodes");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::create_dir_all(folder.path().join("input")).unwrap();
    for pack in packs {
        copy(&source.join(pack), &root.join(pack));
    }
    for ignored in ["old.disabled", "__pycache__", ".git", "only_files"] {
        std::fs::create_dir_all(root.join(ignored)).unwrap();
    }
    for ignored in ["one.py.disabled", "two.py.example"] {
        std::fs::write(root.join(ignored), "raise ValueError").unwrap();
    }
    folder
}

mod apart;
mod calls;
mod cases;
mod contract;
mod found;
mod hostile;
mod loading;
mod models;
mod parts;
mod process;
mod suite;
mod torch;
mod ways;

struct Rig {
    server: Server,
    base: TempDir,
}

impl Rig {
    /// A server with these packs, which are loaded.
    fn start(packs: &[&str], arguments: &[&str]) -> Option<Self> {
        let rig = Self::starting(base_with(packs), arguments)?;
        // This one waits for them.
        rig.server.get("/extensions").expect_status(200);
        Some(rig)
    }

    /// The same, whose packs may still be on their way.
    fn starting(base: TempDir, arguments: &[&str]) -> Option<Self> {
        let python = python()?;
        let mut all = vec!["--python", python.to_str().unwrap()];
        all.extend(arguments);
        let server = Server::start_with(StartOptions {
            arguments: all,
            base: Some(base.path()),
            ..StartOptions::default()
        });
        Some(Self { server, base })
    }

    fn run(&self, prompt: &Value) -> Value {
        self.server.wait_for(&self.server.queue(prompt, None))
    }

    /// What node 9 showed.
    #[track_caller]
    fn shown(&self, prompt: &Value) -> Value {
        let entry = self.run(prompt);
        assert_eq!(
            entry["status"]["status_str"],
            "success",
            "{entry}\n{}",
            self.server.log()
        );
        entry["outputs"]["9"].clone()
    }

    fn pack(&self, name: &str) -> Value {
        let report = self.server.get("/api/packs").json();
        let packs = report["packs"].as_array().unwrap();
        packs
            .iter()
            .find(|pack| pack["name"] == name)
            .cloned()
            .unwrap_or_else(|| panic!("no {name} in {report}"))
    }

    /// The error of a prompt that must fail.
    #[track_caller]
    fn error(&self, prompt: &Value) -> Value {
        let entry = self.run(prompt);
        let messages = entry["status"]["messages"].as_array().unwrap();
        let error = messages.iter().find(|m| m[0] == "execution_error");
        error.unwrap_or_else(|| panic!("{entry}"))[1].clone()
    }
}

/// How many nodes a message of progress says to be at work.
fn running_at_once(message: &Value) -> usize {
    let nodes = message["data"]["nodes"].as_object();
    let running = nodes.into_iter().flat_map(|nodes| nodes.values());
    running.filter(|node| node["state"] == "running").count()
}

fn node(class: &str, inputs: Value) -> Value {
    json!({"class_type": class, "inputs": inputs})
}

fn show(source: Value) -> Value {
    node("PackShow", json!({"text": source}))
}

fn text_of(shown: &Value) -> &str {
    shown["text"][0].as_str().unwrap()
}

#[test]
fn without_packs_nothing_of_python_is_started() {
    let server = Server::with(&["--python", "/does/not/exist"]);
    let report = server.get("/api/packs").json();
    assert_eq!(report["state"], "idle");
    assert_eq!(report["process"], Value::Null);
    assert!(!server.log().contains("packs run in Python"));
}

#[test]
fn a_missing_python_is_named_and_native_prompts_run() {
    let base = base_with(&["plain"]);
    let server = Server::start_with(StartOptions {
        arguments: vec!["--python", "/does/not/exist"],
        base: Some(base.path()),
        ..StartOptions::default()
    });
    let id = server.queue(&fresco_tests::workflow::picture(1, "native"), None);
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
    let report = server.get("/api/packs").json();
    assert_eq!(report["state"], "unavailable");
    let problem = report["problem"].as_str().unwrap();
    assert!(problem.contains("--python"), "{problem}");
    let refused = server.post("/prompt", &json!({"prompt": {"9": show(json!("x"))}}));
    assert_eq!(refused.status, 400);
    let error = refused.json()["error"]["message"].to_string();
    assert!(
        error.contains("PackShow")
            && error.contains("Python packs are not running: --python /does/not/exist"),
        "{error}"
    );
}

#[test]
fn packs_load_each_in_its_way_and_failures_stay_where_they_are() {
    let packs = [
        "plain",
        "single.py",
        "prestart",
        "v3_pack",
        "wild-types_1.2",
        "fails_to_import",
        "exits",
        "dies",
        "nothing",
    ];
    let Some(rig) = Rig::start(&packs, &[]) else {
        return;
    };
    let info = rig.server.get("/object_info").json();
    assert_eq!(info["PackAdd"]["python_module"], "custom_nodes.plain");
    assert_eq!(info["PackAdd"]["display_name"], "Add (pack)");
    assert_eq!(info["PackAdd"]["output_name"], json!(["sum", "text"]));
    assert_eq!(
        info["SingleFolders"]["python_module"],
        "custom_nodes.single"
    );
    assert_eq!(
        info["WildAny"]["python_module"],
        "custom_nodes.wild-types_1.2"
    );
    assert_eq!(info["SaveImage"]["python_module"], "nodes");
    assert_eq!(info["ThreeSum"]["display_name"], "Sum of three");
    // A pack's folder type reaches the program and other packs.
    assert_eq!(
        info["SingleFolders"]["input"]["required"]["file"][0],
        json!(["book.txt"])
    );
    let types = rig.server.get("/models").json();
    assert!(
        types.as_array().unwrap().contains(&json!("shelf")),
        "{types}"
    );
    let shown = rig.shown(&json!({"9": node("SingleFolders", json!({"file": "book.txt"}))}));
    assert_eq!(shown["text"], json!(["book.txt", true, true]));

    assert_eq!(rig.pack("plain")["state"], "loaded");
    assert_eq!(rig.pack("plain")["ignored"], json!(["SaveImage"]));
    for (name, word) in [
        ("fails_to_import", "ModuleNotFoundError"),
        ("exits", "SystemExit"),
        ("dies", "code 3"),
        ("nothing", "NODE_CLASS_MAPPINGS"),
    ] {
        let pack = rig.pack(name);
        assert_eq!(pack["state"], "failed", "{pack}");
        let error = pack["error"].as_str().unwrap();
        assert!(error.contains(word), "{name}: {error}");
    }
    let listed = rig.server.get("/api/packs").json()["packs"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(listed, packs.len());
    let log = rig.server.log();
    assert!(
        log.contains("(IMPORT FAILED)") && log.contains("Cannot import"),
        "{log}"
    );
    assert!(log.contains("[fails_to_import]"), "{log}");

    let extensions = rig.server.get("/extensions").json();
    let script = "/extensions/plain/plain.js";
    assert!(
        extensions.as_array().unwrap().contains(&json!(script)),
        "{extensions}"
    );
    assert!(rig.server.get(script).text().contains("plain = 1"));
    let templates = rig.server.get("/workflow_templates").json();
    assert_eq!(templates["plain"], json!(["first"]));
    assert_eq!(templates["fails_to_import"], json!(["still"]));
    assert_eq!(
        rig.server.get("/i18n").json()["de"]["nodeDefs"]["PackAdd"]["display_name"],
        "Addieren"
    );
}

#[test]
fn flags_choose_packs() {
    let Some(none) = Rig::start(&["plain", "single.py"], &["--disable-all-custom-nodes"]) else {
        return;
    };
    assert_eq!(none.server.get("/api/packs").json()["state"], "idle");
    assert!(
        none.server
            .log()
            .contains("Skipping loading of custom nodes")
    );
    let flags = [
        "--disable-all-custom-nodes",
        "--whitelist-custom-nodes",
        "plain",
        "single",
    ];
    let some = Rig::start(&["plain", "single.py"], &flags).unwrap();
    let info = some.server.get("/object_info").json();
    assert!(info["PackAdd"].is_object() && info["SingleFolders"].is_null());
}

#[test]
fn the_contract_of_classes() {
    let Some(rig) = Rig::start(&["plain"], &[]) else {
        return;
    };
    // Numbers arrive as they are.
    let add = |a: Value, b: Value| json!({"1": node("PackAdd", json!({"a": a, "b": b})), "9": show(json!(["1", 1]))});
    let largest = json!(18_446_744_073_709_551_615_u64);
    assert_eq!(
        text_of(&rig.shown(&add(largest, json!(2)))),
        "18446744073709551615 2.0"
    );
    let shown = rig.shown(&add(json!(-7), json!(0.25)));
    assert_eq!(shown["text"], json!(["-7 0.25"]));
    // A text that is shown is split, other keys pass, tuples become arrays.
    assert_eq!(shown["split"], json!(["a", "b", "c"]));
    assert_eq!(shown["own"], json!([{"k": [1, 2]}]));

    // State on the object, until results are forgotten.
    let count = json!({"1": node("PackCount", json!({})), "9": show(json!(["1", 0]))});
    assert_eq!(text_of(&rig.shown(&count)), "1: 1");
    assert_eq!(text_of(&rig.shown(&count)), "1: 2");
    rig.server
        .post("/free", &json!({"free_memory": true, "wait": true}))
        .expect_status(200);
    assert_eq!(text_of(&rig.shown(&count)), "1: 1");

    // Lists follow the disk; a validator of its own decides instead of the list.
    let choice = |file: &str| json!({"1": node("PackChoice", json!({"file": file})), "9": show(json!(["1", 0]))});
    std::fs::write(rig.base.path().join("input/new.txt"), "").unwrap();
    let info = rig.server.get("/object_info/PackChoice").json();
    assert_eq!(
        info["PackChoice"]["input"]["required"]["file"][0],
        json!(["new.txt"])
    );
    assert_eq!(text_of(&rig.shown(&choice("elsewhere"))), "elsewhere");
    let refused = rig
        .server
        .post("/prompt", &json!({"prompt": choice("bad one")}));
    assert_eq!(refused.status, 400);
    let errors = &refused.json()["node_errors"]["1"]["errors"];
    assert_eq!(errors[0]["type"], "custom_validation_failed");
    assert!(
        errors[0]["details"]
            .as_str()
            .unwrap()
            .contains("bad one is bad"),
        "{errors}"
    );

    // Only what a lazy node asks for runs.
    let lazy = json!({
        "1": node("PackAdd", json!({"a": 1, "b": 2})), "2": node("PackFail", json!({})),
        "3": node("PackLazy", json!({"first": true, "yes": ["1", 1], "no": ["2", 0]})), "9": show(json!(["3", 0]))});
    assert_eq!(text_of(&rig.shown(&lazy)), "1 2.0");

    // Lists with a blocker inside.
    let list = json!({
        "1": node("PackList", json!({"count": 3})), "2": node("PackAdd", json!({"a": ["1", 0], "b": 0})),
        "3": node("PackJoin", json!({"parts": ["2", 1]})), "9": show(json!(["3", 0]))});
    let entry = rig.run(&list);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");

    // Expansion with a Python object as a literal.
    let expand =
        json!({"1": node("PackExpand", json!({"text": "hi"})), "9": show(json!(["1", 0]))});
    assert_eq!(text_of(&rig.shown(&expand)), "hi from 1 in 1.0.0.1");

    // A Python object on a link.
    let thing = json!({
        "1": node("PackExpand", json!({"text": "hi"})), "2": node("PackUnwrap", json!({"thing": ["1", 1]})),
        "9": show(json!(["2", 0]))});
    assert_eq!(text_of(&rig.shown(&thing)), "kept in 2");

    // A class that fails to say what it declares is left out until it can.
    std::fs::write(rig.base.path().join("input/break"), "").unwrap();
    let info = rig.server.get("/object_info").json();
    assert!(info["PackBroken"].is_null() && info["PackAdd"].is_object());
    std::fs::remove_file(rig.base.path().join("input/break")).unwrap();
    assert!(rig.server.get("/object_info").json()["PackBroken"].is_object());

    // Errors have Python's type and trace.
    let error = rig
        .error(&json!({"1": node("PackFail", json!({"text": "now"})), "9": show(json!(["1", 0]))}));
    assert_eq!(error["node_type"], "PackFail");
    assert!(
        error["exception_type"]
            .as_str()
            .unwrap()
            .ends_with("PackError"),
        "{error}"
    );
    assert_eq!(
        error["exception_message"].as_str().unwrap().trim(),
        "this pack fails: now"
    );
    assert!(
        error["traceback"][0].as_str().unwrap().contains("plain"),
        "{error}"
    );
    assert_eq!(error["current_inputs"]["text"], json!(["now"]));
    assert_eq!(text_of(&rig.shown(&add(json!(1), json!(1)))), "1 1.0");
    // What the first of these prompts printed.
    let log = rig.server.log();
    assert!(log.contains("[plain] showing -7 0.25"), "{log}");
}

#[test]
fn asynchronous_nodes_run_together() {
    let Some(rig) = Rig::start(&["plain"], &[]) else {
        return;
    };
    let sleep = |tag: &str| node("PackSleep", json!({"seconds": 4.0, "tag": tag}));
    let prompt = json!({
        "1": sleep("a"), "2": sleep("b"), "3": sleep("c"),
        "7": show(json!(["1", 0])), "8": show(json!(["2", 0])), "9": show(json!(["3", 0]))});
    rig.server.get("/object_info").expect_status(200);
    let began = Instant::now();
    assert_eq!(text_of(&rig.shown(&prompt)), "c");
    assert!(
        began.elapsed() < Duration::from_secs(11),
        "one after the other they take 12 s, together {:?}",
        began.elapsed()
    );
}

#[test]
fn types_of_packs_decide_what_may_be_linked() {
    let Some(rig) = Rig::start(&["plain", "wild-types_1.2"], &[]) else {
        return;
    };
    let image = node(
        "EmptyImage",
        json!({"width": 8, "height": 8, "batch_size": 1, "color": 0}),
    );
    let latent = node(
        "EmptyLatentImage",
        json!({"width": 64, "height": 64, "batch_size": 1}),
    );
    let add = node("PackAdd", json!({"a": 1, "b": 2.5}));
    let any = json!({
        "1": add, "2": node("WildAny", json!({"value": ["1", 1]})), "3": node("WildAny", json!({"value": ["2", 0]})),
        "9": show(json!(["3", 0]))});
    assert_eq!(text_of(&rig.shown(&any)), "1 2.5");
    for (source, fits) in [(&image, true), (&latent, true), (&add, false)] {
        let prompt = json!({
            "1": source, "2": node("WildEither", json!({"value": ["1", 0]})), "9": show(json!(["2", 0]))});
        let answer = rig.server.post("/prompt", &json!({"prompt": prompt}));
        assert_eq!(answer.status == 200, fits, "{}", answer.text());
    }
    // Undeclared literals and links reach a class that takes all, and no other.
    let keywords = json!({
        "1": add, "2": node("WildKeywords", json!({"x": 1, "y": ["1", 1]})), "9": show(json!(["2", 0]))});
    assert_eq!(text_of(&rig.shown(&keywords)), "[('x', 1), ('y', '1 2.5')]");
    let dropped = json!({
        "1": node("PackAdd", json!({"a": 1, "b": 2.5, "c": 3})), "9": show(json!(["1", 1]))});
    assert_eq!(text_of(&rig.shown(&dropped)), "1 2.5");
    // A class that is lazy only to whoever orders nodes.
    let lazy = json!({
        "1": add, "2": node("PackFail", json!({})),
        "3": node("WildLazy", json!({"select": 1, "input1": ["1", 1], "input2": ["2", 0]})), "9": show(json!(["3", 0]))});
    assert_eq!(text_of(&rig.shown(&lazy)), "1 2.5");
    // A validator sees the very type object of a source in the same process.
    let validated = |source: Value| json!({"1": add, "2": node("WildAny", json!({"value": ["1", 1]})), "9": node("WildValidator", json!({"value": source}))});
    assert_eq!(
        rig.server
            .post("/prompt", &json!({"prompt": validated(json!(["2", 0]))}))
            .status,
        200
    );
    let refused = rig
        .server
        .post("/prompt", &json!({"prompt": validated(json!(["1", 1]))}));
    assert!(refused.text().contains("str STRING"), "{}", refused.text());
}

#[test]
fn pictures_cross_and_in_place_changes_stay_in_the_pack() {
    let Some(python) = python() else { return };
    if !has_module(&python, "numpy") {
        return;
    }
    let rig = Rig::start(&["plain"], &[]).unwrap();
    let image = node(
        "EmptyImage",
        json!({"width": 64, "height": 32, "batch_size": 1, "color": 16_777_215}),
    );
    let preview = |source: Value| node("PreviewImage", json!({"images": source}));
    let pixel = |shown: &Value| {
        let name = shown["images"][0]["filename"].as_str().unwrap();
        let bytes = rig
            .server
            .get(&format!("/view?type=temp&filename={name}"))
            .body;
        let reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info();
        let mut reader = reader.unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        pixels[0]
    };
    // The original is shown after the pack has changed what it was given.
    let darken = json!({
        "1": image, "2": node("PackDarken", json!({"image": ["1", 0]})), "8": show(json!(["2", 1])),
        "9": preview(json!(["2", 0])), "99": preview(json!(["1", 0]))});
    let entry = rig.run(&darken);
    assert_eq!(
        entry["status"]["status_str"],
        "success",
        "{entry}\n{}",
        rig.server.log()
    );
    assert_eq!(pixel(&entry["outputs"]["9"]), 127);
    assert_eq!(pixel(&entry["outputs"]["99"]), 255);
    assert_eq!(text_of(&entry["outputs"]["8"]), "[1, 32, 64, 3]");
    // A built-in node that a pack runs, and a picture that is only passed on.
    let invert = json!({"1": image, "2": node("PackInvert", json!({"image": ["1", 0]})), "9": preview(json!(["2", 0]))});
    assert_eq!(pixel(&rig.shown(&invert)), 0);
}

#[test]
fn what_packs_write_into_the_prompt_is_saved_and_history_keeps_the_original() {
    let Some(rig) = Rig::start(&["plain"], &[]) else {
        return;
    };
    let image = node(
        "EmptyImage",
        json!({"width": 8, "height": 8, "batch_size": 1, "color": 0}),
    );
    let prompt = json!({
        "1": image, "2": node("PackMark", json!({"images": ["1", 0]})),
        "9": node("SaveImage", json!({"images": ["2", 0], "filename_prefix": "marked"}))});
    let body =
        json!({"prompt": prompt, "extra_data": {"extra_pnginfo": {"workflow": {"nodes": []}}}});
    let id = rig.server.post("/prompt", &body).expect_status(200).json()["prompt_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let entry = rig.server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    let saved = std::fs::read(rig.base.path().join("output/marked_00001_.png")).unwrap();
    let saved = String::from_utf8_lossy(&saved);
    assert!(
        saved.contains("by the pack"),
        "the saved prompt is not the changed one"
    );
    assert!(
        saved.contains("\"marked\""),
        "the saved workflow is not the changed one"
    );
    assert!(
        !entry["prompt"].to_string().contains("by the pack"),
        "{entry}"
    );
}

#[test]
fn progress_messages_and_interrupts() {
    let Some(rig) = Rig::start(&["plain"], &[]) else {
        return;
    };
    let mut socket = rig.server.socket("watcher");
    let prompt = |steps: u32, pause: f64| json!({"1": node("PackProgress", json!({"steps": steps, "pause": pause})), "2": node("PackJoin", json!({"parts": ["1", 0]})), "9": show(json!(["2", 0]))});
    let id = rig.server.queue(&prompt(3, 0.0), Some("watcher"));
    let messages = socket.run(&id);
    let own = messages.iter().position(|m| m["type"] == "pack.began");
    let bar = messages
        .iter()
        .position(|m| m["type"] == "progress" && m["data"]["node"] == "1");
    assert!(own.unwrap() < bar.unwrap(), "{messages:?}");
    let last = messages.iter().rfind(|m| m["type"] == "progress").unwrap();
    assert_eq!(
        (&last["data"]["value"], &last["data"]["max"]),
        (&json!(3), &json!(3))
    );
    // A bar that notices the interrupt.
    let id = rig.server.queue(&prompt(100_000, 0.02), Some("watcher"));
    socket.until(|m| m["type"] == "progress");
    let began = Instant::now();
    rig.server.post("/interrupt", &json!({})).expect_status(200);
    let entry = rig.server.wait_for(&id);
    let took = began.elapsed();
    let last = entry["status"]["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    assert_eq!(last[0], "execution_interrupted", "{entry}");
    assert!(took < HEEDED, "{took:?}");
}

#[test]
fn hostile_nodes_harm_their_prompt_only() {
    let Some(rig) = Rig::start(&["plain", "hostile"], &[]) else {
        return;
    };
    let hostile = |how: &str| json!({"9": node("Hostile", json!({"how": how}))});
    let add = json!({"1": node("PackAdd", json!({"a": 1, "b": 2})), "9": show(json!(["1", 1]))});
    let process = || rig.server.get("/api/packs").json()["process"].clone();
    let first = process();
    for (how, word) in [
        ("segfault", "SIGSEGV"),
        ("exit", "code 3"),
        ("kill", "SIGKILL"),
        ("garbage", "impossible length"),
    ] {
        let error = rig.error(&hostile(how));
        assert_eq!(
            error["exception_type"], "fresco.WorkerDied",
            "{how}: {error}"
        );
        let message = error["exception_message"].as_str().unwrap();
        assert!(
            message.contains(word) && message.contains("custom_nodes.hostile"),
            "{how}: {message}"
        );
        if how == "segfault" {
            assert!(message.contains("Segmentation fault"), "{message}");
        }
        rig.server
            .post("/fresco/packs/restart", &json!({}))
            .expect_status(200);
        let began = Instant::now();
        assert_eq!(text_of(&rig.shown(&add)), "1 2.0");
        eprintln!("after {how} the next prompt ended in {:?}", began.elapsed());
    }
    assert_ne!(first, process());
    // Raising SystemExit is an error like any other.
    let error = rig.error(&hostile("system_exit"));
    assert_eq!(error["exception_type"], "SystemExit", "{error}");
    // Much output is cut, and the node ends.
    let shown = rig.shown(&hostile("shout"));
    assert_eq!(shown["text"], json!(["done"]));
    assert_eq!(rig.shown(&hostile("fork"))["text"], json!(["forked"]));
}

#[test]
fn nodes_that_ignore_an_interrupt_end_their_prompt_within_a_second() {
    let Some(rig) = Rig::start(&["plain", "hostile"], &[]) else {
        return;
    };
    let mut socket = rig.server.socket("watcher");
    for how in ["loop", "sleep"] {
        let prompt = json!({"9": node("Hostile", json!({"how": how}))});
        let id = rig.server.queue(&prompt, Some("watcher"));
        socket.until(|m| m["type"] == "hostile.began");
        let began = Instant::now();
        rig.server.post("/interrupt", &json!({})).expect_status(200);
        let entry = rig.server.wait_for(&id);
        let took = began.elapsed();
        assert!(
            entry.to_string().contains("execution_interrupted"),
            "{how}: {entry}"
        );
        assert!(took < HEEDED, "{how}: {took:?}");
    }
    // Native prompts run meanwhile; packs do so again when the process was ended and came back.
    let id = rig
        .server
        .queue(&fresco_tests::workflow::picture(3, "native"), None);
    assert_eq!(rig.server.wait_for(&id)["status"]["status_str"], "success");
    let add = json!({"1": node("PackAdd", json!({"a": 1, "b": 2})), "9": show(json!(["1", 1]))});
    assert_eq!(text_of(&rig.shown(&add)), "1 2.0");
}

#[test]
fn workers_end_with_the_program() {
    let Some(mut rig) = Rig::start(&["plain"], &[]) else {
        return;
    };
    rig.server.get("/object_info").expect_status(200);
    let process = rig.server.get("/api/packs").json()["process"]
        .as_u64()
        .unwrap();
    rig.server.kill();
    let began = Instant::now();
    let place = PathBuf::from(format!("/proc/{process}"));
    // A zombie that nobody waits for is gone as well.
    let gone = || {
        let stat = std::fs::read_to_string(place.join("stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    while !gone() {
        assert!(began.elapsed() < PATIENCE, "the worker lives on");
        std::thread::yield_now();
    }
}

#[test]
fn newer_nodes() {
    let Some(rig) = Rig::start(&["v3_pack"], &[]) else {
        return;
    };
    let info = rig.server.get("/object_info").json();
    let sum = &info["ThreeSum"]["input"];
    assert_eq!(
        sum["required"]["a"],
        json!(["INT", {"default": 1, "min": 0, "max": 10}])
    );
    assert_eq!(
        sum["required"]["how"],
        json!(["COMBO", {"multiselect": false, "options": ["plain", "twice"]}])
    );
    assert_eq!(sum["required"]["more"][1]["template"]["prefix"], "n");
    let prompt = json!({
        "1": node("ThreeSum", json!({"a": 3, "how": "twice", "more.n0": 4, "more.n1": 5})),
        "9": node("ThreeShow", json!({"value": ["1", 0]}))});
    // `on_load` was called once.
    assert_eq!(rig.shown(&prompt)["text"], json!(["1024"]));
}

#[test]
fn routes_and_handlers_of_prompts() {
    let Some(python) = python() else { return };
    if !has_module(&python, "aiohttp") {
        return;
    }
    let rig = Rig::start(&["plain", "served"], &[]).unwrap();
    for prefix in ["", "/api"] {
        let get = |path: &str| rig.server.get(&format!("{prefix}{path}"));
        let hello = get("/served/hello?name=x%20y").json();
        assert_eq!(
            (&hello["name"], &hello["remote"]),
            (&json!("x y"), &json!("127.0.0.1"))
        );
        let echo = rig
            .server
            .post(&format!("{prefix}/served/echo"), &json!({"k": [1]}));
        assert_eq!(echo.json()["got"], json!({"k": [1]}));
        assert_eq!(get("/served/item/7").text(), "7");
        assert_eq!(get("/served/item/0").status, 404);
        assert_eq!(get("/served/stream").text(), "one two three");
        assert!(get("/served/file").text().contains("Routes, handlers"));
        let large = vec![7_u8; 200_000];
        let (kind, body) = multipart(&[("word", "w")], Some(("file", "a.bin", &large)));
        let place = format!("{prefix}/served/upload");
        let answer = rig
            .server
            .request("POST", &place, &[("content-type", &kind)], &body);
        assert_eq!(
            answer.expect_status(200).json(),
            json!({"name": "a.bin", "size": 200_000, "word": "w"})
        );
        let patched = rig
            .server
            .request("PATCH", &format!("{prefix}/served/item/3"), &[], &[]);
        assert_eq!((patched.status, patched.text()), (202, "changed 3".into()));
        assert_eq!(get("/served/nothing").status, 404);
    }
    assert!(
        rig.server
            .get("/served_static/__init__.py")
            .text()
            .contains("Routes, handlers")
    );
    assert!(
        !rig.server
            .get("/api/served_static/__init__.py")
            .text()
            .contains("Routes, handlers")
    );
    let (kind, body) = multipart(&[("a", "b")], None);
    let answer =
        rig.server
            .connect()
            .request("POST", "/served/echo", &[("content-type", &kind)], &body);
    assert_eq!(answer.unwrap().status, 500);
    // A WebSocket of a pack, both ways.
    for prefix in ["", "/api"] {
        let path = format!("{prefix}/served/socket?name=me");
        let mut socket = fresco_tests::socket::Socket::open(rig.server.address, &path);
        assert_eq!(
            socket.message(),
            json!({"hello": "me", "from": "127.0.0.1"})
        );
        socket.send("one");
        assert_eq!(socket.message(), json!({"echo": "one"}));
        let large: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        socket.send_binary(&large);
        match socket.frame() {
            fresco_tests::socket::Frame::Binary(bytes) => {
                assert!(bytes.iter().rev().eq(large.iter()));
            }
            other => panic!("{other:?}"),
        }
        socket.send("end");
        assert!(matches!(
            socket.frame(),
            fresco_tests::socket::Frame::Closed
        ));
    }
    // A plain request there is none of the route's.
    assert_eq!(rig.server.get("/served/socket").status, 400);
    // Handlers change a prompt in order; one that fails is passed over.
    let add = json!({"1": node("PackAdd", json!({"a": 1, "b": 0})), "9": show(json!(["1", 1]))});
    assert_eq!(text_of(&rig.shown(&add)), "22 0.0");
}

#[test]
fn the_command_says_what_works() {
    let Some(python) = python() else { return };
    let base = base_with(&["plain", "fails_to_import"]);
    let place = base.path().to_str().unwrap();
    let list = |more: &[&str]| {
        let mut arguments = vec!["packs", "list", "--base-directory", place];
        arguments.extend(more);
        let (status, text, _) = run_program(&arguments, base.path());
        assert!(status.success(), "{text}");
        text
    };
    // What `list` says of a pack.
    let state = |text: &str, name: &str| {
        let line = text
            .lines()
            .find(|line| line.contains(&format!(" {name} ")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.split("  ").next().unwrap().to_owned()
    };
    let text = list(&[]);
    assert_eq!(state(&text, "plain"), "not started");
    assert_eq!(state(&text, "old"), "disabled");
    // Without a server there are no packs.
    let workflow = base.path().join("show.json");
    std::fs::write(&workflow, json!({"9": show(json!("x"))}).to_string()).unwrap();
    let workflow = workflow.to_str().unwrap();
    let (status, _, said) = run_program(&["run", workflow, "--base-directory", place], base.path());
    assert!(
        !status.success()
            && said.contains("node 9 (PackShow); nodes of Python packs run only in a server"),
        "{said}"
    );
    let python = python.to_str().unwrap();
    let arguments = [
        "packs",
        "check",
        "--base-directory",
        place,
        "--python",
        python,
    ];
    let (status, text, _) = run_program(&arguments, base.path());
    assert!(!status.success(), "{text}");
    assert!(
        text.contains("loaded") && text.contains("16 nodes"),
        "{text}"
    );
    assert!(
        text.contains("failed") && text.contains("a_module_that_does_not_exist"),
        "{text}"
    );
    assert!(text.contains("level: L1"), "{text}");
}
