//! Activations that swing: `x + sin(a x)^2 / b` (Ziyin et al. 2020).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Value, snake};

use super::filter::Smoothed;
use crate::error::Result;
use crate::store::Walk;

/// What stands in files for `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnakeKind {
    /// Logarithms of both.
    Beta,
    /// One number for both, as it is.
    Alpha,
}

/// The activation of some channels.
pub struct Snake {
    alpha: Arc<Value>,
    beta: Option<Arc<Value>>,
}

const EPS: f32 = 1e-9;

impl Snake {
    pub fn new(weights: &Walk<'_>, name: &str, channels: usize, kind: SnakeKind) -> Result<Self> {
        let named = |part: &str| format!("{name}.{part}");
        Ok(match kind {
            SnakeKind::Beta => Self {
                alpha: weights.value(&named("alpha"), &[channels])?,
                beta: Some(weights.value(&named("beta"), &[channels])?),
            },
            SnakeKind::Alpha => Self {
                alpha: weights.value(&named("alpha"), &[1, channels, 1])?,
                beta: None,
            },
        })
    }

    /// (b, n, c) to the same.
    pub fn forward(&self, x: Tensor) -> Result<Tensor> {
        let device = x.device();
        let host = fresco_tensor::Device::cpu();
        let alpha = self.alpha.at(&host)?;
        let alpha = alpha.reshape([alpha.len()])?;
        let (alpha, beta) = match &self.beta {
            Some(beta) => (alpha.map(f32::exp), beta.at(&host)?.map(f32::exp)),
            None => (alpha.clone(), alpha),
        };
        let share = beta.map(|v| 1.0 / (v + EPS)).to(&device)?;
        Ok(snake(&x, &alpha.to(&device)?, &share)?)
    }

    /// The same without new frequencies above what the samples can tell.
    pub fn smoothed(&self, x: &Tensor, filter: &Smoothed) -> Result<Tensor> {
        filter.around(x, |longer| self.forward(longer))
    }
}
