//! What of a condition goes into the network.

use fresco_tensor::{Axes, Crop, ResizeMethod, Tensor, common_upscale, resize_to_batch};

use super::config::{FluxConfig, FluxKind};
use super::model::FluxNetwork;
use crate::DiffusionNetwork;
use crate::conds;
use crate::denoise::{CondValue, EncodeArgs, ModelConds, names};
use crate::error::{ModelError, Result};

/// Tokens of a usual prompt; of Flux 2 the fewest.
pub(super) const USUAL_TEXT: usize = 512;

/// Channels of a mask in which each cell has the values of its eight by eight pixels.
const MASK: usize = 64;
const MASK_SIDE: usize = 8;

conds! {
    /// What the network is told besides the latent.
    pub(super) struct FluxConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
        pooled: Option<&'a Tensor> = names::POOLED,
        guidance: Option<&'a Tensor> = names::GUIDANCE,
        references: &'a [Tensor] = names::REFERENCES,
        method: Option<&'a str> = names::REFERENCE_METHOD,
    }
}

/// The prompt's tokens in the shape that the network wants.
pub(super) fn text_of<'a>(conds: &FluxConds<'a>, config: &FluxConfig) -> Result<&'a Tensor> {
    let text = conds.prompt;
    match text.shape() {
        [_, count, width] if *width == config.context && *count > 0 => Ok(text),
        shape => {
            let reason = format!(
                "it has the shape {shape:?}, the network wants {} values for each token",
                config.context
            );
            Err(ModelError::invalid("prompt", reason))
        }
    }
}

pub(super) fn encode(config: &FluxConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
    let mut conds = ModelConds::new();
    let text = text(config, file, args)?;
    conds.insert(names::PROMPT, CondValue::Regular(text));
    if let Some(width) = config.vector {
        conds.insert(
            names::POOLED,
            CondValue::Regular(pooled(file, args, width)?),
        );
    }
    let default = match config.kind {
        FluxKind::Chroma => 0.0,
        _ => 3.5,
    };
    let guided = config.guidance || config.kind == FluxKind::Chroma;
    if guided && !args.cond.nulls.contains("guidance") {
        let guidance = args.cond.numbers.get("guidance").copied();
        let guidance = Tensor::from_slice(&[guidance.unwrap_or(default) as f32]);
        conds.insert(names::GUIDANCE, CondValue::Regular(guidance));
    }
    let format = FluxNetwork::facts(config).latent;
    if let Some(list) = args.cond.lists.get("reference_latents") {
        let inside = list.iter().map(|latent| {
            check_channels(file, latent, config.out_channels)?;
            Ok(format.process_in(latent)?)
        });
        conds.insert(
            names::REFERENCES,
            CondValue::List(inside.collect::<Result<_>>()?),
        );
        if let Some(method) = args.cond.words.get("reference_latents_method") {
            conds.insert(names::REFERENCE_METHOD, CondValue::Word(method.clone()));
        }
    }
    if let Some(mask) = attention_mask(config, args)? {
        conds.insert(names::MASK, CondValue::Regular(mask));
    }
    if config.in_channels > config.out_channels {
        let beside = beside(config, file, args)?;
        conds.insert(names::BESIDE, CondValue::NoiseShape(beside));
    }
    Ok(conds)
}

fn text(config: &FluxConfig, file: &str, args: &EncodeArgs<'_>) -> Result<Tensor> {
    let tokens = args.prompt_of_width(config.context, file)?;
    let [batch, count, width] = tokens.dims3()?;
    if config.kind != FluxKind::Flux2 || count >= USUAL_TEXT {
        return Ok(tokens.clone());
    }
    let missing = Tensor::zeros([batch, USUAL_TEXT - count, width])?;
    Ok(Tensor::cat(&[&missing, tokens], 1)?)
}

/// The pooled prompt; zeros where a conditioning has none.
fn pooled(file: &str, args: &EncodeArgs<'_>, width: usize) -> Result<Tensor> {
    let Some(pooled) = &args.cond.pooled else {
        return Ok(Tensor::zeros([1, width])?);
    };
    match pooled.shape() {
        [_, found] if *found >= width => Ok(pooled.narrow(1, 0, width)?),
        shape => {
            let reason = format!(
                "the pooled text of the {} conditioning has shape {shape:?}, this model takes {width} values: it was \
                 made with the text encoder of another family of models. Load the one that belongs to this model",
                args.prompt_type
            );
            Err(ModelError::unsupported(file, reason))
        }
    }
}

fn check_channels(file: &str, latent: &Tensor, channels: usize) -> Result<()> {
    match latent.shape() {
        [_, found, _, _] if *found == channels => Ok(()),
        shape => {
            let reason = format!(
                "a picture in the conditioning has a latent of shape {shape:?}, but this model works on {channels} \
                 channels: it was encoded with the VAE of another family of models. Load the one that belongs to this model"
            );
            Err(ModelError::unsupported(file, reason))
        }
    }
}

/// What goes in beside the latent: a picture to steer by, or one with a mask to fill.
fn beside(config: &FluxConfig, file: &str, args: &EncodeArgs<'_>) -> Result<Tensor> {
    let [count, channels, h, w] = args.noise.dims4()?;
    let format = FluxNetwork::facts(config).latent;
    let picture = match args.cond.tensors.get("concat_latent_image") {
        Some(latent) => {
            check_channels(file, latent, channels)?;
            let mut latent = latent.clone();
            if latent.shape()[2..] != [h, w] {
                latent = common_upscale(&latent, w, h, ResizeMethod::Bilinear, Crop::Center)?;
            }
            resize_to_batch(&latent, count)?
        }
        None => Tensor::zeros(args.noise.shape())?,
    };
    let picture = format.process_in(&picture)?;
    let extra = config.in_channels - config.out_channels;
    if extra == channels {
        return Ok(picture);
    }
    if extra != channels + MASK {
        let reason = format!(
            "this network takes {} channels beside the latent; {channels} and {} are known",
            extra,
            channels + MASK
        );
        return Err(ModelError::unsupported(file, reason));
    }
    let mask = args.cond.tensors.get("concat_mask").or(args.denoise_mask);
    let mask = match mask {
        Some(mask) => spread_mask(mask, count, (h, w))?,
        None => Tensor::ones([count, MASK, h, w])?,
    };
    Ok(Tensor::cat(&[&picture, &mask], 1)?)
}

/// A mask at the size of the pixels, as channels of the cells they are in.
fn spread_mask(mask: &Tensor, count: usize, (h, w): (usize, usize)) -> Result<Tensor> {
    let mask = match mask.rank() {
        2 => mask.unsqueeze(0)?.unsqueeze(1)?,
        3 => mask.unsqueeze(1)?,
        _ => mask.mean(&[1], Axes::Keep)?,
    };
    let (tall, wide) = (h * MASK_SIDE, w * MASK_SIDE);
    let mask = common_upscale(&mask, wide, tall, ResizeMethod::Bilinear, Crop::Center)?;
    let batch = mask.dim(0)?;
    let cells = mask.reshape([batch, h, MASK_SIDE, w, MASK_SIDE])?;
    let cells = cells.permute(&[0, 2, 4, 1, 3])?;
    Ok(resize_to_batch(
        &cells.reshape([batch, MASK, h, w])?,
        count,
    )?)
}

/// What is added to the scores of attention, (b, 1, n, n), where a condition has such a mask for text and picture. It was
/// made for another size of the picture and is stretched to this one's.
fn attention_mask(config: &FluxConfig, args: &EncodeArgs<'_>) -> Result<Option<Tensor>> {
    let tensors = &args.cond.tensors;
    let (Some(mask), Some(shape)) = (
        tensors.get("attention_mask"),
        tensors.get("attention_mask_img_shape"),
    ) else {
        return Ok(None);
    };
    let [_, _, h, w] = args.noise.dims4()?;
    let to = (h.div_ceil(config.patch), w.div_ceil(config.patch));
    let &[rows, columns] = shape.data() else {
        return Err(ModelError::invalid("attention mask", "it has no size"));
    };
    let from = (rows as usize, columns as usize);
    let [b, all, other] = mask.dims3()?;
    let Some(text) = all.checked_sub(from.0 * from.1).filter(|_| all == other) else {
        let reason = format!("shape {:?} does not fit {from:?} cells", mask.shape());
        return Err(ModelError::invalid("attention mask", reason));
    };
    let mask = if from == to {
        mask.clone()
    } else {
        let rows = stretched(mask, text, from, to)?;
        let columns = stretched(&rows.transpose(1, 2)?, text, from, to)?;
        columns.transpose(1, 2)?
    };
    let n = mask.dim(1)?;
    Ok(Some(mask.reshape([b, 1, n, n])?))
}

/// The last dimension of (b, n, text + cells) for a picture of another size.
fn stretched(
    mask: &Tensor,
    text: usize,
    from: (usize, usize),
    to: (usize, usize),
) -> Result<Tensor> {
    let [b, n, _] = mask.dims3()?;
    let picture = mask.narrow(2, text, from.0 * from.1)?;
    let picture = picture.reshape([b, n, from.0, from.1])?;
    let picture = common_upscale(&picture, to.1, to.0, ResizeMethod::Bilinear, Crop::Disabled)?;
    let picture = picture.reshape([b, n, to.0 * to.1])?;
    Ok(Tensor::cat(&[&mask.narrow(2, 0, text)?, &picture], 2)?)
}
