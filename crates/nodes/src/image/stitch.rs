//! Putting two pictures side by side.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::{Crop, ResizeMethod, Tensor};

use super::{check_room, resize, unsigned};
use crate::types::Image;

/// Puts a second picture beside the first.
#[derive(Node)]
#[node(
    id = "ImageStitch",
    v3,
    module = "comfy_extras.nodes_images",
    display = "Image Stitch",
    category = "image/transform",
    outputs("IMAGE")
)]
pub(crate) struct ImageStitch {
    image1: Image,
    /// Where the second picture goes.
    #[input(choices = ["right", "down", "left", "up"], default = "right")]
    direction: String,
    /// Resize the second picture to fit the first; otherwise the smaller one gets borders.
    #[input(default = true)]
    match_image_size: bool,
    /// Pixels between the pictures.
    #[input(default = 0, min = 0, max = 1024, step = 2)]
    spacing_width: i64,
    /// The colour between the pictures.
    #[input(choices = ["white", "black", "red", "green", "blue"], default = "white")]
    spacing_color: String,
    #[input(optional)]
    image2: Option<Image>,
}

/// The colour of gaps, and of the borders of pictures that do not fit: grey tones only, coloured gaps leave them black.
fn colors(name: &str) -> Result<([f32; 3], f32), NodeError> {
    Ok(match name {
        "white" => ([1.0; 3], 1.0),
        "black" => ([0.0; 3], 0.0),
        "red" => ([1.0, 0.0, 0.0], 0.0),
        "green" => ([0.0, 1.0, 0.0], 0.0),
        "blue" => ([0.0, 0.0, 1.0], 0.0),
        other => {
            return Err(NodeError::failed("KeyError", format!("'{other}'")));
        }
    })
}

impl Node for ImageStitch {
    fn run(self, _: &Cx) -> NodeResult {
        let Some(second) = self.image2 else {
            return Ok(NodeOutput::one(self.image1));
        };
        let sideways = matches!(self.direction.as_str(), "left" | "right");
        let second_first = matches!(self.direction.as_str(), "left" | "up");
        let (color, border) = colors(&self.spacing_color)?;
        let (mut a, mut b) = (self.image1.0, second.0);
        let batch = a.dims4()?[0].max(b.dims4()?[0]);
        a = extend_batch(&a, batch)?;
        b = extend_batch(&b, batch)?;

        // The dimension that must agree: height beside each other, width below each other.
        let across = if sideways { 1 } else { 2 };
        if self.match_image_size {
            let [_, h1, w1, _] = a.dims4()?;
            let [_, h2, w2, _] = b.dims4()?;
            let aspect = w2 as f64 / h2 as f64;
            let (width, height) = if sideways {
                ((h1 as f64 * aspect) as usize, h1)
            } else {
                (w1, (w1 as f64 / aspect) as usize)
            };
            b = resize(&b, width, height, ResizeMethod::Lanczos, Crop::Disabled)?;
        } else {
            let size = a.shape()[across].max(b.shape()[across]);
            a = center(&a, across, size, border)?;
            b = center(&b, across, size, border)?;
        }
        let channels = a.dims4()?[3].max(b.dims4()?[3]);
        a = with_channels(&a, channels)?;
        b = with_channels(&b, channels)?;

        let (one, two) = if second_first { (&b, &a) } else { (&a, &b) };
        let along = if sideways { 2 } else { 1 };
        let gap = unsigned("spacing_width", self.spacing_width)?;
        let spacing = (gap > 0)
            .then(|| {
                let mut shape = [batch, 0, 0, channels];
                shape[across] = a.shape()[across].max(b.shape()[across]);
                shape[along] = gap.saturating_add(gap % 2);
                spacing(shape, color)
            })
            .transpose()?;
        let parts: Vec<&Tensor> = [Some(one), spacing.as_ref(), Some(two)]
            .into_iter()
            .flatten()
            .collect();
        Ok(NodeOutput::one(Image(Tensor::cat(&parts, along)?)))
    }
}

/// The batch with its last picture repeated up to `count`.
fn extend_batch(image: &Tensor, count: usize) -> Result<Tensor, NodeError> {
    let b = image.dims4()?[0];
    if b == count {
        return Ok(image.clone());
    }
    let last = b
        .checked_sub(1)
        .ok_or_else(|| NodeError::value_error("a batch without pictures"))?;
    let indices: Vec<usize> = (0..count).map(|i| i.min(last)).collect();
    Ok(image.index_select(0, &indices)?)
}

/// The picture in the middle of borders, as large as `size` along `dim`.
fn center(image: &Tensor, dim: usize, size: usize, border: f32) -> Result<Tensor, NodeError> {
    let mut shape = image.dims4()?;
    let before = (size - shape[dim]) / 2;
    if shape[dim] == size {
        return Ok(image.clone());
    }
    shape[dim] = size;
    check_room(&shape)?;
    let mut out = Tensor::full(shape, border)?;
    let mut start = [0; 4];
    start[dim] = before;
    out.paste(&start, image)?;
    Ok(out)
}

/// The picture with channels of ones added up to `channels`.
fn with_channels(image: &Tensor, channels: usize) -> Result<Tensor, NodeError> {
    let [b, h, w, c] = image.dims4()?;
    if c == channels {
        return Ok(image.clone());
    }
    let more = Tensor::ones([b, h, w, channels - c])?;
    Ok(Tensor::cat(&[image, &more], 3)?)
}

/// The gap: coloured, and opaque if there is an alpha channel.
fn spacing(shape: [usize; 4], color: [f32; 3]) -> Result<Tensor, NodeError> {
    check_room(&shape)?;
    let channels = shape[3];
    let value = |c: usize| match c {
        0..=2 => color[c],
        3 if channels == 4 => 1.0,
        _ => 0.0,
    };
    Ok(Tensor::from_fn(shape, |i| value(i % channels))?)
}
