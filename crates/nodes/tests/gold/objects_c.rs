//! Test objects of the files, audio, misc and vae_conditioning areas.

use std::sync::Arc;

use fresco_graph::{Map, Registry, Value, map};
use fresco_nodes::mesh::{Mesh, Surface, Voxels};
use fresco_nodes::save::Svg;
use fresco_nodes::types::{as_tensor, tensor};
use fresco_nodes::video::Video;
use fresco_nodes::vision::VisionOutput;
use fresco_tensor::Tensor;

use crate::inputs;
use crate::store::Case;

/// An input object, or nothing if it is not of this file.
pub(crate) fn build(kind: &str, spec: &Map, registry: &Registry) -> Option<Value> {
    let part = |key: &str| inputs::build(spec.get(key).expect(key), registry);
    Some(match kind {
        "VOXEL" => {
            let data = part("data");
            Value::object(Voxels(as_tensor(&data).expect("a tensor").clone()))
        }
        "MESH" => Value::object(Mesh(vec![Surface {
            vertices: triples(spec.get("vertices").expect("vertices"), |n| n as f32),
            faces: triples(spec.get("faces").expect("faces"), |n| n as u32),
        }])),
        "SVG" => Value::object(Svg(vec![
            spec.get("text")
                .and_then(Value::as_str)
                .expect("text")
                .into(),
        ])),
        "CLIP_VISION_OUTPUT" => {
            let state = part("last_hidden_state");
            VisionOutput(Arc::new(map! {"last_hidden_state" => state})).into()
        }
        _ => return None,
    })
}

fn triples<T>(rows: &Value, convert: impl Fn(f64) -> T) -> Vec<[T; 3]> {
    rows.as_list()
        .expect("rows")
        .iter()
        .map(|row| {
            let row = row.as_list().expect("a row");
            [0, 1, 2].map(|i| convert(row[i].as_f64().expect("a number")))
        })
        .collect()
}

/// What a golden would write down of an output object, with tensors as they are; nothing if it is not of this file.
pub(crate) fn describe(_case: &Case, value: &Value) -> Option<Value> {
    if let Some(mesh) = value.downcast::<Mesh>() {
        let [surface] = mesh.0.as_slice() else {
            return None;
        };
        let flat: Vec<f32> = surface.vertices.iter().flatten().copied().collect();
        let faces: Vec<f32> = surface.faces.iter().flatten().map(|i| *i as f32).collect();
        let shaped = |values: Vec<f32>| {
            tensor(Tensor::from_vec([1, values.len() / 3, 3], values).expect("rows of three"))
        };
        return Some(map! {"vertices" => shaped(flat), "faces" => shaped(faces)}.into());
    }
    if let Some(video) = value.downcast::<Video>() {
        let rate = match video.frame_rate {
            (whole, 1) => whole.to_string(),
            (n, d) => format!("{n}/{d}"),
        };
        return Some(map! {"images" => tensor(video.images.clone()), "frame_rate" => rate}.into());
    }
    None
}
