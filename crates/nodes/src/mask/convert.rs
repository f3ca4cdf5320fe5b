//! Masks from pictures and numbers, and back.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::{Buffer, Tensor};

use super::planes;
use crate::image::{check_room, unsigned};
use crate::types::{Image, Mask};

/// Shows a mask as a grey picture.
#[derive(Node)]
#[node(
    id = "MaskToImage",
    v3,
    module = "comfy_extras.nodes_mask",
    display = "Convert Mask to Image",
    category = "mask",
    outputs("IMAGE")
)]
pub(crate) struct MaskToImage {
    mask: Mask,
}

impl Node for MaskToImage {
    fn run(self, _: &Cx) -> NodeResult {
        let mask = planes(&self.mask.0)?.unsqueeze(3)?;
        Ok(NodeOutput::one(Image(mask.repeat(&[1, 1, 1, 3])?)))
    }
}

/// Takes one channel of a picture as a mask.
#[derive(Node)]
#[node(
    id = "ImageToMask",
    v3,
    module = "comfy_extras.nodes_mask",
    display = "Convert Image to Mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct ImageToMask {
    image: Image,
    /// The channel that becomes the mask.
    #[input(choices = ["red", "green", "blue", "alpha"])]
    channel: String,
}

impl Node for ImageToMask {
    fn run(self, _: &Cx) -> NodeResult {
        let channels = self.image.0.dims4()?[3];
        let index = ["red", "green", "blue", "alpha"]
            .iter()
            .position(|c| *c == self.channel)
            .ok_or_else(|| {
                NodeError::value_error(format!("{:?} is not a channel", self.channel))
            })?;
        if index >= channels {
            return Err(NodeError::failed(
                "IndexError",
                format!(
                    "the picture has {channels} channels and no {}",
                    self.channel
                ),
            ));
        }
        Ok(NodeOutput::one(Mask(self.image.0.select(3, index)?)))
    }
}

/// Marks the pixels that have exactly one colour.
#[derive(Node)]
#[node(
    id = "ImageColorToMask",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct ImageColorToMask {
    image: Image,
    /// Red, green and blue, a byte each.
    #[input(default = 0, min = 0, max = 16777215, step = 1, display = "number")]
    color: i64,
}

impl Node for ImageColorToMask {
    fn run(self, _: &Cx) -> NodeResult {
        let [b, h, w, c] = self.image.0.dims4()?;
        if c < 3 {
            return Err(NodeError::failed(
                "IndexError",
                format!("a colour needs three channels, the picture has {c}"),
            ));
        }
        let byte = |v: f32| (v.clamp(0.0, 1.0) * 255.0).round_ties_even() as i64;
        let matches = Buffer::collect(self.image.0.data().chunks_exact(c).map(|p| {
            let packed = (byte(p[0]) << 16) + (byte(p[1]) << 8) + byte(p[2]);
            if packed == self.color { 1.0 } else { 0.0 }
        }))?;
        let mask = Tensor::from_buffer([b, h, w], matches)?;
        Ok(NodeOutput::one(Mask(mask)))
    }
}

/// Makes a mask of one value.
#[derive(Node)]
#[node(
    id = "SolidMask",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct SolidMask {
    /// Brightness of the mask: 0 is black, 1 white.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    value: f64,
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    width: i64,
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    height: i64,
}

impl Node for SolidMask {
    fn run(self, _: &Cx) -> NodeResult {
        let shape = [
            1,
            unsigned("height", self.height)?,
            unsigned("width", self.width)?,
        ];
        check_room(&shape)?;
        Ok(NodeOutput::one(Mask(Tensor::full(
            shape,
            self.value as f32,
        )?)))
    }
}

/// Turns a mask inside out.
#[derive(Node)]
#[node(
    id = "InvertMask",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct InvertMask {
    mask: Mask,
}

impl Node for InvertMask {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(Mask(self.mask.0.rsub_scalar(1.0))))
    }
}

/// Makes a mask hard: one above the value, zero elsewhere.
#[derive(Node)]
#[node(
    id = "ThresholdMask",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct ThresholdMask {
    mask: Mask,
    /// What is brighter becomes white, all else black.
    #[input(default = 0.5, min = 0.0, max = 1.0, step = 0.01)]
    value: f64,
}

impl Node for ThresholdMask {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(Mask(
            self.mask.0.gt_scalar(self.value as f32),
        )))
    }
}
