//! From words to a picture with a small checkpoint: by HTTP, by `fresco run`, with previews, cancelled, and with files
//! that are not what they should be.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fresco_tests::{
    Frame, Server, StartOptions, picture,
    server::run_program,
    tiny::{self, Tiny},
    workflow::{TextToImage, text_to_image},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = "model.safetensors";

fn base() -> TempDir {
    let base = tempfile::tempdir().unwrap();
    Tiny::default().write(base.path(), MODEL).unwrap();
    base
}

fn start(base: &Path) -> Server {
    Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    })
}

/// The one picture that a finished prompt saved.
#[track_caller]
fn saved(base: &Path, history: &Value) -> PathBuf {
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    let image = &history["outputs"]["9"]["images"][0];
    base.join("output")
        .join(image["filename"].as_str().unwrap())
}

#[track_caller]
fn failure(history: &Value) -> (String, String) {
    assert_eq!(history["status"]["status_str"], "error", "{history}");
    let messages = history["status"]["messages"].as_array().unwrap();
    let last = messages
        .iter()
        .find(|m| m[0] == "execution_error")
        .unwrap_or_else(|| panic!("no error in {history}"));
    (
        last[1]["node_type"].as_str().unwrap().to_owned(),
        last[1]["exception_message"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn words_become_a_picture_and_the_same_one_again() {
    let base = base();
    let prompt = text_to_image(&TextToImage {
        width: 72,
        steps: 3,
        ..TextToImage::default()
    });
    let mut pictures = Vec::new();
    for _ in 0..2 {
        let server = start(base.path());
        let id = server.queue(&prompt, None);
        let path = saved(base.path(), &server.wait_for(&id));
        pictures.push(picture::read_file(&path).unwrap());
    }
    assert_eq!((pictures[0].width, pictures[0].height), (72, 64));
    assert_eq!(pictures[0].pixels, pictures[1].pixels);
    let first = pictures[0].pixels[0];
    assert!(
        pictures[0].pixels.iter().any(|v| *v != first),
        "it is blank"
    );

    // And from the command line.
    let file = base.path().join("prompt.json");
    fs::write(&file, prompt.to_string()).unwrap();
    let folder = base.path().to_string_lossy();
    let (status, out, err) = run_program(
        &["run", "prompt.json", "--base-directory", &folder],
        base.path(),
    );
    assert!(status.success(), "{out}{err}");
    let third = base.path().join("output/picture_00003_.png");
    assert_eq!(
        picture::read_file(&third).unwrap().pixels,
        pictures[0].pixels
    );
}

#[test]
fn steps_are_reported_with_previews() {
    let base = base();
    let server = start(base.path());
    let mut socket = server.socket("watcher");
    let prompt = text_to_image(&TextToImage {
        steps: 20,
        ..TextToImage::default()
    });
    let body = json!({"prompt": prompt, "client_id": "watcher",
        "extra_data": {"preview_method": "latent2rgb"}});
    let answer = server.post("/prompt", &body).expect_status(200).json();
    let id = answer["prompt_id"].as_str().unwrap();
    let (mut steps, mut previews) = (Vec::new(), 0);
    loop {
        match socket.frame() {
            Frame::Binary(bytes) => {
                // Event 1, a preview; format 1, JPEG.
                if bytes.starts_with(&[0, 0, 0, 1, 0, 0, 0, 1]) {
                    assert!(bytes[8..].starts_with(&[0xFF, 0xD8]), "not a JPEG");
                    previews += 1;
                }
            }
            Frame::Text(message, _) => {
                if message["type"] == "progress" && message["data"]["node"] == "3" {
                    assert_eq!(message["data"]["max"], 20);
                    steps.push(message["data"]["value"].as_u64().unwrap());
                }
                if fresco_tests::socket::is_end(&message, id) {
                    break;
                }
            }
            Frame::Closed => panic!("closed"),
        }
    }
    steps.dedup();
    assert_eq!(steps.first().map(|s| *s <= 1), Some(true), "{steps:?}");
    assert_eq!(steps.last(), Some(&20));
    assert!(steps.is_sorted(), "{steps:?}");
    assert!(previews >= 10, "{previews} previews for 20 steps");
}

#[test]
fn a_run_can_be_cancelled_between_steps() {
    let base = base();
    let server = start(base.path());
    let mut socket = server.socket("watcher");
    let prompt = text_to_image(&TextToImage {
        width: 256,
        height: 256,
        steps: 1000,
        ..TextToImage::default()
    });
    let id = server.queue(&prompt, Some("watcher"));
    let mut asked = false;
    let mut after = 0;
    loop {
        let frame = socket.next_within(Duration::from_mins(1));
        let Frame::Text(message, _) = frame.expect("the run goes on") else {
            continue;
        };
        if message["type"] == "progress" {
            if asked {
                after += 1;
            } else if message["data"]["value"] == 2 {
                asked = true;
                server.post("/interrupt", &json!({})).expect_status(200);
            }
        }
        if message["type"] == "execution_interrupted" {
            assert_eq!(message["data"]["node_type"], "KSampler");
            break;
        }
    }
    // Steps that were under way or on the wire when the interrupt came; by far not the thousand.
    assert!(after <= 50, "{after} steps after the interrupt");
    server.wait_for(&id);
    let id = server.queue(&text_to_image(&TextToImage::default()), None);
    saved(base.path(), &server.wait_for(&id));
}

/// The error of a checkpoint under that name, after which a good one still works.
#[track_caller]
fn error_of(server: &Server, name: &str) -> (String, String) {
    let prompt = text_to_image(&TextToImage {
        checkpoint: name,
        ..TextToImage::default()
    });
    let id = server.queue(&prompt, None);
    let (node, message) = failure(&server.wait_for(&id));
    assert!(message.contains(name), "{message:?} does not name {name}");
    (node, message)
}

#[test]
fn files_that_are_no_checkpoints_are_named() {
    let base = base();
    let folder = base.path().join("models/checkpoints");
    let good = fs::read(folder.join(MODEL)).unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).unwrap();
    put("empty.safetensors", b"");
    put("half.safetensors", &good[..good.len() / 2]);
    put("page.safetensors", b"<!DOCTYPE html><html>not found</html>");
    put("noise.ckpt", &[0x5A; 4096]);
    // A header that promises the moon.
    put("hostile.safetensors", &u64::MAX.to_le_bytes());
    let vae = Tiny::default().vae();
    tiny::write(&folder.join("vae.safetensors"), &vae).unwrap();
    let mut part = Tiny::default().checkpoint();
    part.retain(|key, _| !key.contains("output_blocks.3."));
    tiny::write(&folder.join("part.safetensors"), &part).unwrap();
    let mut odd = Tiny::default().checkpoint();
    let key = "model.diffusion_model.input_blocks.1.0.in_layers.2.weight";
    odd.insert(key.to_owned(), vec![32, 16, 3, 3]);
    tiny::write(&folder.join("odd.safetensors"), &odd).unwrap();
    let other = [
        ("some_proj.weight", vec![32, 64]),
        ("some_proj.bias", vec![32]),
        ("x_embedder.proj.weight", vec![32, 12, 2, 2]),
        ("t_embedder.mlp.0.weight", vec![32, 64]),
        ("final_layer.linear.weight", vec![48, 32]),
        ("blocks.0.attn.qkv_x.weight", vec![96, 32]),
    ];
    let other = other.map(|(key, shape)| (format!("model.diffusion_model.{key}"), shape));
    tiny::write(
        &folder.join("other.safetensors"),
        &other.into_iter().collect(),
    )
    .unwrap();

    let server = start(base.path());
    for name in [
        "empty", "half", "page", "hostile", "vae", "part", "odd", "other",
    ] {
        let (node, message) = error_of(&server, &format!("{name}.safetensors"));
        if name == "other" {
            assert!(message.contains("no known model"), "{message}");
        }
        assert!(
            ["CheckpointLoaderSimple", "KSampler"].contains(&node.as_str()),
            "{name}: {node}"
        );
    }
    error_of(&server, "noise.ckpt");
    let id = server.queue(&text_to_image(&TextToImage::default()), None);
    saved(base.path(), &server.wait_for(&id));
}

#[test]
fn weights_of_nothing_but_nan_are_an_error() {
    let base = base();
    let folder = base.path().join("models/checkpoints");
    let mut bytes = fs::read(folder.join(MODEL)).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    for value in bytes[header..].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    fs::write(folder.join("nan.safetensors"), &bytes).unwrap();
    let server = start(base.path());
    let (_, message) = error_of(&server, "nan.safetensors");
    assert!(message.contains("not numbers"), "{message}");
}

#[test]
fn a_simulated_device_gives_the_same_picture_or_says_that_it_is_full() {
    let base = base();
    let prompt = text_to_image(&TextToImage::default());
    let mut pictures = Vec::new();
    for arguments in [vec![], vec!["--sim-device", "sim:0=4GiB"]] {
        let server = Server::start_with(StartOptions {
            base: Some(base.path()),
            arguments,
            ..StartOptions::default()
        });
        let id = server.queue(&prompt, None);
        let path = saved(base.path(), &server.wait_for(&id));
        pictures.push(picture::read_file(&path).unwrap().pixels);
        let stats = server.get("/system_stats").json();
        let device = &stats["devices"][0];
        if pictures.len() == 2 {
            assert_eq!(device["vram_total"], 4_u64 << 30, "{stats}");
            let used =
                device["vram_total"].as_u64().unwrap() - device["vram_free"].as_u64().unwrap();
            // The weights stay: about three million of the UNet, four bytes each.
            assert!((8 << 20..200 << 20).contains(&used), "{used} bytes in use");
        }
    }
    assert_eq!(pictures[0], pictures[1]);

    let server = Server::start_with(StartOptions {
        base: Some(base.path()),
        arguments: vec!["--sim-device", "sim:0=1500KiB"],
        ..StartOptions::default()
    });
    let id = server.queue(&prompt, None);
    // Layers come one by one, but beside the largest of them there is no room for what the network computes.
    let (node, message) = failure(&server.wait_for(&id));
    assert_eq!(node, "KSampler");
    assert!(message.contains("sim:0"), "{message}");
}
