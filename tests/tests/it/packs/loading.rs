//! How packs are found and imported, and what they put into the host's tables.

use super::*;

#[test]
fn built_in_nodes_are_there_before_packs_are() {
    let base = base_with(&["slow_import", "plain"]);
    let hold = base.path().join("input/wait");
    std::fs::write(&hold, "").unwrap();
    let Some(rig) = Rig::starting(base, &[]) else {
        return;
    };
    let server = &rig.server;
    assert_eq!(server.get("/api/packs").json()["state"], "starting");
    // While the pack is held up.
    let info = server.get("/object_info").json();
    assert!(info["KSampler"].is_object() && info["Slow"].is_null());
    assert!(
        server.get("/object_info/KSampler").json()["KSampler"].is_object(),
        "one class alone"
    );
    // Native prompts run, those with a class of a pack wait for it.
    let id = server.queue(&fresco_tests::workflow::picture(1, "native"), None);
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
    let address = server.address;
    let waiting = std::thread::spawn(move || {
        let mut connection = fresco_tests::http::Connection::open(address).unwrap();
        let body = json!({"prompt": {"9": node("Slow", json!({}))}});
        connection.post("/prompt", &body).unwrap()
    });
    std::thread::park_timeout(Duration::from_millis(300));
    assert!(!waiting.is_finished(), "it did not wait for the pack");
    std::fs::remove_file(&hold).unwrap();
    let answer = waiting.join().unwrap().expect_status(200).json();
    let entry = server.wait_for(answer["prompt_id"].as_str().unwrap());
    assert_eq!(entry["outputs"]["9"]["text"], json!(["slow"]));
    assert!(server.get("/object_info").json()["Slow"].is_object());
}

#[test]
fn two_roots_equal_names_and_scripts_that_fail() {
    let base = base_with(&["bad_prestart", "same_a", "plain"]);
    let second = base.path().join("elsewhere/nodes");
    std::fs::create_dir_all(&second).unwrap();
    let packs = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs");
    copy(&packs.join("same_b"), &second.join("same_b"));
    copy(&packs.join("single.py"), &second.join("single.py"));
    copy(&packs.join("prestart"), &second.join("prestart"));
    let config = base.path().join("elsewhere/paths.yaml");
    std::fs::write(&config, "more:\n    custom_nodes: nodes\n").unwrap();
    let config = config.to_str().unwrap().to_owned();
    let Some(rig) = Rig::starting(base, &["--extra-model-paths-config", &config]) else {
        return;
    };
    rig.server.get("/extensions").expect_status(200);
    let info = rig.server.get("/object_info").json();
    assert_eq!(info["PackAdd"]["python_module"], "custom_nodes.plain");
    assert_eq!(
        info["SingleFolders"]["python_module"],
        "custom_nodes.single"
    );
    // The later one is there, and one line says so.
    assert_eq!(info["SameName"]["display_name"], "Same (b)");
    assert_eq!(info["SameName"]["description"], "of b");
    let log = rig.server.log();
    let replaced = log.lines().filter(|line| line.contains("SameName"));
    assert_eq!(replaced.count(), 1, "{log}");
    assert!(log.contains("Failed to execute startup-script"), "{log}");
    assert_eq!(rig.pack("bad_prestart")["state"], "loaded");
    let shown = rig.shown(&json!({"9": node("Prestarted", json!({}))}));
    assert_eq!(shown["text"], json!(["here"]));
}

#[test]
fn tables_that_packs_write_themselves() {
    let Some(rig) = Rig::start(&["tables", "many"], &[]) else {
        return;
    };
    let extensions = rig.server.get("/extensions").json();
    let listed = |path: &str| extensions.as_array().unwrap().contains(&json!(path));
    assert!(listed("/extensions/K/tables.js"), "{extensions}");
    assert!(
        listed("/extensions/tables-project/project.js"),
        "{extensions}"
    );
    assert!(!extensions.to_string().contains("nowhere"));
    let script = rig.server.get("/extensions/K/tables.js");
    assert!(script.text().contains("tables = 1"));
    let script = rig.server.get("/extensions/tables-project/project.js");
    assert!(script.text().contains("project = 1"));
    let subgraphs = rig.server.get("/global_subgraphs").json().to_string();
    assert!(subgraphs.contains("custom_nodes.tables"), "{subgraphs}");
    // A class without a mapping, and a function of the host that the pack replaced for itself.
    let shown = rig.shown(&json!({"9": node("TablesOwn", json!({}))}));
    assert_eq!(shown["text"][1], "mine in 3");
    assert_ne!(shown["text"][0], "True");
    assert!(rig.server.log().contains("comfy.samplers.calculate_sigmas"));
    // A task that was made while the pack was imported has run.
    let shown = rig.shown(&json!({"9": node("ManyStarted", json!({}))}));
    assert_eq!(shown["text"], json!(["task"]));
    // A folder type that comes while a node runs.
    rig.shown(&json!({"9": node("ManyFolders", json!({}))}));
    let types = rig.server.get("/models").json();
    assert!(
        types.as_array().unwrap().contains(&json!("late_type")),
        "{types}"
    );
    // Nothing is installed by a pack on its own.
    let shown = rig.shown(&json!({"9": node("ManyInstall", json!({}))}));
    let told = shown["text"][0].as_str().unwrap();
    assert!(told.contains("pip install something"), "{told}");
}

#[test]
fn newer_packs_with_a_plain_entry_and_all_widgets() {
    let Some(rig) = Rig::start(&["v3_sync", "v3_wrong", "v3_pack"], &[]) else {
        return;
    };
    let wrong = rig.pack("v3_wrong");
    assert_eq!(wrong["state"], "failed");
    assert!(
        wrong["error"].as_str().unwrap().contains("ComfyExtension"),
        "{wrong}"
    );
    assert_eq!(rig.pack("v3_pack")["state"], "loaded");
    let info = rig.server.get("/object_info").json();
    let widgets = &info["Widgets"];
    let input = &widgets["input"];
    let required = json!({
        "flag": ["BOOLEAN", {"default": true, "label_on": "on", "label_off": "off"}],
        "count": ["INT", {"default": 3, "min": 0, "max": 18_446_744_073_709_551_615_u64, "step": 1,
            "control_after_generate": true, "display": "slider"}],
        "part": ["FLOAT", {"tooltip": "how much", "default": 0.5, "min": 0.0, "max": 1.0, "step": 0.1, "round": 0.01}],
        "text": ["STRING", {"multiline": true, "placeholder": "write", "default": "a", "dynamicPrompts": true}],
        "choice": ["COMBO", {"default": "y", "multiselect": false, "options": ["x", "y"], "image_upload": true,
            "image_folder": "input"}],
        "several": ["COMBO", {"default": ["x"], "multiselect": true, "options": ["x", "y"], "multi_select": true,
            "placeholder": "some", "chip": true}]});
    assert_eq!(input["required"], required);
    assert_eq!(input["optional"]["image"], json!(["IMAGE", {"lazy": true}]));
    assert_eq!(input["optional"]["either"][0], "IMAGE,MASK");
    assert_eq!(input["optional"]["own"][0], "OWN_TYPE");
    assert_eq!(widgets["output"], json!(["IMAGE", "INT"]));
    assert_eq!(widgets["output_is_list"], json!([false, true]));
    assert_eq!(widgets["output_name"], json!(["picture", "INT"]));
    assert_eq!(widgets["experimental"], true);
    let chosen = |inputs: Value| rig.shown(&json!({"9": node("Chooser", inputs)}))["text"].clone();
    assert_eq!(
        chosen(json!({"how": "plain", "how.a": 4, "grown.p": 1, "grown.q": 2})),
        json!(["{'a': 4, 'how': 'plain'}", "{'p': 1, 'q': 2}", true, true])
    );
    assert_eq!(
        chosen(json!({"how": "deep", "how.b": 0.25, "how.c": "t"}))[0],
        "{'b': 0.25, 'c': 't', 'how': 'deep'}"
    );
}

#[test]
fn everything_that_packs_import_is_there() {
    let Some(rig) = Rig::start(&["surface"], &[]) else {
        return;
    };
    let shown = rig.shown(&json!({"9": node("SurfaceReport", json!({}))}));
    let report = &shown["report"][0];
    assert_eq!(report["failed"], json!([]));
    assert_eq!(report["newer"], "ModuleNotFoundError");
    let used = report["used"].as_str().unwrap();
    assert!(
        used.starts_with("Unsupported")
            && used.contains("comfy.ldm.flux.model.Flux")
            && used.contains("L3b"),
        "{used}"
    );
    assert_eq!(report["built"], "Unsupported");
    assert_eq!(
        report["cond"],
        json!([[[1, {"a": [1, 2]}]], [[1, {"a": [1]}]]])
    );
    assert_eq!(report["same"], true);
    assert_eq!(report["place"], json!(["x_8", 1, "sub", "sub/x_8"]));
    assert_eq!(
        report["jobs"],
        json!(["failed", [1, {"filename": "a", "type": "output", "nodeId": "1", "mediaType": "images"}]])
    );
}

#[test]
fn a_python_that_is_too_old_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    let base = base_with(&["plain"]);
    let old = base.path().join("python-old");
    std::fs::write(&old, "#!/bin/sh\necho 3.9.1\n").unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).unwrap();
    let requirements = base.path().join("custom_nodes/plain/requirements.txt");
    std::fs::write(requirements, "a-package-that-is-not-there==1\n").unwrap();
    let server = Server::start_with(StartOptions {
        arguments: vec!["--python", old.to_str().unwrap()],
        base: Some(base.path()),
        ..StartOptions::default()
    });
    server.get("/extensions").expect_status(200);
    let problem = server.get("/api/packs").json()["problem"].to_string();
    assert!(
        problem.contains("3.9.1") && problem.contains("3.10"),
        "{problem}"
    );
    let id = server.queue(&fresco_tests::workflow::picture(1, "native"), None);
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
    assert!(!server.log().contains("Collecting"));
}
