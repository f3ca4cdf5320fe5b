//! Families of films and of things in space by HTTP, from files under published names to the last node: the networks are narrow
//! and have made-up weights.

use std::{fs, path::Path, time::Duration};

use fresco_tests::templates::{Outcome, Runner};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(5);

/// Runs a prompt whose node 90 saves something; the folder it saves to holds one file of this ending, and it is not empty.
#[track_caller]
fn makes(family: &str, prompt: &Value, ending: &str) {
    let base = tempfile::tempdir().unwrap();
    let runner = Runner::start(base.path(), LIMIT);
    let (found, outcome) = runner.run(prompt.to_string().as_bytes()).unwrap();
    assert_eq!(found, Some(family));
    // Nodes that load sound show it, too.
    let ran = matches!(
        outcome,
        Outcome::Ran {
            outputs: 1..,
            stand_in: None
        }
    );
    assert!(ran, "{outcome:?}");
    let files = saved(&base.path().join("output/film"));
    let one = files.iter().find(|(name, _)| name.ends_with(ending));
    assert!(one.is_some_and(|(_, bytes)| *bytes > 500), "{files:?}");
}

fn saved(folder: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries
        .map(|entry| {
            let bytes = entry.metadata().unwrap().len();
            (entry.file_name().into_string().unwrap(), bytes)
        })
        .collect()
}

fn text(clip: &Value, words: &str) -> Value {
    json!({"class_type": "CLIPTextEncode", "inputs": {"clip": clip, "text": words}})
}

fn sampler(model: &Value, positive: &Value, negative: &Value, latent: &Value, cfg: f64) -> Value {
    json!({"class_type": "KSampler", "inputs": {
        "model": model, "positive": positive, "negative": negative, "latent_image": latent, "seed": 3, "steps": 2,
        "cfg": cfg, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}})
}

fn film(images: &Value, sound: Option<&Value>) -> Value {
    let mut made = json!({"class_type": "CreateVideo", "inputs": {"images": images, "fps": 24.0}});
    if let Some(sound) = sound {
        made["inputs"]["audio"] = sound.clone();
    }
    made
}

fn save_film() -> Value {
    json!({"class_type": "SaveVideo", "inputs": {
        "video": ["80", 0], "filename_prefix": "film/film", "format": "mp4", "codec": "h264"}})
}

/// A video and its sound, with the voice of another, after a picture that a LoRA goes by.
#[test]
fn ltx_2_3_makes_a_film_with_a_voice() {
    let file = "ltx-2.3-22b-dev-fp8.safetensors";
    let prompt = json!({
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": file}},
        "2": {"class_type": "LTXVAudioVAELoader", "inputs": {"ckpt_name": file}},
        "3": {"class_type": "LTXAVTextEncoderLoader", "inputs": {
            "text_encoder": "gemma_3_12B_it_fp4_mixed.safetensors", "ckpt_name": file, "device": "default"}},
        "4": text(&json!(["3", 0]), "a man says hello"),
        "5": text(&json!(["3", 0]), "noise"),
        "6": {"class_type": "LTXVConditioning", "inputs": {"positive": ["4", 0], "negative": ["5", 0], "frame_rate": 24.0}},
        "7": {"class_type": "EmptyLTXVLatentVideo", "inputs": {"width": 64, "height": 64, "length": 9, "batch_size": 1}},
        "8": {"class_type": "LTXVEmptyLatentAudio", "inputs": {
            "frames_number": 9, "frame_rate": 24.0, "batch_size": 1, "audio_vae": ["2", 0]}},
        "10": {"class_type": "LoraLoaderModelOnly", "inputs": {
            "model": ["1", 0], "lora_name": "ltx-2.3-22b-ic-lora-ingredients-0.9.safetensors", "strength_model": 1.0}},
        "11": {"class_type": "GetICLoRAParameters", "inputs": {"iclora_model": ["10", 0]}},
        "12": {"class_type": "LoadImage", "inputs": {"image": "apple.png"}},
        "13": {"class_type": "LTXVAddGuide", "inputs": {
            "positive": ["6", 0], "negative": ["6", 1], "vae": ["1", 2], "latent": ["7", 0], "image": ["12", 0],
            "frame_idx": 0, "strength": 1.0, "iclora_parameters": ["11", 0]}},
        "14": {"class_type": "LoadAudio", "inputs": {"audio": "voice.wav"}},
        "15": {"class_type": "LTXVReferenceAudio", "inputs": {
            "model": ["10", 0], "positive": ["13", 0], "negative": ["13", 1], "reference_audio": ["14", 0],
            "audio_vae": ["2", 0], "identity_guidance_scale": 3.0, "start_percent": 0.0, "end_percent": 1.0}},
        "16": {"class_type": "LTXVConcatAVLatent", "inputs": {"video_latent": ["13", 2], "audio_latent": ["8", 0]}},
        "17": sampler(&json!(["15", 0]), &json!(["15", 1]), &json!(["15", 2]), &json!(["16", 0]), 2.0),
        "18": {"class_type": "LTXVSeparateAVLatent", "inputs": {"av_latent": ["17", 0]}},
        "19": {"class_type": "LTXVCropGuides", "inputs": {
            "positive": ["15", 1], "negative": ["15", 2], "latent": ["18", 0]}},
        "20": {"class_type": "VAEDecode", "inputs": {"samples": ["19", 2], "vae": ["1", 2]}},
        "21": {"class_type": "LTXVAudioVAEDecode", "inputs": {"samples": ["18", 1], "audio_vae": ["2", 0]}},
        "80": film(&json!(["20", 0]), Some(&json!(["21", 0]))),
        "90": save_film(),
    });
    makes("LTX-2.3", &prompt, ".mp4");
}

/// Two people who speak, each with a sound, in a video that goes on after another.
#[test]
fn wan_lets_two_people_speak() {
    let encoder = "wav2vec2-chinese-base_fp16.safetensors";
    let prompt = json!({
        "1": {"class_type": "UNETLoader", "inputs": {
            "unet_name": "Wan2_1-I2V-14B-480p_fp8_e4m3fn_scaled_KJ.safetensors", "weight_dtype": "default"}},
        "2": {"class_type": "CLIPLoader", "inputs": {
            "clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "Wan2_1_VAE_bf16.safetensors"}},
        "4": {"class_type": "ModelPatchLoader", "inputs": {"name": "wan2.1_infiniteTalk_multi_fp16.safetensors"}},
        "5": {"class_type": "AudioEncoderLoader", "inputs": {"audio_encoder_name": encoder}},
        "6": {"class_type": "LoadAudio", "inputs": {"audio": "voice.wav"}},
        "7": {"class_type": "AudioEncoderEncode", "inputs": {"audio_encoder": ["5", 0], "audio": ["6", 0]}},
        "8": {"class_type": "LoadImage", "inputs": {"image": "people.png"}},
        "9": {"class_type": "SolidMask", "inputs": {"value": 1.0, "width": 64, "height": 64}},
        "10": {"class_type": "InvertMask", "inputs": {"mask": ["9", 0]}},
        "11": text(&json!(["2", 0]), "two people talk"),
        "12": {"class_type": "RepeatImageBatch", "inputs": {"image": ["8", 0], "amount": 12}},
        "13": {"class_type": "WanInfiniteTalkToVideo", "inputs": {
            "mode": "two_speakers", "mode.audio_encoder_output_2": ["7", 0], "mode.mask_1": ["9", 0], "mode.mask_2": ["10", 0],
            "model": ["1", 0], "model_patch": ["4", 0], "positive": ["11", 0], "negative": ["11", 0], "vae": ["3", 0],
            "width": 64, "height": 64, "length": 5, "audio_encoder_output_1": ["7", 0], "motion_frame_count": 5,
            "audio_scale": 1.0, "start_image": ["8", 0], "previous_frames": ["12", 0]}},
        "14": sampler(&json!(["13", 0]), &json!(["13", 1]), &json!(["13", 2]), &json!(["13", 3]), 1.0),
        "15": {"class_type": "VAEDecode", "inputs": {"samples": ["14", 0], "vae": ["3", 0]}},
        "80": film(&json!(["15", 0]), None),
        "90": save_film(),
    });
    makes("Wan", &prompt, ".mp4");
}

/// A video and its sound from one latent, each decoded by its own VAE.
#[test]
fn minimax_h3_makes_a_film_with_sound() {
    let prompt = json!({
        "1": {"class_type": "UNETLoader", "inputs": {
            "unet_name": "minimax_h3_fl2va_pruned_int8_convrot.safetensors", "weight_dtype": "default"}},
        "2": {"class_type": "CLIPLoader", "inputs": {
            "clip_name": "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors", "type": "minimax"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "minimax_h3_video_vae_fp16.safetensors"}},
        "4": {"class_type": "VAELoader", "inputs": {"vae_name": "minimax_h3_audio_vae_fp32.safetensors"}},
        "5": text(&json!(["2", 0]), "waves"),
        "6": {"class_type": "EmptyMiniMaxH3LatentAV", "inputs": {"width": 64, "height": 64, "length": 5}},
        "7": sampler(&json!(["1", 0]), &json!(["5", 0]), &json!(["5", 0]), &json!(["6", 0]), 1.0),
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "VAEDecodeAudio", "inputs": {"samples": ["7", 0], "vae": ["4", 0]}},
        "80": film(&json!(["8", 0]), Some(&json!(["9", 0]))),
        "90": save_film(),
    });
    makes("MiniMax H3", &prompt, ".mp4");
}

/// A picture is a film of one frame, whose sound nobody made a latent for; sides need not be whole squares.
#[test]
fn minimax_h3_makes_a_picture() {
    let prompt = json!({
        "1": {"class_type": "UNETLoader", "inputs": {
            "unet_name": "minimax_h3_fl2va_pruned_int8_convrot.safetensors", "weight_dtype": "default"}},
        "2": {"class_type": "CLIPLoader", "inputs": {
            "clip_name": "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors", "type": "minimax"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "minimax_h3_video_vae_fp16.safetensors"}},
        "5": text(&json!(["2", 0]), "waves"),
        "6": {"class_type": "EmptyLatentImage", "inputs": {"width": 80, "height": 64, "batch_size": 1}},
        "7": sampler(&json!(["1", 0]), &json!(["5", 0]), &json!(["5", 0]), &json!(["6", 0]), 1.0),
        "8": {"class_type": "LTXVSeparateAVLatent", "inputs": {"av_latent": ["7", 0]}},
        "9": {"class_type": "VAEDecode", "inputs": {"samples": ["8", 0], "vae": ["3", 0]}},
        "90": {"class_type": "SaveImage", "inputs": {"images": ["9", 0], "filename_prefix": "film/still"}},
    });
    makes("MiniMax H3", &prompt, ".png");
}

/// A picture that moves: what sees it and both networks are in one file.
#[test]
fn stable_video_diffusion_moves_a_picture() {
    let prompt = json!({
        "1": {"class_type": "ImageOnlyCheckpointLoader", "inputs": {"ckpt_name": "svd_xt.safetensors"}},
        "2": {"class_type": "LoadImage", "inputs": {"image": "apple.png"}},
        "3": {"class_type": "SVD_img2vid_Conditioning", "inputs": {
            "clip_vision": ["1", 1], "init_image": ["2", 0], "vae": ["1", 2], "width": 64, "height": 64,
            "video_frames": 3, "motion_bucket_id": 127, "fps": 6, "augmentation_level": 0.0}},
        "4": {"class_type": "VideoLinearCFGGuidance", "inputs": {"model": ["1", 0], "min_cfg": 1.0}},
        "5": sampler(&json!(["4", 0]), &json!(["3", 0]), &json!(["3", 1]), &json!(["3", 2]), 2.5),
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "80": film(&json!(["6", 0]), None),
        "90": save_film(),
    });
    makes("SVD", &prompt, ".mp4");
}

/// A thing in space after a picture.
#[test]
fn hunyuan3d_makes_a_thing_of_a_picture() {
    let prompt = json!({
        "1": {"class_type": "ImageOnlyCheckpointLoader", "inputs": {"ckpt_name": "hunyuan3d-dit-v2_fp16.safetensors"}},
        "2": {"class_type": "LoadImage", "inputs": {"image": "apple.png"}},
        "3": {"class_type": "CLIPVisionEncode", "inputs": {"clip_vision": ["1", 1], "image": ["2", 0], "crop": "none"}},
        "4": {"class_type": "Hunyuan3Dv2Conditioning", "inputs": {"clip_vision_output": ["3", 0]}},
        "5": {"class_type": "EmptyLatentHunyuan3Dv2", "inputs": {"resolution": 16, "batch_size": 1}},
        "6": sampler(&json!(["1", 0]), &json!(["4", 0]), &json!(["4", 1]), &json!(["5", 0]), 5.0),
        "7": {"class_type": "VAEDecodeHunyuan3D", "inputs": {
            "samples": ["6", 0], "vae": ["1", 2], "num_chunks": 1000, "octree_resolution": 16}},
        "8": {"class_type": "VoxelToMesh", "inputs": {"voxel": ["7", 0], "algorithm": "basic", "threshold": 0.4}},
        "90": {"class_type": "SaveGLB", "inputs": {"mesh": ["8", 0], "filename_prefix": "film/thing"}},
    });
    makes("Hunyuan3D", &prompt, ".glb");
}
