//! Nodes that sample long latents in windows.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::denoise::{ContextWindows, WindowFuse, WindowSchedule};

use super::Model;

/// The inputs that both nodes have in common.
struct WindowInputs<'a> {
    length: usize,
    overlap: usize,
    schedule: &'a str,
    stride: usize,
    closed_loop: bool,
    fuse: &'a str,
    dim: usize,
    free_noise: bool,
}

fn windowed(mut model: Model, asked: &WindowInputs<'_>) -> NodeResult {
    let unknown = |what: &str, name: &str| {
        NodeError::value_error(format!("there is no {what} called {name:?}"))
    };
    let windows = ContextWindows {
        length: asked.length,
        overlap: asked.overlap,
        schedule: WindowSchedule::parse(asked.schedule)
            .ok_or_else(|| unknown("schedule of windows", asked.schedule))?,
        stride: asked.stride,
        closed_loop: asked.closed_loop,
        fuse: WindowFuse::parse(asked.fuse)
            .ok_or_else(|| unknown("way to join windows", asked.fuse))?,
        dim: asked.dim,
        free_noise: asked.free_noise,
    };
    windows.check()?;
    model.patches.hooks.windows = Some(Arc::new(windows));
    Ok(NodeOutput::one(model))
}

/// Samples long latents in windows over one of their dimensions.
#[derive(Node)]
#[node(
    id = "ContextWindowsManual",
    v3,
    module = "comfy_extras.nodes_context_windows",
    display = "Context Windows (Manual)",
    category = "context",
    outputs("MODEL"),
    experimental
)]
pub struct ContextWindowsManual {
    /// The model that samples in windows.
    model: Model,
    /// Places of a window.
    #[input(default = 16, min = 1)]
    context_length: usize,
    /// Places that neighbouring windows share.
    #[input(default = 4, min = 0)]
    context_overlap: usize,
    /// Which windows there are in a step.
    #[input(choices = ["standard_static", "standard_uniform", "looped_uniform", "batched"])]
    context_schedule: String,
    /// How many widths uniform windows have, each twice the one before.
    #[input(default = 1, min = 1)]
    context_stride: usize,
    /// Whether windows at the end always go on at the start.
    #[input(default = false)]
    closed_loop: bool,
    /// How much the places of a window count.
    #[input(default = "pyramid", choices = ["pyramid", "relative", "flat", "overlap-linear"])]
    fuse_method: String,
    /// The dimension that is cut into windows.
    #[input(default = 0, min = 0, max = 5)]
    dim: usize,
    /// Whether later places get the noise of earlier ones in another order.
    #[input(default = false)]
    freenoise: bool,
}

impl Node for ContextWindowsManual {
    fn run(self, _: &Cx) -> NodeResult {
        let asked = WindowInputs {
            length: self.context_length,
            overlap: self.context_overlap,
            schedule: &self.context_schedule,
            stride: self.context_stride,
            closed_loop: self.closed_loop,
            fuse: &self.fuse_method,
            dim: self.dim,
            free_noise: self.freenoise,
        };
        windowed(self.model, &asked)
    }
}

/// Samples long Wan videos in windows, counted in pictures.
#[derive(Node)]
#[node(
    id = "WanContextWindowsManual",
    v3,
    module = "comfy_extras.nodes_context_windows",
    display = "WAN Context Windows (Manual)",
    category = "context",
    outputs("MODEL"),
    experimental
)]
pub struct LongFilmWindows {
    /// The model that samples in windows.
    model: Model,
    /// Pictures of a window.
    #[input(default = 81, min = 1, max = 16384, step = 4)]
    context_length: usize,
    /// Pictures that neighbouring windows share.
    #[input(default = 30, min = 0)]
    context_overlap: usize,
    /// Which windows there are in a step.
    #[input(choices = ["standard_static", "standard_uniform", "looped_uniform", "batched"])]
    context_schedule: String,
    /// How many widths uniform windows have, each twice the one before.
    #[input(default = 1, min = 1)]
    context_stride: usize,
    /// Whether windows at the end always go on at the start.
    #[input(default = false)]
    closed_loop: bool,
    /// How much the pictures of a window count.
    #[input(default = "pyramid", choices = ["pyramid", "relative", "flat", "overlap-linear"])]
    fuse_method: String,
    /// Whether later pictures get the noise of earlier ones in another order.
    #[input(default = false)]
    freenoise: bool,
}

/// The frames of a video's latent.
const FRAMES: usize = 2;

/// Latent frames of so many pictures; none of none.
fn latent_frames(pictures: usize) -> usize {
    match pictures.checked_sub(1) {
        Some(rest) => rest / 4 + 1,
        None => 0,
    }
}

impl Node for LongFilmWindows {
    fn run(self, _: &Cx) -> NodeResult {
        let asked = WindowInputs {
            length: latent_frames(self.context_length).max(1),
            overlap: latent_frames(self.context_overlap),
            schedule: &self.context_schedule,
            stride: self.context_stride,
            closed_loop: self.closed_loop,
            fuse: &self.fuse_method,
            dim: FRAMES,
            free_noise: self.freenoise,
        };
        windowed(self.model, &asked)
    }
}
