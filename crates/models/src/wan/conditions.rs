//! What of a condition goes into the network.

use fresco_tensor::{Axes, Crop, ResizeMethod, Tensor, common_upscale, resize_to_batch};

use super::config::WanConfig;
use super::model::WanNetwork;
use super::speech;
use crate::DiffusionNetwork;
use crate::denoise::{CondValue, EncodeArgs, ModelConds, names};
use crate::error::{ModelError, Result};
use crate::latent_format::LatentFormat;

/// What the network is given, by the names that [`WanNetwork`] looks for.
pub(super) const VISION: &str = "clip_fea";
pub(super) const REFERENCE: &str = "reference_latent";
pub(super) const MORE_FRAMES: &str = "time_dim_concat";
pub(super) const CONTROLS: &str = "vace_context";
pub(super) const STRENGTHS: &str = "vace_strength";
pub(super) const CAMERA: &str = "camera_conditions";
pub(super) const KNOWN: &str = "denoise_mask";
pub(super) const SOUND: &str = "audio_embed";
pub(super) const MOTION: &str = "reference_motion";
pub(super) const FOLLOWED: &str = "control_video";
pub(super) const FACE: &str = "face_pixel_values";
pub(super) const POSE: &str = "pose_latents";

/// Where a conditioning has what a vision network saw.
const STATES: &str = "clip_vision_output.penultimate_hidden_states";
/// Channels of a mask: one for each of the pictures that become one frame.
const MASK: usize = 4;
/// Channels of a control video's latents, what may change and what may not, and of its mask.
const CONTROL: usize = 32;
const CONTROL_MASK: usize = 64;

pub(super) fn encode(config: &WanConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
    let mut conds = ModelConds::new();
    let tokens = args.prompt_of_width(config.context, file)?;
    conds.insert(names::PROMPT, CondValue::CrossAttn(tokens.clone()));
    let format = WanNetwork::facts(config).latent;
    let tensors = &args.cond.tensors;
    if config.in_channels > config.out_channels {
        let beside = match config.speech {
            Some(_) => nothing_beside(config, file, args)?,
            None => beside(config, file, args, &format)?,
        };
        conds.insert(names::BESIDE, CondValue::NoiseShape(beside));
    }
    if let Some(vision) = config.vision
        && let Some(states) = tensors.get(STATES)
    {
        match states.shape() {
            [_, _, width] if *width == vision.width => {
                conds.insert(VISION, CondValue::Regular(states.clone()));
            }
            shape => {
                let reason = format!(
                    "this model looks at pictures by states of width {}, but those of the conditioning have shape \
                     {shape:?}: another vision model made them",
                    vision.width
                );
                return Err(ModelError::unsupported(file, reason));
            }
        }
    }
    if let Some(frames) = tensors.get(MORE_FRAMES) {
        check(file, frames, config.out_channels, "further frames")?;
        let inside = format.process_in(frames)?;
        conds.insert(MORE_FRAMES, CondValue::Regular(inside));
    }
    let references = args.cond.lists.get("reference_latents");
    if let (Some(channels), Some(last)) = (config.reference, references.and_then(|l| l.last())) {
        check(file, last, channels, "a reference picture")?;
        let first = format.process_in(last)?.narrow(2, 0, 1)?.squeeze(2)?;
        conds.insert(REFERENCE, CondValue::Regular(first));
    }
    if config.sound.is_some() || config.speech.is_some() {
        add_sound(config, file, args, &format, &mut conds)?;
    }
    if config.face.is_some() {
        if let Some(pixels) = tensors.get("face_video_pixels") {
            conds.insert(FACE, CondValue::Regular(pixels.clone()));
        }
        if let Some(pose) = tensors.get("pose_video_latent") {
            check(file, pose, config.out_channels, "a pose")?;
            conds.insert(POSE, CondValue::Regular(format.process_in(pose)?));
        }
    }
    if config.vace.is_some() {
        controls(file, args, &format, &mut conds)?;
    }
    if config.camera.is_some()
        && let Some(path) = tensors.get(CAMERA)
    {
        conds.insert(CAMERA, CondValue::Regular(path.clone()));
    }
    if config.levels_by_frame()
        && let Some(mask) = args.denoise_mask
    {
        let mask = mask.mean(&[1], Axes::Keep)?;
        conds.insert(KNOWN, CondValue::NoiseShape(mask));
    }
    Ok(conds)
}

fn check(file: &str, latent: &Tensor, channels: usize, what: &str) -> Result<()> {
    match latent.shape() {
        [_, found, _, _, _] if *found == channels => Ok(()),
        shape => {
            let reason = format!(
                "{what} in the conditioning has a latent of shape {shape:?}, but this model takes videos of {channels} \
                 channels: it was encoded with the VAE of another family of models. Load the one that belongs to this model"
            );
            Err(ModelError::unsupported(file, reason))
        }
    }
}

/// Latents as the network sees them, where several stand side by side in the channels.
fn inside(format: &LatentFormat, latent: &Tensor) -> Result<Tensor> {
    let (each, all) = (format.channels, latent.dim(1)?);
    if all <= each {
        return Ok(format.process_in(latent)?);
    }
    let parts = (0..all).step_by(each).map(|at| -> Result<Tensor> {
        Ok(format.process_in(&latent.narrow(1, at, each.min(all - at))?)?)
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?)
}

/// A sound, and the whole reference, earlier frames and a video to follow, where there are any.
fn add_sound(
    config: &WanConfig,
    file: &str,
    args: &EncodeArgs<'_>,
    format: &LatentFormat,
    conds: &mut ModelConds,
) -> Result<()> {
    let tensors = &args.cond.tensors;
    if let Some(sound) = tensors.get(SOUND) {
        conds.insert(SOUND, CondValue::Regular(sound.clone()));
    }
    let references = args.cond.lists.get("reference_latents");
    if let Some(last) = references.and_then(|list| list.last()) {
        check(file, last, config.out_channels, "a reference picture")?;
        let mut reference = format.process_in(last)?;
        if config.in_channels > config.out_channels {
            // Nothing is noisy, all is given, and this is what.
            let mut shape = reference.shape().to_vec();
            let noise = Tensor::zeros(shape.clone())?;
            shape[1] = speech::MASK;
            reference = Tensor::cat(&[&noise, &Tensor::ones(shape)?, &reference], 1)?;
        }
        conds.insert(REFERENCE, CondValue::Regular(reference));
    }
    if config.sound.is_some() {
        for name in [MOTION, FOLLOWED] {
            if let Some(latent) = tensors.get(name) {
                check(file, latent, config.out_channels, name)?;
                let inside = format.process_in(latent)?;
                conds.insert(name, CondValue::Regular(inside));
            }
        }
    }
    Ok(())
}

/// What networks that follow speech take beside the latent: the latent of nothing, and that it is not given.
fn nothing_beside(config: &WanConfig, file: &str, args: &EncodeArgs<'_>) -> Result<Tensor> {
    let &[count, channels, frames, h, w] = args.noise.shape() else {
        let reason = format!("{:?} is not the shape of a video", args.noise.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let extra = config.in_channels - config.out_channels;
    let known = speech::NOTHING[0].len();
    if extra != speech::BESIDE || channels != known {
        let reason = format!("it takes {extra} channels beside the latent, which is not known");
        return Err(ModelError::unsupported(file, reason));
    }
    let picture = Tensor::from_fn([1, channels, frames, 1, 1], |i| {
        speech::NOTHING[(i % frames).min(2)][i / frames]
    })?;
    let picture = picture.expand(&[count, channels, frames, h, w])?;
    let mask = Tensor::zeros([count, speech::MASK, frames, h, w])?;
    Ok(Tensor::cat(&[&mask, &picture], 1)?)
}

fn sized(latent: &Tensor, (h, w): (usize, usize)) -> Result<Tensor> {
    if latent.shape()[3..] == [h, w] {
        return Ok(latent.clone());
    }
    Ok(common_upscale(
        latent,
        w,
        h,
        ResizeMethod::Bilinear,
        Crop::Center,
    )?)
}

/// What goes in beside the noise: given frames, a control video, and where there is room a mask of what is given.
fn beside(
    config: &WanConfig,
    file: &str,
    args: &EncodeArgs<'_>,
    format: &LatentFormat,
) -> Result<Tensor> {
    let &[count, channels, frames, h, w] = args.noise.shape() else {
        let reason = format!("{:?} is not the shape of a video", args.noise.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let extra = config.in_channels - config.out_channels;
    let unfit = |what: String| {
        let reason = format!(
            "this model takes {extra} channels of {frames} frames beside the latent, but the {} conditioning has {what}: \
             use the node that is made for this kind of the model",
            args.prompt_type
        );
        ModelError::unsupported(file, reason)
    };
    let mut image = match args.cond.tensors.get("concat_latent_image") {
        None => Tensor::zeros([count, extra, frames, h, w])?,
        Some(image) => {
            if image.rank() != 5 || !image.dim(1)?.is_multiple_of(channels) {
                return Err(unfit(format!("a latent of shape {:?}", image.shape())));
            }
            let image = inside(format, &sized(image, (h, w))?)?;
            resize_to_batch(&image, count)?
        }
    };
    let found = image.dim(1)?;
    let alone = extra == found || (extra != found + MASK && !config.begins_with_pictures());
    if !alone {
        if extra < MASK {
            return Err(unfit(format!("{found}")));
        }
        if found > extra - MASK {
            image = image.narrow(1, 0, extra - MASK)?;
        }
        let mask = mask(args, [count, frames, h, w])?;
        let at = args.cond.numbers.get("concat_mask_index").copied();
        let at = at.map_or(0, |at| at.max(0.0) as usize).min(image.dim(1)?);
        let (before, after) = (
            image.narrow(1, 0, at)?,
            image.narrow(1, at, image.dim(1)? - at)?,
        );
        let parts: Vec<&Tensor> = [&before, &mask, &after]
            .into_iter()
            .filter(|part| part.dim(1).is_ok_and(|n| n > 0))
            .collect();
        image = Tensor::cat(&parts, 1)?;
    }
    if image.shape() != [count, extra, frames, h, w] {
        return Err(unfit(format!("{:?}", image.shape())));
    }
    Ok(image)
}

/// What is given, as ones: (b, 4, t, h, w).
fn mask(args: &EncodeArgs<'_>, [count, frames, h, w]: [usize; 4]) -> Result<Tensor> {
    let found = args.cond.tensors.get("concat_mask").or(args.denoise_mask);
    let Some(mask) = found else {
        return Ok(Tensor::zeros([count, MASK, frames, h, w])?);
    };
    if mask.rank() != 5 {
        let reason = format!("{:?} is not the shape of a video's mask", mask.shape());
        return Err(ModelError::invalid("concat_mask", reason));
    }
    let mask = match mask.dim(1)? {
        MASK => mask.clone(),
        _ => mask.mean(&[1], Axes::Keep)?,
    };
    let mut mask = sized(&mask.rsub_scalar(1.0), (h, w))?;
    let [b, c, known] = [mask.dim(0)?, mask.dim(1)?, mask.dim(2)?];
    if known < frames {
        let rest = Tensor::zeros([b, c, frames - known, h, w])?;
        mask = Tensor::cat(&[&mask, &rest], 2)?;
    } else if known > frames {
        mask = mask.narrow(2, 0, frames)?;
    }
    if c == 1 {
        mask = mask.repeat(&[1, MASK, 1, 1, 1])?;
    }
    Ok(resize_to_batch(&mask, count)?)
}

/// Control videos with their masks and how much each counts.
fn controls(
    file: &str,
    args: &EncodeArgs<'_>,
    format: &LatentFormat,
    conds: &mut ModelConds,
) -> Result<()> {
    let &[b, _, t, h, w] = args.noise.shape() else {
        let reason = format!("{:?} is not the shape of a video", args.noise.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let list = |name: &str| args.cond.lists.get(name).cloned().unwrap_or_default();
    let (mut frames, mut masks) = (list("vace_frames"), list("vace_mask"));
    if frames.is_empty() {
        frames.push(Tensor::zeros([1, CONTROL, t, h, w])?);
    }
    if masks.is_empty() {
        let ones = Tensor::ones([1, CONTROL_MASK, t, h, w])?;
        masks.resize(frames.len(), ones);
    }
    let mut made = Vec::new();
    for (frames, mask) in frames.iter().zip(&masks) {
        let fits = |x: &Tensor| matches!(x.shape(), [_, _, n, y, z] if [*n, *y, *z] == [t, h, w]);
        if !fits(frames) || !fits(mask) {
            let reason = format!(
                "a control video in the conditioning has a latent of shape {:?} and a mask of shape {:?}, which do not \
                 fit a latent of {t} frames of {w}x{h}",
                frames.shape(),
                mask.shape()
            );
            return Err(ModelError::unsupported(file, reason));
        }
        let frames = inside(format, frames)?;
        let (frames, mask) = (resize_to_batch(&frames, b)?, resize_to_batch(mask, b)?);
        made.push(Tensor::cat(&[&frames, &mask], 1)?);
    }
    let mut strengths = match args.cond.tensors.get("vace_strength") {
        Some(strengths) => strengths.data().to_vec(),
        None => Vec::new(),
    };
    strengths.resize(made.len(), 1.0);
    let strengths = Tensor::from_vec([1, made.len()], strengths)?;
    conds.insert(STRENGTHS, CondValue::Regular(strengths));
    conds.insert(CONTROLS, CondValue::List(made));
    Ok(())
}
