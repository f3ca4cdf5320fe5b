//! Wishes that cannot be met, storms of requests, and files that change under a loaded model: a clear answer, and books
//! that still agree.

use std::{fs, thread};

use fresco_tests::{
    Frame, StartOptions,
    memory::{Flow, ROOMY, Room, base, id, number, on},
    server::Server,
};
use serde_json::{Value, json};

/// The errors of node 1 in the answer to a prompt that is refused.
#[track_caller]
fn refused(room: &Room, prompt: &Value) -> Value {
    let body = json!({"prompt": prompt});
    let answer = room.server.post("/prompt", &body).expect_status(400).json();
    let errors = answer["node_errors"]["1"]["errors"].clone();
    assert!(errors.is_array(), "{answer}");
    errors
}

#[test]
fn devices_and_amounts_that_are_not() {
    let room = Room::roomy();
    for (input, value) in [
        ("compute_device", json!("sim:9")),
        ("compute_device", json!("cuda:0")),
        ("donor_device", json!("gpu")),
        ("virtual_vram_gb", json!(-1)),
        ("virtual_vram_gb", json!(1e9)),
        ("virtual_vram_gb", json!("much")),
        ("retention", json!("forever")),
        ("expert_mode_allocations", json!("sim:9,1g")),
    ] {
        let mut prompt = Flow::default().prompt();
        prompt["1"]["inputs"][input] = value.clone();
        let errors = refused(&room, &prompt);
        assert_eq!(
            errors[0]["extra_info"]["input_name"], input,
            "{input} {value}: {errors}"
        );
    }
    assert!(room.events(0).is_empty());
    for body in [
        json!({"unload_models": true, "devices": ["sim:9"]}),
        json!({"unload_models": true, "devices": 7}),
        json!({"unload_models": true, "retention": "maybe"}),
    ] {
        room.server.post("/free", &body).expect_status(400);
    }
    room.ok(&Flow::default().prompt());
    room.checked();
}

#[test]
fn budgets_that_cannot_be_meant() {
    for arguments in [
        &["--reserve-vram", "-1"][..],
        &["--reserve-vram", "nan"],
        &["--inference-reserve", "-0.5"],
        &["--inference-reserve", "lots"],
        &["--unload-after", "-3"],
        &["--sim-device", "sim:0=-4MiB"],
        &["--sim-device", "sim:0=0"],
        &["--sim-device", "gpu=4GiB"],
        &["--sim-device", "sim:0=1GiB", "--sim-device", "sim:0=2GiB"],
        &["--lowvram", "--highvram"],
    ] {
        let options = StartOptions {
            arguments: arguments.to_vec(),
            ..StartOptions::default()
        };
        let Err((status, log)) = Server::try_start(&options) else {
            panic!("{arguments:?} was accepted");
        };
        assert!(!status.success());
        let said = log.join("\n");
        // The flag, or the device that its value is about.
        let named = |word: &&str| {
            let word = word.trim_start_matches('-');
            said.contains(word.split('=').next().unwrap_or(word))
        };
        let named = arguments.iter().any(named);
        assert!(named && !said.contains("panicked"), "{arguments:?}: {said}");
    }
    // More reserved than there is: nothing stays on the device, and the picture is made all the same.
    let room = Room::with(&["--sim-device", "sim:0=64MiB", "--reserve-vram", "1000"]);
    room.ok(&Flow::default().prompt());
    for model in room.models() {
        assert!(
            on(&model, "sim:0") < number(&model, "bytes_total"),
            "{model}"
        );
    }
    room.checked();
}

#[test]
fn models_that_are_gone() {
    let room = Room::roomy();
    room.ok(&Flow::retaining("eject_after", "keep", "keep").prompt());
    let unet = room
        .wait_event(0, |e| e["kind"] == "model.released")
        .clone();
    for gone in [id(&unet), "nobody#diffusion", "", "%", "m999"] {
        let body = json!({"policy": "keep"});
        let patch = room.about("PATCH", gone, "", &body).status;
        let delete = room.about("DELETE", gone, "?force=1", &Value::Null).status;
        assert!([404, 405].contains(&patch), "{gone}: {patch}");
        assert!([404, 405].contains(&delete), "{gone}: {delete}");
    }
    let clip = room.model("clip");
    for body in [
        json!({"policy": "forever"}),
        json!({}),
        json!([]),
        json!({"policy": 7}),
    ] {
        room.about("PATCH", id(&clip), "", &body).expect_status(400);
    }
    assert_eq!(room.model("clip")["claims"], clip["claims"]);
    // While it is used: the policy can be set, its removal waits.
    let mut flow = Flow::retaining("auto", "keep", "keep");
    flow.steps = 1000;
    flow.size = 128;
    let run = while_sampling(&room, &flow.prompt(), || {
        let model = room.model("diffusion");
        let now = room.about("PATCH", id(&model), "", &json!({"policy": "release_now"}));
        assert_eq!(now.status, 409, "{}", now.text());
        room.about("PATCH", id(&model), "", &json!({"policy": "keep"}))
            .expect_status(200);
        let gone = room.about("DELETE", id(&model), "", &Value::Null);
        assert_eq!(gone.status, 202, "{}", gone.text());
        room.server
            .post("/interrupt", &json!({}))
            .expect_status(200);
    });
    room.end(&run);
    assert_eq!(room.components(), ["clip", "vae"]);
    room.checked();
}

/// Runs `then` after the first step of a prompt; gives its id.
fn while_sampling(room: &Room, prompt: &Value, then: impl FnOnce()) -> String {
    let mut socket = room.server.socket("watcher");
    let id = room.server.queue(prompt, Some("watcher"));
    loop {
        let Frame::Text(message, _) = socket.frame() else {
            continue;
        };
        if message["type"] == "progress" && message["data"]["value"] == 1 {
            break;
        }
    }
    then();
    id
}

/// What certainly does not fit is refused before anything is loaded, with what would.
#[test]
fn a_picture_that_is_too_large_for_its_device() {
    let room = Room::small("16MiB");
    let flow = Flow {
        size: 4096,
        ..Flow::default()
    };
    let (_, message) = room.run(&flow.prompt()).failure();
    assert!(message.contains("sim:0"), "{message}");
    let events = room.events(0);
    assert!(
        !events.iter().any(|e| e["kind"] == "model.loaded"),
        "{events:?}"
    );
    room.ok(&Flow::default().prompt());
    room.checked();
}

#[test]
fn a_storm_of_free_while_prompts_run() {
    let room = Room::roomy();
    let flow = Flow::retaining("auto", "keep", "eject_after");
    let ids: Vec<String> = (0..8)
        .map(|seed| room.server.queue(&flow.clone().seed(seed).prompt(), None))
        .collect();
    thread::scope(|scope| {
        for thread in 0..4_usize {
            let room = &room;
            scope.spawn(move || {
                let bodies = [
                    json!({"unload_models": true}),
                    json!({"free_memory": true, "retention": "respect"}),
                    json!({"unload_models": true, "force": true}),
                    json!({"free_memory": true, "devices": ["sim:0"]}),
                    json!({}),
                ];
                let mut connection = room.server.connect();
                for turn in 0..25 {
                    let body = &bodies[(turn + thread) % bodies.len()];
                    assert_eq!(connection.post("/free", body).unwrap().status, 200);
                    assert_eq!(connection.get("/memory/models").unwrap().status, 200);
                    assert_eq!(connection.get("/memory/check").unwrap().status, 200);
                }
            });
        }
    });
    for id in ids {
        let run = room.end(&id);
        assert_eq!(
            run.history["status"]["status_str"], "success",
            "{}",
            run.history
        );
    }
    room.free(json!({"unload_models": true, "free_memory": true, "force": true}));
    assert!(room.models().is_empty(), "{:?}", room.models());
    assert_eq!(room.device("sim:0")["weights_resident"], 0);
    room.checked();
}

#[test]
fn an_interrupt_while_layers_stream() {
    let room = Room::small("35MiB");
    let mut flow = Flow::retaining("keep", "keep", "keep");
    flow.u.file = "large";
    flow.steps = 1000;
    let run = while_sampling(&room, &flow.prompt(), || {
        room.server
            .post("/interrupt", &json!({}))
            .expect_status(200);
    });
    let run = room.end(&run);
    assert!(!run.message("execution_interrupted").is_null(), "{run:?}");
    let device = room.device("sim:0");
    let used = number(&device, "total") - number(&device, "free");
    assert_eq!(
        used,
        number(&device, "weights_resident"),
        "nothing is left of the step"
    );
    room.checked();
    flow.steps = 1;
    room.ok(&flow.prompt());
    room.checked();
}

#[test]
fn a_file_that_is_cut_off() {
    let base = base();
    let folder = base.path().join("models/diffusion_models");
    let whole = fs::read(folder.join("u.safetensors")).unwrap();
    fs::write(folder.join("half.safetensors"), &whole[..whole.len() / 2]).unwrap();
    let room = Room::at(base, ROOMY);
    let mut flow = Flow::default();
    flow.u.file = "half";
    let (_, message) = room.run(&flow.prompt()).failure();
    assert!(message.contains("half.safetensors"), "{message}");
    assert!(!room.components().iter().any(|c| c == "diffusion"));
    room.checked();
    room.ok(&Flow::default().prompt());
    room.checked();
}

/// A file of the base folder that is no link.
fn own_file(room: &Room) -> (std::path::PathBuf, Vec<u8>) {
    let path = room.file("diffusion_models", "u");
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

/// Other weights of the same shapes.
fn weaker(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    for value in bytes[header..].chunks_exact_mut(4) {
        let number = f32::from_le_bytes(value.try_into().unwrap());
        value.copy_from_slice(&(number * 0.9).to_le_bytes());
    }
    bytes
}

/// With enough steps for something to happen in between.
fn long(flow: &Flow) -> Value {
    let mut flow = flow.clone();
    flow.steps = 30;
    flow.prompt()
}

#[test]
fn files_that_change_under_a_loaded_model() {
    let room = Room::roomy();
    let (path, bytes) = own_file(&room);
    let mut flow = Flow::default();
    let first = room.pixels(&flow.prompt());

    // Deleted while it is used: the prompt goes on. The next one is refused, by the name of the file.
    let run = while_sampling(&room, &long(&flow), || fs::remove_file(&path).unwrap());
    assert_eq!(room.end(&run).history["status"]["status_str"], "success");
    let errors = refused(&room, &flow.clone().seed(2).prompt());
    assert!(errors.to_string().contains("u.safetensors"), "{errors}");
    room.checked();
    fs::write(&path, &bytes).unwrap();

    // Overwritten in place while it is used: the prompt goes on with what it has; the next one reads the new file.
    assert_eq!(room.pixels(&flow.prompt()), first);
    let run = while_sampling(&room, &long(&flow), || {
        fs::write(&path, weaker(&bytes)).unwrap();
    });
    assert_eq!(room.end(&run).history["status"]["status_str"], "success");
    let second = room.pixels(&flow.prompt());
    assert_ne!(second, first);
    room.checked();

    // Replaced by renaming, with nothing of it in memory.
    flow.u.retention = Some("eject_after");
    assert_eq!(room.pixels(&flow.prompt()), second);
    let new = path.with_extension("new");
    fs::write(&new, &bytes).unwrap();
    fs::rename(&new, &path).unwrap();
    assert_eq!(room.pixels(&flow.prompt()), first);
    room.checked();
}
