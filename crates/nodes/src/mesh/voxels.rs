//! Latents to voxels.

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Value};

use super::Voxels;
use crate::types::Latent;
use crate::vae::Vae;

/// Turns the latent of a solid into voxels.
#[derive(Node)]
#[node(
    id = "VAEDecodeHunyuan3D",
    v3,
    module = "comfy_extras.nodes_hunyuan3d",
    category = "latent/3d",
    outputs("VOXEL")
)]
pub(super) struct VaeDecodeVoxels {
    samples: Latent,
    vae: Vae,
    /// Points that are looked at at once.
    #[input(default = 8000, min = 1000, max = 500000)]
    num_chunks: usize,
    /// Cells along a side.
    #[input(default = 256, min = 16, max = 512)]
    octree_resolution: usize,
}

impl Node for VaeDecodeVoxels {
    fn run(self, cx: &Cx) -> NodeResult {
        let latent = self.samples.samples()?;
        let (cells, chunk) = (self.octree_resolution, self.num_chunks);
        let voxels = self.vae.0.decode_voxels(latent, cells, chunk, cx)?;
        Ok(NodeOutput::one(Value::object(Voxels(voxels))))
    }
}
