//! What is in memory and why, for whoever watches: the overview, one model, events by request, by socket and in a file, and
//! plans that change nothing.

use std::fs;

use fresco_tests::{
    memory::{Flow, ROOMY, Room, base, id, kind, number, on, seq, text},
    server::run_program,
};
use serde_json::{Value, json};

#[test]
fn the_overview_and_one_model() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("keep", "auto", "auto");
    flow.u.virtual_gb = 0.005;
    flow.u.donor = "sim:1";
    room.ok(&flow.prompt());
    for path in ["/memory", "/api/memory"] {
        let all = room.get(path);
        assert_eq!(all["devices"].as_array().unwrap().len(), 3, "{all}");
        assert_eq!(all["models"].as_array().unwrap().len(), 3);
        let unet = room.model("diffusion");
        assert_eq!(all["policies"][id(&unet)]["policy"], "keep");
        assert_eq!(all["policies"][id(&unet)]["source"], "node_input");
        assert_eq!(all["places"][id(&unet)]["sim:1"], on(&unet, "sim:1"));
        let decisions = all["decisions"].as_array().unwrap();
        assert_eq!(decisions.last().map(seq), all["last_seq"].as_u64(), "{all}");
    }
    // By its own id and by that of its handle, with every layer.
    let unet = room.model("diffusion");
    let handle = text(&unet["handles"][0], "model_id").to_owned();
    for name in [id(&unet), &handle] {
        let detail = room.about("GET", name, "", &Value::Null);
        let detail = detail.expect_status(200).json();
        assert_eq!(detail["weights_id"], id(&unet));
        let units = detail["units"].as_array().unwrap();
        let sum: u64 = units.iter().map(|u| number(u, "bytes")).sum();
        assert_eq!(sum, number(&unet, "bytes_total"));
        assert_eq!(detail["placement"][0]["model_id"], handle);
        for unit in units {
            assert_eq!(unit["device"], unit["planned"], "{unit}");
        }
    }
    room.about("GET", "nobody", "", &Value::Null)
        .expect_status(404);
    room.checked();
}

#[test]
fn events_are_numbered_and_can_be_chosen() {
    let folder = base();
    let log = folder.path().join("memory.jsonl");
    let path = log.to_string_lossy().into_owned();
    let mut arguments = ROOMY.to_vec();
    arguments.extend(["--memory-log", &path]);
    let room = Room::at(folder, &arguments);
    let mut asking = room.server.socket("asking");
    asking.send(r#"{"type": "feature_flags", "data": {"supports_memory_events": true}}"#);
    let mut quiet = room.server.socket("quiet");
    // The answer to the flags, so that they are known before the prompt starts.
    asking.until(|message| message["type"] == "feature_flags");
    let id = room.server.queue(
        &Flow::retaining("eject_after", "keep", "keep").prompt(),
        Some("quiet"),
    );
    let run = room.end(&id);
    let events = room.events(0);
    for pair in events.windows(2) {
        assert_eq!(seq(&pair[0]) + 1, seq(&pair[1]));
    }
    let done = kind(&events, "cleanup.completed")[0].clone();
    let some = room.get("/memory/events?since=2&kinds=policy.set,model.loaded&limit=4");
    let some = some["events"].as_array().unwrap();
    assert_eq!(some.len(), 4, "{some:?}");
    let chosen = ["policy.set", "model.loaded"];
    assert!(
        some.iter()
            .all(|e| chosen.contains(&text(e, "kind")) && seq(e) > 2)
    );
    assert!(room.get(&format!("/memory/events?since={}", u64::MAX))["events"] == json!([]));
    room.server
        .get("/memory/events?since=-1")
        .expect_status(400);

    // The same objects by socket, to the one that asked.
    let seen = asking.until(|m| m["type"] == "memory_event" && m["data"]["seq"] == done["seq"]);
    let by_socket: Vec<&Value> = seen
        .iter()
        .filter(|m| m["type"] == "memory_event")
        .map(|m| &m["data"])
        .collect();
    let up_to: Vec<&Value> = events.iter().filter(|e| seq(e) <= seq(&done)).collect();
    assert_eq!(by_socket, up_to);
    let others = quiet.run(&run.id);
    assert!(others.iter().all(|m| m["type"] != "memory_event"));

    // And in the file.
    let lines = fs::read_to_string(&log).unwrap();
    let written: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(written[..events.len()], events[..]);
    room.checked();
}

#[test]
fn plans_change_nothing() {
    let room = Room::roomy();
    room.ok(&Flow::default().prompt());
    let (models, last) = (room.models(), room.now());
    let unet = room.model("diffusion");
    let body =
        json!({"weights_id": id(&unet), "compute_device": "sim:1", "virtual_vram_gb": 0.004});
    let plan = room.server.post("/memory/plan", &body);
    let plan = plan.expect_status(200).json();
    assert_eq!(plan["fits"], true, "{plan}");
    let sum: u64 = plan["places"]
        .as_object()
        .unwrap()
        .values()
        .map(|bytes| bytes.as_u64().unwrap())
        .sum();
    assert_eq!(sum, number(&unet, "bytes_total"), "{plan}");
    let plan = room
        .server
        .post("/memory/plan", &json!({"trigger": "free"}));
    let plan = plan.expect_status(200).json();
    let steps = plan["plan"].as_array().unwrap();
    assert_eq!(steps.len(), 3, "{plan}");
    assert!(steps.iter().all(|step| step["action"] == "evict"), "{plan}");
    for body in [
        json!({}),
        json!({"weights_id": "nobody"}),
        json!({"units": []}),
        json!({"units": [{"name": "a", "bytes": -1}]}),
        json!({"units": [{"name": "a", "bytes": 1}], "compute_device": "sim:9"}),
        json!({"units": [{"name": "a", "bytes": 1}], "virtual_vram_gb": -4}),
        json!({"trigger": "prompt_end"}),
        json!([]),
    ] {
        let status = room.server.post("/memory/plan", &body).status;
        assert!([400, 404].contains(&status), "{body}: {status}");
    }
    assert_eq!(room.models(), models);
    for event in room.events(last) {
        // Of the prompt before, after whose end the program tidies up.
        assert_eq!(event["kind"], "device.soft_empty");
    }
    room.checked();
}

/// The terminal shows what the page of a server would.
#[test]
fn the_terminal_shows_it() {
    let room = Room::roomy();
    room.ok(&Flow::retaining("eject_after", "keep", "auto").prompt());
    let (base, url) = (room.base.path(), room.server.url());
    let (status, out, err) = run_program(&["memory", "--url", &url], base);
    assert!(status.success(), "{out}{err}");
    for word in [
        "sim:0",
        "sim:1",
        "c.safetensors",
        "v.safetensors",
        "keep",
        "auto",
        "release",
    ] {
        assert!(out.contains(word), "no {word} in {out}");
    }
    // And can change it.
    let clip = room.model("clip");
    let (status, out, err) = run_program(&["memory", "eject", id(&clip), "--url", &url], base);
    assert!(status.success(), "{out}{err}");
    assert_eq!(room.components(), ["vae"]);
    let (status, ..) = run_program(&["memory", "keep", "nobody", "--url", &url], base);
    assert!(!status.success());
    room.checked();
}
