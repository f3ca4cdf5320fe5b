//! Numbers that networks are told: noise levels, guidance, sizes.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear};
use fresco_tensor::{Buffer, Tensor};

use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;

/// Cosines and sines of each value at frequencies that fall from 1 to 1 / 10000: (values, width).
pub fn sinusoid(values: &[f32], width: usize) -> Result<Tensor> {
    let half = width / 2;
    let fall = -(10000.0_f64.ln()) as f32;
    let frequencies: Vec<f32> = (0..half)
        .map(|i| (fall * i as f32 / half as f32).exp())
        .collect();
    let mut out = Buffer::with_room(values.len() * width)?;
    for value in values {
        out.extend(frequencies.iter().map(|f| (value * f).cos()));
        out.extend(frequencies.iter().map(|f| (value * f).sin()));
        out.extend(std::iter::repeat_n(0.0, width % 2));
    }
    Ok(Tensor::from_buffer([values.len(), width], out)?)
}

/// A linear layer, SiLU, a linear layer.
pub struct Embedder {
    first: Arc<Linear>,
    second: Arc<Linear>,
}

impl Embedder {
    /// The names of the two layers: `["in_layer", "out_layer"]`, `["mlp.0", "mlp.2"]`.
    pub fn new(
        weights: &Walk<'_>,
        names: [&str; 2],
        input: usize,
        width: usize,
        bias: bool,
    ) -> Result<Self> {
        Ok(Self {
            first: weights.linear_with(names[0], width, input, bias)?,
            second: weights.linear_with(names[1], width, width, bias)?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.first.forward_with(x, then(Act::Silu))?;
        Ok(self.second.forward(&inner)?)
    }
}
