//! Nodes that make pictures larger or smaller.

use std::sync::Arc;

use fresco_graph::{
    Choices, Cx, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value, wrong_kind,
};
use fresco_tensor::{Crop, ResizeMethod, Tensor};

use super::{check_room, method, resize, resize_planes, rounded, unsigned};
use crate::types::{Image, as_tensor, tensor};

/// Resizes a picture to a width and height; a zero keeps the aspect ratio.
#[derive(Node)]
#[node(
    id = "ImageScale",
    v1,
    module = "nodes",
    display = "Upscale Image",
    category = "image/upscaling",
    outputs("IMAGE")
)]
pub(crate) struct ImageScale {
    image: Image,
    #[input(choices = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"])]
    upscale_method: String,
    /// Width in pixels; 0 keeps the proportions.
    #[input(default = 512, min = 0, max = 16384, step = 1)]
    width: i64,
    /// Height in pixels; 0 keeps the proportions.
    #[input(default = 512, min = 0, max = 16384, step = 1)]
    height: i64,
    #[input(choices = ["disabled", "center"])]
    crop: String,
}

impl Node for ImageScale {
    fn run(self, _: &Cx) -> NodeResult {
        let [_, h, w, _] = self.image.0.dims4()?;
        let Some((width, height)) = target(w, h, self.width, self.height)? else {
            return Ok(NodeOutput::one(self.image));
        };
        let crop = Crop::parse(&self.crop);
        let out = resize(
            &self.image.0,
            width,
            height,
            method(&self.upscale_method)?,
            crop,
        )?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// The wanted size, with a single zero filled in from the aspect ratio; nothing if both are zero.
fn target(
    w: usize,
    h: usize,
    width: i64,
    height: i64,
) -> Result<Option<(usize, usize)>, NodeError> {
    let (width, height) = (unsigned("width", width)?, unsigned("height", height)?);
    let follow = |size: usize, given: usize, other: usize| {
        rounded(size as f64 * given as f64 / other as f64).map(|v| v.max(1))
    };
    Ok(match (width, height) {
        (0, 0) => None,
        (0, height) => Some((follow(w, height, h)?, height)),
        (width, 0) => Some((width, follow(h, width, w)?)),
        both => Some(both),
    })
}

/// Resizes a picture by a factor.
#[derive(Node)]
#[node(
    id = "ImageScaleBy",
    v1,
    module = "nodes",
    display = "Upscale Image By",
    category = "image/upscaling",
    outputs("IMAGE")
)]
pub(crate) struct ImageScaleBy {
    image: Image,
    #[input(choices = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"])]
    upscale_method: String,
    #[input(default = 1.0, min = 0.01, max = 8.0, step = 0.01)]
    scale_by: f64,
}

impl Node for ImageScaleBy {
    fn run(self, _: &Cx) -> NodeResult {
        let [_, h, w, _] = self.image.0.dims4()?;
        let width = rounded(w as f64 * self.scale_by)?;
        let height = rounded(h as f64 * self.scale_by)?;
        let method = method(&self.upscale_method)?;
        let out = resize(&self.image.0, width, height, method, Crop::Disabled)?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// Resizes a picture to about this many megapixels, keeping its aspect ratio.
#[derive(Node)]
#[node(
    id = "ImageScaleToTotalPixels",
    v3,
    module = "comfy_extras.nodes_post_processing",
    category = "image/upscaling",
    outputs("IMAGE")
)]
pub(crate) struct ImageScaleToTotalPixels {
    image: Image,
    #[input(choices = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"])]
    upscale_method: String,
    /// Size of the result in millions of pixels, of 1024 x 1024.
    #[input(default = 1.0, min = 0.01, max = 16.0, step = 0.01)]
    megapixels: f64,
    /// Width and height become multiples of this.
    #[input(default = 1, min = 1, max = 256)]
    resolution_steps: i64,
}

impl Node for ImageScaleToTotalPixels {
    fn run(self, _: &Cx) -> NodeResult {
        let [_, h, w, _] = self.image.0.dims4()?;
        let scale = (self.megapixels * 1024.0 * 1024.0 / (w * h) as f64).sqrt();
        let step = unsigned("resolution_steps", self.resolution_steps)?.max(1);
        let side = |size: usize| {
            rounded(size as f64 * scale / step as f64).map(|v| v.saturating_mul(step))
        };
        let method = method(&self.upscale_method)?;
        let out = resize(&self.image.0, side(w)?, side(h)?, method, Crop::Disabled)?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// Resizes a picture so that its longer side has this many pixels.
#[derive(Node)]
#[node(
    id = "ImageScaleToMaxDimension",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/upscaling",
    outputs("IMAGE")
)]
pub(crate) struct ImageScaleToMaxDimension {
    image: Image,
    #[input(choices = ["area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic"])]
    upscale_method: String,
    /// Length of the longer side in pixels.
    #[input(default = 512, min = 0, max = 16384, step = 1)]
    largest_size: i64,
}

impl Node for ImageScaleToMaxDimension {
    fn run(self, _: &Cx) -> NodeResult {
        let [_, h, w, _] = self.image.0.dims4()?;
        let (width, height) = longer_side(w, h, unsigned("largest_size", self.largest_size)?)?;
        let method = method(&self.upscale_method)?;
        let out = resize(&self.image.0, width, height, method, Crop::Disabled)?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// Width and height with the longer side given.
fn longer_side(w: usize, h: usize, size: usize) -> Result<(usize, usize), NodeError> {
    let other = |short: usize, long: usize| rounded(short as f64 / long as f64 * size as f64);
    Ok(match h.cmp(&w) {
        std::cmp::Ordering::Greater => (other(w, h)?, size),
        std::cmp::Ordering::Less => (size, other(h, w)?),
        std::cmp::Ordering::Equal => (size, size),
    })
}

/// Fits a picture into a frame and fills what is left with a colour.
#[derive(Node)]
#[node(
    id = "ResizeAndPadImage",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/transform",
    outputs("IMAGE")
)]
pub(crate) struct ResizeAndPadImage {
    image: Image,
    /// Width of the frame in pixels.
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    target_width: i64,
    /// Height of the frame in pixels.
    #[input(default = 512, min = 1, max = 16384, step = 1)]
    target_height: i64,
    /// The colour of what is left.
    #[input(choices = ["white", "black"])]
    padding_color: String,
    /// How new pixels are computed: lanczos and bicubic are sharp, area is good for making smaller.
    #[input(choices = ["area", "bicubic", "nearest-exact", "bilinear", "lanczos"])]
    interpolation: String,
}

impl Node for ResizeAndPadImage {
    fn run(self, _: &Cx) -> NodeResult {
        let [b, h, w, c] = self.image.0.dims4()?;
        let width = unsigned("target_width", self.target_width)?;
        let height = unsigned("target_height", self.target_height)?;
        check_room(&[b, height, width, c])?;
        let scale = (width as f64 / w as f64).min(height as f64 / h as f64);
        let (new_w, new_h) = ((w as f64 * scale) as usize, (h as f64 * scale) as usize);
        let method = method(&self.interpolation)?;
        let small = resize(&self.image.0, new_w, new_h, method, Crop::Disabled)?;
        let fill = if self.padding_color == "black" {
            0.0
        } else {
            1.0
        };
        let mut out = Tensor::full([b, height, width, c], fill)?;
        let margin = |outer: usize, inner: usize| outer.saturating_sub(inner) / 2;
        out.paste(&[0, margin(height, new_h), margin(width, new_w), 0], &small)?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// Resizes a picture or a mask in one of several ways.
#[derive(Node)]
#[node(
    id = "ResizeImageMaskNode",
    v3,
    module = "comfy_extras.nodes_post_processing",
    display = "Resize Image/Mask",
    category = "transform",
    outputs(Output::matching("input_type", "resized"))
)]
pub(crate) struct ResizeImageMaskNode {
    /// The picture or mask.
    #[input(spec = Input::match_type("input", "input_type", "IMAGE,MASK"))]
    input: Value,
    /// What decides the new size.
    #[input(spec = resize_types())]
    resize_type: Arc<Map>,
    /// How new pixels are computed: lanczos and bicubic are sharp, area is good for making smaller.
    #[input(choices = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"], default = "area")]
    scale_method: String,
}

fn resize_types() -> Input {
    let side = |name: &str, about: &str| {
        Input::new(name, "INT")
            .tooltip(about)
            .option("default", 512)
            .option("min", 0)
            .option("max", 16384)
            .option("step", 1)
    };
    let factor = |name: &str, max: f64, about: &str| {
        Input::new(name, "FLOAT")
            .tooltip(about)
            .option("default", 1.0)
            .option("min", 0.01)
            .option("max", max)
            .option("step", 0.01)
    };
    let crop = || {
        let choices = ["disabled", "center"].map(Value::from).to_vec();
        Input::combo("crop", Choices::Fixed(Arc::new(choices))).option("default", "center")
    };
    Input::dynamic_combo(
        "resize_type",
        vec![
            (
                "scale by multiplier",
                vec![factor(
                    "multiplier",
                    8.0,
                    "Factor of width and height: 2 doubles both.",
                )],
            ),
            (
                "scale dimensions",
                vec![
                    side("width", "Width in pixels."),
                    side("height", "Height in pixels."),
                    crop(),
                ],
            ),
            (
                "scale longer dimension",
                vec![side("longer_size", "Length of the longer side in pixels.")],
            ),
            (
                "scale shorter dimension",
                vec![side(
                    "shorter_size",
                    "Length of the shorter side in pixels.",
                )],
            ),
            ("scale width", vec![side("width", "Width in pixels.")]),
            ("scale height", vec![side("height", "Height in pixels.")]),
            (
                "scale total pixels",
                vec![factor(
                    "megapixels",
                    16.0,
                    "Size of the result in millions of pixels, of 1024 x 1024.",
                )],
            ),
            (
                "match size",
                vec![
                    Input::new("match", "IMAGE,MASK")
                        .tooltip("The picture or mask whose size the result gets."),
                    crop(),
                ],
            ),
        ],
    )
}

impl ResizeImageMaskNode {
    fn value(&self, name: &str) -> Result<&Value, NodeError> {
        self.resize_type
            .get(name)
            .ok_or_else(|| NodeError::type_error(format!("missing required argument: '{name}'")))
    }

    fn size(&self, name: &str) -> Result<usize, NodeError> {
        let value = self.value(name)?;
        let int = value.as_int().and_then(|v| i64::try_from(v).ok());
        let int = int.ok_or_else(|| NodeError::type_error(wrong_kind("an integer", value)))?;
        unsigned(name, int)
    }

    fn number(&self, name: &str) -> Result<f64, NodeError> {
        let value = self.value(name)?;
        value
            .as_f64()
            .ok_or_else(|| NodeError::type_error(wrong_kind("a number", value)))
    }

    /// The new width and height, and whether to crop; nothing for "leave it".
    fn plan(&self, w: usize, h: usize) -> Result<Option<(usize, usize, Crop)>, NodeError> {
        let crop = || {
            let name = self.resize_type.get("crop").and_then(Value::as_str);
            Crop::parse(name.unwrap_or("center"))
        };
        let part = |a: usize, b: usize, size: usize| rounded(a as f64 / b as f64 * size as f64);
        let kind = self.value("resize_type")?.as_str().unwrap_or_default();
        let (width, height, crop) = match kind {
            "scale by multiplier" => {
                let by = self.number("multiplier")?;
                let side = |size: usize| rounded(size as f64 * by);
                (side(w)?, side(h)?, Crop::Disabled)
            }
            "scale dimensions" => {
                let (width, height) = (self.size("width")?, self.size("height")?);
                match target(w, h, width as i64, height as i64)? {
                    Some((width, height)) => (width, height, crop()),
                    None => return Ok(None),
                }
            }
            "scale longer dimension" => {
                let (width, height) = longer_side(w, h, self.size("longer_size")?)?;
                (width, height, Crop::Disabled)
            }
            "scale shorter dimension" => {
                // Portrait pictures come out square in the reference, and so here.
                let size = self.size("shorter_size")?;
                let width = if h < w { part(w, h, size)? } else { size };
                (width, size, Crop::Disabled)
            }
            "scale width" => {
                let width = self.size("width")?;
                (width, part(h, w, width)?, Crop::Disabled)
            }
            "scale height" => {
                let height = self.size("height")?;
                (part(w, h, height)?, height, Crop::Disabled)
            }
            "scale total pixels" => {
                let total = (self.number("megapixels")? * 1024.0 * 1024.0).trunc();
                let by = (total / (w * h) as f64).sqrt();
                let side = |size: usize| rounded(size as f64 * by);
                (side(w)?, side(h)?, Crop::Disabled)
            }
            "match size" => {
                let other = self.value("match")?;
                let shape = as_tensor(other).map(Tensor::shape).unwrap_or_default();
                let (&[_, height, width, _] | &[_, height, width]) = shape else {
                    return Err(NodeError::type_error(wrong_kind(
                        "a picture or mask",
                        other,
                    )));
                };
                (width, height, crop())
            }
            other => {
                return Err(NodeError::value_error(format!(
                    "Unsupported resize type: {other}"
                )));
            }
        };
        Ok(Some((width, height, crop)))
    }
}

impl Node for ResizeImageMaskNode {
    fn run(self, _: &Cx) -> NodeResult {
        let method = method(&self.scale_method)?;
        let source = as_tensor(&self.input);
        let source = source
            .ok_or_else(|| NodeError::type_error(wrong_kind("a picture or mask", &self.input)))?;
        let is_picture = source.rank() == 4;
        let planes = if is_picture {
            source.nhwc_to_nchw()?
        } else {
            source.dims3()?;
            source.unsqueeze(1)?
        };
        let [_, _, h, w] = planes.dims4()?;
        let Some((width, height, crop)) = self.plan(w, h)? else {
            return Ok(NodeOutput::one(self.input));
        };
        let out = resize_planes(&planes, width, height, method, crop)?;
        let out = if is_picture {
            out.nchw_to_nhwc()?
        } else {
            out.squeeze(1)?
        };
        Ok(NodeOutput::one(tensor(out)))
    }
}

/// Sizes that the Kontext model was trained on.
const KONTEXT_SIZES: [(usize, usize); 17] = [
    (672, 1568),
    (688, 1504),
    (720, 1456),
    (752, 1392),
    (800, 1328),
    (832, 1248),
    (880, 1184),
    (944, 1104),
    (1024, 1024),
    (1104, 944),
    (1184, 880),
    (1248, 832),
    (1328, 800),
    (1392, 752),
    (1456, 720),
    (1504, 688),
    (1568, 672),
];

/// Resizes a picture to the nearest size that Flux Kontext works well with.
#[derive(Node)]
#[node(
    id = "FluxKontextImageScale",
    v3,
    module = "comfy_extras.nodes_flux",
    category = "advanced/conditioning/flux",
    outputs("IMAGE")
)]
pub(crate) struct FluxKontextImageScale {
    image: Image,
}

impl Node for FluxKontextImageScale {
    fn run(self, _: &Cx) -> NodeResult {
        let [_, h, w, _] = self.image.0.dims4()?;
        let aspect = w as f64 / h as f64;
        let gap = |&(w, h): &(usize, usize)| (aspect - w as f64 / h as f64).abs();
        let (width, height) = KONTEXT_SIZES
            .into_iter()
            .min_by(|a, b| gap(a).total_cmp(&gap(b)))
            .expect("the table has entries");
        let out = resize(
            &self.image.0,
            width,
            height,
            ResizeMethod::Lanczos,
            Crop::Center,
        )?;
        Ok(NodeOutput::one(Image(out)))
    }
}
