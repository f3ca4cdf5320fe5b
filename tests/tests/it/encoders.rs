//! Language models that read prompts: their file is read once, and they make room for the model when there is too little.

use std::{fs, path::Path};

use fresco_tests::{
    memory::{MIB, Room, kind, number},
    tiny,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::families::{clip_loader, file};

/// Qwen 3 of 19 MiB, which is nearly all vocabulary, and a Z-Image of 23 MiB.
fn base() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path();
    let text = [
        ("cap_embedder.0.weight", &[32][..]),
        ("cap_embedder.1.weight", &[256, 32]),
    ];
    let (models, encoders) = ("diffusion_models", "text_encoders");
    file(base, models, "model.safetensors", "z_image_small", &text);
    file(base, encoders, "qwen.safetensors", "z_image_te_small", &[]);
    file(base, "vae", "ae.safetensors", "vae_ae16_small", &[]);
    folder
}

fn prompt(words: &str, seed: u64) -> Value {
    let text = |words: &str| json!({"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": words}});
    json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "model.safetensors", "weight_dtype": "default"}},
        "2": clip_loader("qwen.safetensors", "lumina2"),
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
        "4": text(words),
        "5": text("blurry"),
        "6": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "7": {"class_type": "KSampler", "inputs": {
            "model": ["1", 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
            "seed": seed, "steps": 1, "cfg": 2.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "encoder"}},
    })
}

/// Bytes that the program asked the kernel to read so far.
fn asked_for(room: &Room) -> Option<u64> {
    let about = fs::read_to_string(format!("/proc/{}/io", room.server.pid())).ok()?;
    let line = about.lines().find_map(|line| line.strip_prefix("rchar:"))?;
    line.trim().parse().ok()
}

fn size(base: &Path, name: &str) -> u64 {
    fs::metadata(base.join("models").join(name)).unwrap().len()
}

#[test]
fn an_encoder_is_read_once_for_all_prompts() {
    let room = Room::at(base(), &[]);
    let files = ["diffusion_models/model", "text_encoders/qwen", "vae/ae"];
    let files = files.map(|name| size(room.base.path(), &format!("{name}.safetensors")));
    let before = asked_for(&room);
    room.ok(&prompt("a red apple", 1));
    let read: u64 = room.models().iter().map(|m| number(m, "read_bytes")).sum();
    let total: u64 = files.iter().sum();
    assert!(read <= total, "{read} of {total}");
    if let (Some(before), Some(after)) = (before, asked_for(&room)) {
        let all = after - before;
        // Headers, folders and what the program asks the kernel about itself come on top.
        assert!(
            all <= total + total / 10 + 4 * MIB,
            "{all} for files of {total}"
        );
    }
    let text = room.model("clip");
    assert_eq!(
        number(&text, "read_bytes"),
        number(&text, "bytes_total"),
        "{text}"
    );
    // Two more prompts in one run, and another run: nothing is read again.
    room.ok(&prompt("a green pear", 2));
    room.ok(&prompt("a blue plum", 3));
    assert_eq!(room.model("clip")["read_bytes"], text["read_bytes"]);
    room.checked();
}

#[test]
fn an_encoder_makes_room_for_the_model_and_that_is_said() {
    let folder = base();
    // Either of them fits, but not both.
    let keys = tiny::golden("z_image_te_small", &[]).unwrap();
    let values: usize = keys
        .values()
        .map(|shape| shape.iter().product::<usize>())
        .sum();
    assert!(values as u64 * 4 > 18 * MIB);
    let device = [
        "--sim-device",
        "sim:0=34MiB",
        "--reserve-vram",
        "0",
        "--inference-reserve",
        "0.001",
    ];
    let room = Room::at(folder, &device);
    room.ok(&prompt("a red apple", 1));
    let text = room.model("clip");
    let id = text["weights_id"].as_str().unwrap();
    let events = room.events(0);
    let mut left = kind(&events, "model.evicted");
    left.extend(kind(&events, "model.shrunk"));
    let left = left.into_iter().find(|event| event["weights_id"] == id);
    let left = left.unwrap_or_else(|| panic!("it stayed: {events:#?}"));
    assert!(
        left["reason"]
            .as_str()
            .is_some_and(|reason| !reason.is_empty()),
        "{left}"
    );
    assert!(
        number(left, "bytes_after") < number(left, "bytes_before"),
        "{left}"
    );
    // People are told as well.
    let log = room.server.log();
    assert!(log.lines().any(|line| line.contains("qwen")), "{log}");
    // It was not read again for the negative prompt, and the next prompt finds it in main memory.
    room.ok(&prompt("a green pear", 2));
    assert_eq!(room.model("clip")["read_bytes"], text["read_bytes"]);
    room.checked();
}
