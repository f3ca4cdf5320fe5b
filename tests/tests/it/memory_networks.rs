//! Every kind of network in a prompt at once, on devices of several sizes: the same picture, and nothing left behind.

use fresco_tests::{
    memory::{Flow, Room, base, id, kind, number},
    tiny::{self, Tiny},
    workflow::{TextToImage, text_to_image},
};
use serde_json::{Value, json};
use tempfile::TempDir;

fn with_control() -> TempDir {
    let base = base();
    let folder = base.path().join("models/controlnet");
    std::fs::create_dir_all(&folder).unwrap();
    tiny::write(
        &folder.join("control.safetensors"),
        &Tiny::default().control(),
    )
    .unwrap();
    base
}

/// A merged model with a LoRA, a control net on the prompt, and a scheduled LoRA on the negative one.
fn everything() -> Value {
    let mut prompt = text_to_image(&TextToImage {
        steps: 2,
        ..TextToImage::default()
    });
    let nodes = json!({
        "20": {"class_type": "LoraLoaderModelOnly", "inputs": {
            "model": ["4", 0], "lora_name": "lora.safetensors", "strength_model": 0.7}},
        "21": {"class_type": "ModelMergeSimple", "inputs": {
            "model1": ["20", 0], "model2": ["4", 0], "ratio": 0.4}},
        "30": {"class_type": "ControlNetLoader", "inputs": {"control_net_name": "control.safetensors"}},
        "31": {"class_type": "EmptyImage", "inputs": {
            "width": 64, "height": 64, "batch_size": 1, "color": 8_421_504}},
        "32": {"class_type": "ControlNetApply", "inputs": {
            "conditioning": ["6", 0], "control_net": ["30", 0], "image": ["31", 0], "strength": 0.8}},
        "40": {"class_type": "CreateHookLoraModelOnly", "inputs": {
            "lora_name": "lora.safetensors", "strength_model": -0.5}},
        "41": {"class_type": "CreateHookKeyframe", "inputs": {"strength_mult": 0.0, "start_percent": 0.0}},
        "42": {"class_type": "CreateHookKeyframe", "inputs": {
            "strength_mult": 1.0, "start_percent": 0.5, "prev_hook_kf": ["41", 0]}},
        "43": {"class_type": "SetHookKeyframes", "inputs": {"hooks": ["40", 0], "hook_kf": ["42", 0]}},
        "44": {"class_type": "ConditioningSetProperties", "inputs": {
            "cond_NEW": ["7", 0], "strength": 1.0, "set_cond_area": "default", "hooks": ["43", 0]}},
    });
    let all = prompt.as_object_mut().unwrap();
    all.extend(nodes.as_object().unwrap().clone());
    let sampler = &mut all["3"]["inputs"];
    sampler["model"] = json!(["21", 0]);
    sampler["positive"] = json!(["32", 0]);
    sampler["negative"] = json!(["44", 0]);
    prompt
}

#[test]
fn every_network_streams_and_leaves_nothing_behind() {
    let alone = Room::at(with_control(), &["--cpu"]);
    let expected = alone.pixels(&everything());
    alone.checked();
    drop(alone);
    for size in ["512MiB", "24MiB"] {
        let device = format!("sim:0={size}");
        let flags = [
            "--sim-device",
            &device,
            "--reserve-vram",
            "0",
            "--inference-reserve",
            "0.004",
        ];
        let room = Room::at(with_control(), &flags);
        assert_eq!(room.pixels(&everything()), expected, "on {size}");
        room.checked();
        let sim = room.device("sim:0");
        let used = number(&sim, "total") - number(&sim, "free");
        assert_eq!(used, number(&sim, "weights_resident"), "{sim}");
        let loads = kind(&room.events(0), "model.loaded").len();
        assert!(loads >= 4, "only {loads} loads on {size}");
        // The second time with another seed: the same again, and no file is read.
        let mut prompt = everything();
        prompt["3"]["inputs"]["seed"] = json!(2);
        let before: u64 = room.models().iter().map(|m| number(m, "read_bytes")).sum();
        room.ok(&prompt);
        let after: u64 = room.models().iter().map(|m| number(m, "read_bytes")).sum();
        assert_eq!(before, after, "on {size}");
        room.checked();
    }
}

/// One file and one LoRA through two loaders that want them in different places: each has its own changed layers.
#[test]
fn equal_loras_of_two_loaders_are_counted_once_each() {
    let room = Room::roomy();
    let mut prompt = text_to_image(&TextToImage {
        checkpoint: "model.safetensors",
        ..TextToImage::default()
    });
    let loader = |device: &str, retention: &str| {
        json!({"class_type": "CheckpointLoaderSimpleDisTorch2MultiGPU", "inputs": {
            "ckpt_name": "model.safetensors", "compute_device": device, "virtual_vram_gb": 0.0,
            "donor_device": "cpu", "expert_mode_allocations": "", "eject_models": false,
            "retention": retention}})
    };
    prompt["4"] = loader("sim:0", "keep");
    prompt["14"] = loader("sim:1", "auto");
    let mut other = prompt["3"].clone();
    for (node, loader) in [("20", "4"), ("21", "14")] {
        prompt[node] = json!({"class_type": "LoraLoader", "inputs": {
            "model": [loader, 0], "clip": [loader, 1], "lora_name": "lora.safetensors",
            "strength_model": 0.7, "strength_clip": 0.7}});
    }
    prompt["3"]["inputs"]["model"] = json!(["20", 0]);
    other["inputs"]["model"] = json!(["21", 0]);
    prompt["13"] = other;
    prompt["18"] =
        json!({"class_type": "VAEDecode", "inputs": {"samples": ["13", 0], "vae": ["14", 2]}});
    prompt["19"] = json!({"class_type": "SaveImage", "inputs": {
        "images": ["18", 0], "filename_prefix": "second"}});
    let run = room.ok(&prompt);
    assert_eq!(room.saved(&run, "9"), room.saved(&run, "19"));
    room.checked();
    let diffusion = room.model("diffusion");
    assert_eq!(diffusion["effective_policy"], "keep", "{diffusion}");
    assert_eq!(
        diffusion["handles"].as_array().unwrap().len(),
        4,
        "{diffusion}"
    );
}

/// Equal patches of two loaders are one set of layers under two networks: asked to go, they go, whoever made them.
#[test]
fn equal_loras_of_equal_loaders_go_at_once() {
    let room = Room::roomy();
    let flow = Flow {
        lora: Some(0.7),
        ..Flow::default()
    };
    let mut prompt = flow.prompt();
    prompt["11"] = prompt["1"].clone();
    prompt["11"]["inputs"]["eject_models"] = json!(true);
    prompt["21"] = prompt["20"].clone();
    prompt["21"]["inputs"]["model"] = json!(["11", 0]);
    prompt["17"] = prompt["7"].clone();
    prompt["17"]["inputs"]["model"] = json!(["21", 0]);
    prompt["17"]["inputs"]["latent_image"] = json!(["7", 0]);
    prompt["8"]["inputs"]["samples"] = json!(["17", 0]);
    room.ok(&prompt);
    let diffusion = room.model("diffusion");
    let answer = room.about("DELETE", id(&diffusion), "", &json!(null));
    answer.expect_status(200);
    let left: Vec<Value> = room.models();
    let left: Vec<&str> = left
        .iter()
        .map(id)
        .filter(|i| *i == id(&diffusion))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(kind(&room.events(0), "model.leak_suspected").is_empty());
    room.checked();
    room.ok(&prompt);
}
