//! A number of seconds as a token.

use std::f32::consts::TAU;
use std::sync::Arc;

use fresco_tensor::nn::Linear;
use fresco_tensor::{Device, Tensor};

use crate::error::Result;
use crate::store::Walk;

/// The largest number of seconds that is told apart.
const MOST: f32 = 512.0;

pub struct SecondsEmbedder {
    frequencies: Vec<f32>,
    project: Arc<Linear>,
}

impl SecondsEmbedder {
    /// `waves` sines and as many cosines.
    pub fn new(weights: &Walk<'_>, waves: usize, width: usize) -> Result<Self> {
        let frequencies = weights.value("0.weights", &[waves])?;
        Ok(Self {
            frequencies: frequencies.stored()?.to_f32()?.into_vec(),
            project: weights.linear("1", width, 2 * waves + 1)?,
        })
    }

    /// (1, 1, width).
    pub fn forward(&self, seconds: f64, device: &Device) -> Result<Tensor> {
        let part = (seconds as f32).clamp(0.0, MOST) / MOST;
        let angles = self.frequencies.iter().map(|f| part * f * TAU);
        let mut waves = vec![part];
        waves.extend(angles.clone().map(f32::sin));
        waves.extend(angles.map(f32::cos));
        let waves = Tensor::from_vec([1, 1, waves.len()], waves)?;
        Ok(self.project.forward(&waves.to(device)?)?)
    }
}
