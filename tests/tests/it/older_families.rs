//! Older families of models and what is added to them by HTTP, from files to a picture, all of them narrow and with made-up
//! weights.

use std::{collections::BTreeSet, fs, path::Path};

use fresco_tests::{Server, StartOptions, picture, tiny};
use serde_json::{Value, json};

use crate::families::{clip_loader, file};

fn server(base: &Path) -> Server {
    Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    })
}

/// Runs a prompt whose picture is saved by node `9`, and gives the picture.
#[track_caller]
fn drawn(server: &Server, base: &Path, prompt: &Value) -> picture::Picture {
    let id = server.queue(prompt, None);
    let history = server.wait_for(&id);
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    let image = &history["outputs"]["9"]["images"][0];
    let name = image["filename"].as_str().unwrap();
    let picture = picture::read_file(&base.join("output").join(name)).unwrap();
    let values: BTreeSet<u8> = picture.pixels.iter().copied().collect();
    assert!(values.len() > 8, "it is blank: {values:?}");
    picture
}

/// Runs a prompt that must fail, and gives what is said.
#[track_caller]
fn refused(server: &Server, prompt: &Value) -> String {
    let id = server.queue(prompt, None);
    let history = server.wait_for(&id);
    assert_eq!(history["status"]["status_str"], "error", "{history}");
    history.to_string()
}

#[track_caller]
fn known_as(server: &Server, name: &str, family: &str) {
    let path = format!("/fresco/models/diffusion_models?filename={name}");
    let found = server.get(&path).json();
    assert_eq!(found["family"], family, "{found}");
}

fn sampler(model: &str, positive: &str, negative: &str, latent: Value) -> Value {
    json!({"class_type": "KSampler", "inputs": {
        "model": [model, 0], "positive": [positive, 0], "negative": [negative, 0], "latent_image": latent,
        "seed": 3, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}})
}

fn loader(name: &str) -> Value {
    json!({"class_type": "UNETLoader", "inputs": {"unet_name": name, "weight_dtype": "default"}})
}

fn words(text: &str) -> Value {
    json!({"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": text}})
}

/// From a diffusion model, a text encoder and an autoencoder to a picture.
fn prompt(encoder: &Value, side: usize) -> Value {
    json!({
        "1": loader("model.safetensors"),
        "2": encoder,
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "vae.safetensors"}},
        "4": words("a red apple on a table"),
        "5": words("blurry"),
        "6": {"class_type": "EmptyLatentImage", "inputs": {"width": side, "height": side, "batch_size": 1}},
        "7": sampler("1", "4", "5", json!(["6", 0])),
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "family"}},
    })
}

#[test]
fn pixart_draws_and_says_what_is_too_small() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let text = [("y_embedder.y_proj.fc1.weight", &[96, 64][..])];
    let (folder, name) = ("diffusion_models", "model.safetensors");
    file(base, folder, name, "pixart_alpha_small", &text);
    file(
        base,
        folder,
        "sigma.safetensors",
        "pixart_sigma_small",
        &text,
    );
    file(base, "text_encoders", "t5.safetensors", "t5_small", &[]);
    file(base, "vae", "vae.safetensors", "vae_kl_small", &[]);
    let server = server(base);
    known_as(&server, name, "PixArt Alpha");
    known_as(&server, "sigma.safetensors", "PixArt Sigma");
    let encoder = clip_loader("t5.safetensors", "pixart");
    drawn(&server, base, &prompt(&encoder, 288));
    let mut sized = prompt(&encoder, 288);
    sized["4"] = json!({"class_type": "CLIPTextEncodePixArtAlpha", "inputs": {
        "clip": ["2", 0], "text": "a red apple on a table", "width": 512, "height": 768}});
    drawn(&server, base, &sized);
    let text = refused(&server, &prompt(&encoder, 64));
    assert!(text.contains("larger than 256 by 256"), "{text}");
}

#[test]
fn aura_flow_draws() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let text = [("cond_seq_linear.weight", &[96, 64][..])];
    let name = "model.safetensors";
    file(base, "diffusion_models", name, "auraflow_small", &text);
    file(base, "text_encoders", "t5.safetensors", "t5_small", &[]);
    file(base, "vae", "vae.safetensors", "vae_kl_small", &[]);
    let server = server(base);
    known_as(&server, name, "AuraFlow");
    drawn(
        &server,
        base,
        &prompt(&clip_loader("t5.safetensors", "chroma"), 64),
    );
}

#[test]
fn hunyuan_dit_says_what_its_prompt_lacks() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let text = [
        ("text_embedding_padding", &[14, 64][..]),
        ("mlp_t5.2.weight", &[64, 192]),
        ("mlp_t5.2.bias", &[64]),
    ];
    let mut changed: Vec<(String, Vec<usize>)> = Vec::new();
    for block in 0..4 {
        changed.push((
            format!("blocks.{block}.attn2.kv_proj.weight"),
            vec![192, 64],
        ));
    }
    let changed: Vec<(&str, &[usize])> = changed
        .iter()
        .map(|(key, shape)| (key.as_str(), shape.as_slice()))
        .chain(text)
        .collect();
    let name = "model.safetensors";
    file(base, "diffusion_models", name, "hydit_small", &changed);
    file(
        base,
        "diffusion_models",
        "older.safetensors",
        "hydit1_small",
        &[],
    );
    file(base, "text_encoders", "t5.safetensors", "t5_small", &[]);
    file(base, "vae", "vae.safetensors", "vae_kl_small", &[]);
    let server = server(base);
    known_as(&server, name, "HunyuanDiT 1.2");
    known_as(&server, "older.safetensors", "HunyuanDiT 1.1");
    let encoder = clip_loader("t5.safetensors", "chroma");
    let text = refused(&server, &prompt(&encoder, 64));
    assert!(
        text.contains("model.safetensors") && text.contains("multilingual T5"),
        "{text}"
    );
}

/// Stage C makes a latent of the prompt, stage B a larger one of that, stage A a picture.
#[test]
fn stable_cascade_draws_in_three_stages() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let folder = "diffusion_models";
    let text = [
        ("clip_txt_mapper.weight", &[48, 64][..]),
        ("clip_txt_pooled_mapper.weight", &[192, 64]),
    ];
    file(base, folder, "c.safetensors", "cascade_c_small", &text);
    let text = [("clip_mapper.weight", &[192, 64][..])];
    file(base, folder, "b.safetensors", "cascade_b_small", &text);
    file(
        base,
        "text_encoders",
        "clip.safetensors",
        "clip_l_small",
        &[],
    );
    file(base, "vae", "a.safetensors", "cascade_a_small", &[]);
    let server = server(base);
    known_as(&server, "c.safetensors", "Stable Cascade C");
    known_as(&server, "b.safetensors", "Stable Cascade B");
    let mut prompt = json!({
        "1": loader("c.safetensors"),
        "2": clip_loader("clip.safetensors", "stable_diffusion"),
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "a.safetensors"}},
        "4": words("a red apple on a table"),
        "5": words("blurry"),
        "6": {"class_type": "StableCascade_EmptyLatentImage", "inputs": {
            "width": 256, "height": 256, "compression": 42, "batch_size": 1}},
        "7": sampler("1", "4", "5", json!(["6", 0])),
        "10": loader("b.safetensors"),
        "11": {"class_type": "StableCascade_StageB_Conditioning", "inputs": {
            "conditioning": ["4", 0], "stage_c": ["7", 0]}},
        "12": sampler("10", "11", "5", json!(["6", 1])),
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["12", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "family"}},
    });
    let picture = drawn(&server, base, &prompt);
    assert_eq!((picture.width, picture.height), (256, 256));
    // A latent of stage B cannot lead stage B.
    prompt["11"]["inputs"]["stage_c"] = json!(["6", 1]);
    let text = refused(&server, &prompt);
    assert!(
        text.contains("latent of stage C with 16 channels"),
        "{text}"
    );
}

/// The prompt of a small UNet with one text encoder.
fn unet(base: &Path) -> Value {
    let name = "model.safetensors";
    file(base, "diffusion_models", name, "unet_sd1_small", &[]);
    file(
        base,
        "text_encoders",
        "clip.safetensors",
        "clip_l_small",
        &[],
    );
    file(base, "vae", "vae.safetensors", "vae_kl_small", &[]);
    prompt(&clip_loader("clip.safetensors", "stable_diffusion"), 64)
}

fn write(base: &Path, folder: &str, keys: &[(String, Vec<usize>)]) {
    let folder = base.join("models").join(folder);
    fs::create_dir_all(&folder).unwrap();
    let keys: tiny::Keys = keys.iter().cloned().collect();
    tiny::write(&folder.join("model.safetensors"), &keys).unwrap();
}

#[test]
fn boxes_with_text_change_a_picture() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let plain = unet(base);
    let mut keys: Vec<(String, Vec<usize>)> = Vec::new();
    let mut put = |key: String, shape: &[usize]| keys.push((key, shape.to_vec()));
    let token = 24;
    for (block, query) in [
        ("input_blocks.1.1", 32),
        ("input_blocks.3.1", 64),
        ("middle_block.1", 128),
    ] {
        let key = |name: &str| format!("{block}.transformer_blocks.0.fuser.{name}");
        put(key("alpha_attn"), &[]);
        put(key("alpha_dense"), &[]);
        put(key("linear.weight"), &[query, token]);
        put(key("linear.bias"), &[query]);
        for name in ["to_q", "to_k", "to_v", "to_out.0"] {
            put(key(&format!("attn.{name}.weight")), &[query, query]);
        }
        put(key("attn.to_out.0.bias"), &[query]);
        put(key("ff.net.0.proj.weight"), &[8 * query, query]);
        put(key("ff.net.0.proj.bias"), &[8 * query]);
        put(key("ff.net.2.weight"), &[query, 4 * query]);
        put(key("ff.net.2.bias"), &[query]);
        for norm in ["norm1", "norm2"] {
            put(key(&format!("{norm}.weight")), &[query]);
            put(key(&format!("{norm}.bias")), &[query]);
        }
    }
    let key = |name: &str| format!("position_net.{name}");
    put(key("null_positive_feature"), &[64]);
    put(key("null_position_feature"), &[64]);
    for (number, [out, input]) in [(0, [32, 128]), (2, [32, 32]), (4, [token, 32])] {
        put(key(&format!("linears.{number}.weight")), &[out, input]);
        put(key(&format!("linears.{number}.bias")), &[out]);
    }
    write(base, "gligen", &keys);
    file(base, "gligen", "vae.safetensors", "vae_kl_small", &[]);
    let server = server(base);
    let before = drawn(&server, base, &plain);
    let mut boxed = plain.clone();
    boxed["10"] =
        json!({"class_type": "GLIGENLoader", "inputs": {"gligen_name": "model.safetensors"}});
    let apply = |to: &str, text: &str, x: usize| {
        json!({"class_type": "GLIGENTextBoxApply", "inputs": {
            "conditioning_to": [to, 0], "clip": ["2", 0], "gligen_textbox_model": ["10", 0], "text": text,
            "width": 32, "height": 32, "x": x, "y": 16}})
    };
    boxed["11"] = apply("4", "an apple", 0);
    boxed["12"] = apply("11", "a pear", 32);
    boxed["7"]["inputs"]["positive"] = json!(["12", 0]);
    let after = drawn(&server, base, &boxed);
    assert_ne!(before.pixels, after.pixels);
    // Another place is another picture.
    boxed["12"]["inputs"]["x"] = json!(8);
    assert_ne!(drawn(&server, base, &boxed).pixels, after.pixels);
    // A file that is something else is called by name.
    boxed["10"]["inputs"]["gligen_name"] = json!("vae.safetensors");
    let text = refused(&server, &boxed);
    assert!(text.contains("is no GLIGEN model: it is a VAE"), "{text}");
}

#[test]
fn a_person_changes_a_prompt() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let plain = unet(base);
    let (hidden, width) = (32, 64);
    let mut keys: Vec<(String, Vec<usize>)> = Vec::new();
    let mut put = |key: &str, shape: &[usize]| keys.push((key.to_owned(), shape.to_vec()));
    put("vision_model.embeddings.class_embedding", &[hidden]);
    put(
        "vision_model.embeddings.patch_embedding.weight",
        &[hidden, 3, 14, 14],
    );
    put(
        "vision_model.embeddings.position_embedding.weight",
        &[5, hidden],
    );
    let layer = "vision_model.encoder.layers.0";
    let mut linears = vec![
        (format!("{layer}.mlp.fc1"), [64, hidden]),
        (format!("{layer}.mlp.fc2"), [hidden, 64]),
    ];
    for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
        linears.push((format!("{layer}.self_attn.{name}"), [hidden, hidden]));
    }
    for (name, input) in [("mlp1", 2 * width), ("mlp2", width)] {
        linears.push((format!("fuse_module.{name}.fc1"), [width, input]));
        linears.push((format!("fuse_module.{name}.fc2"), [width, width]));
    }
    for (key, shape) in &linears {
        put(&format!("{key}.weight"), shape);
        put(&format!("{key}.bias"), &shape[..1]);
    }
    for (key, size) in [
        ("vision_model.pre_layrnorm".to_owned(), hidden),
        ("vision_model.post_layernorm".to_owned(), hidden),
        (format!("{layer}.layer_norm1"), hidden),
        (format!("{layer}.layer_norm2"), hidden),
        ("fuse_module.mlp1.layernorm".to_owned(), 2 * width),
        ("fuse_module.mlp2.layernorm".to_owned(), width),
        ("fuse_module.layer_norm".to_owned(), width),
    ] {
        put(&format!("{key}.weight"), &[size]);
        put(&format!("{key}.bias"), &[size]);
    }
    put("visual_projection.weight", &[24, hidden]);
    put("visual_projection_2.weight", &[40, hidden]);
    write(base, "photomaker", &keys);
    let server = server(base);
    let before = drawn(&server, base, &plain);
    let mut with = plain.clone();
    with["10"] = json!({"class_type": "PhotoMakerLoader", "inputs": {"photomaker_model_name": "model.safetensors"}});
    with["11"] = json!({"class_type": "EmptyImage", "inputs": {
        "width": 40, "height": 30, "batch_size": 1, "color": 200}});
    with["4"] = json!({"class_type": "PhotoMakerEncode", "inputs": {
        "photomaker": ["10", 0], "image": ["11", 0], "clip": ["2", 0], "text": "a photomaker on a table"}});
    let one = drawn(&server, base, &with);
    assert_ne!(before.pixels, one.pixels);
    // Another person, another picture.
    with["11"]["inputs"]["color"] = json!(0x00ff_8000);
    let other = drawn(&server, base, &with);
    assert_ne!(one.pixels, other.pixels);
    // Without the word nobody is looked at.
    with["4"]["inputs"]["text"] = json!("a red apple on a table");
    assert_eq!(drawn(&server, base, &with).pixels, before.pixels);
}
