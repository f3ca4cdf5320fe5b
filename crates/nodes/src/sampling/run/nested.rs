//! Latents of several parts: a video and its sound, sampled as one.

use std::sync::Arc;

use fresco_graph::NodeError;
use fresco_models::denoise::{BesideLatent, BesideShift, fit_mask, pack_parts, unpack_parts};
use fresco_tensor::Tensor;

use super::fit::fit_pictures;
use super::{Drawn, failure};
use crate::sampling::{Model, StartNoise};
use crate::types::Latent;

/// What the model takes beside the first part.
fn beside(model: &Model) -> Result<BesideLatent, NodeError> {
    model.base.beside_latent().ok_or_else(|| {
        NodeError::value_error(format!(
            "{} samples one latent, but this is a video together with its sound: take them apart with \
             LTXVSeparateAVLatent",
            model.base.name()
        ))
    })
}

/// By what the second part is multiplied for the network.
fn scale(model: &Model) -> Result<f32, NodeError> {
    let usual = beside(model)?.shift;
    let said = model.patches.hooks.beside::<BesideShift>().last().copied();
    Ok(usual.map_or(1.0, |usual| said.unwrap_or(usual).scale()))
}

/// The parts in the shapes that the model samples.
pub(super) fn fit(model: &Model, parts: &[Tensor]) -> Result<Vec<Tensor>, NodeError> {
    let beside = beside(model)?;
    let [video, sound] = parts else {
        return Err(NodeError::value_error(format!(
            "{} samples a video and its sound, but this latent has {} parts",
            model.base.name(),
            parts.len()
        )));
    };
    let video = fit_pictures(model, &Latent::new(video.clone()))?;
    if !beside.fits(sound.shape()) || sound.dim(0)? != video.dim(0)? {
        return Err(NodeError::value_error(format!(
            "{} samples sound of {} values a frame, as many items as there are videos ({}), but this has shape {:?}",
            model.base.name(),
            beside.values,
            video.dim(0)?,
            sound.shape()
        )));
    }
    if sound.data().iter().any(|v| !v.is_finite()) {
        return Err(NodeError::value_error(
            "the sound to sample holds values that are not numbers",
        ));
    }
    Ok(vec![video, sound.clone()])
}

/// Noise, mask and the latent as the network sees it, packed.
pub(super) fn draw(
    model: &Model,
    parts: &[Tensor],
    latent: &Latent,
    noise: &StartNoise,
) -> Result<Drawn, NodeError> {
    let (noise, generator) = noise.draw_parts(parts, latent)?;
    let masks = masks(parts, latent)?;
    let clean = inside(model, parts)?;
    let shapes = parts.iter().map(|part| part.shape()[1..].to_vec());
    let mask = masks.map(|masks| pack_parts(&masks)).transpose();
    Ok(Drawn {
        clean: pack_parts(&clean).map_err(failure)?,
        noise: pack_parts(&noise).map_err(failure)?,
        generator,
        mask: mask.map_err(failure)?,
        parts: Some(shapes.collect::<Vec<_>>().into()),
    })
}

/// A mask for each part, in its shape; none if all of it is sampled.
fn masks(parts: &[Tensor], latent: &Latent) -> Result<Option<Vec<Tensor>>, NodeError> {
    let given: Vec<Option<&Tensor>> = match latent.parts_of("noise_mask") {
        Some(masks) => masks.iter().map(Some).collect(),
        // One mask is that of the pictures.
        None => vec![latent.tensor("noise_mask")],
    };
    if given.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mask = |(at, part): (usize, &Tensor)| match given.get(at).copied().flatten() {
        Some(mask) => fit_mask(mask, part.shape()).map_err(failure),
        None => Ok(Tensor::ones(part.shape())?),
    };
    let masks = parts.iter().enumerate().map(mask);
    masks.collect::<Result<Vec<_>, _>>().map(Some)
}

/// The parts as the network sees them. Empty ones stay empty.
fn inside(model: &Model, parts: &[Tensor]) -> Result<Vec<Tensor>, NodeError> {
    let scale = scale(model)?;
    let part = |(at, part): (usize, &Tensor)| -> Result<Tensor, NodeError> {
        if part.data().iter().all(|v| *v == 0.0) {
            return Ok(part.clone());
        }
        Ok(match at {
            0 => model.process_latent_in(part)?,
            _ => part.mul_scalar(scale),
        })
    };
    parts.iter().enumerate().map(part).collect()
}

/// The first part of a packed latent, for pictures of it.
pub(super) fn first(x: &Tensor, shapes: &Arc<[Vec<usize>]>) -> Option<Tensor> {
    unpack_parts(x, shapes).ok()?.into_iter().next()
}

/// The parts as nodes know them.
pub(super) fn finish(
    model: &Model,
    x: &Tensor,
    parts: &[Tensor],
) -> Result<Vec<Tensor>, NodeError> {
    let scale = scale(model)?;
    let shapes: Vec<Vec<usize>> = parts
        .iter()
        .map(|part| part.shape()[1..].to_vec())
        .collect();
    let apart = unpack_parts(x, &shapes).map_err(failure)?;
    let part = |(at, part): (usize, Tensor)| -> Result<Tensor, NodeError> {
        Ok(match at {
            0 => model.process_latent_out(&part)?,
            _ => part.div_scalar(scale),
        })
    };
    apart.into_iter().enumerate().map(part).collect()
}
