//! Weights that are changed on their way: the acceptance cases L-1 to L-10 of the memory specification, section 7.9, as
//! far as they can be seen from outside.
//!
//! | case | test |
//! |---|---|
//! | L-1 | `crates/models/tests/lora`: `merge::l01_every_kind_gives_the_references_weight`, `formulas::{l01_kinds_by_their_formulas, l01_rotations_by_their_formulas}` |
//! | L-2 | `crates/models/tests/lora`: `formulas::l02_the_order_of_two_changes` |
//! | L-3 | `l03_without_it_the_weights_are_those_of_the_file` |
//! | L-4 | `l04_eight_bits_are_the_same_in_every_process` |
//! | L-5 | `l05_merged_or_at_every_use` |
//! | L-6 | `l06_spellings_of_layers`; every row in `crates/models/tests/lora`: `rows::{l06_rows_of_unets, l06_rows_of_text_encoders, l06_rows_of_text_encoders_to_come}`, |
//! | | `rows::{l06_rows_of_families_to_come, l06_rows_of_flux, l06_rows_of_files_that_are_renamed}`, layer by layer |
//! | | `names::{l06_sd15, l06_sdxl, l06_flux, l06_other_families}` |
//! | L-7 | `l07_there_and_back` |
//! | L-8 | `l08_a_change_that_does_not_fit` |
//! | L-9 | `l09_a_hook_that_begins_half_way` |
//! | L-10 | `l10_an_error_while_loading` |

use std::{collections::BTreeMap, fs, path::Path};

use fresco_tests::{
    Frame,
    memory::{Flow, ROOMY, Room, base, kind, lora, number, of, on, text},
    tiny::{self, Tiny},
};
use serde_json::{Value, json};

/// Bytes by key of a safetensors file.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let end = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    let header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    let entries = header.as_object().unwrap().iter();
    entries
        .filter(|(key, _)| *key != "__metadata__")
        .map(|(key, entry)| {
            let at = |i: usize| end + entry["data_offsets"][i].as_u64().unwrap() as usize;
            // With or without the prefix that whole checkpoints have.
            let key = key.strip_prefix("model.diffusion_model.").unwrap_or(key);
            let key = key.strip_prefix("diffusion_model.").unwrap_or(key);
            (key.to_owned(), bytes[at(0)..at(1)].to_vec())
        })
        .collect()
}

/// The workflow with its model saved instead of used.
fn saving(flow: &Flow, prefix: &str) -> Value {
    let whole = flow.prompt();
    let mut prompt = json!({"1": whole["1"].clone()});
    let from = if whole["20"].is_null() { "1" } else { "20" };
    if from == "20" {
        prompt["20"] = whole["20"].clone();
    }
    prompt["40"] = json!({"class_type": "ModelSave", "inputs":
        {"model": [from, 0], "filename_prefix": prefix}});
    prompt
}

fn saved_file(room: &Room, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let path = room.base.path().join("output");
    tensors(&path.join(format!("{prefix}_00001_.safetensors")))
}

#[test]
fn l03_without_it_the_weights_are_those_of_the_file() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("keep", "keep", "keep");
    let plain = room.pixels(&flow.prompt());
    flow.lora = Some(0.8);
    assert_ne!(room.pixels(&flow.prompt()), plain);
    flow.lora = None;
    assert_eq!(room.pixels(&flow.clone().seed(1).prompt()), plain);
    room.ok(&saving(&flow, "plain"));
    let file = tensors(&room.file("diffusion_models", "u"));
    assert!(
        saved_file(&room, "plain") == file,
        "not the bytes of the file"
    );
    room.checked();
}

#[test]
fn l04_eight_bits_are_the_same_in_every_process() {
    let mut files = Vec::new();
    for _ in 0..2 {
        let room = Room::roomy();
        let mut flow = Flow {
            lora: Some(0.7),
            ..Flow::default()
        };
        flow.u.retention = Some("keep");
        let mut prompt = saving(&flow, "eight");
        prompt["1"]["inputs"]["weight_dtype"] = json!("fp8_e4m3fn");
        room.ok(&prompt);
        files.push(saved_file(&room, "eight"));
        room.checked();
    }
    assert!(files[0] == files[1]);
    let key = "middle_block.1.transformer_blocks.0.attn1.to_q.weight";
    assert_eq!(files[0][key].len(), 128 * 128, "one byte for each number");
}

/// Where no device multiplies fp8, only the way the weights are kept differs: it is a model of its own, with the same picture.
#[test]
fn fast_products_of_fp8_change_nothing_where_there_are_none() {
    let mut flow = Flow::default();
    flow.u.retention = Some("keep");
    let with = |dtype: &str| {
        let mut prompt = flow.prompt();
        prompt["1"]["inputs"]["weight_dtype"] = json!(dtype);
        prompt
    };
    let room = Room::roomy();
    let plain = room.pixels(&with("fp8_e4m3fn"));
    let fast = room.pixels(&with("fp8_e4m3fn_fast"));
    assert_ne!(plain, room.pixels(&with("default")));
    let apart = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(apart(&plain, &fast) <= Some(1));
    let mut arguments = ROOMY.to_vec();
    arguments.extend(["--fast", "fp8_matrix_mult"]);
    let room = Room::with(&arguments);
    assert_eq!(room.pixels(&with("fp8_e4m3fn")), fast);
    room.checked();
}

#[test]
fn l05_merged_or_at_every_use() {
    let mut flow = Flow {
        lora: Some(0.6),
        ..Flow::default()
    };
    flow.u.retention = Some("keep");
    let mut pictures = Vec::new();
    let mut at_use = ROOMY.to_vec();
    at_use.push("--lora-on-the-fly");
    for arguments in [ROOMY, &at_use] {
        let room = Room::with(arguments);
        pictures.push(room.pixels(&flow.prompt()));
        let model = room.model("diffusion");
        let handles = model["handles"].as_array().unwrap();
        let counts: Vec<u64> = handles.iter().map(|h| number(h, "on_the_fly")).collect();
        let most = counts.iter().max().copied().unwrap();
        // Four matrices in each of two attentions of seven transformers.
        assert_eq!(
            most,
            if arguments.len() > ROOMY.len() { 56 } else { 0 },
            "{model}"
        );
        room.checked();
    }
    let largest = pictures[0]
        .iter()
        .zip(&pictures[1])
        .map(|(a, b)| a.abs_diff(*b))
        .max();
    assert!(largest <= Some(1), "{largest:?}");
}

/// Files in the spellings of two trainers, for the same layers with the same numbers.
#[test]
fn l06_spellings_of_layers() {
    let base = base();
    let folder = base.path().join("models/loras");
    let native = lora(&Tiny::default(), "diffusion_model.", "attn");
    let respelled = |rename: &dyn Fn(&str) -> String| -> tiny::Keys {
        native
            .iter()
            .map(|(key, shape)| (rename(key), shape.clone()))
            .collect()
    };
    // `lora_unet_input_blocks_1_1_...` and `lora_A`/`lora_B` in place of down and up.
    let kohya = respelled(&|key| {
        let (layer, part) = key.split_once(".lora_").unwrap();
        let layer = layer.strip_prefix("diffusion_model.").unwrap();
        format!("lora_unet_{}.lora_{part}", layer.replace('.', "_"))
    });
    let peft = respelled(&|key| {
        key.replace("lora_up", "lora_B")
            .replace("lora_down", "lora_A")
    });
    tiny::write(&folder.join("kohya.safetensors"), &kohya).unwrap();
    tiny::write(&folder.join("peft.safetensors"), &peft).unwrap();
    let room = Room::at(base, ROOMY);
    let flow = Flow {
        lora: Some(1.0),
        ..Flow::default()
    };
    for name in ["lora", "kohya", "peft"] {
        let mut prompt = flow.prompt();
        prompt["20"]["inputs"]["lora_name"] = json!(format!("{name}.safetensors"));
        room.ok(&prompt);
    }
    let log = room.server.log();
    assert!(!log.contains("not loaded"), "{log}");
    room.checked();
}

#[test]
fn l07_there_and_back() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("keep", "keep", "keep");
    flow.lora = Some(1.0);
    let first = room.pixels(&flow.prompt());
    let model = room.model("diffusion");
    let weights = text(&model, "weights_id").to_owned();
    flow.lora = Some(0.5);
    assert_ne!(room.pixels(&flow.prompt()), first);
    let before = room.now();
    flow.lora = Some(1.0);
    // Another seed first, so that the picture is made and not remembered.
    room.ok(&flow.clone().seed(2).prompt());
    assert_eq!(room.pixels(&flow.clone().seed(1).prompt()), first);
    let after = room.model("diffusion");
    assert_eq!(after["read_bytes"], model["read_bytes"]);
    assert!(on(&after, "sim:0") >= on(&model, "sim:0") / 2, "{after}");
    // What came to the device for this handle is at most what the LoRA changes.
    let patched: u64 = lora_bytes();
    for event in of(&room.events(before), "model.loaded", &weights) {
        let grown = event["bytes_after"]
            .as_u64()
            .unwrap_or(0)
            .saturating_sub(event["bytes_before"].as_u64().unwrap_or(0));
        assert!(
            grown <= patched,
            "{event} for {patched} bytes of changed layers"
        );
    }
    room.checked();
}

/// Bytes of the layers that the LoRA changes, biases included.
fn lora_bytes() -> u64 {
    let unet = Tiny::default().unet();
    let changed = lora(&Tiny::default(), "", "attn");
    let mut bytes = 0;
    for (key, shape) in &unet {
        let layer = key.trim_end_matches(".weight").trim_end_matches(".bias");
        if changed.contains_key(&format!("{layer}.lora_up.weight")) {
            bytes += shape.iter().product::<usize>() as u64 * 4;
        }
    }
    bytes
}

#[test]
fn l08_a_change_that_does_not_fit() {
    let base = base();
    let key = "middle_block.1.transformer_blocks.0.attn1.to_q";
    let mut keys = lora(&Tiny::default(), "diffusion_model.", "attn");
    keys.insert(
        format!("diffusion_model.{key}.lora_up.weight"),
        vec![130, 2],
    );
    tiny::write(&base.path().join("models/loras/odd.safetensors"), &keys).unwrap();
    let room = Room::at(base, ROOMY);
    let flow = Flow {
        lora: Some(1.0),
        ..Flow::default()
    };
    let mut prompt = flow.prompt();
    let fitting = room.pixels(&prompt);
    prompt["20"]["inputs"]["lora_name"] = json!("odd.safetensors");
    assert_ne!(room.pixels(&prompt), fitting);
    let log = room.server.log();
    let line = log.lines().find(|line| line.contains(key));
    let line = line.unwrap_or_else(|| panic!("no warning of {key} in {log}"));
    assert!(line.contains("130") && line.contains("128"), "{line}");
    room.checked();
}

/// Neither of other names nor of other sizes: the node says so to its client, and the history keeps it, also for a run
/// whose nodes were all cached.
#[test]
fn a_lora_that_fits_no_layer_says_so_at_its_node() {
    let base = base();
    let folder = base.path().join("models/loras");
    let fitting = lora(&Tiny::default(), "diffusion_model.", "attn");
    let other = |shape: &[usize]| shape.iter().map(|n| n + 3).collect::<Vec<_>>();
    let sizes: tiny::Keys = fitting
        .iter()
        .map(|(key, shape)| (key.clone(), other(shape)))
        .collect();
    let names: tiny::Keys = fitting
        .iter()
        .map(|(key, shape)| (key.replace("diffusion_model.", "elsewhere."), shape.clone()))
        .collect();
    tiny::write(&folder.join("sizes.safetensors"), &sizes).unwrap();
    tiny::write(&folder.join("names.safetensors"), &names).unwrap();
    let room = Room::at(base, ROOMY);
    let flow = Flow {
        lora: Some(1.0),
        ..Flow::default()
    };
    let mut prompt = flow.prompt();
    assert_eq!(room.ok(&prompt).history["outputs"]["20"], Value::Null);
    for name in ["sizes", "names"] {
        prompt["20"]["inputs"]["lora_name"] = json!(format!("{name}.safetensors"));
        let mut socket = room.server.socket("looker");
        for _ in 0..2 {
            let run = room.ok(&prompt);
            let told = &run.history["outputs"]["20"]["warnings"];
            let text = told[0].as_str().unwrap_or_default();
            let start = format!("The LoRA {name}.safetensors changes nothing: ");
            assert!(text.starts_with(&start), "{}", run.history["outputs"]);
        }
        // Text for a node is frame 3; the editor shows it there.
        let text = loop {
            match socket.frame() {
                Frame::Binary(bytes) if bytes[3] == 3 => break bytes[8..].to_vec(),
                Frame::Closed => panic!("no text for the node"),
                Frame::Binary(_) | Frame::Text(..) => {}
            }
        };
        let text = String::from_utf8_lossy(&text);
        assert!(text.starts_with("20The LoRA"), "{text}");
    }
    room.checked();
}

/// Nothing until half of the sampling is done, then all of it: the weights change once.
#[test]
fn l09_a_hook_that_begins_half_way() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("keep", "keep", "keep");
    flow.steps = 6;
    let plain = room.pixels(&flow.prompt());
    let hooked = |from: f64| {
        let mut prompt = flow.prompt();
        prompt["30"] = json!({"class_type": "CreateHookLoraModelOnly", "inputs": {
            "lora_name": "lora.safetensors", "strength_model": 0.8}});
        prompt["31"] = json!({"class_type": "CreateHookKeyframe", "inputs": {
            "strength_mult": 0.0, "start_percent": 0.0}});
        prompt["32"] = json!({"class_type": "CreateHookKeyframe", "inputs": {
            "strength_mult": 1.0, "start_percent": from, "prev_hook_kf": ["31", 0]}});
        prompt["33"] = json!({"class_type": "SetHookKeyframes", "inputs": {
            "hooks": ["30", 0], "hook_kf": ["32", 0]}});
        prompt["34"] = json!({"class_type": "SetClipHooks", "inputs": {
            "clip": ["2", 0], "apply_to_conds": true, "schedule_clip": false, "hooks": ["33", 0]}});
        prompt["5"]["inputs"]["clip"] = json!(["34", 0]);
        prompt["6"]["inputs"]["clip"] = json!(["34", 0]);
        prompt
    };
    let before = room.now();
    let half = room.pixels(&hooked(0.5));
    assert_ne!(half, plain);
    // The weights of the file for the first half, one variant for the second: they change once in six steps.
    let events = room.events(before);
    let mut variants: Vec<&str> = kind(&events, "model.loaded")
        .into_iter()
        .filter(|e| e["class"] == "SdModel")
        .map(|e| text(e, "model_id"))
        .collect();
    variants.dedup();
    assert_eq!(variants.len(), 1, "{events:#?}");
    let mut other = hooked(0.1);
    other["7"]["inputs"]["seed"] = json!(1);
    assert_ne!(room.pixels(&other), half);
    // Nothing of the hook is left: what it changed is the file's again.
    let model = room.model("diffusion");
    let there = on(&model, "sim:0") + number(&model, "host_bytes");
    assert_eq!(there, number(&model, "bytes_total"), "{model}");
    room.checked();
}

/// A file that is cut off between its loader and the first use of its weights: nothing of the half-loaded model stays, and
/// a whole file works again.
#[test]
fn l10_an_error_while_loading() {
    let base = base();
    let path = base
        .path()
        .join("models/diffusion_models/second.safetensors");
    let whole = fs::read(base.path().join("models/diffusion_models/u.safetensors")).unwrap();
    fs::write(&path, &whole).unwrap();
    let room = Room::at(base, ROOMY);
    let flow = Flow::retaining("keep", "keep", "keep");
    // The first sampler takes its steps from the second model, so that this one's loader has run before.
    let mut prompt = flow.prompt();
    let mut second = flow.clone();
    second.u.file = "second";
    prompt["10"] = second.prompt()["1"].clone();
    prompt["20"] = json!({"class_type": "LoraLoaderModelOnly", "inputs": {
        "model": ["10", 0], "lora_name": "lora.safetensors", "strength_model": 0.5}});
    prompt["30"] = json!({"class_type": "BasicScheduler", "inputs": {
        "model": ["20", 0], "scheduler": "normal", "steps": 30, "denoise": 1.0}});
    prompt["31"] = json!({"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}});
    prompt["32"] = json!({"class_type": "SamplerCustom", "inputs": {
        "model": ["1", 0], "add_noise": true, "noise_seed": 3, "cfg": 5.0, "positive": ["5", 0],
        "negative": ["6", 0], "sampler": ["31", 0], "sigmas": ["30", 0], "latent_image": ["4", 0]}});
    prompt["7"]["inputs"]["model"] = json!(["20", 0]);
    prompt["7"]["inputs"]["latent_image"] = json!(["32", 0]);

    let mut socket = room.server.socket("watcher");
    let id = room.server.queue(&prompt, Some("watcher"));
    loop {
        let Frame::Text(message, _) = socket.frame() else {
            continue;
        };
        if message["type"] == "progress" && message["data"]["value"] == 1 {
            break;
        }
    }
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let (node, message) = room.end(&id).failure();
    assert_eq!(node, "KSampler");
    assert!(message.contains("second.safetensors"), "{message}");
    assert!(message.contains("changed on disk"), "{message}");
    for model in room.models() {
        if text(&model, "weights_id").starts_with("second") {
            assert_eq!(on(&model, "sim:0"), 0, "{model}");
        }
    }
    room.checked();
    // The next prompt looks at the file, and says what is wrong with it now.
    let (_, message) = room.run(&prompt).failure();
    assert!(message.contains("second.safetensors"), "{message}");
    room.checked();
    fs::write(&path, &whole).unwrap();
    room.ok(&prompt);
    assert!(kind(&room.events(0), "accounting.drift").is_empty());
    room.checked();
}
