//! Laying one picture, latent or mask over another.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::batch::repeat_to_batch;
use fresco_tensor::{ResizeMethod, Tensor, resize::interpolate};

use super::planes;
use crate::image::{fit_channels, unsigned};
use crate::types::{Image, Latent, Mask};

/// Lays one latent over another, through a mask.
#[derive(Node)]
#[node(
    id = "LatentCompositeMasked",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "latent",
    outputs("LATENT")
)]
pub(crate) struct LatentCompositeMasked {
    /// The latent under the source.
    destination: Latent,
    /// The latent that goes onto the destination.
    source: Latent,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    y: i64,
    /// Stretch the source over the whole destination first.
    #[input(default = false)]
    resize_source: bool,
    /// What of the source is seen; without a mask, all of it.
    #[input(optional)]
    mask: Option<Mask>,
}

impl Node for LatentCompositeMasked {
    fn run(self, _: &Cx) -> NodeResult {
        let place = PastePlace {
            x: unsigned("x", self.x)?,
            y: unsigned("y", self.y)?,
            unit: 8,
            resize: self.resize_source,
        };
        let mask = self.mask.as_ref().map(|m| &m.0);
        let samples = place.over(self.destination.samples()?, self.source.samples()?, mask)?;
        Ok(NodeOutput::one(
            self.destination.with_tensor("samples", samples),
        ))
    }
}

/// Lays one picture over another, through a mask.
#[derive(Node)]
#[node(
    id = "ImageCompositeMasked",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "image",
    outputs("IMAGE")
)]
pub(crate) struct ImageCompositeMasked {
    destination: Image,
    source: Image,
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    y: i64,
    /// Stretch the source over the whole destination first.
    #[input(default = false)]
    resize_source: bool,
    /// What of the source is seen; without a mask, all of it.
    #[input(optional)]
    mask: Option<Mask>,
}

impl Node for ImageCompositeMasked {
    fn run(self, _: &Cx) -> NodeResult {
        let (destination, source) = fit_channels(&self.destination.0, &self.source.0)?;
        let place = PastePlace {
            x: unsigned("x", self.x)?,
            y: unsigned("y", self.y)?,
            unit: 1,
            resize: self.resize_source,
        };
        let mask = self.mask.as_ref().map(|m| &m.0);
        let out = place.over(&destination.nhwc_to_nchw()?, &source.nhwc_to_nchw()?, mask)?;
        Ok(NodeOutput::one(Image(out.nchw_to_nhwc()?)))
    }
}

/// Where the source goes, in pixels.
struct PastePlace {
    x: usize,
    y: usize,
    /// Pixels per element.
    unit: usize,
    resize: bool,
}

impl PastePlace {
    /// `destination` with `source` on it; both `(b, c, .., h, w)`. What sticks out is cut off.
    fn over(
        &self,
        destination: &Tensor,
        source: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor, NodeError> {
        let rank = destination.rank();
        let &[batch, .., height, width] = destination.shape() else {
            return Err(NodeError::value_error("nothing to lay the source on"));
        };
        if source.rank() != rank || rank < 4 {
            return Err(NodeError::runtime(format!(
                "source and destination have different dimensions: {:?} and {:?}",
                source.shape(),
                destination.shape()
            )));
        }
        let source = if self.resize {
            interpolate(source, width, height, ResizeMethod::Bilinear)?
        } else {
            source.clone()
        };
        let source = repeat_to_batch(&source, batch)?;
        let (rows, columns) = (source.shape()[rank - 2], source.shape()[rank - 1]);
        let top = (self.y / self.unit).min(height);
        let left = (self.x / self.unit).min(width);
        let seen_rows = rows.min(height - top);
        let seen_columns = columns.min(width - left);
        let visible = |t: &Tensor, top: usize, left: usize| -> Result<Tensor, NodeError> {
            let dim = t.rank();
            let cut = t.narrow(dim - 2, top, seen_rows)?;
            Ok(cut.narrow(dim - 1, left, seen_columns)?)
        };
        let part = visible(&source, 0, 0)?;
        let part = match mask {
            None => part,
            Some(mask) => {
                let mask = planes(mask)?.unsqueeze(1)?;
                let mask = interpolate(&mask, columns, rows, ResizeMethod::Bilinear)?;
                let mut mask = visible(&repeat_to_batch(&mask, batch)?, 0, 0)?;
                while mask.rank() < rank {
                    mask = mask.unsqueeze(1)?;
                }
                let below = visible(destination, top, left)?;
                let rest = mask.rsub_scalar(1.0).mul(&below)?;
                mask.mul(&part)?.add(&rest)?
            }
        };
        // A single channel may cover many; more channels than the destination has are an error.
        let mut shape = destination.shape().to_vec();
        shape[rank - 2..].copy_from_slice(&[seen_rows, seen_columns]);
        let mut start = vec![0; rank];
        start[rank - 2] = top;
        start[rank - 1] = left;
        let mut out = destination.clone();
        out.paste(&start, &part.expand(&shape)?)?;
        Ok(out)
    }
}

/// Combines two masks where they overlap.
#[derive(Node)]
#[node(
    id = "MaskComposite",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct MaskComposite {
    /// The mask under the source.
    destination: Mask,
    /// The mask that goes onto the destination.
    source: Mask,
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    y: i64,
    /// How both masks become one.
    #[input(choices = ["multiply", "add", "subtract", "and", "or", "xor"])]
    operation: String,
}

/// What happens to a pixel of the destination under one of the source.
fn operation(name: &str) -> Result<fn(f32, f32) -> f32, NodeError> {
    fn is(v: f32) -> bool {
        v.round_ties_even() != 0.0
    }
    fn number(v: bool) -> f32 {
        f32::from(u8::from(v))
    }
    Ok(match name {
        "multiply" => |d, s| d * s,
        "add" => |d, s| d + s,
        "subtract" => |d, s| d - s,
        "and" => |d, s| number(is(d) && is(s)),
        "or" => |d, s| number(is(d) || is(s)),
        "xor" => |d, s| number(is(d) != is(s)),
        other => {
            let message = format!("unknown mask operation {other:?}");
            return Err(NodeError::value_error(message));
        }
    })
}

impl Node for MaskComposite {
    fn run(self, _: &Cx) -> NodeResult {
        let mut out = planes(&self.destination.0)?;
        let source = planes(&self.source.0)?;
        let [n, height, width] = out.dims3()?;
        let [_, rows, columns] = source.dims3()?;
        let top = unsigned("y", self.y)?.min(height);
        let left = unsigned("x", self.x)?.min(width);
        let (rows, columns) = (rows.min(height - top), columns.min(width - left));
        let part = source.narrow(1, 0, rows)?.narrow(2, 0, columns)?;
        let below = out.narrow(1, top, rows)?.narrow(2, left, columns)?;
        let mixed = below.zip_map(&part, operation(&self.operation)?)?;
        if mixed.shape()[0] != n {
            return Err(NodeError::runtime(format!(
                "{} source masks do not fit on {n}",
                mixed.shape()[0]
            )));
        }
        out.paste(&[0, top, left], &mixed)?;
        Ok(NodeOutput::one(Mask(out.clamp(0.0, 1.0))))
    }
}
