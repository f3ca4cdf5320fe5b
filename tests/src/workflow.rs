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
