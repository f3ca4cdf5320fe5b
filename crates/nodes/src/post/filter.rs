//! Blur and sharpen.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::{Tensor, filter};

use crate::image::unsigned;
use crate::types::Image;

/// Blurs a picture.
#[derive(Node)]
#[node(
    id = "ImageBlur",
    v3,
    module = "comfy_extras.nodes_post_processing",
    category = "image/postprocessing",
    outputs("IMAGE")
)]
pub(crate) struct ImageBlur {
    image: Image,
    /// How far the blur reaches, in pixels.
    #[input(default = 1, min = 1, max = 31, step = 1)]
    blur_radius: i64,
    #[input(default = 1.0, min = 0.1, max = 10.0, step = 0.1)]
    sigma: f64,
}

impl Node for ImageBlur {
    fn run(self, _: &Cx) -> NodeResult {
        let radius = unsigned("blur_radius", self.blur_radius)?;
        if radius == 0 {
            return Ok(NodeOutput::one(self.image));
        }
        Ok(NodeOutput::one(Image(blur(
            &self.image.0,
            radius,
            self.sigma,
        )?)))
    }
}

/// Makes the details of a picture stronger.
#[derive(Node)]
#[node(
    id = "ImageSharpen",
    v3,
    module = "comfy_extras.nodes_post_processing",
    category = "image/postprocessing",
    outputs("IMAGE")
)]
pub(crate) struct ImageSharpen {
    image: Image,
    /// How far the blur that is subtracted reaches, in pixels.
    #[input(default = 1, min = 1, max = 31, step = 1)]
    sharpen_radius: i64,
    #[input(default = 1.0, min = 0.1, max = 10.0, step = 0.01)]
    sigma: f64,
    /// How strongly to sharpen; 0 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 5.0, step = 0.01)]
    alpha: f64,
}

impl Node for ImageSharpen {
    fn run(self, _: &Cx) -> NodeResult {
        let radius = unsigned("sharpen_radius", self.sharpen_radius)?;
        if radius == 0 {
            return Ok(NodeOutput::one(self.image));
        }
        // The reference convolves once with "identity plus ten alpha times (identity minus Gauss)".
        let amount = self.alpha * 10.0;
        let (own, other) = ((1.0 + amount) as f32, amount as f32);
        let blurred = blur(&self.image.0, radius, self.sigma)?;
        let out = self
            .image
            .0
            .zip_map(&blurred, |v, b| (own * v - other * b).clamp(0.0, 1.0))?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// Gaussian blur of `(b, h, w, c)`; the profile spans -1..1 over the window, so sigma is relative to the radius.
fn blur(image: &Tensor, radius: usize, sigma: f64) -> Result<Tensor, NodeError> {
    let planes = image.nhwc_to_nchw()?;
    Ok(filter::gaussian_blur(&planes, radius, sigma as f32)?.nchw_to_nhwc()?)
}
