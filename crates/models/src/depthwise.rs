//! Convolutions with a kernel for each channel.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Value, depthwise};

use crate::error::Result;
use crate::store::Walk;

/// Cells along a side of a kernel.
const SIDE: usize = 3;

/// One with three cells a side and a bias, over (b, h, w, c).
pub(crate) struct Depthwise {
    taps: Arc<Value>,
    bias: Arc<Value>,
}

impl Depthwise {
    pub(crate) fn new(weights: &Walk<'_>, name: &str, channels: usize) -> Result<Self> {
        let shape = [channels, 1, SIDE, SIDE];
        Ok(Self {
            taps: weights.value(&format!("{name}.weight"), &shape)?,
            bias: weights.value(&format!("{name}.bias"), &[channels])?,
        })
    }

    /// Zeros around the picture.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let device = x.device();
        let taps = self.taps.at(&device)?;
        let taps = taps.reshape([x.dim(3)?, SIDE * SIDE])?.transpose(0, 1)?;
        Ok(depthwise(x, &taps, Some(&self.bias.at(&device)?))?)
    }

    /// The cells at the edge once more around the picture.
    pub(crate) fn repeating(&self, x: &Tensor) -> Result<Tensor> {
        let [_, h, w, _] = x.dims4()?;
        let wider = |len: usize| -> Vec<usize> {
            let last = len.saturating_sub(1);
            (0..len + 2)
                .map(|at| at.saturating_sub(1).min(last))
                .collect()
        };
        let around = x.index_select(1, &wider(h))?.index_select(2, &wider(w))?;
        let made = self.forward(&around)?;
        Ok(made.narrow(1, 1, h)?.narrow(2, 1, w)?)
    }
}
