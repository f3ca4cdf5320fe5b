//! Preparing pictures for video models.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};

use crate::types::Image;

/// Makes a picture look like a frame of compressed video, which LTX models expect.
#[derive(Node)]
#[node(id = "LTXVPreprocess", v3, module = "comfy_extras.nodes_lt", category = "image",
       outputs(Output::new("IMAGE").named("output_image")))]
pub(super) struct LtxvPreprocess {
    image: Image,
    /// How strongly to compress; 0 leaves the picture as it is.
    #[input(default = 35, min = 0, max = 100)]
    img_compression: i64,
}

impl Node for LtxvPreprocess {
    fn run(self, _: &Cx) -> NodeResult {
        if self.img_compression == 0 {
            return Ok(NodeOutput::one(self.image));
        }
        // The compression is one frame of H.264 and back.
        Err(NodeError::runtime(
            "this build has no video encoder; set img_compression to 0 to use the picture as it is",
        ))
    }
}
