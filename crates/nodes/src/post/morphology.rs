//! Growing and shrinking of bright areas, and the luma-chroma split.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::morphology::{Extreme, window};
use fresco_tensor::{Axes, Buffer, Tensor};

use crate::image::unsigned;
use crate::types::Image;

/// Grows or shrinks the bright areas of a picture, or shows what that changes.
#[derive(Node)]
#[node(
    id = "Morphology",
    v3,
    module = "comfy_extras.nodes_morphology",
    display = "ImageMorphology",
    category = "image/postprocessing",
    outputs("IMAGE")
)]
pub(crate) struct Morphology {
    image: Image,
    /// What to do: dilate grows bright areas, erode shrinks them, open and close remove specks and holes, the others
    /// show the difference.
    #[input(choices = ["erode", "dilate", "open", "close", "gradient", "bottom_hat", "top_hat"])]
    operation: String,
    /// Side in pixels of the square that is looked at.
    #[input(default = 3, min = 3, max = 999, step = 1)]
    kernel_size: i64,
}

impl Node for Morphology {
    fn run(self, _: &Cx) -> NodeResult {
        let size = unsigned("kernel_size", self.kernel_size)?;
        let image = self.image.0.nhwc_to_nchw()?;
        let erode = |x: &Tensor| window(x, size, Extreme::Min);
        let dilate = |x: &Tensor| window(x, size, Extreme::Max);
        let out = match self.operation.as_str() {
            "erode" => erode(&image)?,
            "dilate" => dilate(&image)?,
            "open" => dilate(&erode(&image)?)?,
            "close" => erode(&dilate(&image)?)?,
            "gradient" => dilate(&image)?.sub(&erode(&image)?)?,
            "top_hat" => image.sub(&dilate(&erode(&image)?)?)?,
            "bottom_hat" => erode(&dilate(&image)?)?.sub(&image)?,
            other => {
                return Err(NodeError::value_error(format!(
                    "Invalid operation {other} for morphology. Must be one of 'erode', 'dilate', 'open', 'close', 'gradient', 'tophat', 'bottomhat'"
                )));
            }
        };
        Ok(NodeOutput::one(Image(out.nchw_to_nhwc()?)))
    }
}

/// Splits a picture into brightness and two colour differences, each as a grey picture.
#[derive(Node)]
#[node(id = "ImageRGBToYUV", v3, module = "comfy_extras.nodes_morphology", category = "image/batch",
       outputs(Output::new("IMAGE").named("Y"), Output::new("IMAGE").named("U"), Output::new("IMAGE").named("V")))]
pub(crate) struct ImageRGBToYUV {
    image: Image,
}

impl Node for ImageRGBToYUV {
    fn run(self, _: &Cx) -> NodeResult {
        let image = &self.image.0;
        let [b, h, w, c] = image.dims4()?;
        if c != 3 {
            return Err(NodeError::value_error(format!(
                "needs a picture of three channels, got {c}"
            )));
        }
        let plane = || Buffer::with_room(b * h * w * 3);
        let mut planes = [plane()?, plane()?, plane()?];
        for p in image.data().chunks_exact(3) {
            let y = 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2];
            let cb = (p[2] - y) * 0.564 + 0.5;
            let cr = (p[0] - y) * 0.713 + 0.5;
            for (plane, v) in planes.iter_mut().zip([y, cb, cr]) {
                plane.extend([v; 3]);
            }
        }
        let slots: Result<Vec<_>, NodeError> = planes
            .into_iter()
            .map(|p| Ok(Image(Tensor::from_buffer([b, h, w, 3], p)?).into()))
            .collect();
        Ok(NodeOutput::slots(slots?))
    }
}

/// Joins brightness and colour differences to a picture.
#[derive(Node)]
#[node(
    id = "ImageYUVToRGB",
    v3,
    module = "comfy_extras.nodes_morphology",
    category = "image/batch",
    outputs("IMAGE")
)]
pub(crate) struct ImageYUVToRGB {
    /// The brightness.
    #[input(name = "Y")]
    y: Image,
    /// How far the colour is towards blue.
    #[input(name = "U")]
    u: Image,
    /// How far the colour is towards red.
    #[input(name = "V")]
    v: Image,
}

impl Node for ImageYUVToRGB {
    fn run(self, _: &Cx) -> NodeResult {
        let mut planes = Vec::new();
        for plane in [&self.y.0, &self.u.0, &self.v.0] {
            plane.dims4()?;
            planes.push(plane.mean(&[3], Axes::Keep)?);
        }
        let parts: Vec<&Tensor> = planes.iter().collect();
        let mut out = Tensor::cat(&parts, 3)?;
        // The exact inverse of the split, cut to 0..1.
        let (red, blue) = (1.0 / 0.713, 1.0 / 0.564);
        let (red_in_green, blue_in_green) = (red * 0.299 / 0.587, blue * 0.114 / 0.587);
        for p in out.data_mut().chunks_exact_mut(3) {
            let (y, cb, cr) = (p[0], p[1] - 0.5, p[2] - 0.5);
            p[0] = (y + red * cr).clamp(0.0, 1.0);
            p[1] = (y - red_in_green * cr - blue_in_green * cb).clamp(0.0, 1.0);
            p[2] = (y + blue * cb).clamp(0.0, 1.0);
        }
        Ok(NodeOutput::one(Image(out)))
    }
}
