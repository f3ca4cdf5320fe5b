//! A workflow made small: pictures of few pixels, two steps, one picture at a time.

use serde_json::{Value, json};

/// Pixels along a side.
const SIDE: u64 = 64;
const STEPS: u64 = 2;
/// Words that a language model writes.
const WORDS: u64 = 8;
/// The smallest that nodes take, and one that takes no less than more.
const MEGAPIXELS: f64 = 0.01;
const SELECTED: (&str, f64) = ("ResolutionSelector", 0.1);
/// Seconds of a song that a language model writes a sketch of.
const SECONDS: u64 = 2;
/// Borders and places of pictures.
const BORDER: u64 = 16;

/// Inputs that are a whole number, by the last part of their name, and the most they may be.
const MOST: &[(&str, u64)] = &[
    ("width", SIDE),
    ("height", SIDE),
    ("largest_size", SIDE),
    ("target_width", SIDE),
    ("target_height", SIDE),
    ("amount", 9),
    ("steps", STEPS),
    ("batch_size", 1),
    ("length", 5),
    ("frames_number", 9),
    ("video_frames", 3),
    ("octree_resolution", 16),
    ("max_length", WORDS),
    ("left", BORDER),
    ("right", BORDER),
    ("top", BORDER),
    ("bottom", BORDER),
    ("x", BORDER),
    ("y", BORDER),
];

/// Reduces a prompt in the format of the server.
pub fn reduce(prompt: &mut Value) {
    let Some(nodes) = prompt.as_object() else {
        return;
    };
    let mut changes: Vec<(String, String, Value)> = Vec::new();
    for (id, node) in nodes {
        let Some(inputs) = node["inputs"].as_object() else {
            continue;
        };
        let latent = node["class_type"]
            .as_str()
            .is_some_and(|class| class.starts_with("Empty") && class.ends_with("LatentAudio"));
        if latent && inputs.get("seconds").is_some_and(Value::is_number) {
            changes.push((id.clone(), "seconds".to_owned(), json!(1.0)));
        }
        let steps = inputs.get("steps").and_then(Value::as_u64);
        for (name, value) in inputs {
            let last = name.rsplit('.').next().unwrap_or(name);
            if last == "megapixels" && value.is_number() {
                let selected = node["class_type"] == SELECTED.0;
                let least = if selected { SELECTED.1 } else { MEGAPIXELS };
                changes.push((id.clone(), name.clone(), json!(least)));
            }
            if let (Some(steps), Some(at)) = (steps, value.as_u64()) {
                // Where one sampler stops and the next goes on.
                let within = matches!(last, "start_at_step" | "end_at_step") && at < steps;
                if within && steps > STEPS {
                    let at = (at * STEPS).div_ceil(steps).min(STEPS - 1);
                    changes.push((id.clone(), name.clone(), json!(at)));
                }
            }
            let class = node["class_type"].as_str().unwrap_or_default();
            if let Some(most) = most(class, last) {
                cap(prompt, id, name, most, &mut changes, 0);
            }
        }
    }
    for (id, name, value) in changes {
        prompt[&id]["inputs"][&name] = value;
    }
}

/// The most that an input of a class may be; none if it may be anything.
fn most(class: &str, input: &str) -> Option<u64> {
    match input {
        // Eight pictures for each latent frame after the first.
        "length" if class.contains("LTXV") => Some(9),
        "resolution" if class == "EmptyLatentHunyuan3Dv2" => Some(16),
        "duration" if class == "TextEncodeAceStepAudio1.5" => Some(SECONDS),
        _ => {
            let known = MOST.iter().find(|(known, _)| *known == input);
            known.map(|(_, most)| *most)
        }
    }
}

/// Holds an input down, also where it comes from a node that only passes on what it has.
fn cap(
    prompt: &Value,
    id: &str,
    name: &str,
    most: u64,
    changes: &mut Vec<(String, String, Value)>,
    depth: usize,
) {
    const PASSING: [&str; 4] = ["value", "on_true", "on_false", "a"];
    let value = &prompt[id]["inputs"][name];
    if value.as_u64().is_some_and(|value| value > most) {
        changes.push((id.to_owned(), name.to_owned(), json!(most)));
    } else if let (Some(from), true) = (value[0].as_str(), depth < 8) {
        let class = prompt[from]["class_type"].as_str().unwrap_or_default();
        if class.starts_with("Primitive") || class == "ComfySwitchNode" {
            for input in PASSING {
                cap(prompt, from, input, most, changes, depth + 1);
            }
        } else if class == "ComfyMathExpression" {
            let said = prompt[from]["inputs"]["expression"].as_str();
            let inputs = prompt[from]["inputs"].as_object();
            let names = inputs.into_iter().flat_map(serde_json::Map::keys);
            let names: Vec<&String> = names.filter(|name| name.starts_with("values.")).collect();
            // A product of several is as small if each is smaller.
            let product = names.len() > 1 && said.is_some_and(|text| text.contains('*'));
            let most = if product { most.isqrt() } else { most };
            for input in names {
                cap(prompt, from, input, most, changes, depth + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_held_down_through_switches() {
        let mut prompt = json!({
            "1": {"class_type": "KSampler", "inputs": {"steps": ["2", 0], "seed": 900}},
            "2": {"class_type": "ComfySwitchNode", "inputs": {"on_true": ["3", 0], "on_false": 20}},
            "3": {"class_type": "PrimitiveInt", "inputs": {"value": 8}},
            "4": {"class_type": "KSamplerAdvanced", "inputs": {"steps": 25, "start_at_step": 20, "end_at_step": 10000}},
            "5": {"class_type": "ResizeImageMaskNode", "inputs": {"resize_type.megapixels": 1.5, "resize_type.width": 8}},
        });
        reduce(&mut prompt);
        assert_eq!(
            prompt,
            json!({
                "1": {"class_type": "KSampler", "inputs": {"steps": ["2", 0], "seed": 900}},
                "2": {"class_type": "ComfySwitchNode", "inputs": {"on_true": ["3", 0], "on_false": 2}},
                "3": {"class_type": "PrimitiveInt", "inputs": {"value": 2}},
                "4": {"class_type": "KSamplerAdvanced", "inputs": {"steps": 2, "start_at_step": 1, "end_at_step": 10000}},
                "5": {"class_type": "ResizeImageMaskNode", "inputs": {"resize_type.megapixels": 0.01, "resize_type.width": 8}},
            })
        );
    }

    #[test]
    fn numbers_are_held_down_through_sums() {
        let mut prompt = json!({
            "1": {"class_type": "EmptyLTXVLatentVideo", "inputs": {"length": ["2", 1], "width": ["4", 1]}},
            "2": {"class_type": "ComfyMathExpression", "inputs": {"expression": "a * b", "values.a": ["3", 0], "values.b": 5}},
            "3": {"class_type": "PrimitiveInt", "inputs": {"value": 25}},
            "4": {"class_type": "ComfyMathExpression", "inputs": {"expression": "a", "values.a": 1280}},
        });
        reduce(&mut prompt);
        assert_eq!(prompt["3"]["inputs"]["value"], 3);
        assert_eq!(prompt["2"]["inputs"]["values.b"], 3);
        assert_eq!(prompt["4"]["inputs"]["values.a"], 64);
    }
}
