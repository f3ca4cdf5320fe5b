//! Pictures of what Marigold predicts.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::Tensor;
use fresco_tensor::cancel::Cancel;

use crate::types::Image;

/// Turns a prediction of Marigold into a picture of it: near is bright, surfaces are coloured by their direction, or the
/// colour of things without light.
#[derive(Node)]
#[node(
    id = "MarigoldV2PostProcess",
    v3,
    module = "comfy_extras.nodes_marigold",
    display = "Marigold V2 Post-Process",
    category = "image/postprocessing",
    outputs("IMAGE")
)]
pub(crate) struct MarigoldV2PostProcess {
    image: Image,
    /// What was predicted.
    #[input(choices = ["depth", "normals", "albedo"])]
    prediction: String,
}

impl Node for MarigoldV2PostProcess {
    fn run(self, _: &Cx) -> NodeResult {
        let [count, h, w, channels] = self.image.0.dims4()?;
        if count * h * w == 0 || channels < 3 {
            return Err(NodeError::value_error(format!(
                "a prediction has three channels, and this is a batch of {count} of {w} x {h} with {channels}"
            )));
        }
        let mut image = self.image.0.narrow(3, 0, 3)?;
        let cancel = Cancel::current();
        match self.prediction.as_str() {
            "depth" => {
                for picture in image.data_mut().chunks_exact_mut(h * w * 3) {
                    cancel.check()?;
                    depth(picture);
                }
            }
            "normals" => each_pixel(&mut image, w, &cancel, normal)?,
            "albedo" => each_pixel(&mut image, w, &cancel, |pixel| {
                for value in pixel {
                    *value = to_srgb(*value);
                }
            })?,
            other => {
                return Err(NodeError::value_error(format!(
                    "Marigold predicts no {other:?}"
                )));
            }
        }
        Ok(NodeOutput::one(Image(image)))
    }
}

fn each_pixel(
    image: &mut Tensor,
    width: usize,
    cancel: &Cancel,
    change: impl Fn(&mut [f32]),
) -> Result<(), NodeError> {
    for row in image.data_mut().chunks_exact_mut(width * 3) {
        cancel.check()?;
        row.chunks_exact_mut(3).for_each(&change);
    }
    Ok(())
}

/// The nearest of the picture becomes 1, the farthest 0; all channels say the same.
fn depth(picture: &mut [f32]) {
    let mean = |pixel: &[f32]| (pixel[0] + pixel[1] + pixel[2]) / 3.0;
    let all = picture.chunks_exact(3).map(mean);
    let (near, far) = all.fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| {
        (a.min(v), b.max(v))
    });
    let range = (far - near).max(1e-6);
    for pixel in picture.chunks_exact_mut(3) {
        let value = ((far - mean(pixel)) / range).clamp(0.0, 1.0);
        pixel.fill(value);
    }
}

/// A direction of length 1.
fn normal(pixel: &mut [f32]) {
    let v = [pixel[0], pixel[1], pixel[2]].map(|v| v * 2.0 - 1.0);
    let length = (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]).sqrt().max(1e-6);
    for (value, v) in pixel.iter_mut().zip(v) {
        *value = f32::midpoint(v / length, 1.0);
    }
}

fn to_srgb(value: f32) -> f32 {
    let v = value.clamp(0.0, 1.0);
    if v <= 0.003_130_8 {
        v * 12.92
    } else {
        1.055 * v.powf(1.0 / 2.4) - 0.055
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_graph::{Resources, Slots};
    use std::sync::Arc;

    #[track_caller]
    fn check(prediction: &str, values: &[f32], wanted: &[f32]) {
        let image = Tensor::from_vec([1, 1, values.len() / 3, 3], values.to_vec()).unwrap();
        let node = MarigoldV2PostProcess {
            image: Image(image),
            prediction: prediction.into(),
        };
        let cx = Cx::detached(Arc::new(Resources::default()));
        let Slots::Values(out) = node.run(&cx).unwrap().slots else {
            panic!("no value");
        };
        let out = crate::types::as_tensor(&out[0]).unwrap().clone();
        for (a, b) in out.data().iter().zip(wanted) {
            assert!((a - b).abs() < 1e-5, "{:?}", out.data());
        }
    }

    #[test]
    fn each_prediction_has_its_picture() {
        check(
            "depth",
            &[0.2, 0.2, 0.2, 0.6, 0.6, 0.6, 0.4, 0.3, 0.5],
            &[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5],
        );
        check("depth", &[0.5; 6], &[0.0; 6]);
        check("normals", &[0.5, 0.5, 0.75], &[0.5, 0.5, 1.0]);
        check("normals", &[0.5, 0.5, 0.5], &[0.5, 0.5, 0.5]);
        check("albedo", &[0.0, 0.214_041_14, 1.0], &[0.0, 0.5, 1.0]);
    }
}
