//! How Chroma Radiance is run.

use fresco_graph::{Cx, Node, NodeOutput, NodeResult};

use super::Model;

/// Sets how many squares of a picture Chroma Radiance finishes at a time. Here they are finished in parts that fit, whatever
/// is asked for, and the result is the same.
#[derive(Node)]
#[node(
    id = "ChromaRadianceOptions",
    v3,
    module = "comfy_extras.nodes_chroma_radiance",
    category = "model_patches/chroma_radiance",
    outputs("MODEL")
)]
pub struct ChromaRadianceOptions {
    model: Model,
    /// Keep what other nodes put around the model.
    #[input(default = true)]
    preserve_wrapper: bool,
    /// Noise level from which on this counts.
    #[input(default = 1.0, min = 0.0, max = 1.0)]
    start_sigma: f64,
    /// Noise level down to which it counts.
    #[input(default = 0.0, min = 0.0, max = 1.0)]
    end_sigma: f64,
    /// Squares at a time; none below zero.
    #[input(default = -1, min = -1)]
    nerf_tile_size: i64,
}

impl Node for ChromaRadianceOptions {
    fn run(self, _: &Cx) -> NodeResult {
        tracing::debug!(
            "parts of {} squares from {} to {} are asked for (around others: {})",
            self.nerf_tile_size,
            self.start_sigma,
            self.end_sigma,
            self.preserve_wrapper
        );
        Ok(NodeOutput::one(self.model))
    }
}
