//! Families of films by HTTP, from files to frames: each network narrow and with made-up weights.

use std::{collections::BTreeSet, fs, path::Path};

use fresco_tests::{Server, StartOptions, picture, tiny};
use serde_json::{Value, json};

/// Writes a model file with the keys of a golden network.
fn file(base: &Path, folder: &str, name: &str, golden: &str, changed: &[(&str, &[usize])]) {
    let folder = base.join("models").join(folder);
    fs::create_dir_all(&folder).unwrap();
    let keys = tiny::golden(golden, changed).unwrap();
    tiny::write(&folder.join(name), &keys).unwrap();
}

/// Runs a prompt whose node 9 saves pictures; they are so many, and not blank.
#[track_caller]
fn films(base: &Path, prompt: &Value, frames: usize) {
    for picture in saved(base, prompt, frames) {
        let values: BTreeSet<u8> = picture.pixels.iter().copied().collect();
        assert!(values.len() > 8, "a frame is blank: {values:?}");
    }
}

/// The frames that it saves.
fn saved(base: &Path, prompt: &Value, frames: usize) -> Vec<picture::Picture> {
    let server = Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    });
    let id = server.queue(prompt, None);
    let history = server.wait_for(&id);
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    let images = history["outputs"]["9"]["images"].as_array().unwrap();
    assert_eq!(images.len(), frames, "{history}");
    let read = |image: &Value| {
        let name = image["filename"].as_str().unwrap();
        picture::read_file(&base.join("output").join(name)).unwrap()
    };
    images.iter().map(read).collect()
}

fn sampler(cfg: f64) -> Value {
    json!({"class_type": "KSampler", "inputs": {
        "model": ["1", 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
        "seed": 3, "steps": 2, "cfg": cfg, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}})
}

fn text(words: &str) -> Value {
    json!({"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": words}})
}

/// A prompt of a network, a text encoder and an autoencoder in files of their own.
fn prompt(encoders: &Value, latent: &Value) -> Value {
    json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "model.safetensors", "weight_dtype": "default"}},
        "2": encoders,
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "vae.safetensors"}},
        "4": text("a red apple rolls over a table"),
        "5": text("blurry"),
        "6": latent,
        "7": sampler(3.0),
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "film"}},
    })
}

#[test]
fn mochi_makes_a_film() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let width = [
        ("t5_y_embedder.to_kv.weight", &[128, 64][..]),
        ("t5_y_embedder.to_kv.bias", &[128]),
        ("t5_y_embedder.to_q.weight", &[64, 64]),
        ("t5_y_embedder.to_q.bias", &[64]),
        ("t5_y_embedder.to_out.weight", &[48, 64]),
        ("t5_yproj.weight", &[32, 64]),
    ];
    file(
        base,
        "diffusion_models",
        "model.safetensors",
        "mochi_small",
        &width,
    );
    file(base, "text_encoders", "t5.safetensors", "t5_small", &[]);
    let latent = [
        ("decoder.blocks.0.0.weight", &[128, 12, 1, 1, 1][..]),
        ("encoder.output_proj.weight", &[24, 128]),
    ];
    file(base, "vae", "vae.safetensors", "mochi_vae_small", &latent);
    let encoders = json!({"class_type": "CLIPLoader", "inputs": {"clip_name": "t5.safetensors", "type": "mochi"}});
    let latent = json!({"class_type": "EmptyMochiLatentVideo", "inputs": {
        "width": 64, "height": 32, "length": 7, "batch_size": 1}});
    films(base, &prompt(&encoders, &latent), 7);
}

/// Windows of two latent frames over a film of three.
#[test]
fn a_long_film_is_made_in_windows() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let width = [
        ("t5_y_embedder.to_kv.weight", &[128, 64][..]),
        ("t5_y_embedder.to_kv.bias", &[128]),
        ("t5_y_embedder.to_q.weight", &[64, 64]),
        ("t5_y_embedder.to_q.bias", &[64]),
        ("t5_y_embedder.to_out.weight", &[48, 64]),
        ("t5_yproj.weight", &[32, 64]),
    ];
    file(
        base,
        "diffusion_models",
        "model.safetensors",
        "mochi_small",
        &width,
    );
    file(base, "text_encoders", "t5.safetensors", "t5_small", &[]);
    let latent = [
        ("decoder.blocks.0.0.weight", &[128, 12, 1, 1, 1][..]),
        ("encoder.output_proj.weight", &[24, 128]),
    ];
    file(base, "vae", "vae.safetensors", "mochi_vae_small", &latent);
    let encoders = json!({"class_type": "CLIPLoader", "inputs": {"clip_name": "t5.safetensors", "type": "mochi"}});
    let latent = json!({"class_type": "EmptyMochiLatentVideo", "inputs": {
        "width": 32, "height": 32, "length": 13, "batch_size": 1}});
    let mut prompt = prompt(&encoders, &latent);
    prompt["10"] = json!({"class_type": "ContextWindowsManual", "inputs": {
        "model": ["1", 0], "context_length": 2, "context_overlap": 1, "context_schedule": "standard_static",
        "context_stride": 1, "closed_loop": false, "fuse_method": "pyramid", "dim": 2, "freenoise": true}});
    prompt["7"]["inputs"]["model"] = json!(["10", 0]);
    films(base, &prompt, 13);
}

#[test]
fn the_autoencoder_of_hunyuan_video_keeps_all_frames() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let latent = [
        ("decoder.conv_in.conv.weight", &[64, 16, 3, 3, 3][..]),
        ("encoder.conv_out.conv.weight", &[32, 64, 3, 3, 3]),
        ("encoder.conv_out.conv.bias", &[32]),
        ("quant_conv.weight", &[32, 32, 1, 1, 1]),
        ("quant_conv.bias", &[32]),
        ("post_quant_conv.weight", &[16, 16, 1, 1, 1]),
        ("post_quant_conv.bias", &[16]),
    ];
    file(
        base,
        "vae",
        "vae.safetensors",
        "hunyuan_video_vae_small",
        &latent,
    );
    let prompt = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 32, "height": 32, "batch_size": 5, "color": 0x40_80_c0}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "vae.safetensors"}},
        "7": {"class_type": "VAEEncode", "inputs": {"pixels": ["1", 0], "vae": ["3", 0]}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "film"}},
    });
    // What is in them is the golden's affair: made-up weights make next to nothing of one colour.
    for picture in saved(base, &prompt, 5) {
        assert_eq!((picture.width, picture.height), (32, 32));
    }
}

#[test]
fn a_network_mends_enlarged_latents() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let channels = [
        ("in_conv.conv.weight", &[8, 32, 3, 3, 3][..]),
        ("out_conv.conv.weight", &[32, 8, 3, 3, 3]),
        ("out_conv.conv.bias", &[32]),
    ];
    file(
        base,
        "latent_upscale_models",
        "larger.safetensors",
        "hunyuan_sr720_small",
        &channels,
    );
    let latent = [
        ("decoder.conv_in.conv.weight", &[64, 32, 3, 3, 3][..]),
        ("encoder.conv_out.conv.weight", &[64, 64, 3, 3, 3]),
        ("encoder.conv_out.conv.bias", &[64]),
    ];
    file(
        base,
        "vae",
        "vae.safetensors",
        "hunyuan_video15_vae_small",
        &latent,
    );
    let prompt = json!({
        "1": {"class_type": "EmptyHunyuanVideo15Latent", "inputs": {"width": 32, "height": 32, "length": 5, "batch_size": 1}},
        "2": {"class_type": "LatentUpscaleModelLoader", "inputs": {"model_name": "larger.safetensors"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "vae.safetensors"}},
        "7": {"class_type": "HunyuanVideo15LatentUpscaleWithModel", "inputs": {
            "model": ["2", 0], "samples": ["1", 0], "upscale_method": "bilinear", "width": 64, "height": 64,
            "crop": "disabled"}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "film"}},
    });
    films(base, &prompt, 5);
}
