//! What follows attention in a block.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, After, Linear, swiglu, swiglu_halves};

use super::norm::TokenRows;
use crate::epilogue::{plus, then};
use crate::error::Result;
use crate::store::{Bias, Walk};

/// The layers of an [`Mlp`] by name, the way out last.
#[derive(Clone, Copy, Debug)]
pub enum MlpLayers<'a> {
    /// An activation between two layers.
    Plain([&'a str; 2], Act),
    /// A layer whose values are gated by the SiLU of another: gate, values, out.
    Gated([&'a str; 3]),
    /// The same by another activation.
    GatedBy([&'a str; 3], Act),
    /// The same in one matrix, the gate first.
    GateFirst([&'a str; 2]),
    /// The same, the gate behind the values.
    GateLast([&'a str; 2]),
}

/// What comes before the last layer.
enum Opening {
    Plain(Arc<Linear>, Act),
    Gated(Arc<Linear>, Arc<Linear>, Act),
    GateFirst(Arc<Linear>),
    GateLast(Arc<Linear>),
}

/// A feed-forward part: two layers with an activation between them, or with one that gates the other.
pub struct Mlp {
    first: Opening,
    out: Arc<Linear>,
}

impl Mlp {
    /// From `width` over `inner` back to `width`.
    pub fn new(
        weights: &Walk<'_>,
        layers: MlpLayers<'_>,
        (width, inner): (usize, usize),
        bias: Bias,
    ) -> Result<Self> {
        Self::between(weights, layers, [width, inner, width], bias)
    }

    /// From one width over `inner` to another.
    pub fn between(
        weights: &Walk<'_>,
        layers: MlpLayers<'_>,
        [input, inner, output]: [usize; 3],
        bias: Bias,
    ) -> Result<Self> {
        let wide = |name: &str, times: usize| weights.linear_with(name, times * inner, input, bias);
        let (first, out) = match layers {
            MlpLayers::Plain([first, out], act) => (Opening::Plain(wide(first, 1)?, act), out),
            MlpLayers::Gated(names) => {
                return Self::between(
                    weights,
                    MlpLayers::GatedBy(names, Act::Silu),
                    [input, inner, output],
                    bias,
                );
            }
            MlpLayers::GatedBy([gate, value, out], act) => {
                (Opening::Gated(wide(gate, 1)?, wide(value, 1)?, act), out)
            }
            MlpLayers::GateFirst([both, out]) => (Opening::GateFirst(wide(both, 2)?), out),
            MlpLayers::GateLast([both, out]) => (Opening::GateLast(wide(both, 2)?), out),
        };
        Ok(Self {
            first,
            out: weights.linear_with(out, output, inner, bias)?,
        })
    }

    /// What goes into the last layer.
    pub fn inner<'a>(&self, rows: impl Into<TokenRows<'a>>) -> Result<Tensor> {
        let rows = rows.into();
        let through = |layer: &Linear, after: After<'_>| match rows {
            TokenRows::Plain(x) => layer.forward_with(x, after),
            TokenRows::Modulated(rows) => layer.forward_modulated(rows, after),
        };
        Ok(match &self.first {
            Opening::Plain(layer, act) => through(layer, then(*act))?,
            Opening::Gated(gate, value, Act::Silu) => {
                let [gate, value] = Linear::forward_each([gate, value], &rows.to_tensor()?)?;
                swiglu(&gate, &value)?
            }
            Opening::Gated(gate, value, act) => {
                let x = rows.to_tensor()?;
                gate.forward_with(&x, then(*act))?
                    .mul(&value.forward(&x)?)?
            }
            Opening::GateFirst(both) => swiglu_halves(&through(both, After::default())?)?,
            Opening::GateLast(both) => {
                let [value, gate] = super::chunks(&through(both, After::default())?)?;
                swiglu(&gate, &value)?
            }
        })
    }

    pub fn forward<'a>(&self, rows: impl Into<TokenRows<'a>>) -> Result<Tensor> {
        Ok(self.out.forward(&self.inner(rows)?)?)
    }

    /// `x` plus what the last layer makes of [`Self::inner`].
    pub fn add(&self, inner: &Tensor, x: &Tensor) -> Result<Tensor> {
        Ok(self.out.forward_with(inner, plus(x))?)
    }

    /// The same times a gate.
    pub fn add_gated(&self, inner: &Tensor, x: Tensor, gate: &Tensor) -> Result<Tensor> {
        Ok(self.out.forward_gated(inner, x, gate)?)
    }
}
