//! Mixing two pictures.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::{Crop, ResizeMethod};

use crate::image::{fit_channels, resize};
use crate::types::Image;

/// Mixes two pictures with one of the usual blend modes.
#[derive(Node)]
#[node(
    id = "ImageBlend",
    v3,
    module = "comfy_extras.nodes_post_processing",
    category = "image/postprocessing",
    outputs("IMAGE")
)]
pub(crate) struct ImageBlend {
    image1: Image,
    image2: Image,
    /// How much of the blended picture replaces the first one.
    #[input(default = 0.5, min = 0.0, max = 1.0, step = 0.01)]
    blend_factor: f64,
    /// How brightness of both pictures is combined.
    #[input(choices = ["normal", "multiply", "screen", "overlay", "soft_light", "difference"])]
    blend_mode: String,
}

/// What a mode makes of a value of the first picture (`a`) and one of the second (`b`).
fn mode(name: &str) -> Result<fn(f32, f32) -> f32, NodeError> {
    Ok(match name {
        "normal" => |_, b| b,
        "multiply" => |a, b| a * b,
        "screen" => |a, b| 1.0 - (1.0 - a) * (1.0 - b),
        "overlay" => |a, b| {
            if a <= 0.5 {
                2.0 * a * b
            } else {
                1.0 - 2.0 * (1.0 - a) * (1.0 - b)
            }
        },
        "soft_light" => |a, b| {
            if b <= 0.5 {
                a - (1.0 - 2.0 * b) * a * (1.0 - a)
            } else {
                a + (2.0 * b - 1.0) * (soft(a) - a)
            }
        },
        "difference" => |a, b| a - b,
        other => {
            return Err(NodeError::value_error(format!(
                "Unsupported blend mode: {other}"
            )));
        }
    })
}

/// The brightening curve of soft light.
fn soft(x: f32) -> f32 {
    if x <= 0.25 {
        ((16.0 * x - 12.0) * x + 4.0) * x
    } else {
        x.sqrt()
    }
}

impl Node for ImageBlend {
    fn run(self, _: &Cx) -> NodeResult {
        let mode = mode(&self.blend_mode)?;
        let (first, mut second) = fit_channels(&self.image1.0, &self.image2.0)?;
        let [_, h, w, _] = first.dims4()?;
        if first.shape() != second.shape() {
            second = resize(&second, w, h, ResizeMethod::Bicubic, Crop::Center)?;
        }
        let keep = (1.0 - self.blend_factor) as f32;
        let factor = self.blend_factor as f32;
        let out = first.zip_map(&second, |a, b| {
            (a * keep + mode(a, b) * factor).clamp(0.0, 1.0)
        })?;
        Ok(NodeOutput::one(Image(out)))
    }
}
