//! Models on the devices that were named: the acceptance cases M-1 to M-14 of the memory specification, section 6.12.
//! `sim:0` and `sim:1` stand for `cuda:0` and `cuda:1`.
//!
//! | case | test |
//! |---|---|
//! | M-1 | `m01_blocks_by_the_table` |
//! | M-2 | `m02_expert_texts`, and in the answer to a prompt `m02_wrong_texts_are_refused` |
//! | M-3 | `m03_a_text_encoder_in_main_memory_computes_on_the_device` |
//! | M-4 | `m04_no_plan_without_a_wish` |
//! | M-5, M-11 | `m05_m11_the_same_picture_wherever_the_weights_are` |
//! | M-6 | `m06_another_strength_changes_only_what_it_changes` |
//! | M-7 | `m07_more_virtual_memory_moves_the_difference` |
//! | M-8 | `m08_loading_stays_within_the_quota` |
//! | M-9 | `m09_two_shards_share_a_donor` |
//! | M-10 | `m10_the_second_device_alone` |
//! | M-12 | `m12_more_than_the_main_memory`; two models that only fit one by one: `crates/memory/tests/registry`: |
//! | | `time::m12_what_main_memory_cannot_hold_is_refused_before_reading` |
//! | M-13 | `m13_the_list_of_devices` |
//! | M-14 | `m14_blocks_on_a_swap_device` |

use fresco_tests::{
    memory::{Flow, MIB, ROOMY, Room, id, kind, number, on, text},
    tiny::{self, Tiny},
};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

/// Ten layers of 1 GiB, and devices of 24, 12 and 64.
fn ten(settings: Value) -> Value {
    let units: Vec<Value> = (0..10)
        .map(|n| json!({"name": n.to_string(), "bytes": GIB}))
        .collect();
    let mut body = json!({
        "units": units,
        "devices": [{"device": "cpu", "total": 64 * GIB}, {"device": "cuda:0", "total": 24 * GIB},
            {"device": "cuda:1", "total": 12 * GIB}],
        "compute_device": "cuda:0",
    });
    for (key, value) in settings.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Layers by device, the highest number first, as in `cuda:0 9876 | cpu 543210`; orphans in brackets at the end.
#[track_caller]
fn layout(room: &Room, settings: Value) -> String {
    let plan = room
        .server
        .post("/memory/plan", &ten(settings))
        .expect_status(200)
        .json();
    let mut text = Vec::new();
    for device in ["cuda:0", "cuda:1", "cpu"] {
        let mut here: Vec<String> = plan["units"]
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, at)| **at == device)
            .map(|(name, _)| name.clone())
            .collect();
        here.sort();
        here.reverse();
        if !here.is_empty() {
            text.push(format!("{device} {}", here.concat()));
        }
    }
    for orphan in plan["orphans"].as_array().unwrap() {
        text.push(format!("orphan {}", orphan.as_str().unwrap()));
    }
    text.join(" | ")
}

#[test]
fn m01_blocks_by_the_table() {
    let room = Room::roomy();
    for (settings, expected) in [
        (
            json!({"virtual_vram_gb": 4, "donor_device": "cpu"}),
            "cuda:0 987654 | cpu 3210",
        ),
        (
            json!({"virtual_vram_gb": 4, "donor_device": "cuda:1"}),
            "cuda:0 987654 | cuda:1 3210",
        ),
        (
            json!({"expert_mode_allocations": "cuda:0,2.5gb;cuda:1,3gb;cpu,*"}),
            "cuda:0 98 | cuda:1 765 | cpu 43210 | orphan 0",
        ),
        (
            json!({"expert_mode_allocations": "cuda:0,25%;cpu,75%"}),
            "cuda:0 98 | cpu 76543210 | orphan 0",
        ),
        (
            json!({"expert_mode_allocations": "cuda:0,0.1;cpu,0.5"}),
            "cuda:0 98 | cpu 76543210",
        ),
    ] {
        assert_eq!(layout(&room, settings.clone()), expected, "{settings}");
    }
    assert!(room.models().is_empty(), "only thought of");
    room.checked();
}

/// Every row of the specification's table of texts, by its plan: bytes by device in GiB, warnings, or the code of the
/// refusal.
#[test]
fn m02_expert_texts() {
    let room = Room::roomy();
    let plan = |text: &str, extra: &[&str]| {
        let mut body = ten(json!({"expert_mode_allocations": text}));
        for device in extra {
            let devices = body["devices"].as_array_mut().unwrap();
            devices.push(json!({"device": device, "total": 16 * GIB}));
        }
        room.server.post("/memory/plan", &body)
    };
    let places = |text: &str, extra: &[&str]| {
        let plan = plan(text, extra).expect_status(200).json();
        let places = plan["places"].as_object().unwrap();
        let mut places: Vec<String> = places
            .iter()
            .filter(|(_, bytes)| bytes.as_u64() != Some(0))
            .map(|(device, bytes)| format!("{device} {}", bytes.as_u64().unwrap() / GIB))
            .collect();
        places.sort();
        (places.join(", "), plan["warnings"].to_string())
    };
    for (text, expected, warning) in [
        ("cuda:0,2.5gb;cpu,*", "cpu 8, cuda:0 2", ""),
        (
            "cuda:0,500mb;cuda:1,3.0g;cpu,5gb*",
            "cpu 7, cuda:1 3",
            "wildcard_amount_ignored",
        ),
        ("cuda:0,25%;cpu,75%", "cpu 8, cuda:0 2", ""),
        (
            "cuda:0,8%;cuda:1,8%;cpu,4%",
            "cpu 2, cuda:0 4, cuda:1 4",
            "",
        ),
        ("cuda:0,0.1;cpu,0.5", "cpu 8, cuda:0 2", ""),
        ("cuda:0,50%;cpu,*", "cpu 5, cuda:0 5", ""),
        ("mps,0.25;cpu,0.5", "cpu 6, mps 4", ""),
        (
            "cuda:0,0.1; cuda:1,0.5;cpu,0.5",
            "cpu 2, cuda:0 2, cuda:1 6",
            "",
        ),
        ("cuda:0,.5g;cuda:1,4 GiB;cpu,*", "cpu 6, cuda:1 4", ""),
        (
            "cuda:0,0.1;cuda:1,0.1",
            "cpu 7, cuda:0 2, cuda:1 1",
            "underallocated",
        ),
        ("cuda:0,2g;", "cpu 8, cuda:0 2", ""),
    ] {
        let (found, warnings) = places(text, &["mps", "mlu:0", "directml:0"]);
        assert_eq!(found, expected, "{text}");
        assert!(warnings.contains(warning), "{text}: {warnings}");
    }
    for (text, code) in [
        ("cuda:7,1g", "unknown_device"),
        ("gpu,1g", "unknown_device"),
        ("cuda:0,-1g", "bad_amount"),
        ("cuda:0,xg", "bad_amount"),
        ("cuda:0,1e3m", "bad_amount"),
        ("cuda:0,0%;cpu,0%", "zero_ratio"),
        ("cuda:0,0.5,0.2", "bad_item"),
        ("cuda:0,2g;cpu,50%", "mixed_modes"),
        ("cuda:0,1g;cuda:0,2g", "duplicate_device"),
    ] {
        let answer = plan(text, &[]).expect_status(400).text();
        assert!(answer.contains(code), "{text}: {answer}");
    }
    room.checked();
}

/// The same in the answer to a prompt: as a wrong input of that node, all problems at once, before anything runs.
#[test]
fn m02_wrong_texts_are_refused() {
    let room = Room::roomy();
    for (text, codes) in [
        ("sim:7,1g", vec!["unknown_device", "sim:0"]),
        ("sim:0,-1g", vec!["bad_amount"]),
        ("sim:0,1e3m", vec!["bad_amount"]),
        ("sim:0,0%;cpu,0%", vec!["zero_ratio"]),
        ("sim:0,0.5,0.2", vec!["bad_item"]),
        ("sim:0,2g;cpu,50%", vec!["mixed_modes"]),
        ("sim:0,1g;sim:0,2g", vec!["duplicate_device"]),
        ("gpu,1g;sim:0,xg", vec!["unknown_device", "bad_amount"]),
    ] {
        let mut flow = Flow::default();
        flow.u.expert = text.to_owned();
        let body = json!({"prompt": flow.prompt()});
        let answer = room.server.post("/prompt", &body).expect_status(400).json();
        let errors = &answer["node_errors"]["1"]["errors"];
        for code in codes {
            assert!(errors.to_string().contains(code), "{text}: {answer}");
        }
        assert_eq!(
            errors[0]["extra_info"]["input_name"], "expert_mode_allocations",
            "{errors}"
        );
    }
    assert!(room.events(0).is_empty());
    room.checked();
}

/// One model's layers: (name, device) in order.
#[track_caller]
fn units(room: &Room, model: &Value) -> Vec<(String, String)> {
    let detail = room.about("GET", id(model), "", &Value::Null);
    let detail = detail.expect_status(200).json();
    let units = detail["units"].as_array().unwrap();
    units
        .iter()
        .map(|u| (text(u, "name").to_owned(), text(u, "device").to_owned()))
        .collect()
}

#[test]
fn m03_a_text_encoder_in_main_memory_computes_on_the_device() {
    let room = Room::roomy();
    let plain = room.pixels(&Flow::default().prompt());
    room.free(json!({"free_memory": true}));
    let mut flow = Flow::default();
    flow.c.virtual_gb = 99.0;
    assert_eq!(room.pixels(&flow.prompt()), plain);
    let clip = room.model("clip");
    assert_eq!(clip["handles"][0]["compute_device"], "sim:0", "{clip}");
    let (mut here, mut there) = (0, 0);
    for (name, device) in units(&room, &clip) {
        if name.contains("embedding") {
            assert_eq!(device, "sim:0", "{name}");
            here += 1;
        } else if name.contains("_proj") || name.contains("mlp") {
            assert_eq!(device, "cpu", "{name}");
            there += 1;
        }
    }
    assert_eq!((here, there), (2, 12));
    room.checked();
}

#[test]
fn m04_no_plan_without_a_wish() {
    let room = Room::roomy();
    room.ok(&Flow::default().prompt());
    for model in room.models() {
        assert!(model["handles"][0]["placement"].is_null(), "{model}");
        assert_eq!(on(&model, "sim:0"), number(&model, "bytes_total"));
    }
    let mut flow = Flow::default();
    flow.u.virtual_gb = 0.005;
    room.ok(&flow.prompt());
    let unet = room.model("diffusion");
    let shown = text(&unet["handles"][0], "placement");
    assert!(shown.ends_with("#sim:0;0.005;cpu"), "{shown}");
    room.checked();
}

/// Weights here, there and everywhere; with and without a way between devices; the same pixels.
#[test]
fn m05_m11_the_same_picture_wherever_the_weights_are() {
    let mut no_peer = ROOMY.to_vec();
    no_peer.push("--sim-no-peer");
    let expected = Room::with(&[]);
    let mut on_cpu = Flow::default();
    for part in [&mut on_cpu.u, &mut on_cpu.c, &mut on_cpu.v] {
        part.device = "cpu";
    }
    let pixels = expected.pixels(&on_cpu.prompt());
    for arguments in [ROOMY, &no_peer] {
        let room = Room::with(arguments);
        let mut flows = vec![Flow::default()];
        for (virtual_gb, donor, expert) in [
            (0.005, "cpu", ""),
            (0.005, "sim:1", ""),
            (99.0, "sim:1", ""),
            (0.0, "cpu", "sim:0,2mb;sim:1,3mb;cpu,*"),
            (0.0, "cpu", "sim:0,10%;sim:1,90%"),
        ] {
            let mut flow = Flow::default();
            for part in [&mut flow.u, &mut flow.v, &mut flow.c] {
                part.virtual_gb = virtual_gb;
                part.donor = donor;
                part.expert = expert.to_owned();
            }
            flows.push(flow);
        }
        for flow in flows {
            assert_eq!(
                room.pixels(&flow.prompt()),
                pixels,
                "{:?} {arguments:?}",
                flow.u
            );
        }
        assert!(on(&room.model("diffusion"), "sim:1") > 10 * MIB);
        room.checked();
    }
}

#[test]
fn m06_another_strength_changes_only_what_it_changes() {
    let room = Room::roomy();
    let mut flow = Flow::default();
    flow.u.virtual_gb = 0.005;
    flow.u.donor = "sim:1";
    flow.lora = Some(1.0);
    let first = room.pixels(&flow.prompt());
    let model = room.model("diffusion");
    let before = room.now();
    flow.lora = Some(0.5);
    assert_ne!(room.pixels(&flow.prompt()), first);
    let after = room.model("diffusion");
    assert_eq!(after["read_bytes"], model["read_bytes"]);
    let events = room.events(before);
    // What comes to devices is at most what the LoRA changes: all attention matrices.
    for event in kind(&events, "model.loaded") {
        let moved = number(&event["numbers"], "moved");
        assert!(moved <= 2 * MIB, "{event}");
    }
    for away in [
        "model.evicted",
        "model.released",
        "model.shrunk",
        "model.rehydrated",
    ] {
        let about: Vec<_> = kind(&events, away)
            .into_iter()
            .filter(|e| e["weights_id"] == model["weights_id"] && e["model_id"].is_null())
            .collect();
        assert!(about.is_empty(), "{away}: {about:?}");
    }
    room.checked();
}

#[test]
fn m07_more_virtual_memory_moves_the_difference() {
    let room = Room::roomy();
    let mut flow = Flow::default();
    flow.u.virtual_gb = 0.004;
    flow.u.donor = "sim:1";
    room.ok(&flow.prompt());
    let first = room.model("diffusion");
    let moved = 0.004 * GIB as f64;
    let shard = on(&first, "sim:1") as f64;
    assert!(shard <= moved && shard > moved * 0.7, "{first}");
    flow.u.virtual_gb = 0.008;
    room.ok(&flow.seed(2).prompt());
    let second = room.model("diffusion");
    assert_eq!(id(&second), id(&first));
    assert_eq!(second["read_bytes"], first["read_bytes"]);
    let more = on(&second, "sim:1") - on(&first, "sim:1");
    assert_eq!(
        on(&first, "sim:0") - on(&second, "sim:0"),
        more,
        "from one to the other"
    );
    assert!(more > 3 * MIB, "{second}");
    room.checked();
}

/// A model of 107 MiB on a device of 40: never more there than its quota, one layer and what computing takes.
#[test]
fn m08_loading_stays_within_the_quota() {
    let room = Room::small("40MiB");
    let mut flow = Flow::default();
    flow.u.file = "large";
    flow.c.device = "cpu";
    flow.v.device = "cpu";
    flow.u.virtual_gb = 0.1;
    let pixels = room.pixels(&flow.prompt());
    let unet = room.model("diffusion");
    let quota = number(&unet, "bytes_total") - (0.1 * GIB as f64) as u64;
    // Layers below a ten-thousandth of the model are not worth a journey.
    assert!(on(&unet, "sim:0") <= quota + MIB, "{unet}");
    let peak = number(&room.device("sim:0"), "peak");
    // The largest layer has 10.2 MiB; at 64 x 64 the feature maps are small.
    assert!(
        peak < quota + 3 * 11 * MIB,
        "{peak} with a quota of {quota}"
    );
    let free = Room::roomy();
    flow.u.virtual_gb = 0.0;
    assert_eq!(free.pixels(&flow.prompt()), pixels);
    room.checked();
}

#[test]
fn m09_two_shards_share_a_donor() {
    let folder = fresco_tests::memory::base();
    fresco_tests::memory::add(folder.path(), "diffusion_models", "u", "second");
    let room = Room::at(folder, ROOMY);
    let mut flow = Flow::default();
    flow.u.retention = Some("keep");
    flow.u.virtual_gb = 0.005;
    flow.u.donor = "sim:1";
    let mut other = flow.clone();
    other.u.file = "second";
    for seed in 0..3 {
        room.ok(&flow.clone().seed(seed).prompt());
        room.ok(&other.clone().seed(seed).prompt());
    }
    let shards: Vec<u64> = room
        .models()
        .iter()
        .filter(|m| m["component"] == "diffusion")
        .map(|m| on(m, "sim:1"))
        .collect();
    assert_eq!(shards.len(), 2, "{shards:?}");
    assert!(shards.iter().all(|bytes| *bytes > 3 * MIB), "{shards:?}");
    let events = room.events(0);
    assert!(kind(&events, "model.evicted").is_empty(), "{events:?}");
    room.checked();
}

#[test]
fn m10_the_second_device_alone() {
    let room = Room::roomy();
    let mut flow = Flow::default();
    let first = room.pixels(&flow.prompt());
    room.free(json!({"free_memory": true}));
    for part in [&mut flow.u, &mut flow.c, &mut flow.v] {
        part.device = "sim:1";
    }
    assert_eq!(room.pixels(&flow.prompt()), first);
    assert_eq!(room.device("sim:0")["weights_resident"], 0);
    assert_eq!(room.models().len(), 3);
    for model in room.models() {
        assert_eq!(on(&model, "sim:1"), number(&model, "bytes_total"));
    }
    // Plain loaders afterwards compute where they always do.
    let mut plain = Flow::default();
    for part in [&mut plain.u, &mut plain.c, &mut plain.v] {
        part.plain = true;
    }
    assert_eq!(room.pixels(&plain.clone().prompt()), first);
    assert_eq!(room.device("sim:1")["weights_resident"], 0);
    for model in room.models() {
        assert_eq!(
            on(&model, "sim:0"),
            number(&model, "bytes_total"),
            "{model}"
        );
        assert_eq!(model["handles"][0]["compute_device"], "sim:0", "{model}");
    }
    room.checked();
}

/// A file that says it has 800 GiB, most of it a hole on the disk: refused with numbers, not read until the system ends the
/// program.
#[test]
fn m12_more_than_the_main_memory() {
    let folder = fresco_tests::memory::base();
    let path = folder
        .path()
        .join("models/diffusion_models/huge.safetensors");
    let huge = Tiny {
        channels: 8192,
        ..Tiny::default()
    };
    tiny::write_hollow(&path, &huge.unet(), tiny::F32).unwrap();
    let room = Room::at(folder, ROOMY);
    let mut flow = Flow::default();
    flow.u.file = "huge";
    for device in ["cpu", "sim:0"] {
        flow.u.device = device;
        let (_, message) = room.run(&flow.prompt()).failure();
        assert!(message.contains("memory"), "{message}");
        assert!(
            message.contains("GiB") || message.contains("bytes"),
            "{message}"
        );
        room.checked();
    }
    room.ok(&Flow::default().prompt());
    room.checked();
}

#[test]
fn m14_blocks_on_a_swap_device() {
    let room = Room::roomy();
    let mut flow = Flow::default();
    let first = room.pixels(&flow.prompt());
    flow.seed = 1;
    let mut prompt = flow.prompt();
    prompt["25"] = json!({"class_type": "FrescoBlockSwap", "inputs": {
        "model": ["1", 0], "blocks_to_swap": 40, "swap_device": "sim:1", "prefetch_blocks": 2}});
    prompt["7"]["inputs"]["model"] = json!(["25", 0]);
    assert_eq!(room.pixels(&prompt), first);
    let unet = room.model("diffusion");
    assert_eq!(unet["host_bytes"], 0, "{unet}");
    for (name, device) in units(&room, &unet) {
        let block = name.contains("_blocks.") || name.contains("middle_block.");
        assert_eq!(device, if block { "sim:1" } else { "sim:0" }, "{name}");
    }
    // Only the last ones.
    prompt["25"]["inputs"]["blocks_to_swap"] = json!(2);
    assert_eq!(room.pixels(&prompt), first);
    for (name, device) in units(&room, &room.model("diffusion")) {
        let last = name.starts_with("output_blocks.4.") || name.starts_with("output_blocks.5.");
        assert_eq!(device, if last { "sim:1" } else { "sim:0" }, "{name}");
    }
    room.checked();
}

#[test]
fn m13_the_list_of_devices() {
    let room = Room::with(&[
        "--sim-device",
        "sim:1=64MiB",
        "--sim-device",
        "sim:10=64MiB",
        "--sim-device",
        "sim:2=64MiB",
    ]);
    let expected = json!(["cpu", "sim:1", "sim:2", "sim:10"]);
    let info = room.get("/object_info");
    for (node, input, default) in [
        ("DeviceSelectorMultiGPU", "device", "sim:1"),
        ("CheckpointLoaderSimpleMultiGPU", "device", "sim:1"),
        ("CLIPLoaderMultiGPU", "device", "sim:1"),
        ("UNETLoaderDisTorch2MultiGPU", "compute_device", "sim:1"),
        ("UNETLoaderDisTorch2MultiGPU", "donor_device", "cpu"),
        ("CLIPLoaderDisTorch2MultiGPU", "device", "sim:1"),
        ("VAELoaderDisTorch2MultiGPU", "compute_device", "sim:1"),
        (
            "CheckpointLoaderAdvancedDisTorch2MultiGPU",
            "clip_compute_device",
            "cpu",
        ),
    ] {
        let inputs = &info[node]["input"];
        let spec = ["required", "optional"]
            .into_iter()
            .map(|group| &inputs[group][input])
            .find(|spec| !spec.is_null())
            .unwrap_or_else(|| panic!("{node} has no {input}: {inputs}"));
        assert_eq!(spec[0], expected, "{node} {input}");
        assert_eq!(spec[1]["default"], default, "{node} {input}");
    }
    let names: Vec<Value> = room
        .get("/memory/devices")
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["device"].clone())
        .collect();
    assert_eq!(Value::from(names), expected);
    room.checked();
}
