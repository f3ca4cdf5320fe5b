//! Pictures with transparency: the Porter-Duff operators, and taking alpha channels off and on.
//!
//! A MASK stands for the inverse of alpha here.

use fresco_graph::{Cx, Node, NodeEntry, NodeError, NodeOutput, NodeResult, entry};
use fresco_tensor::{Buffer, Crop, ResizeMethod, Tensor, element_count, resize::interpolate};

use crate::image::resize_planes;
use crate::mask::planes;
use crate::types::{Image, Mask};

pub(crate) static NODES: &[NodeEntry] = &[
    entry::<PorterDuffImageComposite>(),
    entry::<SplitImageWithAlpha>(),
    entry::<JoinImageWithAlpha>(),
];

/// Combines two transparent pictures with one of the Porter-Duff operators.
#[derive(Node)]
#[node(
    id = "PorterDuffImageComposite",
    v3,
    module = "comfy_extras.nodes_compositing",
    display = "Porter-Duff Image Composite",
    category = "mask/compositing",
    outputs("IMAGE", "MASK")
)]
pub(crate) struct PorterDuffImageComposite {
    source: Image,
    /// The mask of the source; white is transparent.
    source_alpha: Mask,
    destination: Image,
    /// The mask of the destination; white is transparent.
    destination_alpha: Mask,
    /// The operator that says what of both remains.
    #[input(choices = ["ADD", "CLEAR", "DARKEN", "DST", "DST_ATOP", "DST_IN", "DST_OUT", "DST_OVER", "LIGHTEN", "MULTIPLY", "OVERLAY", "SCREEN", "SRC", "SRC_ATOP", "SRC_IN", "SRC_OUT", "SRC_OVER", "XOR"], default = "DST")]
    mode: String,
}

/// One pixel channel: source and its alpha, destination and its alpha, all premultiplied. Gives colour and alpha.
type Operator = fn(s: f32, sa: f32, d: f32, da: f32) -> (f32, f32);

fn operator(mode: &str) -> Result<Operator, NodeError> {
    Ok(match mode {
        "ADD" => |s, sa, d, da| ((s + d).clamp(0.0, 1.0), (sa + da).clamp(0.0, 1.0)),
        "CLEAR" => |_, _, _, _| (0.0, 0.0),
        "DARKEN" => |s, sa, d, da| {
            let color = (1.0 - da) * s + (1.0 - sa) * d + s.min(d);
            (color, sa + da - sa * da)
        },
        "DST" => |_, _, d, da| (d, da),
        "DST_ATOP" => |s, sa, d, da| (sa * d + (1.0 - da) * s, sa),
        "DST_IN" => |_, sa, d, da| (d * sa, sa * da),
        "DST_OUT" => |_, sa, d, da| ((1.0 - sa) * d, (1.0 - sa) * da),
        "DST_OVER" => |s, sa, d, da| (d + (1.0 - da) * s, da + (1.0 - da) * sa),
        "LIGHTEN" => |s, sa, d, da| {
            let color = (1.0 - da) * s + (1.0 - sa) * d + s.max(d);
            (color, sa + da - sa * da)
        },
        "MULTIPLY" => |s, sa, d, da| (s * d, sa * da),
        "OVERLAY" => |s, sa, d, da| {
            let color = if 2.0 * d < da {
                2.0 * s * d
            } else {
                sa * da - 2.0 * (da - s) * (sa - d)
            };
            (color, sa + da - sa * da)
        },
        "SCREEN" => |s, sa, d, da| (s + d - s * d, sa + da - sa * da),
        "SRC" => |s, sa, _, _| (s, sa),
        "SRC_ATOP" => |s, sa, d, da| (da * s + (1.0 - sa) * d, da),
        "SRC_IN" => |s, sa, _, da| (s * da, sa * da),
        "SRC_OUT" => |s, sa, _, da| ((1.0 - da) * s, (1.0 - da) * sa),
        "SRC_OVER" => |s, sa, d, da| (s + (1.0 - sa) * d, sa + (1.0 - sa) * da),
        "XOR" => |s, sa, d, da| {
            let color = (1.0 - da) * s + (1.0 - sa) * d;
            (color, (1.0 - da) * sa + (1.0 - sa) * da)
        },
        other => {
            let message = format!("unknown Porter-Duff mode {other:?}");
            return Err(NodeError::value_error(message));
        }
    })
}

/// Below this a pixel counts as fully transparent, and its colour as black.
const TRANSPARENT: f32 = 1e-5;

impl Node for PorterDuffImageComposite {
    fn run(self, cx: &Cx) -> NodeResult {
        let operator = operator(&self.mode)?;
        let (source, destination) = (&self.source.0, &self.destination.0);
        let source_mask = planes(&self.source_alpha.0)?;
        let destination_mask = planes(&self.destination_alpha.0)?;
        let channels = destination.dims4()?[3];
        if source.dims4()?[3] != channels {
            return Err(NodeError::failed(
                "AssertionError",
                format!(
                    "source and destination need the same channels, got {} and {channels}",
                    source.shape()[3]
                ),
            ));
        }
        let [_, height, width, _] = destination.dims4()?;
        let batch = [source, &source_mask, destination, &destination_mask]
            .iter()
            .map(|t| t.shape()[0])
            .fold(usize::MAX, usize::min);
        if batch == 0 {
            return Err(NodeError::runtime("an empty batch has nothing to combine"));
        }
        let fit = |x: Tensor| -> Result<Tensor, NodeError> {
            if x.shape()[2..] == [height, width] {
                return Ok(x);
            }
            resize_planes(&x, width, height, ResizeMethod::Bicubic, Crop::Center)
        };
        let mut colors = Buffer::with_room(element_count(&[batch, height, width, channels])?)?;
        let mut masks = Buffer::with_room(batch * height * width)?;
        for i in 0..batch {
            cx.check_interrupt()?;
            let plane = |mask: &Tensor| -> Result<Tensor, NodeError> {
                fit(mask.narrow(0, i, 1)?.unsqueeze(1)?)
            };
            let source = fit(source.narrow(0, i, 1)?.nhwc_to_nchw()?)?.nchw_to_nhwc()?;
            let destination = destination.narrow(0, i, 1)?;
            let (source_mask, destination_mask) = (plane(&source_mask)?, plane(&destination_mask)?);
            for pixel in 0..height * width {
                let sa = 1.0 - source_mask.data()[pixel];
                let da = 1.0 - destination_mask.data()[pixel];
                let mut alpha = 0.0;
                for at in pixel * channels..(pixel + 1) * channels {
                    let (s, d) = (source.data()[at] * sa, destination.data()[at] * da);
                    let (color, a) = operator(s, sa, d, da);
                    alpha = a;
                    colors.push(if a > TRANSPARENT {
                        (color / a).clamp(0.0, 1.0)
                    } else {
                        0.0
                    });
                }
                masks.push(1.0 - alpha);
            }
        }
        let image = Tensor::from_buffer([batch, height, width, channels], colors)?;
        let mask = Tensor::from_buffer([batch, height, width], masks)?;
        Ok(NodeOutput::slots(vec![
            Image(image).into(),
            Mask(mask).into(),
        ]))
    }
}

/// Takes the alpha channel off a picture and gives it as a mask.
#[derive(Node)]
#[node(
    id = "SplitImageWithAlpha",
    v3,
    module = "comfy_extras.nodes_compositing",
    display = "Split Image with Alpha",
    category = "mask/compositing",
    outputs("IMAGE", "MASK")
)]
pub(crate) struct SplitImageWithAlpha {
    image: Image,
}

impl Node for SplitImageWithAlpha {
    fn run(self, _: &Cx) -> NodeResult {
        let [b, h, w, c] = self.image.0.dims4()?;
        let color = self.image.0.narrow(3, 0, c.min(3))?;
        let mask = if c > 3 {
            self.image.0.select(3, 3)?.rsub_scalar(1.0)
        } else {
            Tensor::zeros([b, h, w])?
        };
        Ok(NodeOutput::slots(vec![
            Image(color).into(),
            Mask(mask).into(),
        ]))
    }
}

/// Gives a picture an alpha channel made from a mask.
#[derive(Node)]
#[node(
    id = "JoinImageWithAlpha",
    v3,
    module = "comfy_extras.nodes_compositing",
    display = "Join Image with Alpha",
    category = "mask/compositing",
    outputs("IMAGE")
)]
pub(crate) struct JoinImageWithAlpha {
    image: Image,
    /// The mask that becomes transparency; white is transparent.
    alpha: Mask,
}

impl Node for JoinImageWithAlpha {
    fn run(self, _: &Cx) -> NodeResult {
        let [b, h, w, c] = self.image.0.dims4()?;
        let mask = planes(&self.alpha.0)?.unsqueeze(1)?;
        let batch = b.min(mask.shape()[0]);
        let mask = interpolate(&mask.narrow(0, 0, batch)?, w, h, ResizeMethod::Bilinear)?;
        let alpha = mask.rsub_scalar(1.0).nchw_to_nhwc()?;
        let color = self.image.0.narrow(0, 0, batch)?.narrow(3, 0, c.min(3))?;
        Ok(NodeOutput::one(Image(Tensor::cat(&[&color, &alpha], 3)?)))
    }
}
