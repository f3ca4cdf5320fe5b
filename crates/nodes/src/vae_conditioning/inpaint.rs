//! Inpainting and editing: a picture goes beside the latent.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::filter::{ConvOptions, conv2d};
use fresco_tensor::resize::interpolate;
use fresco_tensor::{ResizeMethod, Tensor};

use super::{Pair, masked};
use crate::types::{Conditioning, Image, Latent, Mask};
use crate::vae::Vae;

/// Picture and mask cut around the middle to multiples of `ratio`; the mask first gets the picture's size.
fn aligned(pixels: &Tensor, mask: &Tensor, ratio: usize) -> Result<(Tensor, Tensor), NodeError> {
    let [_, h, w, _] = pixels.dims4()?;
    let [.., mh, mw] = *mask.shape() else {
        return Err(NodeError::value_error("a mask has a height and a width"));
    };
    let planes = mask.reshape([mask.len() / (mh * mw).max(1), 1, mh, mw])?;
    let mask = interpolate(&planes, w, h, ResizeMethod::Bilinear)?;
    let (top, left) = (h % ratio / 2, w % ratio / 2);
    let (h, w) = (h / ratio * ratio, w / ratio * ratio);
    let pixels = pixels.narrow(1, top, h)?.narrow(2, left, w)?;
    let mask = mask.narrow(2, top, h)?.narrow(3, left, w)?;
    Ok((pixels, mask))
}

/// The picture with middle grey where the mask (rounded) covers it.
fn greyed(pixels: &Tensor, mask: &Tensor) -> Result<Tensor, NodeError> {
    let keep = mask.round().rsub_scalar(1.0).nchw_to_nhwc()?;
    let colours = pixels.narrow(3, 0, pixels.dim(3)?.min(3))?;
    Ok(colours.sub_scalar(0.5).mul(&keep)?.add_scalar(0.5))
}

/// Encodes a picture for inpainting with an ordinary model.
#[derive(Node)]
#[node(
    id = "VAEEncodeForInpaint",
    v1,
    module = "nodes",
    display = "VAE Encode (for Inpainting)",
    category = "latent/inpaint",
    outputs("LATENT")
)]
pub(super) struct VaeEncodeForInpaint {
    pixels: Image,
    vae: Vae,
    /// What to paint anew: white changes, black stays.
    mask: Mask,
    /// Pixels by which the mask reaches over its edge, to hide the seam.
    #[input(default = 6, min = 0, max = 64, step = 1)]
    grow_mask_by: usize,
}
impl Node for VaeEncodeForInpaint {
    fn run(self, cx: &Cx) -> NodeResult {
        let ratio = self.vae.ratio()?;
        let (pixels, mask) = aligned(&self.pixels.0, &self.mask.0, ratio)?;
        let [_, _, h, w] = mask.dims4()?;
        let grown = if self.grow_mask_by == 0 {
            mask.clone()
        } else {
            let size = self.grow_mask_by;
            if size > h + w {
                return Err(NodeError::value_error("the mask grows beyond the picture"));
            }
            let kernel = Tensor::ones([1, 1, size, size])?;
            let padding = size / 2;
            let options = ConvOptions {
                padding: [padding, padding],
                ..ConvOptions::default()
            };
            conv2d(&mask.round(), &kernel, None, options)?.clamp(0.0, 1.0)
        };
        let latent = self.vae.encode_rgb(&greyed(&pixels, &mask)?, cx)?;
        // An even size makes the result one larger than the picture.
        let noise_mask = grown.narrow(2, 0, h)?.narrow(3, 0, w)?.round();
        Ok(NodeOutput::one(masked(latent, noise_mask)))
    }
}
/// Prepares picture and mask for models made for inpainting.
#[derive(Node)]
#[node(id = "InpaintModelConditioning", v1, module = "nodes", category = "conditioning/inpaint", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct InpaintModelConditioning {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    pixels: Image,
    /// What to paint anew: white changes, black stays.
    mask: Mask,
    /// Sample only under the mask; better for some models, worse for others.
    #[input(default = true)]
    noise_mask: bool,
}
impl Node for InpaintModelConditioning {
    fn run(self, cx: &Cx) -> NodeResult {
        let (pixels, mask) = aligned(&self.pixels.0, &self.mask.0, 8)?;
        let beside = self.vae.encode_rgb(&greyed(&pixels, &mask)?, cx)?;
        let original = self.vae.encode_rgb(&self.pixels.0, cx)?;
        let pair = Pair {
            positive: self.positive,
            negative: self.negative,
        }
        .set_tensor("concat_latent_image", &beside)
        .set_tensor("concat_mask", &mask);
        let mut latent = Latent::new(original);
        if self.noise_mask {
            latent = latent.with_tensor("noise_mask", mask);
        }
        Ok(NodeOutput::slots(vec![
            pair.positive.into(),
            pair.negative.into(),
            latent.into(),
        ]))
    }
}
/// Puts the picture to edit beside the latent.
#[derive(Node)]
#[node(id = "InstructPixToPixConditioning", v3, module = "comfy_extras.nodes_ip2p", category = "conditioning/instructpix2pix", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct InstructPixToPixConditioning {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    pixels: Image,
}
impl Node for InstructPixToPixConditioning {
    fn run(self, cx: &Cx) -> NodeResult {
        let [_, h, w, _] = self.pixels.0.dims4()?;
        let pixels =
            self.pixels
                .0
                .narrow(1, h % 8 / 2, h / 8 * 8)?
                .narrow(2, w % 8 / 2, w / 8 * 8)?;
        let beside = self.vae.encode_rgb(&pixels, cx)?;
        let empty = Tensor::zeros(beside.shape().to_vec())?;
        let pair = Pair {
            positive: self.positive,
            negative: self.negative,
        };
        pair.set_tensor("concat_latent_image", &beside)
            .with_latent(empty)
    }
}
