//! Prompts that come with pictures, for the editing models of Qwen-Image.

use fresco_graph::{Cx, Grown, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_models::detect::stacks::EDIT_TEMPLATE;
use fresco_models::text::Prompt;
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

use super::{Clip, required};
use crate::types::{Conditioning, Image, Latent, tensor};
use crate::vae::Vae;

/// Height and width of about so many pixels in all, with the proportions of a picture, as multiples of `unit`.
fn sizes(image: &Tensor, pixels: f64, unit: f64) -> Result<(usize, usize), NodeError> {
    let [_, height, width, _] = image.dims4()?;
    let scale = (pixels / (width as f64 * height as f64)).sqrt();
    let fitted = |side: usize| ((side as f64 * scale / unit).round_ties_even() * unit) as usize;
    if height == 0 || width == 0 {
        return Err(NodeError::value_error("a picture without pixels"));
    }
    Ok((fitted(height).max(1), fitted(width).max(1)))
}

/// A picture of another size, each pixel the mean of those it covers.
fn resized(image: &Tensor, (height, width): (usize, usize)) -> Result<Tensor, NodeError> {
    let channels_first = image.nhwc_to_nchw()?;
    let scaled = common_upscale(
        &channels_first,
        width,
        height,
        ResizeMethod::Area,
        Crop::Disabled,
    )?;
    Ok(scaled.nchw_to_nhwc()?)
}

fn rgb(image: &Tensor) -> Result<Tensor, NodeError> {
    let [_, _, _, channels] = image.dims4()?;
    Ok(image.narrow(3, 0, channels.min(3))?)
}

/// Encodes a prompt with pictures.
fn encode(
    clip: &Clip,
    prompt: Prompt<'_>,
    references: Vec<Tensor>,
    cx: &Cx,
) -> Result<Conditioning, NodeError> {
    let tokens = clip.tokenize_prompt(prompt, cx)?;
    let mut conditioning = clip.encode(&tokens, Map::new(), cx)?;
    for reference in references {
        conditioning = conditioning.append("reference_latents", tensor(reference));
    }
    Ok(conditioning)
}

/// Turns an instruction and a picture to be edited into conditioning.
#[derive(Node)]
#[node(
    id = "TextEncodeQwenImageEdit",
    v3,
    module = "comfy_extras.nodes_qwen",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct TextEncodeQwenImageEdit {
    clip: Option<Clip>,
    /// What to change, in words.
    #[input(multiline = true, dynamicPrompts = true)]
    prompt: String,
    /// With it the model gets the picture itself, too, not only what the text encoder sees in it.
    #[input(optional)]
    vae: Option<Vae>,
    #[input(optional)]
    image: Option<Image>,
}

/// Pixels of a picture that goes to the model.
const PIXELS: f64 = 1024.0 * 1024.0;
/// Pixels of one that only the text encoder sees.
const SEEN_PIXELS: f64 = 384.0 * 384.0;

impl Node for TextEncodeQwenImageEdit {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let mut pictures = Vec::new();
        let mut references = Vec::new();
        if let Some(Image(image)) = &self.image {
            let picture = rgb(&resized(image, sizes(image, PIXELS, 1.0)?)?)?;
            if let Some(vae) = &self.vae {
                references.push(vae.encode_rgb(&picture, cx)?);
            }
            pictures.push(picture);
        }
        let prompt = Prompt {
            pictures: &pictures,
            ..Prompt::new(&self.prompt)
        };
        Ok(NodeOutput::one(encode(&clip, prompt, references, cx)?))
    }
}

/// Turns an instruction and up to three pictures into conditioning.
#[derive(Node)]
#[node(
    id = "TextEncodeQwenImageEditPlus",
    v3,
    module = "comfy_extras.nodes_qwen",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct TextEncodeQwenImageEditPlus {
    clip: Option<Clip>,
    /// What to change, in words; pictures are called Picture 1, Picture 2 and so on.
    #[input(multiline = true, dynamicPrompts = true)]
    prompt: String,
    /// With it the model gets the pictures themselves, too, not only what the text encoder sees in them.
    #[input(optional)]
    vae: Option<Vae>,
    #[input(optional)]
    image1: Option<Image>,
    #[input(optional)]
    image2: Option<Image>,
    /// The third picture.
    #[input(optional)]
    image3: Option<Image>,
}

impl Node for TextEncodeQwenImageEditPlus {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let (mut pictures, mut references, mut text) = (Vec::new(), Vec::new(), String::new());
        let images = [&self.image1, &self.image2, &self.image3];
        for (slot, image) in images.into_iter().enumerate() {
            let Some(Image(image)) = image else { continue };
            pictures.push(rgb(&resized(image, sizes(image, SEEN_PIXELS, 1.0)?)?)?);
            if let Some(vae) = &self.vae {
                let picture = resized(image, sizes(image, PIXELS, 8.0)?)?;
                references.push(vae.encode_rgb(&picture, cx)?);
            }
            let name = format!("Picture {}", slot + 1);
            text.push_str(&name);
            text.push_str(": <|vision_start|><|image_pad|><|vision_end|>");
        }
        text.push_str(&self.prompt);
        let prompt = Prompt {
            pictures: &pictures,
            template: Some(EDIT_TEMPLATE),
            ..Prompt::new(&text)
        };
        Ok(NodeOutput::one(encode(&clip, prompt, references, cx)?))
    }
}

/// Turns a prompt, what should not be in the picture, and pictures to start from into conditioning for Qwen-Image 2.1.
#[derive(Node)]
#[node(
    id = "TextEncodeQwenImage21",
    v3,
    module = "comfy_extras.nodes_qwen",
    display = "TextEncodeQwenImage21",
    category = "advanced/conditioning",
    outputs(
        Output::new("CONDITIONING").named("positive"),
        Output::new("CONDITIONING").named("negative"),
        Output::new("LATENT").named("latent")
    )
)]
pub(super) struct TextEncodeQwenImage21 {
    clip: Option<Clip>,
    #[input(default = "", multiline = true, dynamicPrompts = true)]
    prompt: String,
    /// What the picture should not have, in words.
    #[input(default = "", multiline = true, dynamicPrompts = true)]
    negative_prompt: String,
    /// Pictures are made about this wide and high.
    #[input(default = 1024, min = 0, max = 4096, step = 32)]
    resolution: i64,
    /// With it the model gets the pictures themselves, too, not only what the text encoder sees in them.
    #[input(optional)]
    vae: Option<Vae>,
    /// Pictures to start from; as many as are connected.
    #[input(spec = Input::autogrow("images", Input::new("image", "IMAGE"), "image_", 0, 16).optional())]
    images: Option<Grown<Image>>,
}

/// Sides are multiples of this.
const SIDE: f64 = 32.0;
/// Channels of a latent, and pixels along a side for one of its cells.
const LATENT: (usize, usize) = (64, 16);

impl Node for TextEncodeQwenImage21 {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let side = self.resolution.max(SIDE as i64) as f64;
        let (mut pictures, mut references) = (Vec::new(), Vec::new());
        let mut first = None;
        for Image(image) in self.images.map(|images| images.0).unwrap_or_default() {
            let size = sizes(&image, side * side, SIDE)?;
            let size = (size.0.max(SIDE as usize), size.1.max(SIDE as usize));
            let fitted = resized(&image, size)?;
            first = first.or(Some(size));
            pictures.push(on_white(&fitted)?);
            if let Some(vae) = &self.vae {
                references.push(vae.encode_seen(&fitted, cx)?);
            }
        }
        let of = |text: &str| {
            let prompt = Prompt {
                pictures: &pictures,
                ..Prompt::new(text)
            };
            encode(&clip, prompt, references.clone(), cx)
        };
        let (positive, negative) = (of(&self.prompt)?, of(&self.negative_prompt)?);
        let square = side as usize / SIDE as usize * SIDE as usize;
        let (height, width) = first.unwrap_or((square, square));
        let (channels, cell) = LATENT;
        let latent = Tensor::zeros([1, channels, height / cell, width / cell])?;
        Ok(NodeOutput::slots(vec![
            positive.into(),
            negative.into(),
            Latent::new(latent).into(),
        ]))
    }
}

/// A picture without opacity: white shows through.
fn on_white(image: &Tensor) -> Result<Tensor, NodeError> {
    let [_, _, _, channels] = image.dims4()?;
    if channels < 4 {
        return rgb(image);
    }
    let (color, opacity) = (rgb(image)?, image.narrow(3, 3, 1)?);
    let white = opacity.rsub_scalar(1.0);
    Ok(color.mul(&opacity)?.add(&white)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_proportions() {
        let image = Tensor::zeros([1, 100, 400, 3]).unwrap();
        assert_eq!(sizes(&image, PIXELS, 1.0).unwrap(), (512, 2048));
        assert_eq!(sizes(&image, 512.0 * 512.0, SIDE).unwrap(), (256, 1024));
        let seen = Tensor::full([1, 1, 1, 4], 0.5).unwrap();
        let white = on_white(&seen).unwrap();
        assert_eq!((white.shape(), white.data()[0]), (&[1, 1, 1, 3][..], 0.75));
    }
}
