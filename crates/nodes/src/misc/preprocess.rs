//! Preparing pictures for video models.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_media::through_h264;
use fresco_tensor::{Tensor, with_memory};

use crate::types::Image;
use crate::video::media_error;

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

/// Bytes that coding takes for a pixel, and besides.
const MEMORY: (u64, u64) = (120, 16 << 20);

impl Node for LtxvPreprocess {
    fn run(self, cx: &Cx) -> NodeResult {
        if self.img_compression <= 0 {
            return Ok(NodeOutput::one(self.image));
        }
        let [count, h, w, channels] = self.image.0.dims4()?;
        // The codec has no odd sizes.
        let (high, wide) = (h / 2 * 2, w / 2 * 2);
        if channels < 3 || high == 0 || wide == 0 {
            return Err(NodeError::value_error(format!(
                "pictures are compressed in colour and from 2 x 2 pixels on, and these have shape {:?}",
                self.image.0.shape()
            )));
        }
        let quantizer = self.img_compression.min(51) as u8;
        let mut out = Tensor::zeros([count, high, wide, 3])?;
        let source = self.image.0.data();
        let target = out.data_mut().chunks_exact_mut(high * wide * 3);
        let bytes = (wide as u64 * high as u64).saturating_mul(MEMORY.0) + MEMORY.1;
        for (number, target) in target.enumerate() {
            cx.check_interrupt()?;
            let coded = with_memory(bytes, || {
                let mut rgb = Vec::with_capacity(high * wide * 3);
                for row in 0..high {
                    for column in 0..wide {
                        let at = ((number * h + row) * w + column) * channels;
                        let level = |v: &f32| (v * 255.0).clamp(0.0, 255.0) as u8;
                        rgb.extend(source[at..at + 3].iter().map(level));
                    }
                }
                through_h264(&rgb, wide, high, quantizer)
            })?;
            let coded = coded.map_err(|e| media_error("the picture cannot be compressed", e))?;
            for (value, level) in target.iter_mut().zip(coded) {
                *value = f32::from(level) / 255.0;
            }
        }
        Ok(NodeOutput::one(Image(out)))
    }
}
