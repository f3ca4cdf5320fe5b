//! Files that are not what was asked for, do not belong together, or are broken: each error names the file, says what it looks
//! like and what would be needed, and nothing half loaded stays.

use std::{fs, path::Path};

use fresco_tests::{
    Server, StartOptions,
    tiny::{self, Keys, Tiny},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::families::file;

/// A folder with a small Flux and all that belongs to it, and files of other families.
fn base() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path();
    let text = [("txt_in.weight", &[128, 64][..])];
    let (models, encoders) = ("diffusion_models", "text_encoders");
    file(base, models, "flux.safetensors", "flux_small", &text);
    file(base, encoders, "clip_l.safetensors", "clip_l_small", &[]);
    file(base, encoders, "t5.safetensors", "t5_small", &[]);
    file(base, "vae", "ae.safetensors", "vae_ae16_small", &[]);
    file(base, "vae", "four.safetensors", "vae_kl_small", &[]);
    folder
}

fn start(base: &Path) -> Server {
    Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    })
}

/// From a diffusion model to a picture.
fn prompt(model: &str, seed: u64) -> Value {
    json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": model, "weight_dtype": "default"}},
        "2": {"class_type": "DualCLIPLoader", "inputs": {
            "clip_name1": "clip_l.safetensors", "clip_name2": "t5.safetensors", "type": "flux"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "a red apple"}},
        "6": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "7": {"class_type": "KSampler", "inputs": {
            "model": ["1", 0], "positive": ["4", 0], "negative": ["4", 0], "latent_image": ["6", 0],
            "seed": seed, "steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "wrong"}},
    })
}

#[track_caller]
fn ran(server: &Server, prompt: &Value) -> Value {
    server.wait_for(&server.queue(prompt, None))
}

#[track_caller]
fn succeeds(server: &Server, prompt: &Value) -> Value {
    let history = ran(server, prompt);
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    history
}

/// The class of the node that fails, and what it says: all of these words.
#[track_caller]
fn fails(server: &Server, prompt: &Value, node: &str, words: &[&str]) {
    let history = ran(server, prompt);
    assert_eq!(history["status"]["status_str"], "error", "{history}");
    let messages = history["status"]["messages"].as_array().unwrap();
    let error = messages.iter().find(|m| m[0] == "execution_error").unwrap();
    assert_eq!(error[1]["node_type"], node, "{error}");
    let said = error[1]["exception_message"].as_str().unwrap();
    for word in words {
        assert!(said.contains(word), "{said:?} does not say {word:?}");
    }
}

/// The files that are in memory; the books about them agree.
#[track_caller]
fn in_memory(server: &Server) -> Vec<String> {
    let check = server.get("/memory/check").expect_status(200).json();
    assert_eq!(check["consistent"], true, "{check:#}");
    let models = server.get("/memory/models").expect_status(200).json();
    let models = models.as_array().unwrap();
    models.iter().map(ToString::to_string).collect()
}

/// Whether anything of a file is in memory.
#[track_caller]
fn stays(server: &Server, name: &str) -> bool {
    in_memory(server).iter().any(|model| model.contains(name))
}

/// One layer changed, under the names of a family.
fn lora(layer: &str) -> Keys {
    Keys::from([
        (format!("{layer}.lora_down.weight"), vec![2, 32]),
        (format!("{layer}.lora_up.weight"), vec![32, 2]),
    ])
}

#[test]
fn a_lora_of_another_family_is_said_with_the_result() {
    let base = base();
    let folder = base.path().join("models/loras");
    fs::create_dir_all(&folder).unwrap();
    let unet = lora("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q");
    tiny::write(&folder.join("unet.safetensors"), &unet).unwrap();
    let vae = base.path().join("models/vae/four.safetensors");
    fs::copy(vae, folder.join("vae.safetensors")).unwrap();
    let server = start(base.path());
    for (name, words) in [
        (
            "unet.safetensors",
            ["made for SD1.x, SD2.x or SDXL", "none of the layers"],
        ),
        (
            "vae.safetensors",
            ["looks like a VAE, not a LoRA", "none of the layers"],
        ),
    ] {
        let mut prompt = prompt("flux.safetensors", 1);
        prompt["10"] = json!({"class_type": "LoraLoader", "inputs": {
            "model": ["1", 0], "clip": ["2", 0], "lora_name": name, "strength_model": 1.0, "strength_clip": 1.0}});
        prompt["7"]["inputs"]["model"] = json!(["10", 0]);
        let history = succeeds(&server, &prompt);
        let said = history["outputs"]["10"]["warnings"].to_string();
        for word in words.iter().chain(&[name]) {
            assert!(said.contains(word), "{said} does not say {word:?}");
        }
    }
    in_memory(&server);
}

#[test]
fn a_control_net_of_another_family_names_both() {
    let base = base();
    let folder = base.path().join("models/controlnet");
    fs::create_dir_all(&folder).unwrap();
    let tiny = Tiny::default();
    tiny::write(&folder.join("unet.safetensors"), &tiny.control()).unwrap();
    let wide = Tiny {
        context: 96,
        ..Tiny::default()
    };
    tiny::write(&folder.join("wide.safetensors"), &wide.control()).unwrap();
    tiny::write(&folder.join("lora.safetensors"), &lora("lora_unet_x")).unwrap();
    let model = base.path().join("models/diffusion_models/flux.safetensors");
    fs::copy(model, folder.join("model.safetensors")).unwrap();
    tiny.write(base.path(), "sd.safetensors").unwrap();
    let server = start(base.path());
    let steered = |name: &str| {
        let mut prompt = prompt("flux.safetensors", 1);
        prompt["10"] =
            json!({"class_type": "ControlNetLoader", "inputs": {"control_net_name": name}});
        prompt["11"] = json!({"class_type": "EmptyImage", "inputs":
            {"width": 64, "height": 64, "batch_size": 1, "color": 255}});
        prompt["12"] = json!({"class_type": "ControlNetApplyAdvanced", "inputs": {
            "positive": ["4", 0], "negative": ["4", 0], "control_net": ["10", 0], "image": ["11", 0],
            "strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}});
        prompt["7"]["inputs"]["positive"] = json!(["12", 0]);
        prompt["7"]["inputs"]["negative"] = json!(["12", 1]);
        prompt
    };
    fails(
        &server,
        &steered("unet.safetensors"),
        "KSampler",
        &[
            "controlnet/unet.safetensors",
            "a control net for SD1.x, SD2.x and SDXL",
            "flux.safetensors is a model of another family",
            "choose",
        ],
    );
    // Of the right family and another size.
    let mut wider = steered("wide.safetensors");
    wider["20"] =
        json!({"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd.safetensors"}});
    wider["4"]["inputs"]["clip"] = json!(["20", 1]);
    wider["7"]["inputs"]["model"] = json!(["20", 0]);
    wider["8"]["inputs"]["vae"] = json!(["20", 2]);
    fails(
        &server,
        &wider,
        "KSampler",
        &[
            "wide.safetensors",
            "another size",
            "96",
            "64",
            "sd.safetensors",
        ],
    );
    for (name, words) in [
        (
            "lora.safetensors",
            ["this is a LoRA, not a control net", "models/loras"],
        ),
        (
            "model.safetensors",
            ["a diffusion model (Flux.1", "UNETLoader"],
        ),
    ] {
        fails(&server, &steered(name), "ControlNetLoader", &words);
        assert!(!stays(&server, name));
    }
    succeeds(&server, &prompt("flux.safetensors", 2));
}

#[test]
fn a_vae_of_another_family_is_named_with_its_channels() {
    let base = base();
    let vae = base.path().join("models/vae");
    let encoder = base.path().join("models/text_encoders/t5.safetensors");
    fs::copy(encoder, vae.join("encoder.safetensors")).unwrap();
    tiny::write(&vae.join("lora.safetensors"), &lora("lora_unet_x")).unwrap();
    let server = start(base.path());
    let with = |name: &str| {
        let mut prompt = prompt("flux.safetensors", 1);
        prompt["3"]["inputs"]["vae_name"] = json!(name);
        prompt
    };
    fails(
        &server,
        &with("four.safetensors"),
        "VAEDecode",
        &[
            "vae/four.safetensors",
            "4 channels",
            "has 16",
            "Flux.1",
            "Load the VAE",
        ],
    );
    let mut tiled = with("four.safetensors");
    tiled["8"] = json!({"class_type": "VAEDecodeTiled", "inputs": {"samples": ["7", 0], "vae": ["3", 0],
        "tile_size": 512, "overlap": 64, "temporal_size": 64, "temporal_overlap": 8}});
    fails(
        &server,
        &tiled,
        "VAEDecodeTiled",
        &["vae/four.safetensors", "4 channels"],
    );
    // A picture that was encoded with it.
    let mut encoded = prompt("flux.safetensors", 1);
    encoded["20"] = json!({"class_type": "VAELoader", "inputs": {"vae_name": "four.safetensors"}});
    encoded["21"] = json!({"class_type": "EmptyImage", "inputs":
        {"width": 64, "height": 64, "batch_size": 1, "color": 255}});
    encoded["6"] =
        json!({"class_type": "VAEEncode", "inputs": {"pixels": ["21", 0], "vae": ["20", 0]}});
    fails(
        &server,
        &encoded,
        "KSampler",
        &["16 channels", "has 4", "Encode the picture with the VAE"],
    );
    for (name, words) in [
        (
            "encoder.safetensors",
            ["this is a text encoder, not a VAE", "CLIPLoader"],
        ),
        (
            "lora.safetensors",
            ["this is a LoRA, not a VAE", "LoraLoader"],
        ),
    ] {
        fails(&server, &with(name), "VAELoader", &words);
        assert!(!stays(&server, name));
    }
    succeeds(&server, &prompt("flux.safetensors", 2));
}

#[test]
fn missing_and_wrong_text_encoders_say_what_is_needed() {
    let base = base();
    let encoders = base.path().join("models/text_encoders");
    let vae = base.path().join("models/vae/ae.safetensors");
    fs::copy(vae, encoders.join("vae.safetensors")).unwrap();
    let models = "diffusion_models";
    file(base.path(), models, "eighty.safetensors", "flux_small", &[]);
    let mut bare = Tiny::default().checkpoint();
    bare.retain(|key, _| !key.starts_with("cond_stage_model."));
    let folder = base.path().join("models/checkpoints");
    fs::create_dir_all(&folder).unwrap();
    tiny::write(&folder.join("bare.safetensors"), &bare).unwrap();
    let server = start(base.path());
    let mut dual = prompt("flux.safetensors", 1);
    dual["2"]["inputs"]["clip_name1"] = json!("t5.safetensors");
    fails(
        &server,
        &dual,
        "DualCLIPLoader",
        &["t5.safetensors", "\"flux\"", "it takes", "clip_l", "t5xxl"],
    );
    let mut other = prompt("flux.safetensors", 1);
    other["2"]["inputs"]["clip_name2"] = json!("vae.safetensors");
    fails(
        &server,
        &other,
        "DualCLIPLoader",
        &[
            "text_encoders/vae.safetensors",
            "this is a VAE, not a text encoder",
            "models/vae",
        ],
    );
    assert!(!stays(&server, "vae.safetensors"));
    // The network wants text of another width than these encoders give.
    fails(
        &server,
        &prompt("eighty.safetensors", 1),
        "KSampler",
        &[
            "eighty.safetensors",
            "width 80",
            "another family",
            "belongs to this model",
        ],
    );
    let mut none = prompt("flux.safetensors", 1);
    none["20"] = json!({"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "bare.safetensors"}});
    none["4"]["inputs"]["clip"] = json!(["20", 1]);
    fails(
        &server,
        &none,
        "CLIPTextEncode",
        &["no text encoder", "CLIPLoader"],
    );
    succeeds(&server, &prompt("flux.safetensors", 2));
    in_memory(&server);
}

/// A safetensors file of these shapes in which each tensor has the format that its name is given.
fn write_mixed(path: &Path, keys: &Keys, format: impl Fn(&str) -> &'static str) {
    let mut header = serde_json::Map::new();
    let mut body: Vec<u8> = Vec::new();
    for (key, shape) in keys {
        let start = body.len();
        let format = format(key);
        let count: usize = shape.iter().product();
        for i in 0..count {
            // Small, and different from each other.
            let value = ((i * 7919 + key.len() * 31) % 255) as f32 / 2550.0 - 0.05;
            match format {
                "F32" => body.extend(value.to_le_bytes()),
                "BF16" => body.extend(&value.to_bits().to_le_bytes()[2..]),
                // Two to the power of minus six, either sign.
                "F8_E4M3" => body.push(if i % 2 == 0 { 0x08 } else { 0x88 }),
                "I64" => body.extend((i as i64 % 3).to_le_bytes()),
                other => panic!("{other} is not written here"),
            }
        }
        let entry = json!({"dtype": format, "shape": shape, "data_offsets": [start, body.len()]});
        header.insert(key.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(body);
    fs::write(path, bytes).unwrap();
}

#[test]
fn mixed_precisions_and_unknown_extras_do_no_harm() {
    let base = base();
    let folder = base.path().join("models/diffusion_models");
    let text = [("txt_in.weight", &[128, 64][..])];
    let keys = tiny::golden("flux_small", &text).unwrap();
    write_mixed(&folder.join("plain.safetensors"), &keys, |_| "F32");
    write_mixed(&folder.join("mixed.safetensors"), &keys, |key| {
        match key.len() % 3 {
            0 => "F32",
            1 => "BF16",
            _ if key.ends_with(".weight") && key.contains("mlp") => "F8_E4M3",
            _ => "BF16",
        }
    });
    let mut more = keys.clone();
    more.insert("extra.block.weight".to_owned(), vec![3, 5]);
    more.insert("double_blocks.0.nobody.knows".to_owned(), vec![7]);
    write_mixed(&folder.join("more.safetensors"), &more, |_| "F32");
    let whole = |key: &str| if key == "img_in.weight" { "I64" } else { "F32" };
    write_mixed(&folder.join("whole.safetensors"), &keys, whole);
    let server = start(base.path());
    let drawn = |name: &str| {
        let history = succeeds(&server, &prompt(name, 1));
        let image = &history["outputs"]["9"]["images"][0];
        let path = base
            .path()
            .join("output")
            .join(image["filename"].as_str().unwrap());
        fresco_tests::picture::read_file(&path).unwrap().pixels
    };
    let plain = drawn("plain.safetensors");
    drawn("mixed.safetensors");
    assert_eq!(drawn("more.safetensors"), plain, "extras change nothing");
    let log = server.log();
    let said = log
        .lines()
        .find(|line| line.contains("more.safetensors") && line.contains("not used"));
    assert!(
        said.is_some_and(|line| line.contains("extra.block.weight")),
        "{log}"
    );
    // Whole numbers are numbers too: they are read as they are, or refused by name, and never a crash.
    let history = ran(&server, &prompt("whole.safetensors", 1));
    if history["status"]["status_str"] != "success" {
        let said = history.to_string();
        assert!(
            said.contains("whole.safetensors") && said.contains("img_in.weight"),
            "{said}"
        );
    }
    in_memory(&server);
}

#[test]
fn broken_shards_and_unknown_families_leave_nothing_behind() {
    let base = base();
    let folder = base.path().join("models/diffusion_models");
    let text = [("txt_in.weight", &[128, 64][..])];
    let keys = tiny::golden("flux_small", &text).unwrap();
    let half = keys.len() / 2;
    let first: Keys = keys.clone().into_iter().take(half).collect();
    let second: Keys = keys.clone().into_iter().skip(half).collect();
    let shard = |stem: &str, n: usize| folder.join(format!("{stem}-{n:05}-of-00002.safetensors"));
    for stem in ["good", "cut", "gone"] {
        tiny::write(&shard(stem, 1), &first).unwrap();
        tiny::write(&shard(stem, 2), &second).unwrap();
    }
    let whole = fs::read(shard("cut", 2)).unwrap();
    fs::write(shard("cut", 2), &whole[..whole.len() - 100]).unwrap();
    fs::remove_file(shard("gone", 2)).unwrap();
    let other = [
        ("some_proj.weight", vec![32, 64]),
        ("x_embedder.proj.weight", vec![32, 12, 2, 2]),
        ("blocks.0.attn.qkv_x.weight", vec![96, 32]),
    ];
    let other = other.map(|(key, shape)| (key.to_owned(), shape));
    tiny::write(&folder.join("other.safetensors"), &Keys::from(other)).unwrap();
    let mut part = keys.clone();
    part.retain(|key, _| !key.starts_with("single_blocks.1."));
    part.remove("final_layer.linear.weight");
    tiny::write(&folder.join("part.safetensors"), &part).unwrap();
    let server = start(base.path());
    let name = |stem: &str| format!("{stem}-00001-of-00002.safetensors");
    fails(
        &server,
        &prompt(&name("cut"), 1),
        "UNETLoader",
        &["cut-00002-of-00002.safetensors"],
    );
    fails(
        &server,
        &prompt(&name("gone"), 1),
        "UNETLoader",
        &["gone-00002-of-00002.safetensors"],
    );
    fails(
        &server,
        &prompt("other.safetensors", 1),
        "UNETLoader",
        &[
            "other.safetensors",
            "no known model has its 3 tensors",
            "qkv_x",
            "This version runs",
            "Flux",
        ],
    );
    fails(
        &server,
        &prompt("part.safetensors", 1),
        "UNETLoader",
        &["part.safetensors", "final_layer.linear.weight"],
    );
    for stem in ["cut-00001", "gone-00001", "other.safe", "part.safe"] {
        assert!(!stays(&server, stem), "{stem}: {:?}", in_memory(&server));
    }
    succeeds(&server, &prompt(&name("good"), 1));
    assert!(stays(&server, "good-00001"));
}

/// A shard that is cut while the model is in use: the next load says so, and what was read before is let go.
#[test]
fn a_file_that_breaks_between_two_prompts_is_named() {
    let base = base();
    let server = start(base.path());
    succeeds(&server, &prompt("flux.safetensors", 1));
    let path = base.path().join("models/diffusion_models/flux.safetensors");
    let whole = fs::read(&path).unwrap();
    server
        .post(
            "/free",
            &json!({"unload_models": true, "free_memory": true, "wait": true}),
        )
        .expect_status(200);
    fs::write(&path, &whole[..whole.len() / 3]).unwrap();
    fails(
        &server,
        &prompt("flux.safetensors", 2),
        "UNETLoader",
        &["flux.safetensors"],
    );
    assert!(!stays(&server, "diffusion_models/flux"));
    fs::write(&path, &whole).unwrap();
    succeeds(&server, &prompt("flux.safetensors", 3));
}
