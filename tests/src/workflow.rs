//! API-format workflows that need no model.

use serde_json::{Map, Value, json};

/// EmptyImage, ImageInvert, SaveImage: ids 1, 2, 3. A colour nobody used before makes it a fresh run.
pub fn picture(colour: u64, prefix: &str) -> Value {
    sized_picture(64, colour, prefix)
}

pub fn sized_picture(size: u32, colour: u64, prefix: &str) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs":
            {"width": size, "height": size, "batch_size": 1, "color": colour % 0x100_0000},
            "_meta": {"title": "Empty Image"}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]},
            "_meta": {"title": "Invert Image"}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": prefix},
            "_meta": {"title": "Save Image"}},
    })
}

/// EmptyImage straight to SaveImage: the smallest prompt that writes a file.
pub fn smallest(colour: u64, prefix: &str) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs":
            {"width": 64, "height": 64, "batch_size": 1, "color": colour % 0x100_0000}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}},
    })
}

/// A chain of `nodes` nodes: one EmptyImage, inversions, one PreviewImage (the last id).
pub fn chain(nodes: usize, size: u32, colour: u64) -> Value {
    assert!(nodes >= 2, "a chain has two ends");
    let mut prompt = Map::new();
    prompt.insert(
        "1".to_owned(),
        json!({"class_type": "EmptyImage", "inputs":
            {"width": size, "height": size, "batch_size": 1, "color": colour % 0x100_0000}}),
    );
    for id in 2..nodes {
        prompt.insert(
            id.to_string(),
            json!({"class_type": "ImageInvert", "inputs": {"image": [(id - 1).to_string(), 0]}}),
        );
    }
    prompt.insert(
        nodes.to_string(),
        json!({"class_type": "PreviewImage", "inputs": {"images": [(nodes - 1).to_string(), 0]}}),
    );
    Value::Object(prompt)
}

/// What [`text_to_image`] makes.
#[derive(Clone, Debug)]
pub struct TextToImage<'a> {
    pub checkpoint: &'a str,
    pub positive: &'a str,
    pub negative: &'a str,
    pub width: u32,
    pub height: u32,
    pub steps: u32,
    pub cfg: f64,
    pub sampler: &'a str,
    pub scheduler: &'a str,
    pub seed: u64,
}

impl Default for TextToImage<'_> {
    fn default() -> Self {
        Self {
            checkpoint: "model.safetensors",
            positive: "a photo of a cat",
            negative: "blurry",
            width: 64,
            height: 64,
            steps: 2,
            cfg: 7.0,
            sampler: "euler",
            scheduler: "normal",
            seed: 1,
        }
    }
}

/// The editor's default workflow: 4 loads, 6 and 7 are the prompts, 5 the size, 3 samples, 8 decodes, 9 saves.
pub fn text_to_image(what: &TextToImage<'_>) -> Value {
    json!({
        "3": {"class_type": "KSampler", "inputs": {
            "seed": what.seed, "steps": what.steps, "cfg": what.cfg, "sampler_name": what.sampler,
            "scheduler": what.scheduler, "denoise": 1.0, "model": ["4", 0], "positive": ["6", 0],
            "negative": ["7", 0], "latent_image": ["5", 0]}},
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": what.checkpoint}},
        "5": {"class_type": "EmptyLatentImage", "inputs":
            {"width": what.width, "height": what.height, "batch_size": 1}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"text": what.positive, "clip": ["4", 1]}},
        "7": {"class_type": "CLIPTextEncode", "inputs": {"text": what.negative, "clip": ["4", 1]}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "picture"}},
    })
}
