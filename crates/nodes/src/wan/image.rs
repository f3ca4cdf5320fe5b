//! Videos from pictures: first, last, of the subject, under a camera path.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value, map};
use fresco_tensor::Tensor;

use super::latents::{neutral, wan21};
use super::{fold_mask, latent_shape};
use crate::types::{Conditioning, Image, Latent, tensor};
use crate::vae::{Vae, first, fit, last};
use crate::vae_conditioning::{
    Pair, begin_with, frame_mask, latent_frames, put_frames, repeat_batch,
};
use crate::vision::VisionOutput;

/// A video of which the first pictures are given.
pub(super) struct FromStart {
    pub(super) pair: Pair,
    pub(super) vae: Vae,
    pub(super) size: (usize, usize, usize),
    pub(super) batch: usize,
    pub(super) start: Option<Image>,
    pub(super) vision: Option<VisionOutput>,
}

impl FromStart {
    pub(super) fn run(self, cx: &Cx) -> NodeResult {
        let (width, height, length) = self.size;
        let shape = latent_shape(self.batch, 16, self.size, 8)?;
        let mut pair = self.pair;
        if let Some(start) = &self.start {
            let (beside, mask) = given_start(&self.vae, &start.0, width, height, length, cx)?;
            pair = pair
                .set_tensor("concat_latent_image", &beside)
                .set_tensor("concat_mask", &mask);
        }
        pair.set_vision(self.vision)
            .with_latent(Tensor::zeros(shape)?)
    }
}

/// The latent of a video that begins with the given pictures and is grey after, and the mask of what is open.
pub(super) fn given_start(
    vae: &Vae,
    start: &Tensor,
    width: usize,
    height: usize,
    length: usize,
    cx: &Cx,
) -> Result<(Tensor, Tensor), NodeError> {
    let start = fit(&first(start, length)?, width, height)?;
    let encoded = vae.encode_rgb(&begin_with(&start, length)?, cx)?;
    let known = latent_frames(start.dim(0)?, 4);
    let (h, w) = (encoded.dim(3)?, encoded.dim(4)?);
    let mask = frame_mask(latent_frames(length, 4), h, w, known)?;
    Ok((encoded, mask))
}

/// A video of which first and last pictures may be given.
struct FromEnds {
    pair: Pair,
    vae: Vae,
    size: (usize, usize, usize),
    batch: usize,
    start: Option<Image>,
    end: Option<Image>,
    vision: Option<VisionOutput>,
}

impl FromEnds {
    fn run(self, cx: &Cx) -> NodeResult {
        let (width, height, length) = self.size;
        let channels = self.vae.0.latent_channels();
        let shape = latent_shape(self.batch, channels, self.size, self.vae.ratio()?)?;
        let [_, _, frames, h, w] = shape;
        let mut images = Tensor::full([length, height, width, 3], 0.5)?;
        let mut mask = Tensor::ones([1, 1, frames * 4, h, w])?;
        let colours = |t: &Tensor| t.narrow(3, 0, 3);
        if let Some(start) = &self.start {
            let start = fit(&first(&start.0, length)?, width, height)?;
            images.paste(&[0; 4], &colours(&start)?)?;
            // The first picture fills a whole latent frame.
            let known = (start.dim(0)? + 3).min(frames * 4);
            mask.paste(&[0; 5], &Tensor::zeros([1, 1, known, h, w])?)?;
        }
        if let Some(end) = &self.end {
            let end = fit(&last(&end.0, length)?, width, height)?;
            let count = end.dim(0)?;
            images.paste(&[length - count, 0, 0, 0], &colours(&end)?)?;
            let known = Tensor::zeros([1, 1, count, h, w])?;
            mask.paste(&[0, 0, frames * 4 - count, 0, 0], &known)?;
        }
        let beside = self.vae.encode_rgb(&images, cx)?;
        self.pair
            .set_tensor("concat_latent_image", &beside)
            .set_tensor("concat_mask", &fold_mask(&mask)?)
            .set_vision(self.vision)
            .with_latent(Tensor::zeros(shape)?)
    }
}

/// Starts a Wan video from pictures.
#[derive(Node)]
#[node(id = "WanImageToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanImageToVideo {
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
}
impl Node for WanImageToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        FromStart {
            pair: Pair {
                positive: self.positive,
                negative: self.negative,
            },
            vae: self.vae,
            size: (self.width, self.height, self.length),
            batch: self.batch_size,
            start: self.start_image,
            vision: self.clip_vision_output,
        }
        .run(cx)
    }
}
/// Makes a Wan video between first and last pictures.
#[derive(Node)]
#[node(id = "WanFirstLastFrameToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanFirstLastFrameToVideo {
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
    /// What a vision model saw in the first picture.
    #[input(optional)]
    clip_vision_start_image: Option<VisionOutput>,
    /// What a vision model saw in the last picture.
    #[input(optional)]
    clip_vision_end_image: Option<VisionOutput>,
    #[input(optional)]
    start_image: Option<Image>,
    #[input(optional)]
    end_image: Option<Image>,
}
impl Node for WanFirstLastFrameToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let vision = match (self.clip_vision_start_image, self.clip_vision_end_image) {
            (Some(start), Some(end)) => {
                const STATES: &str = "penultimate_hidden_states";
                let (a, b) = (start.tensor(STATES)?, end.tensor(STATES)?);
                let joined = Tensor::cat(&[a, b], a.rank().saturating_sub(2))?;
                Some(VisionOutput(map! {STATES => tensor(joined)}.into()))
            }
            (start, end) => start.or(end),
        };
        FromEnds {
            pair: Pair {
                positive: self.positive,
                negative: self.negative,
            },
            vae: self.vae,
            size: (self.width, self.height, self.length),
            batch: self.batch_size,
            start: self.start_image,
            end: self.end_image,
            vision,
        }
        .run(cx)
    }
}
/// Makes a Wan Fun video between first and last pictures.
#[derive(Node)]
#[node(id = "WanFunInpaintToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanFunInpaintToVideo {
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
    end_image: Option<Image>,
}
impl Node for WanFunInpaintToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        FromEnds {
            pair: Pair {
                positive: self.positive,
                negative: self.negative,
            },
            vae: self.vae,
            size: (self.width, self.height, self.length),
            batch: self.batch_size,
            start: self.start_image,
            end: self.end_image,
            vision: self.clip_vision_output,
        }
        .run(cx)
    }
}
/// Starts a Wan video from pictures, under a camera path.
#[derive(Node)]
#[node(id = "WanCameraImageToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanCameraImageToVideo {
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
    /// The path of the camera.
    #[input(optional, ty = "WAN_CAMERA_EMBEDDING")]
    camera_conditions: Option<Value>,
}
impl Node for WanCameraImageToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let shape = latent_shape(self.batch_size, 16, size, 8)?;
        let [_, _, frames, h, w] = shape;
        let mut pair = Pair {
            positive: self.positive,
            negative: self.negative,
        };
        if let Some(start) = &self.start_image {
            let start = fit(&first(&start.0, self.length)?, self.width, self.height)?;
            let mut beside = neutral(shape)?;
            put_frames(&mut beside, 0, &self.vae.encode_rgb(&start, cx)?)?;
            let mask = frame_mask(frames * 4, h, w, start.dim(0)? + 3)?;
            pair = pair
                .set_tensor("concat_latent_image", &beside)
                .set_tensor("concat_mask", &fold_mask(&mask)?);
        }
        if let Some(camera) = self.camera_conditions {
            pair = pair.set("camera_conditions", camera);
        }
        pair.set_vision(self.clip_vision_output)
            .with_latent(Tensor::zeros(shape)?)
    }
}
/// Makes a Wan video of the subjects of some pictures.
#[derive(Node)]
#[node(id = "WanPhantomSubjectToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative_text"), Output::new("CONDITIONING").named("negative_img_text"), Output::new("LATENT").named("latent")))]
pub(super) struct WanPhantomSubjectToVideo {
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
    /// Pictures of the subjects.
    #[input(optional)]
    images: Option<Image>,
}
impl Node for WanPhantomSubjectToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        // Optional on the wire, but the reference cannot do without.
        let Some(images) = &self.images else {
            return Err(NodeError::type_error(
                "WanPhantomSubjectToVideo needs pictures: the input 'images' is not connected",
            ));
        };
        let size = (self.width, self.height, self.length);
        let shape = latent_shape(self.batch_size, 16, size, 8)?;
        let images = fit(&first(&images.0, self.length)?, self.width, self.height)?;
        let mut parts = Vec::new();
        for i in 0..images.dim(0)? {
            // One by one, so that each picture is a first frame.
            parts.push(self.vae.encode_rgb(&images.narrow(0, i, 1)?, cx)?);
        }
        let subjects = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 2)?;
        let nothing = wan21::from_model(&Tensor::zeros(subjects.shape().to_vec())?)?;
        let with = |list: Conditioning, t: &Tensor| list.set("time_dim_concat", tensor(t.clone()));
        Ok(NodeOutput::slots(vec![
            with(self.positive, &subjects).into(),
            with(self.negative.clone(), &subjects).into(),
            with(self.negative, &nothing).into(),
            Latent::new(Tensor::zeros(shape)?).into(),
        ]))
    }
}
/// Starts a Wan 2.2 (5B) video from pictures.
#[derive(Node)]
#[node(
    id = "Wan22ImageToVideoLatent",
    v3,
    module = "comfy_extras.nodes_wan",
    category = "conditioning/inpaint",
    outputs("LATENT")
)]
pub(super) struct Wan22ImageToVideoLatent {
    vae: Vae,
    #[input(default = 1280, min = 32, max = 16384, step = 32)]
    width: usize,
    #[input(default = 704, min = 32, max = 16384, step = 32)]
    height: usize,
    #[input(default = 49, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(optional)]
    start_image: Option<Image>,
}
impl Node for Wan22ImageToVideoLatent {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let shape = latent_shape(1, 48, size, 16)?;
        let [_, _, frames, h, w] = shape;
        let Some(start) = &self.start_image else {
            let samples = Tensor::zeros(shape)?;
            return Ok(NodeOutput::one(Latent::new(samples)));
        };
        let start = fit(&first(&start.0, self.length)?, self.width, self.height)?;
        let encoded = self.vae.encode_rgb(&start, cx)?;
        let mut samples = neutral(shape)?;
        put_frames(&mut samples, 0, &encoded)?;
        let mask = frame_mask(frames, h, w, encoded.dim(2)?)?;
        let latent: Value = map! {
            "samples" => tensor(repeat_batch(&samples, self.batch_size)?),
            "noise_mask" => tensor(repeat_batch(&mask, self.batch_size)?),
        }
        .into();
        Ok(NodeOutput::one(latent))
    }
}
