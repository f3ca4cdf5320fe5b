//! `POST /free`: the acceptance cases F-1 to F-9 of the memory specification, section 4.4.
//!
//! | case | test |
//! |---|---|
//! | F-1 | `f1_unloading_leaves_every_device` |
//! | F-2 | `f2_a_running_prompt_comes_first` |
//! | F-3, F-4 | `f3_f4_everything_goes_back` |
//! | F-5 | `f5_nothing_asked_nothing_done` |
//! | F-6 | `f6_a_burst_is_one_request` |
//! | F-7 | `f7_a_failed_prompt_does_not_stop_it` |
//! | F-8 | `f8_one_device` |
//! | F-9 | `f9_the_report` |

use fresco_tests::{
    Frame,
    memory::{Flow, MIB, Room, id, kind, number, on, seq},
};
use serde_json::{Value, json};

/// Sends these bodies while a prompt of 30 steps samples; gives its id and the number of the event before it.
fn during(room: &Room, prompt: &Value, bodies: &[Value]) -> String {
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
    for body in bodies {
        let answer = room.server.post("/free", body).expect_status(200);
        assert!(answer.body.is_empty(), "{}", answer.text());
    }
    id
}

fn long() -> Flow {
    Flow {
        steps: 30,
        ..Flow::default()
    }
}

#[test]
fn f1_unloading_leaves_every_device() {
    let room = Room::roomy();
    let mut flow = Flow::default();
    flow.c.device = "cpu";
    flow.v.device = "sim:1";
    room.ok(&flow.prompt());
    assert!(on(&room.model("diffusion"), "sim:0") > 0);
    assert!(on(&room.model("vae"), "sim:1") > 0);
    let read: Vec<Value> = room
        .models()
        .iter()
        .map(|m| m["read_bytes"].clone())
        .collect();
    let answer = room.server.post("/free", &json!({"unload_models": true}));
    assert!(answer.expect_status(200).body.is_empty());
    room.wait_event(0, |e| e["kind"] == "free.applied");
    for model in room.models() {
        assert_eq!(on(&model, "sim:0") + on(&model, "sim:1"), 0, "{model}");
        assert_eq!(model["state"], "offloaded", "{model}");
        assert_eq!(number(&model, "host_bytes"), number(&model, "bytes_total"));
    }
    for device in ["sim:0", "sim:1"] {
        assert_eq!(room.device(device)["weights_resident"], 0);
    }
    // The results of nodes are there; only what the seed changes is done again, and no file is read.
    let run = room.ok(&flow.seed(2).prompt());
    assert_eq!(run.cached(), ["1", "2", "3", "4", "5", "6"]);
    let again: Vec<Value> = room
        .models()
        .iter()
        .map(|m| m["read_bytes"].clone())
        .collect();
    assert_eq!(again, read);
    assert!(on(&room.model("diffusion"), "sim:0") > 0);
    room.checked();
}

#[test]
fn f2_a_running_prompt_comes_first() {
    let room = Room::roomy();
    room.ok(&Flow::default().prompt());
    let before = room.now();
    let run = during(&room, &long().prompt(), &[json!({"unload_models": true})]);
    room.end(&run);
    let applied = room.wait_event(before, |e| e["kind"] == "free.applied");
    let events = room.events(before);
    let deferred = kind(&events, "free.deferred");
    assert_eq!(deferred.len(), 1, "{events:#?}");
    assert_eq!(deferred[0]["prompt_id"], run);
    let done = kind(&events, "cleanup.completed");
    assert!(seq(deferred[0]) < seq(done[0]) && seq(done[0]) < seq(&applied));
    let evicted = kind(&events, "model.evicted");
    assert_eq!(evicted.len(), 3, "{evicted:?}");
    for event in evicted {
        assert!(seq(event) > seq(done[0]), "{event}");
    }
    room.checked();
}

/// After the second button of the manager, and after its flag alone, the program is as large as before the first model.
#[test]
fn f3_f4_everything_goes_back() {
    for body in [
        json!({"unload_models": true, "free_memory": true}),
        json!({"free_memory": true}),
        json!({"unload_models": false, "free_memory": true}),
    ] {
        let room = Room::roomy();
        // A first run of other nodes, so that threads and buffers are there.
        room.ok(&fresco_tests::workflow::smallest(1, "first"));
        let start = room.resident_memory();
        let mut flow = Flow::retaining("keep", "keep", "keep");
        flow.u.file = "large";
        room.ok(&flow.prompt());
        assert!(room.resident_memory() > start + 100 * MIB);
        room.free(body.clone());
        assert!(room.models().is_empty(), "{body}: {:?}", room.models());
        let end = room.resident_memory();
        // The specification allows 200 MiB on top; the model here has 107.
        assert!(
            end < start + start / 20 + 48 * MIB,
            "{body}: {start} before, {end} after"
        );
        for device in ["cpu", "sim:0", "sim:1"] {
            let device = room.device(device);
            assert_eq!(device["pinned_host"], 0, "{device}");
            assert_eq!(device["weights_resident"], 0, "{device}");
        }
        let events = room.events(0);
        assert_eq!(kind(&events, "cache.reset").len(), 1);
        let run = room.ok(&flow.prompt());
        assert!(run.cached().is_empty(), "{:?}", run.cached());
        room.checked();
    }
}

#[test]
fn f5_nothing_asked_nothing_done() {
    let room = Room::roomy();
    room.ok(&Flow::default().prompt());
    let before = room.now();
    for body in [
        json!({}),
        json!({"unload_models": false}),
        json!({"unknown": 1}),
    ] {
        room.server.post("/free", &body).expect_status(200);
    }
    let events: Vec<Value> = room
        .events(before)
        .into_iter()
        // Of the prompt before, after whose end the program tidies up.
        .filter(|e| e["kind"] != "device.soft_empty")
        .collect();
    assert!(
        events.iter().all(|e| e["kind"] == "free.noop"),
        "{events:?}"
    );
    assert_eq!(events.len(), 3);
    assert_eq!(room.models().len(), 3);
    room.server
        .request("POST", "/free", &[], b"{not json")
        .expect_status(400);
    room.checked();
}

#[test]
fn f6_a_burst_is_one_request() {
    let room = Room::roomy();
    let bodies = vec![json!({"unload_models": true}); 3];
    let run = during(&room, &long().prompt(), &bodies);
    room.end(&run);
    room.wait_event(0, |e| e["kind"] == "free.applied");
    // Another prompt, so that whatever else waited has happened.
    room.ok(&fresco_tests::workflow::smallest(1, "next"));
    let events = room.events(0);
    assert_eq!(kind(&events, "free.applied").len(), 1, "{events:#?}");
    room.checked();
}

#[test]
fn f7_a_failed_prompt_does_not_stop_it() {
    let room = Room::roomy();
    let mut prompt = long().prompt();
    prompt["9"]["inputs"]["filename_prefix"] = json!("../outside");
    let run = during(
        &room,
        &prompt,
        &[json!({"unload_models": true, "free_memory": true})],
    );
    assert_eq!(room.end(&run).failure().0, "SaveImage");
    room.wait_event(0, |e| e["kind"] == "free.applied");
    assert!(room.models().is_empty(), "{:?}", room.models());
    room.checked();
}

#[test]
fn f8_one_device() {
    let room = Room::roomy();
    let mut flow = Flow::default();
    flow.v.device = "sim:1";
    room.ok(&flow.prompt());
    let (unet, clip) = (room.model("diffusion"), room.model("clip"));
    room.free(json!({"devices": ["sim:1"], "unload_models": true}));
    assert_eq!(on(&room.model("vae"), "sim:1"), 0);
    assert_eq!(room.model("diffusion")["residency"], unet["residency"]);
    assert_eq!(room.model("clip")["residency"], clip["residency"]);
    // And one model of those on the other device; a device that is not there is told.
    room.free(json!({"models": [id(&unet)], "unload_models": true}));
    assert_eq!(on(&room.model("diffusion"), "sim:0"), 0);
    assert_eq!(room.model("clip")["residency"], clip["residency"]);
    room.checked();
}

#[test]
fn f9_the_report() {
    let room = Room::roomy();
    room.ok(&Flow::default().prompt());
    let before = room.now();
    let body = json!({"unload_models": true, "dry_run": true});
    let plan = room.server.post("/free", &body).expect_status(200).json();
    assert!(plan.to_string().contains("evict"), "{plan}");
    assert!(on(&room.model("vae"), "sim:0") > 0, "only thought of");
    assert!(kind(&room.events(before), "free.applied").is_empty());

    let report = room.free(json!({"unload_models": true}));
    let models = report["models"].as_array().unwrap();
    assert_eq!(models.len(), 3, "{report}");
    for model in models {
        assert!(model["before"]["sim:0"].as_u64().unwrap() > 0, "{model}");
        assert_eq!(model["after"]["sim:0"].as_u64().unwrap_or(0), 0, "{model}");
        assert!(model["after"]["cpu"].as_u64().unwrap() > 0, "{model}");
    }
    assert!(report["ram_before"].as_u64().is_some(), "{report}");
    assert!(report["ram_after"].as_u64().is_some(), "{report}");
    assert!(
        report.to_string().contains("duration") || report["took"].is_number(),
        "{report}"
    );
    room.checked();
}
