//! Pictures of changed weights: LoRAs merged and on the fly, hooks, merges, and checkpoints that are saved and loaded.

use std::path::Path;

use fresco_tests::{
    Server, StartOptions, picture,
    tiny::{self, Keys, Tiny},
    workflow::{TextToImage, text_to_image},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A small checkpoint, and a LoRA for its model and its text encoder.
fn base() -> TempDir {
    let base = tempfile::tempdir().unwrap();
    let tiny = Tiny::default();
    tiny.write(base.path(), "model.safetensors").unwrap();
    let mut keys = Keys::new();
    let parts = [
        ("diffusion_model.", tiny.unet()),
        ("text_encoders.clip_l.transformer.", tiny.text()),
    ];
    for (prefix, weights) in parts {
        for (key, shape) in weights {
            let Some(layer) = key.strip_suffix(".weight") else {
                continue;
            };
            // Attention only, as most LoRAs.
            if !key.contains("attn") {
                continue;
            }
            keys.insert(format!("{prefix}{layer}.lora_up.weight"), vec![shape[0], 2]);
            keys.insert(
                format!("{prefix}{layer}.lora_down.weight"),
                vec![2, shape[1]],
            );
        }
    }
    let folder = base.path().join("models/loras");
    std::fs::create_dir_all(&folder).unwrap();
    tiny::write(&folder.join("a.safetensors"), &keys).unwrap();
    base
}

fn start(base: &Path, arguments: &[&str]) -> Server {
    Server::start_with(StartOptions {
        base: Some(base),
        arguments: arguments.to_vec(),
        ..StartOptions::default()
    })
}

fn plain() -> Value {
    text_to_image(&TextToImage::default())
}

/// The default workflow with a LoRA between the loader and everything else.
fn with_lora(strength: f64) -> Value {
    let mut prompt = plain();
    prompt["20"] = json!({"class_type": "LoraLoader", "inputs": {
        "model": ["4", 0], "clip": ["4", 1], "lora_name": "a.safetensors",
        "strength_model": strength, "strength_clip": strength}});
    prompt["3"]["inputs"]["model"] = json!(["20", 0]);
    prompt["6"]["inputs"]["clip"] = json!(["20", 1]);
    prompt["7"]["inputs"]["clip"] = json!(["20", 1]);
    prompt
}

#[track_caller]
fn pixels(server: &Server, base: &Path, prompt: &Value) -> Vec<u8> {
    let history = server.wait_for(&server.queue(prompt, None));
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    let image = &history["outputs"]["9"]["images"][0];
    let path = base
        .join("output")
        .join(image["filename"].as_str().unwrap());
    picture::read_file(&path).unwrap().pixels
}

#[test]
fn a_lora_changes_the_picture_in_the_same_way_however_it_is_applied() {
    let base = base();
    let server = start(base.path(), &[]);
    let without = pixels(&server, base.path(), &plain());
    let with = pixels(&server, base.path(), &with_lora(0.6));
    assert_ne!(without, with);
    assert_eq!(pixels(&server, base.path(), &with_lora(0.0)), without);
    assert_ne!(pixels(&server, base.path(), &with_lora(-0.6)), with);
    assert_eq!(pixels(&server, base.path(), &with_lora(0.6)), with);
    drop(server);
    let server = start(base.path(), &["--lora-on-the-fly"]);
    let made = pixels(&server, base.path(), &with_lora(0.6));
    // The text encoder is kept in f16, to which weights that are made for one use are not rounded.
    let apart = made.iter().zip(&with).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(apart <= Some(1), "{apart:?}");
}

#[test]
fn a_saved_checkpoint_gives_the_same_picture() {
    let base = base();
    let server = start(base.path(), &[]);
    let mut prompt = with_lora(0.6);
    prompt["21"] = json!({"class_type": "CheckpointSave", "inputs": {
        "model": ["20", 0], "clip": ["20", 1], "vae": ["4", 2], "filename_prefix": "checkpoints/changed"}});
    let with = pixels(&server, base.path(), &prompt);
    let again = text_to_image(&TextToImage {
        checkpoint: "changed_00001_.safetensors",
        ..TextToImage::default()
    });
    assert_eq!(pixels(&server, base.path(), &again), with);
}

/// A model mixed with itself is itself, with another one it is neither.
#[test]
fn merged_models() {
    let base = base();
    let server = start(base.path(), &[]);
    let without = pixels(&server, base.path(), &plain());
    let merged = |second: Value| {
        let mut prompt = with_lora(1.0);
        prompt["22"] = json!({"class_type": "ModelMergeSimple", "inputs": {
            "model1": ["4", 0], "model2": second, "ratio": 0.5}});
        prompt["3"]["inputs"]["model"] = json!(["22", 0]);
        prompt["6"]["inputs"]["clip"] = json!(["4", 1]);
        prompt["7"]["inputs"]["clip"] = json!(["4", 1]);
        prompt
    };
    assert_eq!(
        pixels(&server, base.path(), &merged(json!(["4", 0]))),
        without
    );
    assert_ne!(
        pixels(&server, base.path(), &merged(json!(["20", 0]))),
        without
    );
}

/// A hook changes the weights for its own conditioning, from the keyframe on.
#[test]
fn hooks_change_weights_while_sampling() {
    let base = base();
    let server = start(base.path(), &[]);
    let without = pixels(&server, base.path(), &plain());
    let hooked = |strength: f64, clip: bool| {
        let mut prompt = plain();
        prompt["30"] = json!({"class_type": "CreateHookLora", "inputs": {
            "lora_name": "a.safetensors", "strength_model": 0.6, "strength_clip": 0.6}});
        prompt["31"] = json!({"class_type": "CreateHookKeyframe", "inputs": {
            "strength_mult": strength, "start_percent": 0.0}});
        prompt["32"] = json!({"class_type": "SetHookKeyframes", "inputs": {
            "hooks": ["30", 0], "hook_kf": ["31", 0]}});
        prompt["33"] = json!({"class_type": "SetClipHooks", "inputs": {
            "clip": ["4", 1], "apply_to_conds": true, "schedule_clip": clip, "hooks": ["32", 0]}});
        prompt["6"]["inputs"]["clip"] = json!(["33", 0]);
        prompt["7"]["inputs"]["clip"] = json!(["33", 0]);
        prompt
    };
    // With the keyframes on the text encoder too, nothing is left of a hook of no strength.
    assert_eq!(pixels(&server, base.path(), &hooked(0.0, true)), without);
    let full = pixels(&server, base.path(), &hooked(1.0, true));
    assert_ne!(full, without);
    // Both prompts have it, so it is the LoRA on everything.
    assert_eq!(pixels(&server, base.path(), &with_lora(0.6)), full);
    assert_ne!(pixels(&server, base.path(), &hooked(0.0, false)), without);
}
