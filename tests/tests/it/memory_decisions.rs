//! Every decision about a model can be read: who decided, in events and in plain lines of the log; how long a node's wish
//! counts; and that a saved workflow means what its widgets are called.

use std::{fs, path::Path};

use fresco_tests::{
    memory::{Flow, ROOMY, Room, base, id, kind, number, of, text},
    server::run_program,
};
use serde_json::{Value, json};

/// Runs a prompt of a client to its end.
#[track_caller]
fn run_as(room: &Room, client: &str, flow: &Flow) -> String {
    let id = room.server.queue(&flow.prompt(), Some(client));
    let run = room.end(&id);
    assert_eq!(run.history["status"]["status_str"], "success");
    id
}

/// The policy that counts for a diffusion model by its file.
#[track_caller]
fn policy_of(room: &Room, file: &str) -> Option<String> {
    let models = room.models();
    let name = format!("{file}.safetensors:diffusion");
    let mut found = models.iter().filter(|m| id(m).starts_with(&name));
    found.next().map(|m| text(m, "effective_policy").to_owned())
}

#[track_caller]
fn decided(event: &Value, policy: &str, source: &str, origin: &Value) {
    assert_eq!(event["policy"], policy, "{event:#}");
    assert_eq!(event["policy_source"], source, "{event:#}");
    for (field, value) in origin.as_object().unwrap() {
        assert_eq!(&event["origin"][field], value, "{field} of {event:#}");
    }
}

#[test]
fn events_name_who_decided() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "keep", "auto");
    run_as(&room, "alice", &flow);
    let events = room.events(0);
    let released = kind(&events, "model.released");
    assert_eq!(released.len(), 1, "{released:#?}");
    let unet = id(released[0]);
    let by_node =
        json!({"kind": "node", "name": "retention", "node_id": "1", "client_id": "alice"});
    decided(released[0], "eject_after", "node_input", &by_node);
    assert_eq!(released[0]["policy_node"], "1");
    assert_eq!(released[0]["policy_client"], "alice");
    let reason = text(released[0], "reason");
    assert!(reason.contains("eject_after set by node 1"), "{reason}");
    let planned = of(&events, "plan.computed", unet);
    decided(planned[0], "eject_after", "node_input", &by_node);
    let clip = room.model("clip");
    let kept = of(&events, "plan.computed", id(&clip));
    let by_node = json!({"kind": "node", "node_id": "2", "client_id": "alice"});
    decided(kept[0], "keep", "node_input", &by_node);
    let vae = room.model("vae");
    let stays = of(&events, "plan.computed", id(&vae));
    decided(stays[0], "auto", "default", &json!({"kind": "default"}));

    // A request, and a policy set by one.
    let before = room.now();
    room.free(json!({"unload_models": true}));
    for event in kind(&room.events(before), "model.evicted") {
        let request = json!({"kind": "api", "name": "POST /free", "node_id": null});
        assert_eq!(event["origin"]["kind"], request["kind"], "{event}");
        assert_eq!(event["origin"]["name"], request["name"], "{event}");
        let keeps = id(event) == id(&clip);
        assert_eq!(event["policy"], if keeps { "keep" } else { "auto" });
    }
    let before = room.now();
    room.set_policy("vae", "eject_after");
    let events = room.events(before);
    let by_api = json!({"kind": "api", "name": "PATCH /memory/models"});
    for name in ["plan.computed", "model.released"] {
        decided(
            of(&events, name, id(&vae))[0],
            "eject_after",
            "api",
            &by_api,
        );
    }

    // The loader that clears a device, not the node that computes there.
    let before = room.now();
    run_as(
        &room,
        "alice",
        &Flow::retaining("keep", "keep", "auto").seed(2),
    );
    let mut clearing = Flow::retaining("keep", "keep", "auto").seed(3);
    clearing.u.file = "large";
    clearing.u.eject = true;
    run_as(&room, "alice", &clearing);
    let events = room.events(before);
    let cleared = kind(&events, "eject.applied");
    assert_eq!(cleared.len(), 1, "{cleared:#?}");
    assert_eq!(cleared[0]["origin"]["node_id"], "1");
    assert_eq!(cleared[0]["origin"]["name"], "eject_models");
    room.checked();
}

#[test]
fn a_loaded_model_names_all_its_devices() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("keep", "auto", "auto");
    flow.u.virtual_gb = 0.005;
    flow.u.donor = "sim:1";
    room.ok(&flow.prompt());
    let unet = room.model("diffusion");
    let events = room.events(0);
    let loaded = of(&events, "model.loaded", id(&unet))[0];
    let places = loaded["places"].as_object().unwrap();
    let sum: u64 = places.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(sum, number(&unet, "bytes_total"), "{loaded}");
    for device in ["sim:0", "sim:1"] {
        assert_eq!(places[device], unet["residency"][device], "{loaded}");
    }
    assert_eq!(loaded["origin"]["name"], "virtual_vram_gb");
    room.checked();
}

/// The lines of a log about the memory: none of them is a dump of fields.
#[track_caller]
fn plain(log: &str) -> Vec<&str> {
    let verbs = [
        "kept ",
        "ejected ",
        "loaded ",
        "moved ",
        "cleanup: ",
        "released ",
    ];
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| verbs.iter().any(|verb| line.starts_with(verb)))
        .collect();
    for line in log.lines() {
        for field in [
            "weights=",
            "seq=",
            "policy=",
            "trigger=",
            "before=",
            "node_input",
        ] {
            assert!(!line.contains(field), "{line}");
        }
    }
    lines
}

#[track_caller]
fn one<'a>(lines: &[&'a str], start: &str) -> &'a str {
    let found: Vec<&&str> = lines.iter().filter(|l| l.starts_with(start)).collect();
    assert_eq!(found.len(), 1, "{start} in {lines:#?}");
    found[0]
}

#[test]
fn the_log_says_in_plain_words_what_stays_and_goes() {
    let mut arguments = ROOMY.to_vec();
    arguments[1] = "sim:0=64MiB";
    let room = Room::with(&arguments);
    let mut flow = Flow::retaining("eject_after", "keep", "auto");
    flow.u.file = "large";
    run_as(&room, "alice", &flow);
    let log = room.server.log();
    let lines = plain(&log);
    let ejected = one(&lines, "ejected large.safetensors (diffusion): ");
    let part = one(&lines, "loaded part of large.safetensors (diffusion): ");
    let kept = one(&lines, "kept c.safetensors (clip): ");
    let stays = one(&lines, "kept v.safetensors (vae): ");
    for line in [ejected, part, kept, stays] {
        assert!(line.contains(" MB"), "{line}");
    }
    assert!(
        ejected.contains("eject_after set by node 1 of client alice"),
        "{ejected}"
    );
    assert!(
        kept.contains("keep set by node 2 of client alice"),
        "{kept}"
    );
    assert!(stays.contains("auto"), "{stays}");
    assert!(
        part.contains("MB on sim:0") && part.contains("MB on cpu"),
        "{part}"
    );
    assert!(
        part.contains("no room for more") && part.contains("node 7"),
        "{part}"
    );
    let cleanup = one(&lines, "cleanup: ");
    assert!(cleanup.starts_with("cleanup: kept 2 ("), "{cleanup}");
    assert!(cleanup.ends_with("MB), released 1"), "{cleanup}");
    // Nothing of it is used: it is still said what is there.
    run_as(&room, "alice", &flow);
    let log = room.server.log();
    let again: Vec<&str> = plain(&log);
    let last = again.iter().rfind(|line| line.starts_with("cleanup: "));
    let last = last.unwrap();
    assert!(
        last.starts_with("cleanup: kept 0, released 0; 2 more in memory ("),
        "{last}"
    );
    room.checked();
}

#[test]
fn another_file_in_the_same_node_ends_the_old_wish() {
    let room = Room::roomy();
    let keep = |file: &'static str, retention: &'static str, seed| {
        let mut flow = Flow::retaining(retention, "auto", "auto").seed(seed);
        flow.u.file = file;
        flow
    };
    run_as(&room, "alice", &keep("u", "keep", 1));
    assert_eq!(policy_of(&room, "u").as_deref(), Some("keep"));
    let before = room.now();
    run_as(&room, "alice", &keep("large", "keep", 2));
    assert_eq!(
        policy_of(&room, "u").as_deref(),
        Some("auto"),
        "its claim ended"
    );
    assert_eq!(policy_of(&room, "large").as_deref(), Some("keep"));
    let events = room.events(before);
    let ended = kind(&events, "policy.ended");
    assert_eq!(ended.len(), 1, "{ended:#?}");
    assert_eq!(ended[0]["policy"], "keep");
    assert!(text(ended[0], "reason").contains("large.safetensors"));
    assert!(
        room.server
            .log()
            .contains("keep of u.safetensors (diffusion) ended: node 1 of client alice")
    );
    // Back again, from a file that was known.
    run_as(&room, "alice", &keep("u", "keep", 3));
    assert_eq!(policy_of(&room, "u").as_deref(), Some("keep"));
    assert_eq!(policy_of(&room, "large").as_deref(), Some("auto"));
    // Another client has places of its own.
    run_as(&room, "bob", &keep("large", "keep", 4));
    assert_eq!(policy_of(&room, "u").as_deref(), Some("keep"));
    assert_eq!(policy_of(&room, "large").as_deref(), Some("keep"));
    // Another word for the same file.
    run_as(&room, "alice", &keep("u", "auto", 5));
    assert_eq!(policy_of(&room, "u").as_deref(), Some("auto"));
    // Whoever ejects what another keeps is told whose wish counts, and what to do.
    let before = room.now();
    run_as(&room, "alice", &keep("large", "eject_after", 6));
    assert_eq!(policy_of(&room, "large").as_deref(), Some("keep"));
    let events = room.events(before);
    let conflicts = kind(&events, "retention.conflict");
    assert_eq!(conflicts.len(), 1, "{conflicts:#?}");
    let reason = text(conflicts[0], "reason");
    let way_out = format!("DELETE /memory/models/{}", id(conflicts[0]));
    for words in ["client alice", "client bob", &way_out, "Memory"] {
        assert!(reason.contains(words), "no {words} in {reason}");
    }
    assert!(room.server.log().contains(reason), "it is in the log too");
    // The way out works.
    let gone = room.about("DELETE", id(conflicts[0]), "", &Value::Null);
    gone.expect_status(200);
    assert_eq!(policy_of(&room, "large"), None);
    room.checked();
}

/// A checkpoint has three parts: all of their wishes go with the file, and none with a change of something else.
#[test]
fn all_parts_of_a_checkpoint_follow_its_node() {
    let room = Room::roomy();
    fresco_tests::memory::add(room.base.path(), "checkpoints", "model", "other");
    let prompt = |file: &str, gb: f64, seed: u64| {
        let mut prompt = Flow::default().seed(seed).prompt();
        prompt["1"] = json!({"class_type": "CheckpointLoaderSimpleDisTorch2MultiGPU", "inputs": {
            "ckpt_name": format!("{file}.safetensors"), "compute_device": "sim:0", "eject_models": false,
            "virtual_vram_gb": gb, "retention": "keep"}});
        for node in ["5", "6"] {
            prompt[node]["inputs"]["clip"] = json!(["1", 1]);
        }
        prompt["8"]["inputs"]["vae"] = json!(["1", 2]);
        for node in ["2", "3"] {
            prompt.as_object_mut().unwrap().remove(node);
        }
        prompt
    };
    room.ok(&prompt("model", 0.0, 1));
    let before = room.now();
    room.ok(&prompt("model", 0.001, 2));
    assert!(kind(&room.events(before), "policy.ended").is_empty());
    room.ok(&prompt("other", 0.0, 3));
    let models = room.models();
    assert_eq!(models.len(), 6, "{models:#?}");
    for model in &models {
        let old = id(model).starts_with("model.");
        let policy = if old { "auto" } else { "keep" };
        assert_eq!(model["effective_policy"], policy, "{}", id(model));
    }
    room.checked();
}

/// A loader as editors save it, with or without the names of its widgets.
fn saved_workflow(last: &str, named: bool) -> Value {
    let names = [
        ("unet_name", "COMBO"),
        ("weight_dtype", "COMBO"),
        ("compute_device", "COMBO"),
        ("virtual_vram_gb", "FLOAT"),
        ("donor_device", "COMBO"),
        ("expert_mode_allocations", "STRING"),
        (last, "BOOLEAN"),
    ];
    let slots: Vec<Value> = names
        .iter()
        .filter(|_| named)
        .map(|(name, ty)| json!({"name": name, "type": ty, "widget": {"name": name}, "link": null}))
        .collect();
    json!({"nodes": [{
        "id": 1, "type": "UNETLoaderDisTorch2MultiGPU", "inputs": slots,
        "outputs": [{"name": "MODEL", "type": "MODEL", "links": []}],
        "widgets_values": ["u.safetensors", "default", "sim:0", 2.5, "cpu", "", true]
    }], "links": [], "version": 0.4})
}

#[track_caller]
fn converted(room: &Room, workflow: &Value) -> (Value, String) {
    let answer = room.server.post("/fresco/workflow", workflow);
    let answer = answer.expect_status(200).json();
    let warnings = answer["warnings"].to_string();
    (answer["prompt"]["1"]["inputs"].clone(), warnings)
}

#[test]
fn a_saved_widget_is_what_its_name_says() {
    let room = Room::roomy();
    let (inputs, warnings) = converted(&room, &saved_workflow("keep_loaded", true));
    assert_eq!(inputs["keep_loaded"], true, "{inputs}");
    assert_eq!(inputs["eject_models"], true, "its default: {inputs}");
    assert_eq!(inputs["virtual_vram_gb"], 2.5);
    assert!(!warnings.contains("keep_loaded"), "{warnings}");
    let mut off = saved_workflow("keep_loaded", true);
    off["nodes"][0]["widgets_values"][6] = json!(false);
    let (inputs, _) = converted(&room, &off);
    assert_eq!(inputs["keep_loaded"], false, "{inputs}");
    assert_eq!(inputs["eject_models"], true, "{inputs}");

    let (inputs, warnings) = converted(&room, &saved_workflow("eject_models", true));
    assert_eq!(inputs["eject_models"], true, "{inputs}");
    assert_eq!(inputs["keep_loaded"], Value::Null, "{inputs}");
    assert!(!warnings.contains("keep_loaded"), "{warnings}");

    // Without names as before, and said so.
    let (inputs, warnings) = converted(&room, &saved_workflow("keep_loaded", false));
    assert_eq!(inputs["eject_models"], true, "{inputs}");
    assert_eq!(inputs["keep_loaded"], Value::Null, "{inputs}");
    for words in ["node 1", "eject_models", "keep_loaded"] {
        assert!(warnings.contains(words), "{warnings}");
    }

    // Names in other ways: a map instead of a list, and a map beside it.
    let mut map = saved_workflow("keep_loaded", false);
    map["nodes"][0]["widgets_values"] = json!({"unet_name": "u.safetensors", "keep_loaded": false});
    let (inputs, _) = converted(&room, &map);
    assert_eq!(inputs["keep_loaded"], false, "{inputs}");
    assert_eq!(inputs["eject_models"], true, "{inputs}");
    let mut beside = saved_workflow("keep_loaded", false);
    beside["nodes"][0]["widgets_values_named"] = json!({"unet_name": "u.safetensors",
        "weight_dtype": "default", "compute_device": "sim:0", "virtual_vram_gb": 2.5,
        "donor_device": "cpu", "expert_mode_allocations": "", "keep_loaded": false});
    let (inputs, warnings) = converted(&room, &beside);
    assert_eq!(inputs["keep_loaded"], false, "{inputs}");
    assert_eq!(inputs["eject_models"], true, "{inputs}");
    assert!(!warnings.contains("keep_loaded"), "{warnings}");

    // On the command line the warning is on standard error.
    let file = room.base.path().join("saved.json");
    fs::write(&file, saved_workflow("keep_loaded", false).to_string()).unwrap();
    let path = file.to_string_lossy();
    let folder = room.base.path().to_string_lossy();
    let (status, out, err) = run_program(
        &["convert", &path, "--base-directory", &folder],
        room.base.path(),
    );
    assert!(status.success(), "{err}");
    assert!(
        out.contains("eject_models") && !out.contains("keep_loaded"),
        "{out}"
    );
    assert!(
        err.contains("warning:") && err.contains("keep_loaded"),
        "{err}"
    );
}

/// The plain loaders with a device take the same words, under the same names.
#[test]
fn plain_loaders_keep_and_eject_too() {
    let room = Room::roomy();
    let info = room.get("/object_info");
    for class in [
        "UNETLoaderMultiGPU",
        "VAELoaderMultiGPU",
        "CLIPLoaderMultiGPU",
        "CheckpointLoaderSimpleMultiGPU",
        "CheckpointLoaderAdvancedMultiGPU",
        "UNETLoaderDisTorch2MultiGPU",
        "CheckpointLoaderAdvancedDisTorch2MultiGPU",
    ] {
        let inputs = &info[class]["input"]["optional"];
        for name in ["retention", "keep_loaded", "eject_models"] {
            assert!(inputs[name].is_array(), "{class} shows no {name}: {inputs}");
        }
    }
    let mut prompt = Flow::default().prompt();
    let words = [
        ("1", "UNETLoaderMultiGPU", json!({"keep_loaded": false})),
        ("2", "CLIPLoaderMultiGPU", json!({"keep_loaded": true})),
        ("3", "VAELoaderMultiGPU", json!({"retention": "keep"})),
    ];
    for (node, class, said) in words {
        let inputs = prompt[node]["inputs"].clone();
        let mut kept = json!({"device": "sim:0"});
        for name in ["unet_name", "weight_dtype", "clip_name", "type", "vae_name"] {
            if !inputs[name].is_null() {
                kept[name] = inputs[name].clone();
            }
        }
        for (name, value) in said.as_object().unwrap() {
            kept[name] = value.clone();
        }
        prompt[node] = json!({"class_type": class, "inputs": kept});
    }
    room.ok(&prompt);
    assert_eq!(room.components(), ["clip", "vae"], "the model was ejected");
    for component in ["clip", "vae"] {
        assert_eq!(room.model(component)["effective_policy"], "keep");
    }
    // What is none of the words is refused by name.
    prompt["3"]["inputs"]["retention"] = json!("for ever");
    let answer = room.server.post("/prompt", &json!({"prompt": prompt}));
    let answer = answer.expect_status(400).json().to_string();
    assert!(answer.contains("retention"), "{answer}");
    room.checked();
}

#[test]
fn a_run_without_a_server_says_the_same_and_where_its_picture_is() {
    let folder = base();
    let flow = Flow::retaining("eject_after", "keep", "auto");
    fs::write(folder.path().join("flow.json"), flow.prompt().to_string()).unwrap();
    let mut arguments = vec!["run", "flow.json", "--base-directory", "."];
    arguments.extend(ROOMY);
    let (status, out, err) = run_program(&arguments, folder.path());
    assert!(status.success(), "{err}");
    let lines = plain(&err);
    one(&lines, "ejected u.safetensors (diffusion): ");
    one(&lines, "kept c.safetensors (clip): ");
    one(&lines, "kept v.safetensors (vae): ");
    let cleanup = one(&lines, "cleanup: ");
    assert!(
        cleanup.contains("kept 2 (") && cleanup.ends_with("released 1"),
        "{cleanup}"
    );
    let path = out.trim();
    assert!(
        Path::new(path).is_absolute() && Path::new(path).is_file(),
        "{out}"
    );
    assert!(path.ends_with("p_00001_.png"), "{path}");
    assert!(err.contains(&format!("saved: {path}")), "{err}");
    assert!(!err.contains("prompt="), "there is only one: {err}");
}
