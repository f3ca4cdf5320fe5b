//! Arithmetic on latents and masks.

use std::ops::Range;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Twin};
use fresco_tensor::{Axes, Crop, ResizeMethod, Tensor, common_upscale};

use super::{match_size, repeat_to_batch};
use crate::python_rules::slice;
use crate::types::{Latent, Mask};

/// Limits what sampling may change to a mask.
#[derive(Node)]
#[node(
    id = "SetLatentNoiseMask",
    v1,
    module = "nodes",
    display = "Set Latent Noise Mask",
    category = "latent/inpaint",
    outputs("LATENT")
)]
pub struct SetLatentNoiseMask {
    samples: Latent,
    /// What may change: white is sampled anew, black stays.
    mask: Mask,
}

impl Node for SetLatentNoiseMask {
    fn run(self, _: &Cx) -> NodeResult {
        let mask = self.mask.0;
        let &[.., h, w] = mask.shape() else {
            return Err(NodeError::runtime(format!(
                "a mask needs a height and a width, got shape {:?}",
                mask.shape()
            )));
        };
        let count: usize = mask.shape()[..mask.rank() - 2].iter().product();
        let mask = mask.reshape([count, 1, h, w])?;
        Ok(NodeOutput::one(
            self.samples.with_tensor("noise_mask", mask),
        ))
    }
}

/// Multiplies rows (dimension 2) or columns (3) of a mask of one plane by a factor.
fn scale_lines(mask: &mut Tensor, dim: usize, lines: Range<usize>, factor: f32) {
    let w = mask.shape()[3];
    let rows = mask.data_mut().chunks_exact_mut(w.max(1));
    if dim == 2 {
        for v in rows.skip(lines.start).take(lines.len()).flatten() {
            *v *= factor;
        }
    } else {
        for v in rows.flat_map(|row| &mut row[lines.clone()]) {
            *v *= factor;
        }
    }
}

/// Pastes one latent onto another, with soft edges where they meet.
#[derive(Node)]
#[node(
    id = "LatentComposite",
    v1,
    module = "nodes",
    display = "Latent Composite",
    category = "latent",
    outputs("LATENT")
)]
pub struct LatentComposite {
    /// The latent to paste onto.
    samples_to: Latent,
    /// The latent to paste.
    samples_from: Latent,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    y: i64,
    /// Pixels over which the edges fade.
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    feather: i64,
}

impl Node for LatentComposite {
    fn run(self, _: &Cx) -> NodeResult {
        let (x, y) = (self.x.div_euclid(8), self.y.div_euclid(8));
        let feather = self.feather.div_euclid(8);
        let target = self.samples_to.samples()?;
        let source = self.samples_from.samples()?;
        let [_, _, th, tw] = target.dims4()?;
        let [_, _, fh, fw] = source.dims4()?;
        let rows = slice(0, th as i64 - y, fh);
        let columns = slice(0, tw as i64 - x, fw);
        let source = source
            .narrow(2, 0, rows.len())?
            .narrow(3, 0, columns.len())?;
        let (h, w) = (rows.len(), columns.len());
        let down = slice(y, y + h as i64, th);
        let across = slice(x, x + w as i64, tw);
        if down.len() != h || across.len() != w {
            return Err(NodeError::runtime(format!(
                "a latent of {w}x{h} cannot be pasted at {x},{y} of one of {tw}x{th}"
            )));
        }
        let region = target
            .narrow(2, down.start, h)?
            .narrow(3, across.start, w)?;
        let pasted = if feather == 0 {
            source
        } else {
            let mut mask = Tensor::ones([1, 1, h, w])?;
            // Further steps fall outside at both ends.
            let steps = feather.min(2 * (h + w) as i64 + 2);
            for t in 0..steps {
                let factor = (1.0 / feather as f64 * (t + 1) as f64) as f32;
                if y != 0 {
                    scale_lines(&mut mask, 2, slice(t, t + 1, h), factor);
                }
                // Beyond the middle the slice bounds turn negative and count from the other end; kept as it is.
                if y + (h as i64) < th as i64 {
                    scale_lines(
                        &mut mask,
                        2,
                        slice(h as i64 - 1 - t, h as i64 - t, h),
                        factor,
                    );
                }
                if x != 0 {
                    scale_lines(&mut mask, 3, slice(t, t + 1, w), factor);
                }
                if x + (w as i64) < tw as i64 {
                    scale_lines(
                        &mut mask,
                        3,
                        slice(w as i64 - 1 - t, w as i64 - t, w),
                        factor,
                    );
                }
            }
            source
                .mul(&mask)?
                .add(&region.mul(&mask.rsub_scalar(1.0))?)?
        };
        let mut out = target.clone();
        out.paste(
            &[0, 0, down.start, across.start],
            &pasted.expand(region.shape())?,
        )?;
        Ok(NodeOutput::one(self.samples_to.with_tensor("samples", out)))
    }
}

/// Mixes two latents.
#[derive(Node)]
#[node(
    id = "LatentBlend",
    v1,
    module = "nodes",
    display = "Latent Blend",
    category = "_for_testing",
    outputs("LATENT")
)]
pub struct LatentBlend {
    samples1: Latent,
    samples2: Latent,
    /// Share of the first latent: 1 is all of it, 0 all of the second.
    #[input(default = 0.5, min = 0, max = 1, step = 0.01)]
    blend_factor: f64,
}

impl Node for LatentBlend {
    fn run(self, _: &Cx) -> NodeResult {
        let first = self.samples1.samples()?;
        let mut second = self.samples2.samples()?.clone();
        if first.shape() != second.shape() {
            let [_, _, h, w] = first.dims4()?;
            second = common_upscale(&second, w, h, ResizeMethod::Bicubic, Crop::Center)?;
        }
        let mixed = first
            .mul_scalar(self.blend_factor as f32)
            .add(&second.mul_scalar((1.0 - self.blend_factor) as f32))?;
        Ok(NodeOutput::one(self.samples1.with_tensor("samples", mixed)))
    }
}

/// The second latent in the size and batch of the first.
fn matched(first: &Tensor, second: &Latent) -> Result<Tensor, NodeError> {
    let resized = match_size(second.samples()?, first.shape())?;
    repeat_to_batch(&resized, first.dim(0)?)
}

/// Adds two latents.
#[derive(Node)]
#[node(
    id = "LatentAdd",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced",
    outputs("LATENT")
)]
pub struct LatentAdd {
    samples1: Latent,
    samples2: Latent,
}

impl Node for LatentAdd {
    fn run(self, _: &Cx) -> NodeResult {
        let first = self.samples1.samples()?;
        let sum = first.add(&matched(first, &self.samples2)?)?;
        Ok(NodeOutput::one(self.samples1.with_tensor("samples", sum)))
    }
}

pub static SUBTRACT: Twin<LatentAdd> = Twin {
    id: "LatentSubtract",
    display: None,
    about: "Takes one latent away from another.",
    defaults: &[],
    run: |node, _| {
        let first = node.samples1.samples()?;
        let rest = first.sub(&matched(first, &node.samples2)?)?;
        Ok(NodeOutput::one(node.samples1.with_tensor("samples", rest)))
    },
};

/// Multiplies a latent by a number.
#[derive(Node)]
#[node(
    id = "LatentMultiply",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced",
    outputs("LATENT")
)]
pub struct LatentMultiply {
    samples: Latent,
    /// The factor; 1 changes nothing.
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    multiplier: f64,
}

impl Node for LatentMultiply {
    fn run(self, _: &Cx) -> NodeResult {
        let product = self.samples.samples()?.mul_scalar(self.multiplier as f32);
        Ok(NodeOutput::one(
            self.samples.with_tensor("samples", product),
        ))
    }
}

/// Zero for NaN, the largest finite number for infinity.
fn finite(v: f32) -> f32 {
    if v.is_nan() {
        0.0
    } else {
        v.clamp(f32::MIN, f32::MAX)
    }
}

/// Mixes direction and length of two latents separately.
#[derive(Node)]
#[node(
    id = "LatentInterpolate",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced",
    outputs("LATENT")
)]
pub struct LatentInterpolate {
    samples1: Latent,
    samples2: Latent,
    /// Share of the first latent: 1 is all of it, 0 all of the second.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    ratio: f64,
}

impl Node for LatentInterpolate {
    fn run(self, _: &Cx) -> NodeResult {
        let first = self.samples1.samples()?;
        let second = matched(first, &self.samples2)?;
        let (here, there) = (self.ratio as f32, (1.0 - self.ratio) as f32);
        // The lengths lose their channel dimension, so they only fit batches of one (or of as many items as channels),
        // as in the reference.
        let length = |t: &Tensor| t.norm(&[1], Axes::Drop);
        let unit = |t: &Tensor, m: &Tensor| Ok::<_, NodeError>(t.div(m)?.map(finite));
        let (m1, m2) = (length(first)?, length(&second)?);
        let mixed = unit(first, &m1)?
            .mul_scalar(here)
            .add(&unit(&second, &m2)?.mul_scalar(there))?;
        let direction = unit(&mixed, &length(&mixed)?)?;
        let out = direction.mul(&m1.mul_scalar(here).add(&m2.mul_scalar(there))?)?;
        Ok(NodeOutput::one(self.samples1.with_tensor("samples", out)))
    }
}

/// Brings the first frames of a video latent to the brightness and contrast of those after them.
#[derive(Node)]
#[node(id = "NormalizeVideoLatentStart", v3, module = "comfy_extras.nodes_kandinsky5", category = "conditioning/video_models", outputs(Output::new("LATENT").named("latent")))]
pub struct NormalizeVideoLatentStart {
    latent: Latent,
    /// How many frames to change.
    #[input(default = 4, min = 1, max = 16384, step = 1)]
    start_frame_count: i64,
    /// How many frames after them to measure.
    #[input(default = 5, min = 1, max = 16384, step = 1)]
    reference_frame_count: i64,
}

impl Node for NormalizeVideoLatentStart {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.latent.samples()?;
        let frames = samples.dim(2)?;
        if frames <= 1 {
            return Ok(NodeOutput::one(self.latent));
        }
        let start = slice(0, self.start_frame_count, frames);
        let count = self.reference_frame_count.min(frames as i64 - 1);
        let after = slice(
            self.start_frame_count,
            self.start_frame_count.saturating_add(count),
            frames,
        );
        let first = samples.narrow(2, 0, start.len())?;
        let reference = samples.narrow(2, after.start, after.len())?;
        let all = [0, 1, 2, 3, 4];
        let dims = [1, 3, 4];
        let (mean, std) = (
            first.mean(&dims, Axes::Keep)?,
            first.std(&dims, Axes::Keep)?,
        );
        let (want_mean, want_std) = (
            reference.mean(&all, Axes::Drop)?.item()?,
            reference.std(&all, Axes::Drop)?.item()?,
        );
        // The change is limited to a band around each frame's own values.
        let limit = |wanted: f32, own: &Tensor, below: f32, above: f32| {
            own.map(|v| wanted.max(v - below).min(v + above))
        };
        let new_mean = limit(want_mean, &mean, 0.3, 0.35);
        let new_std = limit(want_std, &std, 0.35, 0.5);
        let normal = first
            .sub(&mean)?
            .div(&std.add_scalar(1e-8))?
            .mul(&new_std)?
            .add(&new_mean)?;
        let mut out = samples.clone();
        out.paste(&[0, 0, 0, 0, 0], &normal)?;
        Ok(NodeOutput::one(self.latent.with_tensor("samples", out)))
    }
}
