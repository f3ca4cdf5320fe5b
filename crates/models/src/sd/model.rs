//! Stable Diffusion 1, 2 and XL, and their inpainting and editing variants: a UNet with what goes into it.

use std::sync::Arc;

use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale, resize_to_batch};

use super::unclip;
use super::unet::{UNet, UNetConfig, WHAT};
use crate::conds;
use crate::denoise::hook_points::{CONTROL, HookPoint, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, Diffusion, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput,
    PassMemory, names,
};
use crate::error::{ModelError, Result};
use crate::latent_format::LatentFormat;
use crate::model_sampling::{ModelSampling, Prediction, Spacing};
use crate::store::{Walk, WeightStore};
use crate::transformer::sinusoid;

/// What the network takes beside the noisy latent, on further channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    Plain,
    /// A mask, and the latent of the picture with the masked part gone.
    Inpaint,
    /// The latent of the picture that is edited.
    InstructPix2Pix,
    /// The latent of the picture that a film begins with, or shows from all sides.
    Film,
}

impl Variant {
    /// By the channels that go in and come out.
    pub fn of(config: &UNetConfig) -> Option<Self> {
        match config.in_channels {
            n if config.timed => (n == 2 * config.out_channels).then_some(Self::Film),
            n if n == config.out_channels => Some(Self::Plain),
            n if n == 2 * config.out_channels + 1 => Some(Self::Inpaint),
            n if n == 2 * config.out_channels => Some(Self::InstructPix2Pix),
            _ => None,
        }
    }
}

/// What the vector beside the noise level is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorKind {
    /// The pooled prompt and the sizes that the picture is meant to have (SDXL).
    Sizes,
    /// What a vision network saw (unCLIP).
    Seen,
    /// Always the same (Lotus).
    Lotus,
}

impl VectorKind {
    /// By the widths of the vector and of the prompt.
    pub fn of(config: &UNetConfig) -> Self {
        match (config.adm, config.context_dim) {
            (Some(LOTUS_WIDTH), _) => Self::Lotus,
            (Some(_), Some(UNCLIP_CONTEXT)) => Self::Seen,
            _ => Self::Sizes,
        }
    }
}

/// Numbers in the vector of Lotus.
const LOTUS_WIDTH: usize = 4;
/// Width of the prompt of models that are led by pictures.
const UNCLIP_CONTEXT: usize = 1024;

/// Numbers of what a vision network saw that stand for a pooled prompt.
const SEEN_POOLED: usize = 1280;

/// The latent of a grey picture, which stands for "everything is masked".
const BLANK: [f32; 4] = [0.8223, -0.6876, 0.6364, 0.1380];

/// How many frames a film has.
const FRAMES: &str = "num_video_frames";

/// Width of the vector that stands for one number in SDXL's extra input.
const NUMBER_WIDTH: usize = 256;

/// Values per cell of the latent and channel of the first level that a pass holds at its fullest, measured with room.
const HELD: usize = 32;

/// A network of this family.
#[derive(Clone, Debug)]
pub struct SdConfig {
    pub unet: UNetConfig,
    pub variant: Variant,
    pub format: LatentFormat,
    /// How it is sampled unless a node says otherwise.
    pub sampling: ModelSampling,
}

impl SdConfig {
    /// Refuses networks of no known variant; `file` is for messages.
    pub fn new(
        file: &str,
        unet: UNetConfig,
        format: LatentFormat,
        sampling: ModelSampling,
    ) -> Result<Self> {
        let Some(variant) = Variant::of(&unet) else {
            return Err(ModelError::unsupported(
                file,
                format!(
                    "a UNet from {} to {} channels is of no known kind",
                    unet.in_channels, unet.out_channels
                ),
            ));
        };
        Ok(Self {
            unet,
            variant,
            format,
            sampling,
        })
    }
}

/// A model of this family.
pub type SdModel = Diffusion<UNet>;

impl SdModel {
    /// A network that predicts noise, over the weights of a store.
    pub fn new(store: Arc<WeightStore>, unet: UNetConfig, format: LatentFormat) -> Result<Self> {
        let sampling = ModelSampling::discrete(Prediction::Eps, false);
        let config = SdConfig::new(store.file(), unet, format, sampling)?;
        Self::open(store, config)
    }
}

conds! {
    /// What the network is told besides the latent.
    struct SdConds<'a> {
        prompt: Option<&'a Tensor> = names::PROMPT,
        vector: Option<&'a Tensor> = names::POOLED,
        frames: Option<f64> = FRAMES,
    }
}

impl DiffusionNetwork for UNet {
    type Config = SdConfig;

    const WHAT: &'static str = WHAT;

    const HOOKS: HookPoints = HookPoints(&[
        (
            BlockKind::INPUT,
            &[
                &[HookPoint::After, HookPoint::AfterSkip, HookPoint::Embedding],
                CONTROL,
                OWN,
                PROMPT,
            ],
        ),
        (BlockKind::MIDDLE, &[CONTROL, OWN, PROMPT]),
        (
            BlockKind::OUTPUT,
            &[&[HookPoint::Before], CONTROL, OWN, PROMPT],
        ),
    ]);

    fn facts(config: &SdConfig) -> ModelFacts {
        let unet = &config.unet;
        ModelFacts {
            latent: config.format,
            latent_channels: unet.out_channels,
            in_channels: unet.in_channels,
            context: unet.context_dim,
            model_channels: Some(unet.model_channels),
            architecture: match (unet.context_dim, unet.adm) {
                (Some(2048), Some(2816)) => Some("stable-diffusion-xl-v1-base"),
                (Some(1280), Some(2560)) => Some("stable-diffusion-xl-v1-refiner"),
                _ => None,
            },
            pass: PassMemory::of_cells(1, unet.model_channels, HELD),
            sampling: config.sampling.clone(),
        }
    }

    fn new(weights: &Walk<'_>, config: &SdConfig) -> Result<Self> {
        Self::walk(weights, &config.unet)
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = SdConds::read(input.conds)?;
        let frames = conds.frames.map(|n| n as usize);
        self.forward_films(
            input.x,
            input.timesteps,
            conds.prompt,
            conds.vector,
            input.control,
            (frames.unwrap_or(input.x.dim(0)?), input.hooks),
        )
    }

    fn encode(config: &SdConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let conditions = Conditions { config, file };
        let mut conds = ModelConds::new();
        match config.variant {
            Variant::Plain => {}
            Variant::Inpaint => {
                conds.insert(
                    names::BESIDE,
                    CondValue::NoiseShape(conditions.inpaint(args)?),
                );
            }
            Variant::InstructPix2Pix => {
                conds.insert(names::BESIDE, CondValue::NoiseShape(conditions.edit(args)?));
            }
            Variant::Film => {
                conds.insert(names::BESIDE, CondValue::NoiseShape(conditions.edit(args)?));
                let frames = args.noise.dim(0)? as f64;
                conds.insert(FRAMES, CondValue::Constant(frames));
            }
        }
        if let Some(width) = config.unet.adm {
            let vector = match VectorKind::of(&config.unet) {
                _ if config.variant == Variant::Film => conditions.film_vector(args, width)?,
                VectorKind::Sizes => conditions.vector(args, width)?,
                VectorKind::Seen => {
                    let (seen, seed) = (&args.cond.seen, args.cond.seed);
                    let merge = args.cond.numbers.get("unclip_noise_augment_merge");
                    let merge = merge.copied().unwrap_or(unclip::USUAL_MERGE);
                    unclip::vector(seen, seed, merge, width)?
                }
                // Sines and cosines of one and zero.
                VectorKind::Lotus => {
                    let one = 1_f32;
                    Tensor::from_vec([1, LOTUS_WIDTH], vec![one.sin(), 0.0, one.cos(), 1.0])?
                }
            };
            conds.insert(names::POOLED, CondValue::Regular(vector));
        }
        if let Some(wanted) = config.unet.context_dim {
            let tokens = args.prompt_of_width(wanted, file)?.clone();
            conds.insert(names::PROMPT, CondValue::CrossAttn(tokens));
        }
        // Text that only control nets see.
        if let Some(tokens) = args.cond.tensors.get("cross_attn_controlnet") {
            conds.insert(names::CONTROL_PROMPT, CondValue::CrossAttn(tokens.clone()));
        }
        Ok(conds)
    }

    fn rest(&self) {
        Self::rest(self);
    }

    fn shed(&self) {
        self.forget_levels();
    }
}

/// Makes the network's inputs of a condition.
struct Conditions<'a> {
    config: &'a SdConfig,
    /// For messages.
    file: &'a str,
}

impl Conditions<'_> {
    fn wrong(&self, reason: String) -> ModelError {
        ModelError::unsupported(self.file, reason)
    }

    /// A latent brought to the size and batch of the noise.
    fn fitted(latent: &Tensor, noise: &Tensor) -> Result<Tensor> {
        let [count, _, h, w] = noise.dims4()?;
        let mut latent = latent.clone();
        if latent.shape().get(1..) != noise.shape().get(1..) {
            latent = common_upscale(&latent, w, h, ResizeMethod::Bilinear, Crop::Center)?;
        }
        Ok(resize_to_batch(&latent, count)?)
    }

    fn same_channels(&self, latent: &Tensor, noise: &Tensor) -> Result<()> {
        if latent.rank() == noise.rank() && latent.dim(1)? == noise.dim(1)? {
            return Ok(());
        }
        Err(self.wrong(format!(
            "the picture in the conditioning has a latent of shape {:?}, but this model works on shape {:?}: it was \
             encoded with the VAE of another family of models. Load the one that belongs to this model",
            latent.shape(),
            noise.shape()
        )))
    }

    fn inpaint(&self, args: &EncodeArgs<'_>) -> Result<Tensor> {
        let [count, channels, h, w] = args.noise.dims4()?;
        let tensors = &args.cond.tensors;
        let Some(mask) = tensors.get("concat_mask").or(args.denoise_mask) else {
            let blank = Tensor::from_fn([1, channels, 1, 1], |c| BLANK[c % BLANK.len()])?;
            let picture = blank.expand(&[count, channels, h, w])?;
            return Ok(Tensor::cat(
                &[&Tensor::ones([count, 1, h, w])?, &picture],
                1,
            )?);
        };
        let picture = match (tensors.get("concat_latent_image"), args.latent) {
            (Some(latent), _) => {
                self.same_channels(latent, args.noise)?;
                self.config.format.process_in(latent)?
            }
            (None, Some(latent)) => latent.clone(),
            (None, None) => Tensor::zeros(args.noise.shape())?,
        };
        let picture = Self::fitted(&picture, args.noise)?;
        let mask = match mask.rank() {
            2 => mask.unsqueeze(0)?.unsqueeze(1)?,
            3 => mask.unsqueeze(1)?,
            _ => mask.narrow(1, 0, 1)?,
        };
        let mask = if mask.shape()[2..] == [h, w] {
            mask
        } else {
            common_upscale(&mask, w, h, ResizeMethod::Bilinear, Crop::Center)?
        };
        let mask = resize_to_batch(&mask.round(), count)?;
        Ok(Tensor::cat(&[&mask, &picture], 1)?)
    }

    fn edit(&self, args: &EncodeArgs<'_>) -> Result<Tensor> {
        match args.cond.tensors.get("concat_latent_image") {
            Some(latent) => {
                self.same_channels(latent, args.noise)?;
                let latent = Self::fitted(latent, args.noise)?;
                // Of those with a range of noise levels of their own, the picture is scaled like any other latent.
                let sampling = &self.config.sampling;
                let scaled = (sampling.prediction, sampling.spacing)
                    == (Prediction::V, Spacing::ContinuousEdm)
                    && self.config.variant != Variant::Film;
                Ok(if scaled {
                    self.config.format.process_in(&latent)?
                } else {
                    latent
                })
            }
            None => Ok(Tensor::zeros(args.noise.shape())?),
        }
    }

    /// What films are told: rate, motion and noise of the given picture, or from where each frame looks at it.
    fn film_vector(&self, args: &EncodeArgs<'_>, wanted: usize) -> Result<Tensor> {
        let number = |key: &str, or: f64| args.cond.numbers.get(key).copied().unwrap_or(or);
        let waves = |numbers: &[f64], width: usize| -> Result<Tensor> {
            let numbers: Vec<f32> = numbers.iter().map(|v| *v as f32).collect();
            sinusoid(&numbers, width)
        };
        let noise = number("augmentation_level", 0.0);
        match wanted {
            n if n == NUMBER_WIDTH => waves(&[noise], NUMBER_WIDTH),
            n if n == 3 * NUMBER_WIDTH => {
                let numbers = [
                    number("fps", 6.0) - 1.0,
                    number("motion_bucket_id", 127.0),
                    noise,
                ];
                Ok(waves(&numbers, NUMBER_WIDTH)?.reshape([1, wanted])?)
            }
            n if n == 5 * NUMBER_WIDTH => {
                let list = |key: &str| match args.cond.tensors.get(key) {
                    Some(tensor) => tensor.data().iter().map(|v| f64::from(*v)).collect(),
                    None => vec![0.0],
                };
                let (heights, sides): (Vec<f64>, Vec<f64>) = (list("elevation"), list("azimuth"));
                let angle = |degrees: f64| degrees.rem_euclid(360.0).to_radians();
                let heights: Vec<f64> = heights.iter().map(|e| angle(90.0 - e)).collect();
                let sides: Vec<f64> = sides.iter().map(|a| angle(*a)).collect();
                let count = heights.len().max(sides.len());
                let wide = 2 * NUMBER_WIDTH;
                let noise = waves(&vec![noise; count], NUMBER_WIDTH)?;
                let heights = resize_to_batch(&waves(&heights, wide)?, count)?;
                let sides = resize_to_batch(&waves(&sides, wide)?, count)?;
                Ok(Tensor::cat(&[&noise, &heights, &sides], 1)?)
            }
            _ => Err(self.wrong(format!(
                "this model of films takes a vector of width {wanted}, which is not known"
            ))),
        }
    }

    /// SDXL's second input: the pooled prompt and the sizes the picture is meant to have.
    fn vector(&self, args: &EncodeArgs<'_>, wanted: usize) -> Result<Tensor> {
        let seen = &args.cond.seen;
        let of_pictures = match seen.first() {
            Some(first) => {
                let wide = 2 * first.embeds.shape().last().copied().unwrap_or(0);
                let vector = unclip::vector(seen, args.cond.seed, 0.0, wide)?;
                Some(vector.narrow(1, 0, SEEN_POOLED.min(wide))?)
            }
            None => None,
        };
        let pooled = of_pictures.as_ref().or(args.cond.pooled.as_ref());
        let Some(pooled) = pooled.filter(|p| p.rank() == 2) else {
            return Err(self.wrong(format!(
                "the {} conditioning has no pooled text, which this model needs",
                args.prompt_type
            )));
        };
        let number = |key: &str, or: f64| args.cond.numbers.get(key).copied().unwrap_or(or);
        let (width, height) = (args.width, args.height);
        let (crop_w, crop_h) = (number("crop_w", 0.0), number("crop_h", 0.0));
        let count = wanted.saturating_sub(pooled.dim(1)?) / NUMBER_WIDTH;
        let numbers = match count {
            6 => vec![
                height,
                width,
                crop_h,
                crop_w,
                number("target_height", height),
                number("target_width", width),
            ],
            5 => {
                let negative = args.prompt_type == "negative";
                let score = number("aesthetic_score", if negative { 2.5 } else { 6.0 });
                vec![height, width, crop_h, crop_w, score]
            }
            _ => Vec::new(),
        };
        if pooled.dim(1)? + numbers.len() * NUMBER_WIDTH != wanted || numbers.is_empty() {
            return Err(self.wrong(format!(
                "this model takes a vector of width {wanted}, which cannot be made of pooled text of width {}: it was \
                 made with the text encoder of another family of models. Load the one that belongs to this model",
                pooled.dim(1)?
            )));
        }
        let numbers: Vec<f32> = numbers.into_iter().map(|v| v as f32).collect();
        let flat = sinusoid(&numbers, NUMBER_WIDTH)?.reshape([1, numbers.len() * NUMBER_WIDTH])?;
        let flat = flat.repeat(&[pooled.dim(0)?, 1])?;
        Ok(Tensor::cat(&[pooled, &flat], 1)?)
    }
}
