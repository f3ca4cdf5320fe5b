//! Models of sound by HTTP, from files to a file that plays, all of them narrow and with made-up weights.

use std::time::{Duration, Instant};
use std::{fs, path::Path};

use fresco_tests::templates::files;
use fresco_tests::{Server, StartOptions, socket::is_end};
use serde_json::{Value, json};

fn serve(base: &Path) -> Server {
    Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    })
}

/// Runs a prompt and gives the bytes of the sound that node 9 saved.
#[track_caller]
fn sound(base: &Path, prompt: &Value) -> Vec<u8> {
    sound_of(&serve(base), base, prompt)
}

#[track_caller]
fn sound_of(server: &Server, base: &Path, prompt: &Value) -> Vec<u8> {
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

const WRITER: &str = "qwen_1.7b_ace15.safetensors";

/// The files of ACE-Step 1.5.
fn ace15_files(models: &Path) {
    for (folder, name) in [
        ("diffusion_models", "acestep_v1.5_turbo.safetensors"),
        ("text_encoders", "qwen_0.6b_ace15.safetensors"),
        ("text_encoders", WRITER),
        ("vae", "ace_1.5_vae.safetensors"),
    ] {
        files::write(models, folder, name).unwrap().unwrap();
    }
}

/// A song of a second, with these inputs of its text in place of the usual ones. The files of text encoders are in the order
/// that loaders do not expect.
fn song(inputs: &Value) -> Value {
    let mut prompt = json!({
        "1": {"class_type": "UNETLoader", "inputs": {
            "unet_name": "acestep_v1.5_turbo.safetensors", "weight_dtype": "default"}},
        "2": {"class_type": "DualCLIPLoader", "inputs": {"clip_name1": WRITER,
            "clip_name2": "qwen_0.6b_ace15.safetensors", "type": "ace"}},
        "3": {"class_type": "TextEncodeAceStepAudio1.5", "inputs": {"clip": ["2", 0], "tags": "folk",
            "lyrics": "[verse]\nla la", "seed": 1, "bpm": 100, "duration": 1.0, "timesignature": "4",
            "language": "en", "keyscale": "C major", "generate_audio_codes": true, "cfg_scale": 2.0,
            "temperature": 0.85, "top_p": 0.9, "top_k": 0, "min_p": 0.0}},
        "4": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["3", 0]}},
        "5": {"class_type": "VAELoader", "inputs": {"vae_name": "ace_1.5_vae.safetensors"}},
        "6": {"class_type": "EmptyAceStep1.5LatentAudio", "inputs": {"seconds": 1.0, "batch_size": 1}},
        "7": sampled("1", "3", "4", 2.0),
        "8": {"class_type": "VAEDecodeAudioTiled", "inputs": {"samples": ["7", 0], "vae": ["5", 0],
            "tile_size": 32, "overlap": 8}},
        "9": {"class_type": "SaveAudio", "inputs": {"audio": ["8", 0], "filename_prefix": "song"}},
    });
    for (name, value) in inputs.as_object().unwrap() {
        prompt["3"]["inputs"][name] = value.clone();
    }
    prompt
}

#[test]
fn ace_step_15_sings_with_and_without_a_sketch() {
    let base = tempfile::tempdir().unwrap();
    ace15_files(&base.path().join("models"));
    let first = serve(base.path());
    let plain = sound_of(
        &first,
        base.path(),
        &song(&json!({"generate_audio_codes": false})),
    );
    assert_eq!(&plain[..4], b"fLaC");
    let sketched = sound_of(&first, base.path(), &song(&json!({})));
    assert_eq!(&sketched[..4], b"fLaC");
    assert!(plain != sketched, "the sketch has no effect");
    let other = sound_of(&first, base.path(), &song(&json!({"seed": 2})));
    assert!(sketched != other, "the seed of the sketch has no effect");
    let unguided = sound_of(&first, base.path(), &song(&json!({"cfg_scale": 1.0})));
    assert!(sketched != unguided, "its guidance has no effect");
    drop(first);
    // A program that remembers nothing writes the same sketch.
    let again = sound(base.path(), &song(&json!({})));
    assert!(sketched == again, "the same seed writes another sketch");
}

#[test]
fn a_sketch_can_be_interrupted() {
    let base = tempfile::tempdir().unwrap();
    ace15_files(&base.path().join("models"));
    let server = serve(base.path());
    let mut socket = server.socket("watcher");
    let id = server.queue(&song(&json!({"duration": 2000.0})), Some("watcher"));
    socket.until(|message| message["type"] == "progress" && message["data"]["node"] == "3");
    let asked = Instant::now();
    server.post("/interrupt", &json!({})).expect_status(200);
    let messages = socket.until(|message| is_end(message, &id));
    let told = |kind: &str| messages.iter().any(|message| message["type"] == kind);
    assert!(told("execution_interrupted"), "{messages:?}");
    // Ten thousand codes take many minutes.
    assert!(asked.elapsed() < Duration::from_mins(2));
}

#[test]
fn a_text_encoder_without_audio_codes_writes_no_sketch() {
    let base = tempfile::tempdir().unwrap();
    let models = base.path().join("models");
    ace15_files(&models);
    // Two that only read.
    let name = "qwen_3_06b_base.safetensors";
    files::write(&models, "text_encoders", name)
        .unwrap()
        .unwrap();
    let mut prompt = song(&json!({}));
    prompt["2"]["inputs"]["clip_name1"] = json!("qwen_0.6b_ace15.safetensors");
    prompt["2"]["inputs"]["clip_name2"] = json!(name);
    let server = serve(base.path());
    let history = server.wait_for(&server.queue(&prompt, None));
    let messages = history["status"]["messages"].as_array().unwrap();
    let error = messages.iter().find(|m| m[0] == "execution_error").unwrap();
    let said = error[1]["exception_message"].as_str().unwrap();
    assert!(
        said.contains(name) && said.contains("no audio codes"),
        "{said}"
    );
    // Without a sketch they will do.
    prompt["3"]["inputs"]["generate_audio_codes"] = json!(false);
    sound_of(&server, base.path(), &prompt);
}
