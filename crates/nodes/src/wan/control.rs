//! Videos under a control video (the Fun models).

use fresco_graph::{Cx, Node, NodeResult, Output};
use fresco_tensor::Tensor;

use super::latent_shape;
use super::latents::neutral;
use crate::types::{Conditioning, Image};
use crate::vae::{Vae, first, fit};
use crate::vae_conditioning::{Pair, put_frames};
use crate::vision::VisionOutput;

/// Makes a Wan Fun video that follows a control video.
#[derive(Node)]
#[node(id = "WanFunControlToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanFunControlToVideo {
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
    #[input(optional)]
    clip_vision_output: Option<VisionOutput>,
    #[input(optional)]
    start_image: Option<Image>,
    #[input(optional)]
    control_video: Option<Image>,
}
impl Node for WanFunControlToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let shape = latent_shape(self.batch_size, 16, size, 8)?;
        let encode = |images: &Image| {
            let fitted = fit(&first(&images.0, self.length)?, self.width, self.height)?;
            self.vae.encode_rgb(&fitted, cx)
        };
        let mut control = neutral(shape)?;
        let mut start = control.clone();
        if let Some(video) = &self.control_video {
            put_frames(&mut control, 0, &encode(video)?)?;
        }
        if let Some(images) = &self.start_image {
            put_frames(&mut start, 0, &encode(images)?)?;
        }
        let beside = Tensor::cat(&[&control, &start], 1)?;
        Pair {
            positive: self.positive,
            negative: self.negative,
        }
        .set_tensor("concat_latent_image", &beside)
        .set_vision(self.clip_vision_output)
        .with_latent(Tensor::zeros(shape)?)
    }
}
/// Makes a Wan 2.2 Fun video that follows a control video.
#[derive(Node)]
#[node(id = "Wan22FunControlToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct Wan22FunControlToVideo {
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
    #[input(optional)]
    ref_image: Option<Image>,
    #[input(optional)]
    control_video: Option<Image>,
}
impl Node for Wan22FunControlToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let channels = self.vae.0.latent_channels();
        let shape = latent_shape(self.batch_size, channels, size, self.vae.ratio()?)?;
        let [_, _, frames, h, w] = shape;
        let encode = |images: &Image, count: usize| {
            let fitted = fit(&first(&images.0, count)?, self.width, self.height)?;
            self.vae.encode_rgb(&fitted, cx)
        };
        let start = neutral(shape)?;
        let mut control = start.clone();
        if let Some(video) = &self.control_video {
            put_frames(&mut control, 0, &encode(video, self.length)?)?;
        }
        let beside = Tensor::cat(&[&control, &start], 1)?;
        let mut pair = Pair {
            positive: self.positive,
            negative: self.negative,
        }
        .set_tensor("concat_latent_image", &beside)
        .set_tensor("concat_mask", &Tensor::ones([1, 4, frames, h, w])?)
        .set("concat_mask_index", channels);
        if let Some(reference) = &self.ref_image {
            pair = pair.append_tensor("reference_latents", &encode(reference, 1)?);
        }
        pair.with_latent(Tensor::zeros(shape)?)
    }
}
