//! Test objects of the files, audio, misc and vae_conditioning areas.

use std::sync::Arc;

use fresco_graph::{Cx, Map, NodeError, NodeRegistry, Value, map};
use fresco_nodes::control::{Control, ControlModel};
use fresco_nodes::mesh::{Mesh, Surface, Voxels};
use fresco_nodes::save::Svg;
use fresco_nodes::types::{as_tensor, tensor};
use fresco_nodes::vae::{Vae, VaeModel};
use fresco_nodes::video::Video;
use fresco_nodes::vision::{Vision, VisionModel, VisionOutput};
use fresco_tensor::Tensor;

use crate::inputs;
use crate::store::Case;

/// An input object, or nothing if it is not of this file.
pub(crate) fn build(kind: &str, spec: &Map, registry: &NodeRegistry) -> Option<Value> {
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
        "PROBE_VAE" => {
            let number = |key: &str| spec.get(key).and_then(Value::as_int).expect(key) as usize;
            Value::object(Vae(Arc::new(ProbeVae {
                spatial: number("spatial"),
                channels: number("channels"),
                temporal: number("temporal"),
            })))
        }
        "PROBE_CLIP_VISION" => Value::object(Vision(Arc::new(ProbeVision))),
        "PROBE_CONTROL_NET" => {
            let name = spec.get("name").and_then(Value::as_str).unwrap_or("cn");
            Value::object(Control::new(Arc::new(ProbeControl {
                name: name.to_owned(),
                wants_mask: spec.get("concat_mask").is_some_and(Value::truthy),
            })))
        }
        _ => return None,
    })
}

/// Takes the first pixel of every block; see the README of the goldens.
struct ProbeVae {
    spatial: usize,
    channels: usize,
    temporal: usize,
}

impl VaeModel for ProbeVae {
    fn encode(&self, pixels: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
        let [n, h, w, colours] = pixels.dims4()?;
        let d = self.spatial;
        if n == 0 || colours < 3 {
            return Err(NodeError::value_error("the probe wants colour pictures"));
        }
        let (oy, ox) = (h % d / 2, w % d / 2);
        let (lh, lw) = (h / d, w / d);
        let step = self.temporal.max(1);
        let frames: Vec<usize> = (0..n).step_by(step).collect();
        let mut out = Vec::new();
        let value = |b: usize, k: usize, y: usize, x: usize| {
            let at = ((b * h + oy + y * d) * w + ox + x * d) * colours + k % 3;
            pixels.data()[at] * (1.0 + k as f32 / 8.0) - 0.5
        };
        let cells = |out: &mut Vec<f32>, b: usize, k: usize| {
            for y in 0..lh {
                for x in 0..lw {
                    out.push(value(b, k, y, x));
                }
            }
        };
        if self.temporal == 0 {
            for b in 0..n {
                for k in 0..self.channels {
                    cells(&mut out, b, k);
                }
            }
            return Ok(Tensor::from_vec([n, self.channels, lh, lw], out)?);
        }
        for k in 0..self.channels {
            for b in &frames {
                cells(&mut out, *b, k);
            }
        }
        Ok(Tensor::from_vec(
            [1, self.channels, frames.len(), lh, lw],
            out,
        )?)
    }

    fn decode(&self, _: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
        Err(NodeError::runtime("the probe only encodes"))
    }

    fn spatial_ratio(&self) -> usize {
        self.spatial
    }

    fn temporal_ratio(&self) -> Option<usize> {
        (self.temporal > 0).then_some(self.temporal)
    }

    fn latent_channels(&self) -> usize {
        self.channels
    }
}

/// Sees the first sixteen pixels of the first row.
struct ProbeVision;

impl VisionModel for ProbeVision {
    fn encode(&self, image: &Tensor, _: bool, _: &Cx) -> Result<VisionOutput, NodeError> {
        let [count, _, width, _] = image.dims4()?;
        let width = width.min(16);
        let embeds = image
            .narrow(1, 0, 1)?
            .narrow(2, 0, width)?
            .narrow(3, 0, 1)?
            .reshape([count, width])?;
        Ok(VisionOutput(Arc::new(
            map! {"image_embeds" => tensor(embeds)},
        )))
    }
}

struct ProbeControl {
    name: String,
    wants_mask: bool,
}

impl ControlModel for ProbeControl {
    fn name(&self) -> &str {
        &self.name
    }

    fn wants_mask(&self) -> bool {
        self.wants_mask
    }
}

/// What was set on a control net; one without a hint shows its name and arguments only.
fn describe_control(case: &Case, control: &Control) -> Value {
    let mut out = map! {"name" => control.model.name()};
    if let Some(hint) = &control.hint {
        out.insert("hint".into(), tensor(hint.clone()));
        out.insert("strength".into(), control.strength.into());
        let (start, end) = control.range;
        out.insert("range".into(), vec![start, end].into());
        let extra: Vec<Value> = control.extra_concat.iter().cloned().map(tensor).collect();
        out.insert("extra_concat".into(), extra.into());
        out.insert("vae_given".into(), control.vae.is_some().into());
        let previous = control.previous.downcast::<Control>();
        // The older node sets no previous net where there is none.
        if previous.is_some() || case.class != "ControlNetApply" {
            out.insert("previous".into(), previous.map(|p| p.model.name()).into());
        }
    }
    for (key, value) in &control.arguments {
        out.insert(format!("extra_arg.{key}").into(), value.clone());
    }
    out.into()
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
pub(crate) fn describe(case: &Case, value: &Value) -> Option<Value> {
    if let Some(control) = value.downcast::<Control>() {
        return Some(describe_control(case, control));
    }
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
    if let Some(Video::Frames(film)) = value.downcast::<Video>() {
        let rate = match film.frame_rate {
            (whole, 1) => whole.to_string(),
            (n, d) => format!("{n}/{d}"),
        };
        let images = film.images.to_tensor().ok()?;
        return Some(map! {"images" => tensor(images), "frame_rate" => rate}.into());
    }
    None
}

/// Odd objects of a wire type, for calls that only must not panic.
pub(crate) fn odd(io: &str) -> Vec<Value> {
    let ramp = |shape: &[usize]| {
        Tensor::from_fn(shape, |i| (i % 17) as f32 - 3.0).expect("small shapes fit")
    };
    let vae = |spatial, channels, temporal| {
        Value::object(Vae(Arc::new(ProbeVae {
            spatial,
            channels,
            temporal,
        })))
    };
    let control = |wants_mask| {
        let name = "odd".to_owned();
        Value::object(Control::new(Arc::new(ProbeControl { name, wants_mask })))
    };
    match io {
        "VAE" => vec![vae(8, 4, 0), vae(8, 16, 4), vae(16, 48, 4), vae(1, 3, 8)],
        "CLIP_VISION" => vec![Value::object(Vision(Arc::new(ProbeVision)))],
        "CONTROL_NET" => vec![control(false), control(true)],
        "CLIP_VISION_OUTPUT" => [vec![1, 5, 16], vec![1, 0, 3], vec![7]]
            .map(|shape| {
                let state = tensor(ramp(&shape));
                let both = map! {"last_hidden_state" => state.clone(), "penultimate_hidden_states" => state};
                VisionOutput(Arc::new(both)).into()
            })
            .to_vec(),
        "VOXEL" => [vec![1, 3, 4, 5], vec![2, 1, 1, 1], vec![1, 0, 2, 2], vec![3]]
            .map(|shape| Value::object(Voxels(ramp(&shape))))
            .to_vec(),
        "MESH" => vec![
            Value::object(Mesh(Vec::new())),
            Value::object(Mesh(vec![Surface::default()])),
        ],
        "SVG" => vec![Value::object(Svg(vec!["<svg".into(), "".into()]))],
        "TRACKS" => {
            let tracks = |path: &[usize], seen: &[usize]| {
                Value::from(map! {
                    "track_path" => tensor(ramp(path)), "track_visibility" => tensor(ramp(seen)),
                })
            };
            vec![
                tracks(&[5, 2, 2], &[5, 2]),
                tracks(&[9, 2, 2], &[9, 1]),
                tracks(&[2, 3, 1], &[7]),
                tracks(&[0, 0, 2], &[0, 0]),
            ]
        }
        "AUDIO_ENCODER_OUTPUT" => {
            let layers = |count: usize, shape: &[usize]| {
                let layer = tensor(ramp(shape));
                Value::from(map! {
                    "encoded_audio_all_layers" => vec![layer; count], "audio_samples" => 32000,
                })
            };
            vec![
                layers(33, &[1, 100, 4]),
                layers(2, &[1, 50, 3]),
                layers(33, &[1, 0, 4]),
                layers(1, &[1, 9, 0]),
            ]
        }
        _ => Vec::new(),
    }
}
