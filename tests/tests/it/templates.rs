//! The tool that runs the ecosystem's workflows, on a few of ours: files of published names are made, in the formats
//! their names say, and everything runs to its end.

use std::time::Duration;

use fresco_tests::templates::{Outcome, Runner, files::FILES};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(5);

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

/// A video of Wan from a picture, with a node for each kind that conditions it.
fn video(model: &str, vae: &str, node: &Value) -> Value {
    let mut prompt = json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": model, "weight_dtype": "default"}},
        "2": {"class_type": "CLIPLoader", "inputs": {
            "clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": vae}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "a red apple falls"}},
        "5": {"class_type": "LoadImage", "inputs": {"image": "somebody.png"}},
        "6": {"class_type": "CLIPVisionLoader", "inputs": {"clip_name": "clip_vision_h.safetensors"}},
        "7": {"class_type": "CLIPVisionEncode", "inputs": {
            "clip_vision": ["6", 0], "image": ["5", 0], "crop": "none"}},
        "9": {"class_type": "ModelSamplingSD3", "inputs": {"model": ["1", 0], "shift": 8.0}},
        "10": {"class_type": "KSampler", "inputs": {
            "model": ["9", 0], "positive": ["8", 0], "negative": ["8", 1], "latent_image": ["8", 2],
            "seed": 3, "steps": 2, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}},
        "11": {"class_type": "VAEDecode", "inputs": {"samples": ["10", 0], "vae": ["3", 0]}},
        "12": {"class_type": "SaveImage", "inputs": {"images": ["11", 0], "filename_prefix": "video"}},
    });
    prompt["8"] = node.clone();
    prompt
}

#[test]
fn videos_of_wan_run_with_reduced_models() {
    let base = tempfile::tempdir().unwrap();
    let runner = Runner::start(base.path(), LIMIT);
    let size = json!({"width": 64, "height": 64, "length": 5, "batch_size": 1});
    let node = |class: &str, more: Value| {
        let mut inputs = size.clone();
        inputs["positive"] = json!(["4", 0]);
        inputs["negative"] = json!(["4", 0]);
        inputs["vae"] = json!(["3", 0]);
        for (name, value) in more.as_object().unwrap() {
            inputs[name] = value.clone();
        }
        json!({"class_type": class, "inputs": inputs})
    };
    let (image, seen) = (json!(["5", 0]), json!(["7", 0]));
    let vae = "wan_2.1_vae.safetensors";
    for (model, node) in [
        (
            "wan2.1_i2v_480p_14B_fp16.safetensors",
            node(
                "WanImageToVideo",
                json!({"start_image": image, "clip_vision_output": seen}),
            ),
        ),
        (
            "wan2.2_i2v_high_noise_14B_fp8_scaled.safetensors",
            node("WanImageToVideo", json!({"start_image": image})),
        ),
        (
            "wan2.1_flf2v_720p_14B_fp16.safetensors",
            node(
                "WanFirstLastFrameToVideo",
                json!({
                "start_image": image, "end_image": image,
                "clip_vision_start_image": seen, "clip_vision_end_image": seen}),
            ),
        ),
        (
            "wan2.1_fun_control_1.3B_bf16.safetensors",
            node(
                "WanFunControlToVideo",
                json!({"control_video": image, "clip_vision_output": seen}),
            ),
        ),
        (
            "wan2.2_fun_control_high_noise_14B_fp8_scaled.safetensors",
            node(
                "Wan22FunControlToVideo",
                json!({"control_video": image, "ref_image": image}),
            ),
        ),
        (
            "wan2.1_vace_14B_fp16.safetensors",
            node(
                "WanVaceToVideo",
                json!({
                "strength": 1.0, "control_video": image, "reference_image": image}),
            ),
        ),
        (
            "wan2.1_t2v_1.3B_fp16.safetensors",
            node("WanPhantomSubjectToVideo", json!({"images": image})),
        ),
    ] {
        let mut prompt = video(model, vae, &node);
        if node["class_type"] == "WanPhantomSubjectToVideo" {
            prompt["10"]["inputs"]["latent_image"] = json!(["8", 3]);
        }
        runs(&runner, "Wan", &prompt);
    }
    // The 5B: what is known is part of the latent.
    let node = json!({"class_type": "Wan22ImageToVideoLatent", "inputs": {
        "vae": ["3", 0], "width": 64, "height": 64, "length": 5, "batch_size": 1, "start_image": ["5", 0]}});
    let mut prompt = video(
        "wan2.2_ti2v_5B_fp16.safetensors",
        "wan2.2_vae.safetensors",
        &node,
    );
    for (input, from) in [("positive", "4"), ("negative", "4"), ("latent_image", "8")] {
        prompt["10"]["inputs"][input] = json!([from, 0]);
    }
    runs(&runner, "Wan", &prompt);
}

#[test]
fn a_language_model_that_remembers_writes() {
    writes(
        "qwen3.5_9b_flux3_prompt_upsampler_w4a8.safetensors",
        "flux3",
    );
}

#[test]
fn gemma_writes_about_a_picture() {
    writes("gemma_3_12B_it_fp8_scaled.safetensors", "ltxv");
}

#[test]
fn the_next_gemma_writes_about_a_picture() {
    writes("gemma4_e2b_it_int8_convrot.safetensors", "ltxv");
}

#[track_caller]
fn writes(model: &str, kind: &str) {
    let base = tempfile::tempdir().unwrap();
    let runner = Runner::start(base.path(), LIMIT);
    let prompt = json!({
        "1": {"class_type": "CLIPLoader", "inputs": {"clip_name": model, "type": kind}},
        "2": {"class_type": "LoadImage", "inputs": {"image": "somebody.png"}},
        "3": {"class_type": "TextGenerate", "inputs": {
            "clip": ["1", 0], "prompt": "describe it", "max_length": 8, "sampling_mode": "off",
            "image": ["2", 0], "thinking": true, "system_prompt": "be brief"}},
        "4": {"class_type": "PreviewAny", "inputs": {"source": ["3", 0]}},
    });
    let found = runner.run(prompt.to_string().as_bytes()).unwrap();
    let ran = Outcome::Ran {
        outputs: 1,
        stand_in: None,
    };
    assert_eq!(found, (None, ran));
}
