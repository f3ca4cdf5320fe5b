//! What of a condition goes into the network of a video.

use fresco_tensor::{Crop, Generator, ResizeMethod, Tensor, common_upscale, resize_to_batch};

use super::video::{HunyuanVideoConfig, HunyuanVideoNetwork};
use crate::DiffusionNetwork;
use crate::denoise::{CondValue, EncodeArgs, ModelConds, names};
use crate::error::{ModelError, Result};
use crate::transformer::hides;

/// What the network is given, by the names that it looks for.
pub(super) const LETTERS: &str = "txt_byt5";
pub(super) const VISION: &str = "clip_fea";
pub(super) const REFERENCE: &str = "ref_latent";
pub(super) const GUIDING: &str = "guiding_frame_index";

/// The guidance of a prompt that says none.
const GUIDANCE: f64 = 6.0;

pub(super) fn encode(
    config: &HunyuanVideoConfig,
    file: &str,
    args: &EncodeArgs<'_>,
) -> Result<ModelConds> {
    let mut conds = ModelConds::new();
    let (cond, tensors) = (args.cond, &args.cond.tensors);
    let format = HunyuanVideoNetwork::facts(config).latent;
    let tokens = args.prompt_of_width(config.trunk.context, file)?;
    conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
    if let Some(mask) = tensors.get("attention_mask").filter(|mask| hides(mask)) {
        conds.insert(names::MASK, CondValue::Regular(mask.clone()));
    }
    if let (Some(width), Some(pooled)) = (config.pooled, &cond.pooled) {
        match pooled.shape() {
            [_, found] if *found >= width => {
                conds.insert(
                    names::POOLED,
                    CondValue::Regular(pooled.narrow(1, 0, width)?),
                );
            }
            shape => {
                let reason =
                    format!("pooled text of width {width} is needed, not of shape {shape:?}");
                return Err(ModelError::unsupported(file, reason));
            }
        }
    }
    if config.trunk.guidance {
        let guidance = cond.numbers.get("guidance").copied();
        conds.insert(
            names::GUIDANCE,
            CondValue::Constant(guidance.unwrap_or(GUIDANCE)),
        );
    }
    let wide = |name: &str, width: Option<usize>| -> Result<Option<Tensor>> {
        let (Some(width), Some(found)) = (width, tensors.get(name)) else {
            return Ok(None);
        };
        if found.rank() != 3 || found.dim(2)? != width {
            let reason = format!(
                "{name} of width {width} is needed, not of shape {:?}",
                found.shape()
            );
            return Err(ModelError::unsupported(file, reason));
        }
        Ok(Some(found.clone()))
    };
    let letters = config.trunk.letters.map(|(width, _)| width);
    if let Some(letters) = wide("conditioning_byt5small", letters)? {
        conds.insert(LETTERS, CondValue::Regular(letters));
    }
    let states = wide("clip_vision_output.last_hidden_state", config.vision)?;
    if let Some(states) = states {
        conds.insert(VISION, CondValue::Regular(states));
    }
    if let Some(reference) = tensors.get(REFERENCE) {
        let inside = format.process_in(reference)?;
        conds.insert(REFERENCE, CondValue::Regular(inside));
    }
    if let Some(at) = cond.numbers.get(GUIDING) {
        conds.insert(GUIDING, CondValue::Constant(*at));
    }
    if config.in_channels > config.out_channels {
        let beside = if config.enlarges() {
            smaller(file, args)?
        } else {
            beside(config, file, args)?
        };
        conds.insert(names::BESIDE, CondValue::NoiseShape(beside));
    }
    Ok(conds)
}

/// How much of a picture that is gone over is left at most.
const PICTURE_KEPT: f64 = 0.75;

/// The picture that is gone over, with noise on it if that was asked for.
fn refined(config: &HunyuanVideoConfig, file: &str, args: &EncodeArgs<'_>) -> Result<Tensor> {
    let &[count, channels, frames, h, w] = args.noise.shape() else {
        let reason = format!("{:?} is not the shape of a video", args.noise.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let Some(picture) = tensors_or(args, "concat_latent_image") else {
        return Ok(Tensor::zeros(args.noise.shape())?);
    };
    if picture.rank() != 5 || 2 * picture.dim(1)? != channels {
        let reason = format!(
            "the picture in the conditioning has a latent of shape {:?}; {} channels and frames are needed: encode it with \
             the VAE of this model",
            picture.shape(),
            channels / 2
        );
        return Err(ModelError::unsupported(file, reason));
    }
    let sized = common_upscale(picture, w, h, ResizeMethod::Bilinear, Crop::Center)?;
    let inside = HunyuanVideoNetwork::facts(config)
        .latent
        .process_in(&sized)?;
    let inside = resize_to_batch(&inside, count)?;
    if inside.dim(2)? != frames {
        let reason = format!(
            "the picture in the conditioning has {} pairs of frames, the latent {frames}",
            inside.dim(2)?
        );
        return Err(ModelError::unsupported(file, reason));
    }
    let amount = args.cond.numbers.get("noise_augmentation").copied();
    match amount.filter(|amount| *amount > 0.0) {
        Some(amount) => {
            // As the reference draws it, before the noise of the run.
            let seed = args.cond.seed.wrapping_sub(10);
            let noise = fresco_tensor::Generator::new(seed).randn(inside.shape())?;
            let kept = (1.0 - amount).min(PICTURE_KEPT) as f32;
            Ok(noise
                .mul_scalar(amount as f32)
                .add(&inside.mul_scalar(kept))?)
        }
        None => Ok(inside.mul_scalar(PICTURE_KEPT as f32)),
    }
}

/// Given frames, and where there is room a mask of what is given.
fn beside(config: &HunyuanVideoConfig, file: &str, args: &EncodeArgs<'_>) -> Result<Tensor> {
    if config.refines() {
        return refined(config, file, args);
    }
    let &[count, channels, frames, h, w] = args.noise.shape() else {
        let reason = format!("{:?} is not the shape of a video", args.noise.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let format = HunyuanVideoNetwork::facts(config).latent;
    let extra = config.in_channels - config.out_channels;
    let sized = |x: &Tensor| -> Result<Tensor> {
        if x.shape()[3..] == [h, w] {
            return Ok(x.clone());
        }
        Ok(common_upscale(
            x,
            w,
            h,
            ResizeMethod::Bilinear,
            Crop::Center,
        )?)
    };
    let filled = |x: Tensor| -> Result<Tensor> {
        let [b, c, known] = [x.dim(0)?, x.dim(1)?, x.dim(2)?];
        let x = if known < frames {
            let rest = Tensor::zeros([b, c, frames - known, h, w])?;
            Tensor::cat(&[&x, &rest], 2)?
        } else {
            x.narrow(2, 0, frames)?
        };
        Ok(resize_to_batch(&x, count)?)
    };
    // Those without a mask go on from the latent itself.
    let given = tensors_or(args, "concat_latent_image");
    let image = match given.or(args.latent.filter(|_| extra == channels)) {
        Some(image) if image.rank() == 5 && image.dim(1)? == channels => {
            let inside = if given.is_some() {
                format.process_in(&sized(image)?)?
            } else {
                image.clone()
            };
            filled(inside)?
        }
        Some(image) => {
            let reason = format!(
                "given frames have a latent of shape {:?}, this model works on {channels} channels: they were encoded with \
                 the VAE of another family of models. Load the one that belongs to this model",
                image.shape()
            );
            return Err(ModelError::unsupported(file, reason));
        }
        None => Tensor::zeros([count, channels, frames, h, w])?,
    };
    if extra == channels {
        return Ok(image);
    }
    if extra != channels + 1 {
        let reason = format!("it takes {extra} channels beside the latent, which is not known");
        return Err(ModelError::unsupported(file, reason));
    }
    let mask = match tensors_or(args, "concat_mask") {
        Some(mask) if mask.rank() == 5 => {
            let mask = sized(&mask.narrow(1, 0, 1)?)?;
            filled(mask.round().rsub_scalar(1.0))?
        }
        _ => Tensor::zeros([count, 1, frames, h, w])?,
    };
    Ok(Tensor::cat(&[&image, &mask], 1)?)
}

/// How much of a smaller video is left at most.
const KEPT: f64 = 0.75;

/// How far the seed of that noise is before that of the sampling, as the reference has it.
const BEFORE_SAMPLING: u64 = 10;

/// The picture a video begins with, and a smaller video with noise, each with a mask: as the node made it, but for the noise.
fn smaller(file: &str, args: &EncodeArgs<'_>) -> Result<Tensor> {
    let &[count, channels, frames, h, w] = args.noise.shape() else {
        let reason = format!("{:?} is not the shape of a video", args.noise.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let extra = 2 * channels + 2;
    let Some(given) = tensors_or(args, "concat_latent_image") else {
        return Ok(Tensor::zeros([count, extra, frames, h, w])?);
    };
    if given.rank() != 5 || given.dim(1)? != extra || given.dim(2)? != frames {
        let reason = format!(
            "it takes {extra} channels of {frames} frames beside the latent, but the conditioning has shape {:?}: use the \
             node that is made for this model",
            given.shape()
        );
        return Err(ModelError::unsupported(file, reason));
    }
    let sized = common_upscale(given, w, h, ResizeMethod::Bilinear, Crop::Center)?;
    let all = resize_to_batch(&sized, count)?;
    let (start, numbers) = (channels + 1, &args.cond.numbers);
    let low = all.narrow(1, start, channels)?;
    let amount = numbers.get("noise_augmentation").copied().unwrap_or(0.0);
    let low = if amount > 0.0 {
        let seed = args.cond.seed.wrapping_sub(BEFORE_SAMPLING);
        let noise = Generator::new(seed).randn(low.shape())?;
        let kept = (1.0 - amount).min(KEPT) as f32;
        noise.mul_scalar(amount as f32).add(&low.mul_scalar(kept))?
    } else {
        low.mul_scalar(KEPT as f32)
    };
    let (before, after) = (
        all.narrow(1, 0, start)?,
        all.narrow(1, start + channels, extra - start - channels)?,
    );
    Ok(Tensor::cat(&[&before, &low, &after], 1)?)
}

fn tensors_or<'a>(args: &EncodeArgs<'a>, name: &str) -> Option<&'a Tensor> {
    args.cond.tensors.get(name)
}
