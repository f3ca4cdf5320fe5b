//! Pictures of the input folder.

use std::path::Path;

use fresco_graph::{
    Args, Cx, Map, Node, NodeError, NodeOutput, NodeResult, Validator, Value, Verdict, map,
};
use fresco_tensor::{Buffer, Tensor, with_memory};

use super::{file_token, file_verdict, open_image, resolve, rgb, unit};
use crate::types::{Image, Mask};

const IMAGE_VALIDATOR: Option<Validator> = Some(Validator {
    params: &["image"],
    all: false,
    input_types: false,
});

/// All frames as a batch, and their transparency as a mask: 64 x 64 zeros for a frame without.
pub(super) fn load(cx: &Cx, path: &Path) -> Result<(Image, Mask), NodeError> {
    let decoded = open_image(cx, path)?;
    let mut images = Vec::new();
    let mut masks = Vec::new();
    for frame in decoded.batch() {
        images.push(rgb(frame)?);
        masks.push(match frame.alpha8() {
            Some(alpha) => {
                let shape = [1, frame.height as usize, frame.width as usize];
                unit(&shape, alpha)?.rsub_scalar(1.0)
            }
            None => Tensor::zeros([1, 64, 64])?,
        });
    }
    let join = |list: &[Tensor]| Tensor::cat(&list.iter().collect::<Vec<_>>(), 0);
    Ok((Image(join(&images)?), Mask(join(&masks)?)))
}

fn load_named(cx: &Cx, name: &str) -> NodeResult {
    let (image, mask) = load(cx, &resolve(cx, name)?)?;
    Ok(NodeOutput::slots(vec![image.into(), mask.into()]))
}

/// Loads a picture, and its transparency as a mask.
#[derive(Node)]
#[node(
    id = "LoadImage",
    v1,
    module = "nodes",
    display = "Load Image",
    category = "image",
    outputs("IMAGE", "MASK")
)]
pub(super) struct LoadImage {
    /// The picture in the input directory.
    #[input(listed = "input/image", image_upload = true)]
    image: String,
}

impl Node for LoadImage {
    fn run(self, cx: &Cx) -> NodeResult {
        load_named(cx, &self.image)
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        file_token(cx, &args, "image")
    }

    const VALIDATOR: Option<Validator> = IMAGE_VALIDATOR;
    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(file_verdict(cx, &args, "image", "image"))
    }
}

/// Loads one channel of a picture as a mask.
#[derive(Node)]
#[node(
    id = "LoadImageMask",
    v1,
    module = "nodes",
    display = "Load Image (as Mask)",
    category = "mask",
    outputs("MASK")
)]
pub(super) struct LoadImageMask {
    /// The picture in the input directory.
    #[input(listed = "input/image", image_upload = true)]
    image: String,
    /// Transparency counts inverted: what is transparent is masked.
    #[input(choices = ["alpha", "red", "green", "blue"])]
    channel: String,
}

impl Node for LoadImageMask {
    fn run(self, cx: &Cx) -> NodeResult {
        let decoded = open_image(cx, &resolve(cx, &self.image)?)?;
        let frame = decoded.first();
        let index = match self.channel.as_str() {
            "red" => 0,
            "green" => 1,
            "blue" => 2,
            "alpha" => 3,
            // The reference asks for the first letter only and gives an empty mask for one it does not know.
            _ => return Ok(NodeOutput::one(Mask(Tensor::zeros([1, 64, 64])?))),
        };
        let shape = [1, frame.height as usize, frame.width as usize];
        let rgba = with_memory(4 * frame.rgb8().len() as u64 / 3, || frame.rgba8())?;
        let channel = rgba.chunks_exact(4).map(|p| f32::from(p[index]) / 255.0);
        let mut mask = Tensor::from_buffer(shape, Buffer::collect(channel)?)?;
        if index == 3 {
            mask = mask.rsub_scalar(1.0);
        }
        Ok(NodeOutput::one(Mask(mask)))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        file_token(cx, &args, "image")
    }

    const VALIDATOR: Option<Validator> = IMAGE_VALIDATOR;
    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(file_verdict(cx, &args, "image", "image"))
    }
}

/// Loads a picture that was saved before; the refresh button takes the newest.
#[derive(Node)]
#[node(
    id = "LoadImageOutput",
    v1,
    module = "nodes",
    display = "Load Image (from Outputs)",
    category = "image",
    outputs("IMAGE", "MASK"),
    experimental
)]
pub(super) struct LoadImageOutput {
    /// The picture in the output directory.
    #[input(ty = "COMBO", image_upload = true, image_folder = "output",
            remote = map! {"route" => "/internal/files/output", "refresh_button" => true,
                           "control_after_refresh" => "first"})]
    image: String,
}

impl Node for LoadImageOutput {
    fn run(self, cx: &Cx) -> NodeResult {
        load_named(cx, &self.image)
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        file_token(cx, &args, "image")
    }

    const VALIDATOR: Option<Validator> = IMAGE_VALIDATOR;
    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(file_verdict(cx, &args, "image", "image"))
    }
}

/// A picture the browser took with the camera.
#[derive(Node)]
#[node(
    id = "WebcamCapture",
    v1,
    module = "comfy_extras.nodes_webcam",
    display = "Webcam Capture",
    category = "image",
    outputs("IMAGE")
)]
pub(super) struct WebcamCapture {
    /// The picture that the camera took.
    #[input(ty = "WEBCAM")]
    image: String,
    /// Width of the picture in pixels; 0 takes the camera's.
    #[expect(dead_code, reason = "for the camera in the browser")]
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    width: i64,
    /// Height of the picture in pixels; 0 takes the camera's.
    #[expect(dead_code, reason = "for the camera in the browser")]
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    height: i64,
    /// Takes a new picture whenever the workflow is run.
    #[expect(dead_code, reason = "for the camera in the browser")]
    #[input(default = true)]
    capture_on_queue: bool,
}

impl Node for WebcamCapture {
    fn run(self, cx: &Cx) -> NodeResult {
        let (image, _) = load(cx, &resolve(cx, &self.image)?)?;
        Ok(NodeOutput::one(image))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        file_token(cx, &args, "image")
    }

    const VALIDATOR: Option<Validator> = IMAGE_VALIDATOR;
    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(file_verdict(cx, &args, "image", "image"))
    }
}
