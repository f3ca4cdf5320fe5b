//! Nodes that change what flows between the blocks of a UNet.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Twin};
use fresco_models::sd::unet::blocks::{self, Downscale};
use fresco_tensor::ResizeMethod;

use super::Model;

const METHODS: [&str; 5] = ["bicubic", "nearest-exact", "bilinear", "area", "bislerp"];

fn free_u(mut model: Model, inner: (f64, f64), outer: (f64, f64), adaptive: bool) -> NodeResult {
    let model_channels = model
        .base
        .model_channels()
        .ok_or_else(|| NodeError::failed("KeyError", "'model_channels'"))?;
    let patch = blocks::FreeU {
        model_channels,
        inner,
        outer,
        adaptive,
    };
    model.warn_of("FreeU", |hooks| patch.install(hooks));
    patch.install(&mut model.patches.hooks);
    Ok(NodeOutput::one(model))
}

/// Better pictures for free: a stronger backbone and weaker skip connections.
#[derive(Node)]
#[node(
    id = "FreeU",
    v3,
    module = "comfy_extras.nodes_freelunch",
    category = "model_patches/unet",
    outputs("MODEL")
)]
pub struct FreeU {
    model: Model,
    /// Factor of the backbone in the innermost blocks; above 1 strengthens it.
    #[input(default = 1.1, min = 0.0, max = 10.0, step = 0.01)]
    b1: f64,
    /// Factor of the backbone in the blocks around them; above 1 strengthens it.
    #[input(default = 1.2, min = 0.0, max = 10.0, step = 0.01)]
    b2: f64,
    /// Factor of coarse structure in the innermost skip connections; below 1 weakens it.
    #[input(default = 0.9, min = 0.0, max = 10.0, step = 0.01)]
    s1: f64,
    /// Factor of coarse structure in the skip connections around them; below 1 weakens it.
    #[input(default = 0.2, min = 0.0, max = 10.0, step = 0.01)]
    s2: f64,
}

impl Node for FreeU {
    fn run(self, _: &Cx) -> NodeResult {
        self.patch(false)
    }
}

impl FreeU {
    fn patch(self, adaptive: bool) -> NodeResult {
        free_u(self.model, (self.b1, self.s1), (self.b2, self.s2), adaptive)
    }
}

pub static FREE_U_2: Twin<FreeU> = Twin {
    id: "FreeU_V2",
    display: None,
    about: "The second version of FreeU, which strengthens where the backbone is strong.",
    defaults: &[("b1", 1.3), ("b2", 1.4)],
    run: |node, _| node.patch(true),
};

/// Works on a smaller picture early in sampling, so that large pictures keep one composition.
#[derive(Node)]
#[node(
    id = "PatchModelAddDownscale",
    v3,
    module = "comfy_extras.nodes_model_downscale",
    display = "PatchModelAddDownscale (Kohya Deep Shrink)",
    category = "model_patches/unet",
    outputs("MODEL")
)]
pub struct PatchModelAddDownscale {
    model: Model,
    /// The block before which the picture becomes smaller, from the outermost.
    #[input(default = 3, min = 1, max = 32, step = 1)]
    block_number: i64,
    /// How many times smaller width and height become.
    #[input(default = 2.0, min = 0.1, max = 9.0, step = 0.001)]
    downscale_factor: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 0.35, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
    /// Makes it smaller after the skip connection was taken, rather than before.
    #[input(default = true)]
    downscale_after_skip: bool,
    /// How the smaller picture is computed.
    #[input(choices = METHODS)]
    downscale_method: String,
    #[input(choices = METHODS)]
    upscale_method: String,
}

impl Node for PatchModelAddDownscale {
    fn run(self, _: &Cx) -> NodeResult {
        let method = |name: &str| {
            ResizeMethod::parse(name)
                .ok_or_else(|| NodeError::value_error(format!("unknown resize method '{name}'")))
        };
        let sampling = &self.model.sampling;
        let patch = Downscale {
            block: self.block_number,
            factor: self.downscale_factor,
            start_sigma: sampling.percent_to_sigma(self.start_percent),
            end_sigma: sampling.percent_to_sigma(self.end_percent),
            after_skip: self.downscale_after_skip,
            down: method(&self.downscale_method)?,
            up: method(&self.upscale_method)?,
        };
        let mut model = self.model;
        model.warn_of("PatchModelAddDownscale", |hooks| patch.install(hooks));
        patch.install(&mut model.patches.hooks);
        Ok(NodeOutput::one(model))
    }
}
