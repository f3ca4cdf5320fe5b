//! What a noise level says to a block: factors, shifts and gates (Peebles and Xie 2022).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, Value};

use super::heads::chunks;
use crate::error::Result;
use crate::store::{Bias, Walk};

/// N vectors for a block, in the order in which its family has them.
pub struct AdaLn<const N: usize>(Source);

enum Source {
    /// The block's own layer makes them from the embedding of the noise level.
    Layer(Arc<Linear>),
    /// The block's own vectors, added to those that all blocks share.
    Table(Arc<Value>),
}

impl<const N: usize> AdaLn<N> {
    /// Through a layer, from an embedding of `signal` channels.
    pub fn new(
        weights: &Walk<'_>,
        name: &str,
        width: usize,
        signal: usize,
        bias: Bias,
    ) -> Result<Self> {
        let layer = weights.linear_with(name, N * width, signal, bias)?;
        Ok(Self(Source::Layer(layer)))
    }

    /// A table of the block's own, written in this shape.
    pub fn table(weights: &Walk<'_>, name: &str, shape: &[usize]) -> Result<Self> {
        Ok(Self(Source::Table(weights.value(name, shape)?)))
    }

    /// (rows, width) each. `signal` is the embedding of the noise level, or for tables what all blocks share: (rows, N * width).
    pub fn forward(&self, signal: &Tensor) -> Result<[Tensor; N]> {
        match &self.0 {
            Source::Layer(layer) => chunks(&layer.forward(signal)?),
            Source::Table(table) => {
                let table = table.at(&signal.device())?;
                chunks(&signal.add(&table.reshape([table.len()])?)?)
            }
        }
    }
}
