//! Families of models by HTTP, from files to a picture: a diffusion model, text encoders and an autoencoder, each in a file
//! of its own, all of them narrow and with made-up weights.

use std::{collections::BTreeSet, fs, path::Path};

use fresco_tests::{Server, StartOptions, picture, tiny};
use serde_json::{Value, json};

/// Writes a model file with the keys of a golden network.
pub(crate) fn file(
    base: &Path,
    folder: &str,
    name: &str,
    golden: &str,
    changed: &[(&str, &[usize])],
) {
    let folder = base.join("models").join(folder);
    fs::create_dir_all(&folder).unwrap();
    let keys = tiny::golden(golden, changed).unwrap();
    tiny::write(&folder.join(name), &keys).unwrap();
}

fn borrowed(list: &[(String, Vec<usize>)]) -> Vec<(&str, &[usize])> {
    list.iter()
        .map(|(key, shape)| (key.as_str(), shape.as_slice()))
        .collect()
}

/// What differs from family to family.
struct Recipe<'a> {
    encoders: Value,
    latent: &'a str,
    vae: &'a str,
    cfg: f64,
}

fn prompt(recipe: &Recipe<'_>) -> Value {
    json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "model.safetensors", "weight_dtype": "default"}},
        "2": recipe.encoders,
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": recipe.vae}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "a red apple on a table"}},
        "5": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "blurry"}},
        "6": {"class_type": recipe.latent, "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "7": {"class_type": "KSampler", "inputs": {
            "model": ["1", 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
            "seed": 3, "steps": 2, "cfg": recipe.cfg, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "family"}},
    })
}

pub(crate) fn clip_loader(name: &str, kind: &str) -> Value {
    json!({"class_type": "CLIPLoader", "inputs": {"clip_name": name, "type": kind}})
}

/// Runs a prompt and looks at its picture; also that the server knows the file by its family.
#[track_caller]
fn draws(base: &Path, family: &str, recipe: &Recipe<'_>) {
    let server = Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    });
    let found = server
        .get("/fresco/models/diffusion_models?filename=model.safetensors")
        .json();
    assert_eq!(found["family"], family, "{found}");
    let id = server.queue(&prompt(recipe), None);
    let history = server.wait_for(&id);
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    let image = &history["outputs"]["9"]["images"][0];
    let path = base
        .join("output")
        .join(image["filename"].as_str().unwrap());
    let picture = picture::read_file(&path).unwrap();
    assert!(picture.width >= 32 && picture.height >= 32);
    let values: BTreeSet<u8> = picture.pixels.iter().copied().collect();
    assert!(values.len() > 8, "it is blank: {values:?}");
}

#[test]
fn flux_draws_with_two_text_encoders() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let text = [("txt_in.weight", &[128, 64][..])];
    file(
        base,
        "diffusion_models",
        "model.safetensors",
        "flux_small",
        &text,
    );
    file(
        base,
        "text_encoders",
        "clip_l.safetensors",
        "clip_l_small",
        &[],
    );
    file(base, "text_encoders", "t5xxl.safetensors", "t5_small", &[]);
    file(base, "vae", "ae.safetensors", "vae_ae16_small", &[]);
    let recipe = Recipe {
        encoders: json!({"class_type": "DualCLIPLoader", "inputs": {
            "clip_name1": "clip_l.safetensors", "clip_name2": "t5xxl.safetensors", "type": "flux"}}),
        latent: "EmptySD3LatentImage",
        vae: "ae.safetensors",
        cfg: 1.0,
    };
    draws(base, "Flux.1 dev", &recipe);
}

#[test]
fn chroma_draws_with_one_text_encoder() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let text = [("txt_in.weight", &[96, 64][..])];
    file(
        base,
        "diffusion_models",
        "model.safetensors",
        "chroma_small",
        &text,
    );
    file(base, "text_encoders", "t5xxl.safetensors", "t5_small", &[]);
    file(base, "vae", "ae.safetensors", "vae_ae16_small", &[]);
    let recipe = Recipe {
        encoders: clip_loader("t5xxl.safetensors", "chroma"),
        latent: "EmptySD3LatentImage",
        vae: "ae.safetensors",
        cfg: 3.0,
    };
    draws(base, "Chroma", &recipe);
}

#[test]
fn z_image_draws_with_a_language_model() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let text = [
        ("cap_embedder.0.weight", &[32][..]),
        ("cap_embedder.1.weight", &[256, 32]),
    ];
    file(
        base,
        "diffusion_models",
        "model.safetensors",
        "z_image_small",
        &text,
    );
    file(
        base,
        "text_encoders",
        "qwen_3_4b.safetensors",
        "z_image_te_small",
        &[],
    );
    file(base, "vae", "ae.safetensors", "vae_ae16_small", &[]);
    let recipe = Recipe {
        encoders: clip_loader("qwen_3_4b.safetensors", "lumina2"),
        latent: "EmptySD3LatentImage",
        vae: "ae.safetensors",
        cfg: 2.0,
    };
    draws(base, "Z-Image", &recipe);
}

#[test]
fn qwen_image_draws_with_the_autoencoder_of_videos() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    // Two heads of the usual width, which weights do not say.
    let mut heads: Vec<(String, Vec<usize>)> = Vec::new();
    for layer in 0..3 {
        let key = |name: &str| format!("model.layers.{layer}.self_attn.{name}");
        heads.push((key("q_proj.weight"), vec![256, 48]));
        heads.push((key("q_proj.bias"), vec![256]));
        for name in ["k_proj", "v_proj"] {
            heads.push((key(&format!("{name}.weight")), vec![128, 48]));
            heads.push((key(&format!("{name}.bias")), vec![128]));
        }
        heads.push((key("o_proj.weight"), vec![48, 256]));
    }
    let text = [("txt_norm.weight", &[48][..]), ("txt_in.weight", &[96, 48])];
    file(
        base,
        "diffusion_models",
        "model.safetensors",
        "qwen_edit_small",
        &text,
    );
    file(
        base,
        "text_encoders",
        "qwen_2.5_vl.safetensors",
        "qwen_image_te_small",
        &borrowed(&heads),
    );
    file(
        base,
        "vae",
        "qwen_image_vae.safetensors",
        "wan_vae_tiled_small",
        &[],
    );
    let recipe = Recipe {
        encoders: clip_loader("qwen_2.5_vl.safetensors", "qwen_image"),
        latent: "EmptySD3LatentImage",
        vae: "qwen_image_vae.safetensors",
        cfg: 2.0,
    };
    draws(base, "Qwen-Image", &recipe);
}

#[test]
fn parts_of_another_family_are_refused_by_name() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    // The network wants text of another width than these encoders give.
    file(
        base,
        "diffusion_models",
        "model.safetensors",
        "flux_small",
        &[],
    );
    file(base, "text_encoders", "t5xxl.safetensors", "t5_small", &[]);
    file(base, "vae", "ae.safetensors", "vae_kl_small", &[]);
    let server = Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    });
    let recipe = Recipe {
        encoders: clip_loader("t5xxl.safetensors", "chroma"),
        latent: "EmptySD3LatentImage",
        vae: "ae.safetensors",
        cfg: 1.0,
    };
    let id = server.queue(&prompt(&recipe), None);
    let history = server.wait_for(&id);
    assert_eq!(history["status"]["status_str"], "error", "{history}");
    let text = history.to_string();
    assert!(
        text.contains("model.safetensors") && text.contains("width 80"),
        "{text}"
    );
    // What failed is gone, and the next prompt runs.
    let id = server.queue(&fresco_tests::workflow::smallest(7, "after"), None);
    assert_eq!(server.wait_for(&id)["status"]["status_str"], "success");
}

/// What files are is asked by many at once, while files come, go and are broken: each answer is one, and the program lives.
#[test]
fn many_ask_what_files_are_at_once() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let text = [("txt_in.weight", &[128, 64][..])];
    file(
        base,
        "diffusion_models",
        "model.safetensors",
        "flux_small",
        &text,
    );
    let folder = base.join("models").join("diffusion_models");
    fs::write(
        folder.join("broken.safetensors"),
        b"\x10\0\0\0\0\0\0\0{\"a\": nonsense}",
    )
    .unwrap();
    let server = Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    });
    let server = &server;
    std::thread::scope(|scope| {
        for asker in 0..12 {
            let folder = &folder;
            scope.spawn(move || {
                for round in 0..8 {
                    let passing = folder.join(format!("passing{asker}.safetensors"));
                    if asker % 4 == 0 {
                        fs::copy(folder.join("model.safetensors"), &passing).unwrap();
                    }
                    let known = server
                        .get("/fresco/models/diffusion_models?filename=model.safetensors")
                        .json();
                    assert_eq!(known["family"], "Flux.1 dev", "{known}");
                    for name in ["broken", "nobody", &format!("passing{asker}")] {
                        let path =
                            format!("/fresco/models/diffusion_models?filename={name}.safetensors");
                        let status = server.get(&path).status;
                        assert!(status < 500, "{name}: {status} in round {round}");
                    }
                    if asker % 4 == 0 {
                        fs::remove_file(&passing).unwrap();
                    }
                }
            });
        }
    });
}
