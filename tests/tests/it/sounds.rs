//! Models of sound by HTTP, from files to a file that plays, all of them narrow and with made-up weights.

use std::{fs, path::Path};

use fresco_tests::templates::files;
use fresco_tests::{Server, StartOptions};
use serde_json::{Value, json};

/// Runs a prompt and gives the bytes of the sound that node 9 saved.
#[track_caller]
fn sound(base: &Path, prompt: &Value) -> Vec<u8> {
    let server = Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    });
    let id = server.queue(prompt, None);
    let history = server.wait_for(&id);
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    let saved = &history["outputs"]["9"]["audio"][0];
    let folder = base
        .join("output")
        .join(saved["subfolder"].as_str().unwrap());
    fs::read(folder.join(saved["filename"].as_str().unwrap())).unwrap()
}

fn sampled(model: &str, positive: &str, negative: &str, cfg: f64) -> Value {
    json!({"class_type": "KSampler", "inputs": {
        "model": [model, 0], "positive": [positive, 0], "negative": [negative, 0], "latent_image": ["6", 0],
        "seed": 3, "steps": 2, "cfg": cfg, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}})
}

#[test]
fn stable_audio_makes_a_flac_file() {
    let base = tempfile::tempdir().unwrap();
    let models = base.path().join("models");
    let name = "stable-audio-open-1.0.safetensors";
    files::write(&models, "checkpoints", name).unwrap().unwrap();
    let words = files::write(&models, "text_encoders", "t5-base.safetensors");
    words.unwrap().unwrap();
    let made = sound(
        base.path(),
        &json!({
            "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": name}},
            "2": {"class_type": "CLIPLoader", "inputs": {"clip_name": "t5-base.safetensors", "type": "stable_audio"}},
            "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "rain on a roof"}},
            "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": ""}},
            "5": {"class_type": "ConditioningStableAudio", "inputs": {"positive": ["3", 0], "negative": ["4", 0],
                "seconds_start": 0.0, "seconds_total": 1.0}},
            "6": {"class_type": "EmptyLatentAudio", "inputs": {"seconds": 1.0, "batch_size": 1}},
            "7": {"class_type": "KSampler", "inputs": {
                "model": ["1", 0], "positive": ["5", 0], "negative": ["5", 1], "latent_image": ["6", 0],
                "seed": 3, "steps": 2, "cfg": 3.0, "sampler_name": "dpmpp_3m_sde", "scheduler": "exponential",
                "denoise": 1.0}},
            "8": {"class_type": "VAEDecodeAudio", "inputs": {"samples": ["7", 0], "vae": ["1", 2]}},
            "9": {"class_type": "SaveAudio", "inputs": {"audio": ["8", 0], "filename_prefix": "audio/rain"}},
        }),
    );
    assert_eq!(&made[..4], b"fLaC");
    // More than silence.
    assert!(made.len() > 500, "{} bytes", made.len());
}

#[test]
fn ace_step_sings_into_an_mp3_file() {
    let base = tempfile::tempdir().unwrap();
    let models = base.path().join("models");
    let name = "ace_step_v1_3.5b.safetensors";
    files::write(&models, "checkpoints", name).unwrap().unwrap();
    let text = |tags: &str| {
        json!({"class_type": "TextEncodeAceStepAudio", "inputs": {"clip": ["1", 1], "tags": tags, "lyrics": "",
            "lyrics_strength": 0.9}})
    };
    let made = sound(
        base.path(),
        &json!({
            "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": name}},
            "3": text("soft piano, 90 bpm"),
            "4": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["3", 0]}},
            "5": {"class_type": "ModelSamplingSD3", "inputs": {"model": ["1", 0], "shift": 5.0}},
            "6": {"class_type": "EmptyAceStepLatentAudio", "inputs": {"seconds": 1.0, "batch_size": 1}},
            "7": sampled("5", "3", "4", 4.0),
            "8": {"class_type": "VAEDecodeAudio", "inputs": {"samples": ["7", 0], "vae": ["1", 2]}},
            "9": {"class_type": "SaveAudioMP3", "inputs": {"audio": ["8", 0], "filename_prefix": "song", "quality": "128k"}},
        }),
    );
    assert_eq!(&made[..3], b"ID3");
}

#[test]
fn ace_step_15_sings_with_two_encoders_and_lyrics() {
    let base = tempfile::tempdir().unwrap();
    let models = base.path().join("models");
    for (folder, name) in [
        ("diffusion_models", "acestep_v1.5_turbo.safetensors"),
        ("text_encoders", "qwen_0.6b_ace15.safetensors"),
        ("text_encoders", "qwen_1.7b_ace15.safetensors"),
        ("vae", "ace_1.5_vae.safetensors"),
    ] {
        files::write(&models, folder, name).unwrap().unwrap();
    }
    let made = sound(
        base.path(),
        &json!({
            "1": {"class_type": "UNETLoader", "inputs": {
                "unet_name": "acestep_v1.5_turbo.safetensors", "weight_dtype": "default"}},
            "2": {"class_type": "DualCLIPLoader", "inputs": {"clip_name1": "qwen_0.6b_ace15.safetensors",
                "clip_name2": "qwen_1.7b_ace15.safetensors", "type": "ace"}},
            "3": {"class_type": "TextEncodeAceStepAudio1.5", "inputs": {"clip": ["2", 0], "tags": "folk",
                "lyrics": "[verse]\nla la", "seed": 1, "bpm": 100, "duration": 1.0, "timesignature": "4",
                "language": "en", "keyscale": "C major", "generate_audio_codes": false}},
            "4": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["3", 0]}},
            "5": {"class_type": "VAELoader", "inputs": {"vae_name": "ace_1.5_vae.safetensors"}},
            "6": {"class_type": "EmptyAceStep1.5LatentAudio", "inputs": {"seconds": 1.0, "batch_size": 1}},
            "7": sampled("1", "3", "4", 1.0),
            "8": {"class_type": "VAEDecodeAudioTiled", "inputs": {"samples": ["7", 0], "vae": ["5", 0],
                "tile_size": 32, "overlap": 8}},
            "9": {"class_type": "SaveAudio", "inputs": {"audio": ["8", 0], "filename_prefix": "song"}},
        }),
    );
    assert_eq!(&made[..4], b"fLaC");
}
