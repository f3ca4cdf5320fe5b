//! The small network that stands for all modulations of a distilled model: from noise level, guidance and the number of a
//! row to that row.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear, RmsNorm};
use fresco_tensor::{Device, Tensor};

use super::blocks::{EPS, Modulation};
use super::config::FluxConfig;
use crate::epilogue::{plus, then};
use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{sinusoid, thousandfold};

/// Channels that noise level and guidance have, and those of a row's number.
const LEVEL: usize = 16;
const NUMBER: usize = 32;
/// All of its inputs.
const INPUT: usize = 2 * LEVEL + NUMBER;
/// The published network has this many rows whatever its number of blocks.
const ROWS: usize = 344;

struct Layer {
    norm: Arc<RmsNorm>,
    first: Arc<Linear>,
    second: Arc<Linear>,
}

pub(super) struct Approximator {
    input: Arc<Linear>,
    layers: Vec<Layer>,
    out: Arc<Linear>,
    double: usize,
    single: usize,
}

/// The rows of one pass, (b, rows, width).
pub(super) struct Rows {
    all: Tensor,
    double: usize,
    single: usize,
}

impl Approximator {
    pub(super) fn new(
        weights: &Walk<'_>,
        config: &FluxConfig,
        width: usize,
        layers: usize,
    ) -> Result<Self> {
        let layer = |n: usize| -> Result<Layer> {
            let inner = weights.at("layers").at(n);
            Ok(Layer {
                norm: weights.rms_norm(&format!("norms.{n}.scale"), width, EPS)?,
                first: inner.linear("in_layer", width, width)?,
                second: inner.linear("out_layer", width, width)?,
            })
        };
        Ok(Self {
            input: weights.linear("in_proj", width, INPUT)?,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            out: weights.linear("out_proj", config.hidden, width)?,
            double: config.double,
            single: config.single,
        })
    }

    /// The rows for noise levels and guidance, one of each for every item.
    pub(super) fn rows(&self, levels: &[f32], guidance: &[f32], device: &Device) -> Result<Rows> {
        let scaled = |values: &[f32]| -> Vec<f32> { values.iter().map(|v| v * 1000.0).collect() };
        let numbers: Vec<f32> = (0..ROWS).map(|n| n as f32).collect();
        let items = levels.len();
        let spread = |values: Tensor, width: usize| -> Result<Tensor> {
            let values = values.reshape([items, 1, width])?;
            Ok(values.expand(&[items, ROWS, width])?)
        };
        let level = spread(sinusoid(&scaled(levels), LEVEL)?, LEVEL)?;
        let guidance: Vec<f32> = guidance.iter().map(|v| thousandfold(*v, device)).collect();
        let guidance = spread(sinusoid(&guidance, LEVEL)?, LEVEL)?;
        let number = sinusoid(&scaled(&numbers), NUMBER)?;
        let number = number
            .reshape([1, ROWS, NUMBER])?
            .expand(&[items, ROWS, NUMBER])?;
        let input = Tensor::cat(&[&level, &guidance, &number], 2)?.to(device)?;
        let mut x = self.input.forward(&input)?;
        for layer in &self.layers {
            let inner = layer.norm.forward(&x)?;
            let inner = layer.first.forward_with(&inner, then(Act::Silu))?;
            x = layer.second.forward_with(&inner, plus(&x))?;
        }
        Ok(Rows {
            all: self.out.forward(&x)?,
            double: self.double,
            single: self.single,
        })
    }
}

impl Rows {
    pub(super) fn single(&self, block: usize) -> Result<Modulation> {
        Modulation::of_rows(&self.all, 3 * block)
    }

    fn pair(&self, first: usize) -> Result<Vec<Modulation>> {
        Ok(vec![
            Modulation::of_rows(&self.all, first)?,
            Modulation::of_rows(&self.all, first + 3)?,
        ])
    }

    /// Of picture and prompt.
    pub(super) fn double(&self, block: usize) -> Result<(Vec<Modulation>, Vec<Modulation>)> {
        let first = 3 * self.single;
        Ok((
            self.pair(first + 6 * block)?,
            self.pair(first + 6 * self.double + 6 * block)?,
        ))
    }

    /// Shift and scale of the last layer.
    pub(super) fn last(&self) -> Result<(Tensor, Tensor)> {
        let rows = self.all.dim(1)?;
        Ok((self.all.select(1, rows - 2)?, self.all.select(1, rows - 1)?))
    }
}
