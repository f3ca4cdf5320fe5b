//! Values that single model families read from a conditioning.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

use super::pair;
use crate::latent::size;
use crate::python_rules::round;
use crate::types::{Cond, Conditioning, Image, Latent, as_tensor, tensor};

fn three(positive: Conditioning, negative: Conditioning, latent: Latent) -> NodeOutput {
    NodeOutput::slots(vec![
        Value::from(positive),
        Value::from(negative),
        Value::from(latent),
    ])
}

/// Sets which part of a piece of music the latent stands for.
#[derive(Node)]
#[node(id = "ConditioningStableAudio", v3, module = "comfy_extras.nodes_audio", category = "conditioning", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")))]
pub struct ConditioningStableAudio {
    positive: Conditioning,
    negative: Conditioning,
    /// Where in the piece the sound begins, in seconds.
    #[input(default = 0.0, min = 0.0, max = 1000.0, step = 0.1)]
    seconds_start: f64,
    /// Length of the whole piece in seconds.
    #[input(default = 47.0, min = 0.0, max = 1000.0, step = 0.1)]
    seconds_total: f64,
}

impl Node for ConditioningStableAudio {
    fn run(self, _: &Cx) -> NodeResult {
        let set = |c: Conditioning| {
            c.set("seconds_start", self.seconds_start)
                .set("seconds_total", self.seconds_total)
        };
        Ok(pair(set(self.positive), set(self.negative)))
    }
}

/// Sets the guidance that distilled Flux models were trained with.
#[derive(Node)]
#[node(
    id = "FluxGuidance",
    v3,
    module = "comfy_extras.nodes_flux",
    category = "advanced/conditioning/flux",
    outputs("CONDITIONING")
)]
pub struct FluxGuidance {
    conditioning: Conditioning,
    #[input(default = 3.5, min = 0.0, max = 100.0, step = 0.1)]
    guidance: f64,
}

impl Node for FluxGuidance {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(
            self.conditioning.set("guidance", self.guidance),
        ))
    }
}

/// Switches the guidance input of Flux and similar models off.
#[derive(Node)]
#[node(
    id = "FluxDisableGuidance",
    v3,
    module = "comfy_extras.nodes_flux",
    category = "advanced/conditioning/flux",
    outputs("CONDITIONING")
)]
pub struct FluxDisableGuidance {
    conditioning: Conditioning,
}

impl Node for FluxDisableGuidance {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(
            self.conditioning.set("guidance", Value::Null),
        ))
    }
}

/// Chooses how an edit model tells several reference pictures apart.
#[derive(Node)]
#[node(
    id = "FluxKontextMultiReferenceLatentMethod",
    v3,
    module = "comfy_extras.nodes_flux",
    display = "Edit Model Reference Method",
    category = "advanced/conditioning/flux",
    outputs("CONDITIONING"),
    experimental
)]
pub struct FluxKontextMultiReferenceLatentMethod {
    conditioning: Conditioning,
    /// How pictures are told apart: by their place, or by a number of their own. Models differ in what they were
    /// trained with.
    #[input(choices = ["offset", "index", "uxo/uno", "index_timestep_zero"])]
    reference_latents_method: String,
}

impl Node for FluxKontextMultiReferenceLatentMethod {
    fn run(self, _: &Cx) -> NodeResult {
        let method = &self.reference_latents_method;
        let method = if method.contains("uxo") || method.contains("uso") {
            "uxo"
        } else {
            method
        };
        Ok(NodeOutput::one(
            self.conditioning.set("reference_latents_method", method),
        ))
    }
}

/// Gives an edit model a picture to refer to; chain several for several pictures.
#[derive(Node)]
#[node(
    id = "ReferenceLatent",
    v3,
    module = "comfy_extras.nodes_edit_model",
    category = "advanced/conditioning/edit_models",
    outputs("CONDITIONING")
)]
pub struct ReferenceLatent {
    conditioning: Conditioning,
    /// The picture to refer to, as a latent; without one nothing changes.
    #[input(optional)]
    latent: Option<Latent>,
}

impl Node for ReferenceLatent {
    fn run(self, _: &Cx) -> NodeResult {
        let out = match self.latent {
            Some(latent) => self
                .conditioning
                .append("reference_latents", tensor(latent.samples()?.clone())),
            None => self.conditioning,
        };
        Ok(NodeOutput::one(out))
    }
}

/// Tells LTX-Video the frame rate.
#[derive(Node)]
#[node(id = "LTXVConditioning", v3, module = "comfy_extras.nodes_lt", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")))]
pub struct LTXVConditioning {
    positive: Conditioning,
    negative: Conditioning,
    /// Frames a second.
    #[input(default = 25.0, min = 0.0, max = 1000.0, step = 0.01)]
    frame_rate: f64,
}

impl Node for LTXVConditioning {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(pair(
            self.positive.set("frame_rate", self.frame_rate),
            self.negative.set("frame_rate", self.frame_rate),
        ))
    }
}

/// How many guide frames a conditioning carries.
fn guide_frames(conditioning: &Conditioning) -> Result<usize, NodeError> {
    let Some(indices) = conditioning
        .0
        .iter()
        .find_map(|c| c.options.get("keyframe_idxs").and_then(as_tensor))
    else {
        return Ok(0);
    };
    let mut times = indices.select(1, 0)?.into_vec();
    times.sort_by(f32::total_cmp);
    times.dedup();
    Ok(times.len())
}

/// Cuts the guide frames off an LTX-Video latent again.
#[derive(Node)]
#[node(id = "LTXVCropGuides", v3, module = "comfy_extras.nodes_lt", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub struct LTXVCropGuides {
    positive: Conditioning,
    negative: Conditioning,
    latent: Latent,
}

impl Node for LTXVCropGuides {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.latent.samples()?;
        let frames = samples.dim(2)?;
        let mask = match self.latent.tensor("noise_mask") {
            Some(mask) => mask.clone(),
            None => Tensor::ones([samples.dim(0)?, 1, frames, 1, 1])?,
        };
        let guides = guide_frames(&self.positive)?;
        let latent = |samples, mask| Latent::new(samples).with_tensor("noise_mask", mask);
        if guides == 0 {
            return Ok(three(
                self.positive,
                self.negative,
                latent(samples.clone(), mask),
            ));
        }
        let cut = |t: &Tensor| t.narrow(2, 0, t.dim(2)?.saturating_sub(guides));
        let out = latent(cut(samples)?, cut(&mask)?);
        Ok(three(
            self.positive.set("keyframe_idxs", Value::Null),
            self.negative.set("keyframe_idxs", Value::Null),
            out,
        ))
    }
}

/// Hands the result of Stable Cascade's first stage to the second.
#[derive(Node)]
#[node(
    id = "StableCascade_StageB_Conditioning",
    v3,
    module = "comfy_extras.nodes_stable_cascade",
    category = "conditioning/stable_cascade",
    outputs("CONDITIONING")
)]
pub struct StableCascadeStageBConditioning {
    conditioning: Conditioning,
    /// The latent that the first stage made.
    stage_c: Latent,
}

impl Node for StableCascadeStageBConditioning {
    fn run(self, _: &Cx) -> NodeResult {
        let prior = tensor(self.stage_c.samples()?.clone());
        Ok(NodeOutput::one(
            self.conditioning.set("stable_cascade_prior", prior),
        ))
    }
}

/// Prepares a picture for the four-times upscale model.
#[derive(Node)]
#[node(id = "SD_4XUpscale_Conditioning", v3, module = "comfy_extras.nodes_sdupscale", category = "conditioning/upscale_diffusion", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub struct SD4XUpscaleConditioning {
    images: Image,
    positive: Conditioning,
    negative: Conditioning,
    /// How many times wider and higher the result is; the model was trained with 4.
    #[input(default = 4.0, min = 0.0, max = 10.0, step = 0.01)]
    scale_ratio: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    noise_augmentation: f64,
}

impl Node for SD4XUpscaleConditioning {
    fn run(self, _: &Cx) -> NodeResult {
        let [count, h, w, _] = self.images.0.dims4()?;
        let quarter = |n: usize| {
            size("size", round(n as f64 * self.scale_ratio).max(1)).map(|scaled| scaled / 4)
        };
        let (height, width) = (quarter(h)?, quarter(w)?);
        if height == 0 || width == 0 {
            return Err(NodeError::failed("ZeroDivisionError", "division by zero"));
        }
        let pixels = self
            .images
            .0
            .nhwc_to_nchw()?
            .mul_scalar(2.0)
            .sub_scalar(1.0);
        let pixels = common_upscale(&pixels, width, height, ResizeMethod::Bilinear, Crop::Center)?;
        let set = |c: Conditioning| {
            c.set("concat_image", tensor(pixels.clone()))
                .set("noise_augmentation", self.noise_augmentation)
        };
        let latent = Latent::new(Tensor::zeros([count, 4, height, width])?);
        Ok(three(set(self.positive), set(self.negative), latent))
    }
}

/// Prepares a latent for the HunyuanImage refiner.
#[derive(Node)]
#[node(id = "HunyuanRefinerLatent", v3, module = "comfy_extras.nodes_hunyuan", category = "sd", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub struct HunyuanRefinerLatent {
    positive: Conditioning,
    negative: Conditioning,
    latent: Latent,
    #[input(default = 0.1, min = 0.0, max = 1.0, step = 0.01)]
    noise_augmentation: f64,
}

impl Node for HunyuanRefinerLatent {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.latent.samples()?;
        let &[batch, _, .., t, h, w] = samples.shape() else {
            return Err(NodeError::runtime(format!(
                "a video latent is needed, not shape {:?}",
                samples.shape()
            )));
        };
        let set = |c: Conditioning| {
            c.set("concat_latent_image", tensor(samples.clone()))
                .set("noise_augmentation", self.noise_augmentation)
        };
        let out = Latent::new(Tensor::zeros([batch, 32, t, h, w])?);
        Ok(three(set(self.positive), set(self.negative), out))
    }
}

/// The one prompt that Lotus was trained with: two tokens of 1024 numbers, f16, little-endian.
static LOTUS_PROMPT: &[u8; 4096] = include_bytes!("lotus_prompt.f16");

fn half_to_f32(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 31);
    let fraction = f32::from(bits & 1023);
    sign * if exponent == 0 {
        fraction * 2f32.powi(-24)
    } else {
        (1024.0 + fraction) * 2f32.powi(exponent - 25)
    }
}

/// The fixed conditioning of the Lotus depth and normal models.
#[derive(Node)]
#[node(id = "LotusConditioning", v3, module = "comfy_extras.nodes_lotus", category = "conditioning/lotus", outputs(Output::new("CONDITIONING").named("conditioning")))]
pub struct LotusConditioning;

impl Node for LotusConditioning {
    fn run(self, _: &Cx) -> NodeResult {
        let values = LOTUS_PROMPT
            .chunks_exact(2)
            .map(|b| half_to_f32(u16::from_le_bytes([b[0], b[1]])))
            .collect();
        let cond = Cond {
            tokens: tensor(Tensor::from_vec([1, 2, 1024], values)?),
            options: fresco_graph::Map::new(),
        };
        Ok(NodeOutput::one(Conditioning(vec![cond])))
    }
}
