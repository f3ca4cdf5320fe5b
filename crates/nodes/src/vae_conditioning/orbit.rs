//! Models that turn around an object or move a picture: SVD, Zero123, SV3D; and Stable Cascade's two stages.

use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value, map};
use fresco_tensor::{Crop, Generator, ResizeMethod, Tensor, repeat_to_batch};

use super::{check_batch, check_video, entry_of};
use crate::types::{Image, Latent, tensor};
use crate::vae::{Vae, fit, fit_by};
use crate::vision::Vision;

/// What the vision encoder saw of the picture, `(1, b, n)`, and its pixels at the wanted size. The size ends with the
/// number of pictures that will be made.
fn seen(
    vision: &Vision,
    image: &Tensor,
    (width, height, count): (usize, usize, usize),
    cx: &Cx,
) -> Result<(Tensor, Tensor), NodeError> {
    check_batch(count)?;
    check_video(width, height, 1)?;
    let output = vision.0.encode(image, true, cx)?;
    let embeds = output.tensor("image_embeds")?.unsqueeze(0)?;
    let pixels = fit(image, width, height)?;
    let channels = pixels.dim(3)?.min(3);
    Ok((embeds, pixels.narrow(3, 0, channels)?))
}

/// Positive and negative with their tokens, the same options, and the picture beside the latent (zeros in the negative).
fn conditioned(
    tokens: Tensor,
    negative_shape: &[usize],
    beside: Tensor,
    options: &Map,
    latent: Latent,
) -> NodeResult {
    let empty = Tensor::zeros(beside.shape().to_vec())?;
    let with = |t: Tensor| {
        let mut all = options.clone();
        all.insert("concat_latent_image".into(), tensor(t));
        all
    };
    let negative = Tensor::zeros(negative_shape.to_vec())?;
    Ok(NodeOutput::slots(vec![
        entry_of(tokens, with(beside)).into(),
        entry_of(negative, with(empty)).into(),
        latent.into(),
    ]))
}

/// Polar angle, sine and cosine of the azimuth, and the polar angle of the input view: `(1, 1, 4)`.
fn camera(elevation: f64, azimuth: f64) -> Result<Tensor, NodeError> {
    let (elevation, azimuth) = (elevation as f32, azimuth as f32);
    let radians = |degrees: f32| degrees * (std::f32::consts::PI / 180.0);
    let values = vec![
        radians((90.0 - elevation) - 90.0),
        radians(azimuth).sin(),
        radians(azimuth).cos(),
        radians(90.0),
    ];
    Ok(Tensor::from_vec([1, 1, 4], values)?)
}

/// Prepares a picture for Stable Video Diffusion.
#[derive(Node)]
#[node(id = "SVD_img2vid_Conditioning", v1, module = "comfy_extras.nodes_video_model", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct SvdImg2vidConditioning {
    clip_vision: Vision,
    init_image: Image,
    vae: Vae,
    #[input(default = 1024, min = 16, max = 16384, step = 8)]
    width: usize,
    #[input(default = 576, min = 16, max = 16384, step = 8)]
    height: usize,
    /// Number of frames.
    #[input(default = 14, min = 1, max = 4096)]
    video_frames: usize,
    /// How much should move.
    #[input(default = 127, min = 1, max = 1023)]
    motion_bucket_id: i64,
    /// Frames a second that the model is told.
    #[input(default = 6, min = 1, max = 1024)]
    fps: i64,
    /// Noise on the picture; more leaves more freedom.
    #[input(default = 0.0, min = 0.0, max = 10.0, step = 0.01)]
    augmentation_level: f64,
}
impl Node for SvdImg2vidConditioning {
    fn run(self, cx: &Cx) -> NodeResult {
        let (pooled, mut pixels) = seen(
            &self.clip_vision,
            &self.init_image.0,
            (self.width, self.height, self.video_frames),
            cx,
        )?;
        if self.augmentation_level > 0.0 {
            // The reference draws from whatever state its generator is in; a fixed seed makes runs repeatable.
            let noise = Generator::new(0).randn(pixels.shape())?;
            pixels = pixels.add(&noise.mul_scalar(self.augmentation_level as f32))?;
        }
        let beside = self.vae.encode_rgb(&pixels, cx)?;
        let options = map! {
            "motion_bucket_id" => self.motion_bucket_id,
            "fps" => self.fps,
            "augmentation_level" => self.augmentation_level,
        };
        let empty = Tensor::zeros([self.video_frames, 4, self.height / 8, self.width / 8])?;
        let shape = pooled.shape().to_vec();
        conditioned(pooled, &shape, beside, &options, Latent::new(empty))
    }
}
/// Asks for another view of an object.
#[derive(Node)]
#[node(id = "StableZero123_Conditioning", v3, module = "comfy_extras.nodes_stable3d", category = "conditioning/3d_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct StableZero123Conditioning {
    clip_vision: Vision,
    init_image: Image,
    vae: Vae,
    #[input(default = 256, min = 16, max = 16384, step = 8)]
    width: usize,
    #[input(default = 256, min = 16, max = 16384, step = 8)]
    height: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(default = 0.0, min = -180.0, max = 180.0, step = 0.1, round = false)]
    elevation: f64,
    /// Degrees around the object from the given view.
    #[input(default = 0.0, min = -180.0, max = 180.0, step = 0.1, round = false)]
    azimuth: f64,
}
impl Node for StableZero123Conditioning {
    fn run(self, cx: &Cx) -> NodeResult {
        let (pooled, pixels) = seen(
            &self.clip_vision,
            &self.init_image.0,
            (self.width, self.height, self.batch_size),
            cx,
        )?;
        let beside = self.vae.encode_rgb(&pixels, cx)?;
        let view = camera(self.elevation, self.azimuth)?;
        let tokens = Tensor::cat(&[&pooled, &view], 2)?;
        let empty = Tensor::zeros([self.batch_size, 4, self.height / 8, self.width / 8])?;
        conditioned(
            tokens,
            pooled.shape(),
            beside,
            &Map::new(),
            Latent::new(empty),
        )
    }
}
/// Asks for several other views of an object.
#[derive(Node)]
#[node(id = "StableZero123_Conditioning_Batched", v3, module = "comfy_extras.nodes_stable3d", category = "conditioning/3d_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct StableZero123ConditioningBatched {
    clip_vision: Vision,
    init_image: Image,
    vae: Vae,
    #[input(default = 256, min = 16, max = 16384, step = 8)]
    width: usize,
    #[input(default = 256, min = 16, max = 16384, step = 8)]
    height: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(default = 0.0, min = -180.0, max = 180.0, step = 0.1, round = false)]
    elevation: f64,
    /// Degrees around the object from the given view, for the first picture.
    #[input(default = 0.0, min = -180.0, max = 180.0, step = 0.1, round = false)]
    azimuth: f64,
    /// Degrees by which each picture is seen from higher up than the one before.
    #[input(default = 0.0, min = -180.0, max = 180.0, step = 0.1, round = false)]
    elevation_batch_increment: f64,
    /// Degrees by which each picture is further around than the one before.
    #[input(default = 0.0, min = -180.0, max = 180.0, step = 0.1, round = false)]
    azimuth_batch_increment: f64,
}
impl Node for StableZero123ConditioningBatched {
    fn run(self, cx: &Cx) -> NodeResult {
        let (pooled, pixels) = seen(
            &self.clip_vision,
            &self.init_image.0,
            (self.width, self.height, self.batch_size),
            cx,
        )?;
        let beside = self.vae.encode_rgb(&pixels, cx)?;
        let (mut elevation, mut azimuth) = (self.elevation, self.azimuth);
        let mut views = Vec::with_capacity(self.batch_size);
        for _ in 0..self.batch_size {
            views.push(camera(elevation, azimuth)?);
            elevation += self.elevation_batch_increment;
            azimuth += self.azimuth_batch_increment;
        }
        let views = Tensor::cat(&views.iter().collect::<Vec<_>>(), 0)?;
        let tokens = Tensor::cat(&[&repeat_to_batch(&pooled, self.batch_size)?, &views], 2)?;
        let empty = Tensor::zeros([self.batch_size, 4, self.height / 8, self.width / 8])?;
        // All views start from the same noise.
        let latent = Latent::new(empty).with("batch_index", vec![0; self.batch_size]);
        conditioned(tokens, pooled.shape(), beside, &Map::new(), latent)
    }
}
/// Asks for a turn around an object.
#[derive(Node)]
#[node(id = "SV3D_Conditioning", v3, module = "comfy_extras.nodes_stable3d", category = "conditioning/3d_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct SV3DConditioning {
    clip_vision: Vision,
    init_image: Image,
    vae: Vae,
    #[input(default = 576, min = 16, max = 16384, step = 8)]
    width: usize,
    #[input(default = 576, min = 16, max = 16384, step = 8)]
    height: usize,
    /// Number of frames of the whole turn.
    #[input(default = 21, min = 1, max = 4096)]
    video_frames: usize,
    #[input(default = 0.0, min = -90.0, max = 90.0, step = 0.1, round = false)]
    elevation: f64,
}
impl Node for SV3DConditioning {
    fn run(self, cx: &Cx) -> NodeResult {
        let (pooled, pixels) = seen(
            &self.clip_vision,
            &self.init_image.0,
            (self.width, self.height, self.video_frames),
            cx,
        )?;
        let beside = self.vae.encode_rgb(&pixels, cx)?;
        let step = 360.0 / (self.video_frames.max(2) - 1) as f64;
        let mut azimuth = 0.0;
        let mut azimuths: Vec<Value> = Vec::new();
        for _ in 0..self.video_frames {
            azimuths.push(azimuth.into());
            azimuth += step;
        }
        let options = map! {
            "elevation" => vec![self.elevation; self.video_frames],
            "azimuth" => azimuths,
        };
        let empty = Tensor::zeros([self.video_frames, 4, self.height / 8, self.width / 8])?;
        let shape = pooled.shape().to_vec();
        conditioned(pooled, &shape, beside, &options, Latent::new(empty))
    }
}
/// Encodes a picture for the first stage of Stable Cascade.
#[derive(Node)]
#[node(id = "StableCascade_StageC_VAEEncode", v3, module = "comfy_extras.nodes_stable_cascade", category = "latent/stable_cascade", outputs(Output::new("LATENT").named("stage_c"), Output::new("LATENT").named("stage_b")))]
pub(super) struct StableCascadeStageCVaeEncode {
    image: Image,
    vae: Vae,
    /// Pixels of a side that share one place of the first stage; higher is faster and coarser.
    #[input(default = 42, min = 4, max = 128, step = 1)]
    compression: usize,
}
impl Node for StableCascadeStageCVaeEncode {
    fn run(self, cx: &Cx) -> NodeResult {
        let [_, h, w, _] = self.image.0.dims4()?;
        if self.compression == 0 {
            return Err(NodeError::value_error("the compression must be above zero"));
        }
        let ratio = self.vae.ratio()?;
        let (width, height) = (w / self.compression * ratio, h / self.compression * ratio);
        check_video(width, height, 1)?;
        let scaled = fit_by(
            &self.image.0,
            width,
            height,
            ResizeMethod::Bicubic,
            Crop::Center,
        )?;
        let stage_c = self.vae.encode_rgb(&scaled, cx)?;
        let stage_b = Tensor::zeros([stage_c.dim(0)?, 4, h / 8 * 2, w / 8 * 2])?;
        Ok(NodeOutput::slots(vec![
            Latent::new(stage_c).into(),
            Latent::new(stage_b).into(),
        ]))
    }
}
/// Prepares a picture for the enlarging control net of Stable Cascade.
#[derive(Node)]
#[node(id = "StableCascade_SuperResolutionControlnet", v3, module = "comfy_extras.nodes_stable_cascade", category = "_for_testing/stable_cascade", outputs(Output::new("IMAGE").named("controlnet_input"), Output::new("LATENT").named("stage_c"), Output::new("LATENT").named("stage_b")), experimental)]
pub(super) struct StableCascadeSuperResolutionControlnet {
    image: Image,
    vae: Vae,
}
impl Node for StableCascadeSuperResolutionControlnet {
    fn run(self, cx: &Cx) -> NodeResult {
        let [count, h, w, _] = self.image.0.dims4()?;
        let hint = self.vae.encode_rgb(&self.image.0, cx)?.nchw_to_nhwc()?;
        let stage_c = Tensor::zeros([count, 16, h / 16, w / 16])?;
        let stage_b = Tensor::zeros([count, 4, h / 2, w / 2])?;
        Ok(NodeOutput::slots(vec![
            Image(hint).into(),
            Latent::new(stage_c).into(),
            Latent::new(stage_b).into(),
        ]))
    }
}
