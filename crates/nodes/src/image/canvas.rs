//! Nodes that make, cut, turn and measure single canvases.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::{Generator, Tensor};

use super::{check_room, unsigned};
use crate::types::{Image, Mask};

/// Turns a picture into its negative.
#[derive(Node)]
#[node(
    id = "ImageInvert",
    v1,
    module = "nodes",
    display = "Invert Image",
    category = "image",
    outputs("IMAGE")
)]
pub(crate) struct ImageInvert {
    image: Image,
}

impl Node for ImageInvert {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(Image(self.image.0.rsub_scalar(1.0))))
    }
}

/// Makes pictures of one colour.
#[derive(Node)]
#[node(
    id = "EmptyImage",
    v1,
    module = "nodes",
    category = "image",
    outputs("IMAGE")
)]
pub(crate) struct EmptyImage {
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    width: i64,
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    height: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
    /// Red, green and blue, a byte each.
    #[input(default = 0, min = 0, max = 16777215, step = 1, display = "color")]
    color: i64,
}

impl Node for EmptyImage {
    fn run(self, _: &Cx) -> NodeResult {
        let shape = [
            unsigned("batch_size", self.batch_size)?,
            unsigned("height", self.height)?,
            unsigned("width", self.width)?,
            3,
        ];
        check_room(&shape)?;
        let byte = |shift: u32| ((self.color >> shift) & 0xff) as f64 / 255.0;
        let color = [byte(16) as f32, byte(8) as f32, byte(0) as f32];
        let mut out = Tensor::zeros(shape)?;
        if color != [0.0; 3] {
            let cancel = Cancel::current();
            for row in out.data_mut().chunks_mut((shape[2] * 3).max(1)) {
                cancel.check()?;
                for pixel in row.chunks_exact_mut(3) {
                    pixel.copy_from_slice(&color);
                }
            }
        }
        Ok(NodeOutput::one(Image(out)))
    }
}

/// Adds grey borders to a picture, with a mask of where they are.
#[derive(Node)]
#[node(
    id = "ImagePadForOutpaint",
    v1,
    module = "nodes",
    display = "Pad Image for Outpainting",
    category = "image",
    outputs("IMAGE", "MASK")
)]
pub(crate) struct ImagePadForOutpaint {
    image: Image,
    /// Pixels to add on the left.
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    left: i64,
    /// Pixels to add at the top.
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    top: i64,
    /// Pixels to add on the right.
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    right: i64,
    /// Pixels to add at the bottom.
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    bottom: i64,
    /// Pixels over which the mask fades into the picture.
    #[input(default = 40, min = 0, max = 16384, step = 1)]
    feathering: i64,
}

impl Node for ImagePadForOutpaint {
    fn run(self, _: &Cx) -> NodeResult {
        let [b, h, w, c] = self.image.0.dims4()?;
        let (left, right) = (unsigned("left", self.left)?, unsigned("right", self.right)?);
        let (top, bottom) = (unsigned("top", self.top)?, unsigned("bottom", self.bottom)?);
        let feather = unsigned("feathering", self.feathering)?;
        let height = h.saturating_add(top).saturating_add(bottom);
        let width = w.saturating_add(left).saturating_add(right);
        check_room(&[b, height, width, c])?;

        let mut image = Tensor::full([b, height, width, c], 0.5)?;
        image.paste(&[0, top, left, 0], &self.image.0)?;

        // Distance to the nearest side that was padded; the others are never near.
        let fades = feather > 0 && feather.saturating_mul(2) < h.min(w);
        let inside = Tensor::from_fn([1, h, w], |i| {
            if !fades {
                return 0.0;
            }
            let (y, x) = (i / w, i % w);
            let distance = [
                if top == 0 { h } else { y },
                if bottom == 0 { h } else { h - y },
                if left == 0 { w } else { x },
                if right == 0 { w } else { w - x },
            ]
            .into_iter()
            .fold(usize::MAX, usize::min);
            if distance >= feather {
                return 0.0;
            }
            let v = (feather - distance) as f64 / feather as f64;
            (v * v) as f32
        })?;
        let mut mask = Tensor::ones([1, height, width])?;
        mask.paste(&[0, top, left], &inside)?;
        Ok(NodeOutput::slots(vec![
            Image(image).into(),
            Mask(mask).into(),
        ]))
    }
}

/// Cuts a rectangle out of a picture.
#[derive(Node)]
#[node(
    id = "ImageCrop",
    v3,
    module = "comfy_extras.nodes_images",
    display = "Image Crop",
    category = "image/transform",
    outputs("IMAGE")
)]
pub(crate) struct ImageCrop {
    image: Image,
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    width: i64,
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    height: i64,
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    y: i64,
}

impl Node for ImageCrop {
    fn run(self, _: &Cx) -> NodeResult {
        let [_, h, w, _] = self.image.0.dims4()?;
        let x = unsigned("x", self.x)?.min(w.saturating_sub(1));
        let y = unsigned("y", self.y)?.min(h.saturating_sub(1));
        let width = unsigned("width", self.width)?.min(w - x);
        let height = unsigned("height", self.height)?.min(h - y);
        let out = self.image.0.narrow(1, y, height)?.narrow(2, x, width)?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// Adds random noise to a picture.
#[derive(Node)]
#[node(
    id = "ImageAddNoise",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image",
    outputs("IMAGE")
)]
pub(crate) struct ImageAddNoise {
    image: Image,
    /// The same seed gives the same noise.
    #[input(
        default = 0,
        min = 0,
        max = 18446744073709551615u64,
        control_after_generate = true
    )]
    seed: u64,
    #[input(default = 0.5, min = 0.0, max = 1.0, step = 0.01)]
    strength: f64,
}

impl Node for ImageAddNoise {
    fn run(self, _: &Cx) -> NodeResult {
        let noise = Generator::new(self.seed).randn(self.image.0.shape())?;
        let strength = self.strength as f32;
        let out = self
            .image
            .0
            .zip_map(&noise, |v, n| (v + strength * n).clamp(0.0, 1.0))?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// Gives a picture's width, height and number.
#[derive(Node)]
#[node(id = "GetImageSize", v3, module = "comfy_extras.nodes_images", display = "Get Image Size", category = "image",
       outputs(Output::new("INT").named("width"), Output::new("INT").named("height"), Output::new("INT").named("batch_size")),
       hidden(unique_id = "UNIQUE_ID"))]
pub(crate) struct GetImageSize {
    image: Image,
}

impl Node for GetImageSize {
    fn run(self, cx: &Cx) -> NodeResult {
        let [b, h, w, _] = self.image.0.dims4()?;
        if !cx.node_id.is_empty() {
            let text = format!("width: {w}, height: {h}\n batch size: {b}");
            cx.services.text(&cx.node_id, &text);
        }
        Ok(NodeOutput::slots(vec![w.into(), h.into(), b.into()]))
    }
}

/// Turns a picture clockwise.
#[derive(Node)]
#[node(
    id = "ImageRotate",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/transform",
    outputs("IMAGE")
)]
pub(crate) struct ImageRotate {
    image: Image,
    #[input(choices = ["none", "90 degrees", "180 degrees", "270 degrees"])]
    rotation: String,
}

impl Node for ImageRotate {
    fn run(self, _: &Cx) -> NodeResult {
        self.image.0.dims4()?;
        let turns = match self.rotation.as_str() {
            r if r.starts_with("90") => 1,
            r if r.starts_with("180") => 2,
            r if r.starts_with("270") => 3,
            _ => 0,
        };
        Ok(NodeOutput::one(Image(self.image.0.rot90(turns, 2, 1)?)))
    }
}

/// Mirrors a picture.
#[derive(Node)]
#[node(
    id = "ImageFlip",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/transform",
    outputs("IMAGE")
)]
pub(crate) struct ImageFlip {
    image: Image,
    #[input(choices = ["x-axis: vertically", "y-axis: horizontally"])]
    flip_method: String,
}

impl Node for ImageFlip {
    fn run(self, _: &Cx) -> NodeResult {
        self.image.0.dims4()?;
        let dim = match self.flip_method.as_bytes().first() {
            Some(b'x') => 1,
            Some(b'y') => 2,
            _ => {
                let message = format!("unknown flip method {:?}", self.flip_method);
                return Err(NodeError::value_error(message));
            }
        };
        Ok(NodeOutput::one(Image(self.image.0.flip(&[dim])?)))
    }
}
