//! Matrices of the networks with which Gemma 4 sees and hears.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, Value};

use crate::error::Result;
use crate::store::Walk;

/// A matrix that may hold down what goes in and what comes out.
pub(super) struct ClippedLinear {
    linear: Arc<Linear>,
    /// Least and most of what goes in, then of what comes out.
    limits: Option<[Arc<Value>; 4]>,
}

impl ClippedLinear {
    pub(super) fn new(weights: &Walk<'_>, out: usize, input: usize, clipped: bool) -> Result<Self> {
        let limit = |name: &str| weights.value(name, &[]);
        let limits = || -> Result<[Arc<Value>; 4]> {
            Ok([
                limit("input_min")?,
                limit("input_max")?,
                limit("output_min")?,
                limit("output_max")?,
            ])
        };
        Ok(Self {
            linear: weights.matrix("linear", out, input)?,
            limits: clipped.then(limits).transpose()?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some([in_min, in_max, out_min, out_max]) = &self.limits else {
            return Ok(self.linear.forward(x)?);
        };
        let device = x.device();
        let held = |x: &Tensor, least: &Value, most: &Value| -> Result<Tensor> {
            Ok(x.maximum(&least.at(&device)?)?
                .minimum(&most.at(&device)?)?)
        };
        let out = self.linear.forward(&held(x, in_min, in_max)?)?;
        held(&out, out_min, out_max)
    }
}
