//! What somebody painted in the browser.

use fresco_graph::{
    Args, Cx, Map, Node, NodeError, NodeOutput, NodeResult, Validator, Value, Verdict,
};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::{Buffer, Crop, ResizeMethod, Tensor, with_memory};

use super::{file_token, file_verdict, open_image, resolve};
use crate::image::{check_room, hex_color, resize_planes, unsigned};
use crate::types::{Image, Mask};

/// Puts what was painted over a picture, or over a plain canvas, and gives where it was painted as a mask.
#[derive(Node)]
#[node(
    id = "Painter",
    v3,
    module = "comfy_extras.nodes_painter",
    display = "Painter",
    category = "image",
    outputs("IMAGE", "MASK")
)]
pub(super) struct Painter {
    /// The file of the painting.
    mask: String,
    /// Width of the canvas in pixels, where no picture is connected.
    #[input(min = 64, max = 4096)]
    width: i64,
    /// Height of the canvas in pixels, where no picture is connected.
    #[input(min = 64, max = 4096)]
    height: i64,
    /// Colour of the canvas where no picture is connected.
    #[input(ty = "COLOR")]
    bg_color: String,
    /// The picture to paint over.
    #[input(optional)]
    image: Option<Image>,
}

impl Node for Painter {
    fn run(self, cx: &Cx) -> NodeResult {
        let base = match &self.image {
            Some(image) => {
                let channels = image.0.dims4()?[3];
                if channels < 3 {
                    return Err(NodeError::value_error(format!(
                        "a picture of {channels} channels cannot be painted over"
                    )));
                }
                image.0.narrow(3, 0, 3)?
            }
            None => canvas(self.width, self.height, hex_color(&self.bg_color)?)?,
        };
        let [_, h, w, _] = base.dims4()?;
        if h == 0 || w == 0 {
            return Err(NodeError::value_error("there is nothing to paint on"));
        }
        if self.mask.trim().is_empty() {
            let mask = Mask(Tensor::zeros([1, h, w])?);
            return Ok(NodeOutput::slots(vec![Image(base).into(), mask.into()]));
        }
        let strokes = strokes(cx, &self.mask, w, h)?;
        let painted = paint(base, &strokes)?;
        let mask = strokes.narrow(1, 3, 1)?.reshape([1, h, w])?;
        Ok(NodeOutput::slots(vec![
            Image(painted).into(),
            Mask(mask).into(),
        ]))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        if args.get("mask").is_none_or(|name| !is_file(name)) {
            return Ok(Value::Null);
        }
        file_token(cx, &args, "mask")
    }

    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &["mask"],
        all: false,
        input_types: false,
    });
    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        if args.get("mask").is_none_or(|name| !is_file(name)) {
            return Ok(Verdict::Ok);
        }
        Ok(file_verdict(cx, &args, "mask", "painting"))
    }
}

/// Nothing painted yet is no file.
fn is_file(name: &Value) -> bool {
    name.as_str().is_some_and(|name| !name.trim().is_empty())
}

fn canvas(width: i64, height: i64, color: [f32; 3]) -> Result<Tensor, NodeError> {
    let shape = [1, unsigned("height", height)?, unsigned("width", width)?, 3];
    check_room(&shape)?;
    Ok(Tensor::from_fn(shape, |i| color[i % 3])?)
}

/// The painting as `(1, 4, h, w)`, in the size of what it is painted on.
fn strokes(cx: &Cx, name: &str, width: usize, height: usize) -> Result<Tensor, NodeError> {
    let decoded = open_image(cx, &resolve(cx, name)?)?;
    let frame = decoded.first();
    let (w, h) = (frame.width as usize, frame.height as usize);
    let rgba = with_memory(4 * (w * h) as u64, || frame.rgba8())?;
    let values = Buffer::collect(rgba.iter().map(|b| f32::from(*b) / 255.0))?;
    let planes = Tensor::from_buffer([1, h, w, 4], values)?.nhwc_to_nchw()?;
    if (w, h) == (width, height) {
        return Ok(planes);
    }
    resize_planes(
        &planes,
        width,
        height,
        ResizeMethod::Bilinear,
        Crop::Disabled,
    )
}

fn paint(mut base: Tensor, strokes: &Tensor) -> Result<Tensor, NodeError> {
    let [_, h, w, _] = base.dims4()?;
    let cancel = Cancel::current();
    let plane = h * w;
    let strokes = strokes.data();
    for picture in base.data_mut().chunks_exact_mut(plane * 3) {
        for (y, row) in picture.chunks_exact_mut(w * 3).enumerate() {
            cancel.check()?;
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let at = y * w + x;
                let opacity = strokes[3 * plane + at];
                for (c, value) in pixel.iter_mut().enumerate() {
                    *value += (strokes[c * plane + at] - *value) * opacity;
                }
            }
        }
    }
    Ok(base)
}
