//! Turning, cutting and joining latents.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::Tensor;

use super::repeat_to_batch;
use crate::python_rules::slice;
use crate::types::Latent;

/// The dimension that `x`, `y` or `t` names, counted from the end.
fn axis(t: &Tensor, name: &str) -> Result<usize, NodeError> {
    let back = match name.trim_start_matches('-') {
        "x" => 1,
        "y" => 2,
        "t" => 3,
        other => {
            return Err(NodeError::value_error(format!(
                "unknown dimension '{other}'"
            )));
        }
    };
    t.rank().checked_sub(back).ok_or_else(|| {
        NodeError::runtime(format!("a latent of shape {:?} has no '{name}'", t.shape()))
    })
}

/// Turns a latent clockwise.
#[derive(Node)]
#[node(
    id = "LatentRotate",
    v1,
    module = "nodes",
    display = "Rotate Latent",
    category = "latent/transform",
    outputs("LATENT")
)]
pub struct LatentRotate {
    samples: Latent,
    #[input(choices = ["none", "90 degrees", "180 degrees", "270 degrees"])]
    rotation: String,
}

impl Node for LatentRotate {
    fn run(self, _: &Cx) -> NodeResult {
        let turns = match self.rotation.as_str() {
            r if r.starts_with("90") => 1,
            r if r.starts_with("180") => 2,
            r if r.starts_with("270") => 3,
            _ => 0,
        };
        let turned = self.samples.samples()?.rot90(turns, 3, 2)?;
        Ok(NodeOutput::one(self.samples.with_tensor("samples", turned)))
    }
}

/// Mirrors a latent.
#[derive(Node)]
#[node(
    id = "LatentFlip",
    v1,
    module = "nodes",
    display = "Flip Latent",
    category = "latent/transform",
    outputs("LATENT")
)]
pub struct LatentFlip {
    samples: Latent,
    #[input(choices = ["x-axis: vertically", "y-axis: horizontally"])]
    flip_method: String,
}

impl Node for LatentFlip {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.samples.samples()?;
        let flipped = match self.flip_method.chars().next() {
            Some('x') => samples.flip(&[2])?,
            Some('y') => samples.flip(&[3])?,
            _ => samples.clone(),
        };
        Ok(NodeOutput::one(
            self.samples.with_tensor("samples", flipped),
        ))
    }
}

/// Cuts a rectangle, given in pixels, out of a latent.
#[derive(Node)]
#[node(
    id = "LatentCrop",
    v1,
    module = "nodes",
    display = "Crop Latent",
    category = "latent/transform",
    outputs("LATENT")
)]
pub struct LatentCrop {
    samples: Latent,
    #[input(default = 512, min = 64, max = 16384, step = 8)]
    width: i64,
    #[input(default = 512, min = 64, max = 16384, step = 8)]
    height: i64,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    y: i64,
}

impl Node for LatentCrop {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.samples.samples()?;
        let [_, _, h, w] = samples.dims4()?;
        // The corner moves so that at least 8 latent cells remain, even where fewer were asked for.
        let span = |at: i64, extent: i64, len: usize| {
            let start = (at.div_euclid(8)).min(len as i64 - 8);
            slice(start, start.saturating_add(extent.div_euclid(8)), len)
        };
        let rows = span(self.y, self.height, h);
        let columns = span(self.x, self.width, w);
        let cut =
            samples
                .narrow(2, rows.start, rows.len())?
                .narrow(3, columns.start, columns.len())?;
        Ok(NodeOutput::one(self.samples.with_tensor("samples", cut)))
    }
}

/// Joins two latents along one side; with a minus the second comes first.
#[derive(Node)]
#[node(
    id = "LatentConcat",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced",
    outputs("LATENT")
)]
pub struct LatentConcat {
    samples1: Latent,
    samples2: Latent,
    /// The side to join at: x is width, y height, t time; with a minus the second latent comes first.
    #[input(choices = ["x", "-x", "y", "-y", "t", "-t"])]
    dim: String,
}

impl Node for LatentConcat {
    fn run(self, _: &Cx) -> NodeResult {
        let first = self.samples1.samples()?;
        let second = repeat_to_batch(self.samples2.samples()?, first.dim(0)?)?;
        let dim = axis(first, &self.dim)?;
        let joined = if self.dim.starts_with('-') {
            Tensor::cat(&[&second, first], dim)?
        } else {
            Tensor::cat(&[first, &second], dim)?
        };
        Ok(NodeOutput::one(
            self.samples1.with_tensor("samples", joined),
        ))
    }
}

/// Keeps a part of a latent along one side.
#[derive(Node)]
#[node(
    id = "LatentCut",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced",
    outputs("LATENT")
)]
pub struct LatentCut {
    samples: Latent,
    /// The side to cut along: x is width, y height, t time.
    #[input(choices = ["x", "y", "t"])]
    dim: String,
    /// Where to start, in latent places; negative counts from the end.
    #[input(default = 0, min = -16384, max = 16384, step = 1)]
    index: i64,
    /// How many latent places to keep.
    #[input(default = 1, min = 1, max = 16384, step = 1)]
    amount: i64,
}

impl Node for LatentCut {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.samples.samples()?;
        let dim = axis(samples, &self.dim)?;
        let len = samples.dim(dim)? as i64;
        let (start, amount) = if self.index >= 0 {
            let start = self.index.min(len - 1).max(0);
            (start, self.amount.min(len - start))
        } else {
            let back = self.index.max(-len);
            (len + back, self.amount.min(-back))
        };
        let cut = samples.narrow(dim, start as usize, amount.max(0) as usize)?;
        Ok(NodeOutput::one(self.samples.with_tensor("samples", cut)))
    }
}

/// Cuts a latent into slices along one side and stacks them as a batch.
#[derive(Node)]
#[node(
    id = "LatentCutToBatch",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced",
    outputs("LATENT")
)]
pub struct LatentCutToBatch {
    samples: Latent,
    /// The side to cut along: t is time, x width, y height.
    #[input(choices = ["t", "x", "y"])]
    dim: String,
    /// Latent places in a slice.
    #[input(default = 1, min = 1, max = 16384, step = 1)]
    slice_size: i64,
}

impl Node for LatentCutToBatch {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.samples.samples()?;
        let dim = axis(samples, &self.dim)?;
        if dim < 2 {
            return Ok(NodeOutput::one(self.samples));
        }
        let moved = samples.movedim(dim, 1)?;
        let len = moved.dim(1)?;
        let wanted = usize::try_from(self.slice_size.max(1)).unwrap_or(1);
        let slice_size = wanted.min(len).max(1);
        let whole = moved.narrow(1, 0, len / slice_size * slice_size)?;
        let mut shape = whole.shape().to_vec();
        shape[0] *= shape[1] / slice_size;
        shape[1] = slice_size;
        let cut = whole.reshape(shape)?.movedim(1, dim)?;
        Ok(NodeOutput::one(self.samples.with_tensor("samples", cut)))
    }
}

/// Puts the frames of one video latent over those of another.
#[derive(Node)]
#[node(
    id = "ReplaceVideoLatentFrames",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/batch",
    outputs("LATENT")
)]
pub struct ReplaceVideoLatentFrames {
    /// The latent whose frames are replaced.
    destination: Latent,
    /// The first frame to replace; negative counts from the end.
    #[input(default = 0, min = -16384, max = 16384, step = 1)]
    index: i64,
    /// The frames to put in; nothing happens without them or where they do not fit.
    #[input(optional)]
    source: Option<Latent>,
}

impl Node for ReplaceVideoLatentFrames {
    fn run(self, _: &Cx) -> NodeResult {
        let Some(source) = self.source else {
            return Ok(NodeOutput::one(self.destination));
        };
        let (target, frames) = (self.destination.samples()?, source.samples()?);
        let (have, new) = (target.dim(2)? as i64, frames.dim(2)? as i64);
        let index = if self.index < 0 {
            self.index + have
        } else {
            self.index
        };
        if index.saturating_add(new) > have {
            tracing::warn!(
                index,
                new,
                have,
                "the frames do not fit; the latent stays as it is"
            );
            return Ok(NodeOutput::one(self.destination));
        }
        let Ok(index) = usize::try_from(index) else {
            return Err(NodeError::runtime(format!(
                "frame {} is before the first of {have}",
                self.index
            )));
        };
        let mut region = target.shape().to_vec();
        region[2] = frames.dim(2)?;
        let mut out = target.clone();
        let mut start = vec![0; region.len()];
        start[2] = index;
        out.paste(&start, &frames.expand(&region)?)?;
        Ok(NodeOutput::one(
            self.destination.with_tensor("samples", out),
        ))
    }
}

/// Drops frames from the start of a video latent.
#[derive(Node)]
#[node(
    id = "TrimVideoLatent",
    v3,
    module = "comfy_extras.nodes_wan",
    category = "latent/video",
    outputs("LATENT")
)]
pub struct TrimVideoLatent {
    samples: Latent,
    /// How many latent frames to drop.
    #[input(default = 0, min = 0, max = 99999)]
    trim_amount: i64,
}

impl Node for TrimVideoLatent {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.samples.samples()?;
        let kept = slice(self.trim_amount, i64::MAX, samples.dim(2)?);
        let trimmed = samples.narrow(2, kept.start, kept.len())?;
        Ok(NodeOutput::one(
            self.samples.with_tensor("samples", trimmed),
        ))
    }
}
