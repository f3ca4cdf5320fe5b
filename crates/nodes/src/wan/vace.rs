//! Videos edited under masks (VACE).

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

use super::latent_shape;
use super::latents::wan21;
use crate::types::{Conditioning, Image, Latent, Mask, tensor};
use crate::vae::{Vae, first, fit};
use crate::vae_conditioning::{begin_with, latent_frames};

/// Pixels of a side that become channels of the mask.
const STRIDE: usize = 8;

/// The masks at the size of the video, ones where there are none: `(length, h, w, 1)`.
fn fitted_masks(
    masks: Option<&Mask>,
    (width, height, length): (usize, usize, usize),
) -> Result<Tensor, NodeError> {
    let Some(masks) = masks else {
        return Ok(Tensor::ones([length, height, width, 1])?);
    };
    let masks = first(&masks.0, length)?;
    let &[count, h, w] = masks.shape() else {
        return Err(NodeError::value_error(
            "control masks have the form (frames, height, width)",
        ));
    };
    let planes = masks.reshape([count, 1, h, w])?;
    let fitted = common_upscale(&planes, width, height, ResizeMethod::Bilinear, Crop::Center)?
        .nchw_to_nhwc()?;
    let rest = Tensor::ones([length - count, height, width, 1])?;
    Ok(Tensor::cat(&[&fitted, &rest], 0)?)
}

/// Masks as the model takes them: squares of pixels as channels, the nearest picture for each latent frame.
fn folded(mask: &Tensor) -> Result<Tensor, NodeError> {
    let [length, height, width, _] = mask.dims4()?;
    let (h, w) = (height / STRIDE, width / STRIDE);
    let frames = latent_frames(length, 4);
    let ratio = length as f32 / frames as f32;
    let nearest: Vec<usize> = (0..frames)
        .map(|i| (((i as f32 + 0.5) * ratio) as usize).min(length - 1))
        .collect();
    Ok(mask
        .narrow(1, 0, h * STRIDE)?
        .narrow(2, 0, w * STRIDE)?
        .reshape([length, h, STRIDE, w, STRIDE])?
        .permute(&[2, 4, 0, 1, 3])?
        .reshape([STRIDE * STRIDE, length, h, w])?
        .index_select(1, &nearest)?)
}

/// Makes or edits a Wan video: masks say what of the control video may change.
#[derive(Node)]
#[node(id = "WanVaceToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent"), Output::new("INT").named("trim_latent")))]
pub(super) struct WanVaceToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    #[input(default = 832, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 81, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    /// How closely the video keeps to the control.
    #[input(default = 1.0, min = 0.0, max = 1000.0, step = 0.01)]
    strength: f64,
    #[input(optional)]
    control_video: Option<Image>,
    /// What of the control video may change: white is made anew, black stays.
    #[input(optional)]
    control_masks: Option<Mask>,
    #[input(optional)]
    reference_image: Option<Image>,
}
impl Node for WanVaceToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let shape = latent_shape(self.batch_size, 16, size, 8)?;
        let mut frames = shape[2];
        let control = match &self.control_video {
            Some(video) => begin_with(
                &fit(&first(&video.0, self.length)?, self.width, self.height)?,
                self.length,
            )?,
            None => Tensor::full([self.length, self.height, self.width, 3], 0.5)?,
        };
        let mask = fitted_masks(self.control_masks.as_ref(), size)?;
        let shifted = control.sub_scalar(0.5);
        let kept = shifted.mul(&mask.rsub_scalar(1.0))?.add_scalar(0.5);
        let changed = shifted.mul(&mask)?.add_scalar(0.5);
        let kept = self.vae.encode_rgb(&kept, cx)?;
        let changed = self.vae.encode_rgb(&changed, cx)?;
        let mut control = Tensor::cat(&[&kept, &changed], 1)?;
        let mut mask = folded(&mask)?;
        let mut trim = 0;
        if let Some(reference) = &self.reference_image {
            let reference = fit(&first(&reference.0, 1)?, self.width, self.height)?;
            let reference = self.vae.encode_rgb(&reference, cx)?;
            let nothing = wan21::from_model(&Tensor::zeros(reference.shape().to_vec())?)?;
            let reference = Tensor::cat(&[&reference, &nothing], 1)?;
            trim = reference.dim(2)?;
            control = Tensor::cat(&[&reference, &control], 2)?;
            let known = Tensor::zeros([mask.dim(0)?, trim, mask.dim(2)?, mask.dim(3)?])?;
            mask = Tensor::cat(&[&known, &mask], 1)?;
            frames += trim;
        }
        let mask = mask.unsqueeze(0)?;
        let attach = |list: Conditioning| {
            list.append("vace_frames", tensor(control.clone()))
                .append("vace_mask", tensor(mask.clone()))
                .append("vace_strength", self.strength)
        };
        let samples = Tensor::zeros([shape[0], shape[1], frames, shape[3], shape[4]])?;
        Ok(NodeOutput::slots(vec![
            attach(self.positive).into(),
            attach(self.negative).into(),
            Latent::new(samples).into(),
            Value::from(trim),
        ]))
    }
}
