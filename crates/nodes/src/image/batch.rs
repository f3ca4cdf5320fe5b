//! Nodes that put pictures into batches and take them out again.

use fresco_graph::{Cx, Grown, Input, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_tensor::{Crop, ResizeMethod, Tensor};

use super::{check_room, resize, unsigned, with_channel};
use crate::types::{Image, tensor};

/// Puts two batches of pictures into one; the second is resized to the first.
#[derive(Node)]
#[node(
    id = "ImageBatch",
    v1,
    module = "nodes",
    display = "Batch Images",
    category = "image",
    outputs("IMAGE"),
    deprecated
)]
pub(crate) struct ImageBatch {
    image1: Image,
    image2: Image,
}

impl Node for ImageBatch {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(batch(vec![self.image1, self.image2])?))
    }
}

/// Puts any number of pictures into one batch; all are resized to the first.
#[derive(Node)]
#[node(
    id = "BatchImagesNode",
    v3,
    module = "comfy_extras.nodes_post_processing",
    display = "Batch Images",
    category = "image",
    outputs("IMAGE")
)]
pub(crate) struct BatchImagesNode {
    /// The pictures, in this order; as many as are connected.
    #[input(spec = Input::autogrow("images", Input::new("image", "IMAGE"), "image", 2, 50))]
    images: Grown<Image>,
}

impl Node for BatchImagesNode {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(batch(self.images.0)?))
    }
}

/// One batch of the first picture's size. Pictures with fewer channels than the richest get one more, of ones.
fn batch(images: Vec<Image>) -> Result<Image, NodeError> {
    let mut channels = 0;
    for image in &images {
        channels = channels.max(image.0.dims4()?[3]);
    }
    let Some(first) = images.first() else {
        return Err(NodeError::value_error("no pictures to put into a batch"));
    };
    let [_, height, width, _] = first.0.dims4()?;
    let mut fitted = Vec::with_capacity(images.len());
    for image in &images {
        let mut image = image.0.clone();
        let [_, h, w, c] = image.dims4()?;
        if c < channels {
            image = with_channel(&image)?;
        }
        if (h, w) != (height, width) {
            image = resize(&image, width, height, ResizeMethod::Bilinear, Crop::Center)?;
        }
        fitted.push(image);
    }
    let parts: Vec<&Tensor> = fitted.iter().collect();
    Ok(Image(Tensor::cat(&parts, 0)?))
}

/// Repeats a batch of pictures.
#[derive(Node)]
#[node(
    id = "RepeatImageBatch",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/batch",
    outputs("IMAGE")
)]
pub(crate) struct RepeatImageBatch {
    image: Image,
    #[input(default = 1, min = 1, max = 4096)]
    amount: i64,
}

impl Node for RepeatImageBatch {
    fn run(self, _: &Cx) -> NodeResult {
        let amount = unsigned("amount", self.amount)?;
        let [b, h, w, c] = self.image.0.dims4()?;
        check_room(&[b, h, w, c, amount])?;
        Ok(NodeOutput::one(Image(
            self.image.0.repeat(&[amount, 1, 1, 1])?,
        )))
    }
}

/// Takes some pictures out of a batch.
#[derive(Node)]
#[node(
    id = "ImageFromBatch",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/batch",
    outputs("IMAGE")
)]
pub(crate) struct ImageFromBatch {
    image: Image,
    /// The first picture to take, counted from 0.
    #[input(default = 0, min = 0, max = 4095)]
    batch_index: i64,
    /// How many pictures to take.
    #[input(default = 1, min = 1, max = 4096)]
    length: i64,
}

impl Node for ImageFromBatch {
    fn run(self, _: &Cx) -> NodeResult {
        let [b, ..] = self.image.0.dims4()?;
        let start = unsigned("batch_index", self.batch_index)?.min(b.saturating_sub(1));
        let length = unsigned("length", self.length)?.min(b - start);
        Ok(NodeOutput::one(Image(
            self.image.0.narrow(0, start, length)?,
        )))
    }
}

/// Cuts a list of batches into batches of one size.
#[derive(Node)]
#[node(id = "RebatchImages", v3, module = "comfy_extras.nodes_rebatch", display = "Rebatch Images",
       category = "image/batch", outputs(Output::new("IMAGE").list()), input_is_list)]
pub(crate) struct RebatchImages {
    images: Vec<Image>,
    /// How many pictures a batch of the result has.
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: Vec<i64>,
}

impl Node for RebatchImages {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = self.batch_size.first().copied().unwrap_or(1);
        let size = unsigned("batch_size", size)?;
        if size == 0 {
            return Err(NodeError::value_error("batch_size must not be zero"));
        }
        let mut single = Vec::new();
        for image in &self.images {
            for i in 0..image.0.dims4()?[0] {
                single.push(image.0.narrow(0, i, 1)?);
            }
        }
        let mut out: Vec<Value> = Vec::new();
        for group in single.chunks(size) {
            cx.check_interrupt()?;
            let parts: Vec<&Tensor> = group.iter().collect();
            out.push(tensor(Tensor::cat(&parts, 0)?));
        }
        Ok(NodeOutput::one(out))
    }
}
