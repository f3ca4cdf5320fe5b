//! Latents in the shape that a model samples.

use fresco_graph::{NodeError, Value};
use fresco_tensor::Tensor;

use super::nested;
use crate::sampling::Model;
use crate::types::{Latent, Nested};

/// Channels of an empty latent that was made without thinking of a model, and the pixels along a side of its cells.
const PLAIN_CHANNELS: usize = 4;
const CELL: usize = 8;

/// The latent in the shape that the model samples. Nodes make empty ones without knowing the model, so those get its
/// channels; a picture given to a model of videos is a video of one frame.
pub(super) fn fit_latent(model: &Model, latent: Latent) -> Result<Latent, NodeError> {
    if let Some(parts) = latent.parts() {
        let parts = nested::fit(model, parts)?;
        return Ok(latent.with("samples", Value::object(Nested(parts))));
    }
    let fitted = fit_pictures(model, &latent)?;
    let beside = model.base.beside_latent();
    if let Some(shape) = beside.and_then(|beside| beside.empty_beside(fitted.shape())) {
        let parts = vec![fitted, Tensor::zeros(shape)?];
        return Ok(latent.with("samples", Value::object(Nested(parts))));
    }
    if fitted.shape() == latent.samples()?.shape() {
        return Ok(latent);
    }
    Ok(latent.with_tensor("samples", fitted))
}

/// The same for a latent of one part, or the first of several.
pub(super) fn fit_pictures(model: &Model, latent: &Latent) -> Result<Tensor, NodeError> {
    let samples = latent.samples()?;
    let (wanted, dimensions) = (model.base.latent_channels(), model.base.latent_dimensions());
    let mut fitted = samples.clone();
    if dimensions == 3 && samples.rank() == 4 {
        fitted = samples.unsqueeze(2)?;
    }
    if fitted.rank() != dimensions + 2 {
        return Err(NodeError::value_error(format!(
            "{} samples latents of {} dimensions, but this one has shape {:?}",
            model.base.name(),
            in_words(dimensions + 2),
            samples.shape()
        )));
    }
    if fitted.is_empty() {
        return Err(NodeError::value_error(format!(
            "the latent of shape {:?} has nothing to sample",
            samples.shape()
        )));
    }
    if let Some(odd) = samples.data().iter().find(|v| !v.is_finite()) {
        return Err(NodeError::value_error(format!(
            "the latent to sample holds values that are not numbers ({odd})"
        )));
    }
    let channels = fitted.dim(1)?;
    if channels != wanted {
        if samples.data().iter().any(|v| *v != 0.0) {
            return Err(NodeError::value_error(format!(
                "{} samples latents of {wanted} channels, but this one has {channels}: it was made for another family of \
                 models. Encode the picture with the VAE that belongs to this model",
                model.base.name()
            )));
        }
        let mut shape = fitted.shape().to_vec();
        shape[1] = wanted;
        let ratio = model.base.latent_format().map_or(CELL, |f| f.ratio.max(1));
        if ratio != CELL && channels == PLAIN_CHANNELS {
            // Of the same size in pixels.
            for side in shape.iter_mut().rev().take(2) {
                *side = (*side * CELL / ratio).max(1);
            }
        }
        fitted = Tensor::zeros(shape)?;
    }
    Ok(fitted)
}

fn in_words(number: usize) -> String {
    match number {
        3 => "three".to_owned(),
        4 => "four".to_owned(),
        5 => "five".to_owned(),
        other => other.to_string(),
    }
}
