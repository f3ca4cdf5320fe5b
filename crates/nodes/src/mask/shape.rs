//! Changing where a mask reaches.

use fresco_graph::{Cx, Grown, Input, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::{Crop, ResizeMethod, Tensor, morphology};

use super::planes;
use crate::image::{resize_planes, unsigned};
use crate::types::Mask;

/// Cuts a rectangle out of a mask.
#[derive(Node)]
#[node(
    id = "CropMask",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct CropMask {
    mask: Mask,
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    y: i64,
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    width: i64,
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    height: i64,
}

impl Node for CropMask {
    fn run(self, _: &Cx) -> NodeResult {
        let mask = planes(&self.mask.0)?;
        let [_, h, w] = mask.dims3()?;
        // A start beyond the edge leaves nothing, and that is not an error.
        let x = unsigned("x", self.x)?.min(w);
        let y = unsigned("y", self.y)?.min(h);
        let width = unsigned("width", self.width)?.min(w - x);
        let height = unsigned("height", self.height)?.min(h - y);
        let out = mask.narrow(1, y, height)?.narrow(2, x, width)?;
        Ok(NodeOutput::one(Mask(out)))
    }
}

/// Fades a mask out towards its edges.
#[derive(Node)]
#[node(
    id = "FeatherMask",
    v3,
    module = "comfy_extras.nodes_mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct FeatherMask {
    mask: Mask,
    /// Pixels over which the mask fades at the left.
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    left: i64,
    /// Pixels over which the mask fades at the top.
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    top: i64,
    /// Pixels over which the mask fades at the right.
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    right: i64,
    /// Pixels over which the mask fades at the bottom.
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    bottom: i64,
}

/// Factors along one side. The far end counts back from the near one, as the reference does: its step 0 falls on the
/// first line, so the last line gets the second factor.
fn multiply_edges(lines: usize, near: usize, far: usize, mut scale: impl FnMut(usize, f32)) {
    let (near, far) = (near.min(lines), far.min(lines));
    let factor = |i: usize, count: usize| ((i as f64 + 1.0) / count as f64) as f32;
    for i in 0..near {
        scale(i, factor(i, near));
    }
    for i in 0..far {
        scale((lines - i) % lines, factor(i, far));
    }
}

impl Node for FeatherMask {
    fn run(self, _: &Cx) -> NodeResult {
        let mut mask = planes(&self.mask.0)?;
        let [n, h, w] = mask.dims3()?;
        let (left, right) = (unsigned("left", self.left)?, unsigned("right", self.right)?);
        let (top, bottom) = (unsigned("top", self.top)?, unsigned("bottom", self.bottom)?);
        let data = mask.data_mut();
        multiply_edges(w, left, right, |x, factor| {
            for row in 0..n * h {
                data[row * w + x] *= factor;
            }
        });
        multiply_edges(h, top, bottom, |y, factor| {
            for plane in 0..n {
                for v in &mut data[(plane * h + y) * w..][..w] {
                    *v *= factor;
                }
            }
        });
        Ok(NodeOutput::one(Mask(mask)))
    }
}

/// Grows or shrinks the bright parts of a mask.
#[derive(Node)]
#[node(
    id = "GrowMask",
    v3,
    module = "comfy_extras.nodes_mask",
    display = "Grow Mask",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct GrowMask {
    mask: Mask,
    /// Pixels to grow by; negative shrinks.
    #[input(default = 0, min = -16384, max = 16384, step = 1)]
    expand: i64,
    /// Grow as a diamond rather than as a square.
    #[input(default = true)]
    tapered_corners: bool,
}

impl Node for GrowMask {
    fn run(self, cx: &Cx) -> NodeResult {
        let mut mask = planes(&self.mask.0)?;
        let [_, h, w] = mask.dims3()?;
        // Beyond the far corner nothing changes any more.
        let reach = (h + w) as i64;
        let mut left = self.expand.clamp(-reach, reach);
        while left != 0 {
            cx.check_interrupt()?;
            let steps = left.clamp(-16, 16);
            mask = morphology::grow_mask(&mask, steps, self.tapered_corners)?;
            left -= steps;
        }
        Ok(NodeOutput::one(Mask(mask)))
    }
}

/// Puts any number of masks into one batch; all are resized to the first.
#[derive(Node)]
#[node(
    id = "BatchMasksNode",
    v3,
    module = "comfy_extras.nodes_post_processing",
    display = "Batch Masks",
    category = "mask",
    outputs("MASK")
)]
pub(crate) struct BatchMasksNode {
    /// The masks, in this order; as many as are connected.
    #[input(spec = Input::autogrow("masks", Input::new("mask", "MASK"), "mask", 2, 50))]
    masks: Grown<Mask>,
}

impl Node for BatchMasksNode {
    fn run(self, _: &Cx) -> NodeResult {
        let mut fitted: Vec<Tensor> = Vec::new();
        for mask in &self.masks.0 {
            let mask = planes(&mask.0)?;
            fitted.push(match fitted.first() {
                Some(first) if first.shape()[1..] != mask.shape()[1..] => {
                    let [_, height, width] = first.dims3()?;
                    let stacked = mask.unsqueeze(1)?;
                    let method = ResizeMethod::Bilinear;
                    resize_planes(&stacked, width, height, method, Crop::Center)?.squeeze(1)?
                }
                _ => mask,
            });
        }
        if fitted.is_empty() {
            return Err(NodeError::value_error("no masks to put into a batch"));
        }
        let parts: Vec<&Tensor> = fitted.iter().collect();
        Ok(NodeOutput::one(Mask(Tensor::cat(&parts, 0)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_edges_start_at_the_first_line() {
        let mut seen = Vec::new();
        multiply_edges(4, 0, 2, |line, factor| seen.push((line, factor)));
        assert_eq!(seen, [(0, 0.5), (3, 1.0)]);
        multiply_edges(0, 5, 5, |_, _| panic!("no lines, no factors"));
    }
}
