//! The tool that runs the ecosystem's workflows, on a few of ours: files of published names are made, in the formats
//! their names say, and everything runs to its end.

use std::time::Duration;

use fresco_tests::templates::{Outcome, Runner, files::FILES};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(2);

/// A prompt with one diffusion model and one text encoder.
fn prompt(model: &str, (words, kind): (&str, &str), vae: &str, lora: &str) -> Value {
    json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": model, "weight_dtype": "default"}},
        "2": {"class_type": "CLIPLoader", "inputs": {"clip_name": words, "type": kind}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": vae}},
        "4": {"class_type": "LoraLoaderModelOnly", "inputs": {
            "model": ["1", 0], "lora_name": lora, "strength_model": 1.0}},
        "5": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "a red apple"}},
        "6": {"class_type": "LoadImage", "inputs": {"image": "somebody.png"}},
        "7": {"class_type": "ImageScale", "inputs": {"image": ["6", 0], "upscale_method": "area",
            "width": 1024, "height": 1024, "crop": "disabled"}},
        "8": {"class_type": "VAEEncode", "inputs": {"pixels": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "KSampler", "inputs": {
            "model": ["4", 0], "positive": ["5", 0], "negative": ["5", 0], "latent_image": ["8", 0],
            "seed": 3, "steps": 20, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 0.9}},
        "10": {"class_type": "VAEDecode", "inputs": {"samples": ["9", 0], "vae": ["3", 0]}},
        "11": {"class_type": "SaveImage", "inputs": {"images": ["10", 0], "filename_prefix": "reduced"}},
    })
}

#[track_caller]
fn runs(runner: &Runner, family: &str, prompt: &Value) {
    let found = runner.run(prompt.to_string().as_bytes()).unwrap();
    let ran = Outcome::Ran {
        outputs: 1,
        stand_in: None,
    };
    assert_eq!(found, (Some(family), ran));
}

#[test]
fn workflows_run_with_reduced_models_under_published_names() {
    let base = tempfile::tempdir().unwrap();
    let runner = Runner::start(base.path(), LIMIT);
    let z_image = prompt(
        "z_image_turbo_int8_convrot.safetensors",
        ("qwen_3_4b.safetensors", "lumina2"),
        "ae.safetensors",
        "pixel_art_style_z_image_turbo.safetensors",
    );
    runs(&runner, "Z-Image", &z_image);
    let flux2 = prompt(
        "flux-2-klein-4b-fp8.safetensors",
        ("qwen_3_4b.safetensors", "flux2"),
        "flux2-vae.safetensors",
        "Flux_2-Turbo-LoRA_comfyui.safetensors",
    );
    runs(&runner, "Flux.2", &flux2);
    let mut sdxl = prompt("", ("", ""), "", "");
    sdxl["1"] = json!({"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd_xl_base_1.0.safetensors"}});
    sdxl["5"]["inputs"]["clip"] = json!(["1", 1]);
    sdxl["8"]["inputs"]["vae"] = json!(["1", 2]);
    sdxl["9"]["inputs"]["model"] = json!(["1", 0]);
    sdxl["10"]["inputs"]["vae"] = json!(["1", 2]);
    for id in ["2", "3", "4"] {
        sdxl.as_object_mut().unwrap().remove(id);
    }
    runs(&runner, "SDXL", &sdxl);
    // What is not in the table is said by name, and a broken workflow where it breaks.
    let mut unknown = z_image.clone();
    unknown["1"]["inputs"]["unet_name"] = json!("nobody_knows.safetensors");
    let found = runner.run(unknown.to_string().as_bytes()).unwrap();
    let name = "diffusion_models/nobody_knows.safetensors".to_owned();
    assert_eq!(found, (None, Outcome::NotHere(name)));
    let mut broken = flux2.clone();
    broken["3"]["inputs"]["vae_name"] = json!("ae.safetensors");
    let (_, outcome) = runner.run(broken.to_string().as_bytes()).unwrap();
    let Outcome::Failed { place, reason } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(place.contains("node 9 (KSampler)"), "{place}: {reason}");
}

#[test]
fn every_kind_of_file_can_be_made() {
    for kind in FILES {
        let network = kind.network();
        assert!(!network.keys.is_empty(), "{}/{}", kind.folder, kind.part);
    }
}
