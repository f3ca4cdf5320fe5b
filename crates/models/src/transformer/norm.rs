//! Norms of heads and of tokens.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{LayerInput, LayerNorm, ModulatedRows, RmsNorm, Value, modulate};

use crate::error::Result;
use crate::store::Walk;

/// A root mean square norm whose factors are stored less one.
pub struct LessOneNorm {
    plain: RmsNorm,
    less_one: Arc<Value>,
}

impl LessOneNorm {
    pub fn new(weights: &Walk<'_>, name: &str, width: usize, eps: f32) -> Result<Self> {
        Ok(Self {
            plain: RmsNorm::new(None, eps)?,
            less_one: weights.value(name, &[width])?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let factors = self.less_one.at(&x.device())?;
        Ok(modulate(self.plain.forward(x)?, &factors, None)?)
    }
}

/// How queries and keys are normalised: the names of the two weights, and what keeps a root from zero.
#[derive(Clone, Copy, Debug)]
pub enum HeadNorm<'a> {
    None,
    /// Each head by its root mean square.
    Rms([&'a str; 2], f32),
    /// All heads together by their root mean square.
    RmsOfAll([&'a str; 2], f32),
    /// Each head by its root mean square, with factors that are stored less one.
    LessOne([&'a str; 2], f32),
    /// Each head by its mean and deviation.
    Layer([&'a str; 2], f32),
    /// The same without weights.
    Plain(f32),
}

/// The norm of queries or of keys.
pub(super) enum HeadNormLayer {
    None,
    Rms(Arc<RmsNorm>),
    RmsOfAll(Arc<RmsNorm>),
    LessOne(LessOneNorm),
    Layer(Arc<LayerNorm>),
}

impl HeadNormLayer {
    /// For queries and keys of so many heads of `width` channels.
    pub(super) fn pair(
        weights: &Walk<'_>,
        norm: HeadNorm<'_>,
        heads: [usize; 2],
        width: usize,
    ) -> Result<[Self; 2]> {
        let one = |which: usize| -> Result<Self> {
            Ok(match norm {
                HeadNorm::None => Self::None,
                HeadNorm::Rms(names, eps) => {
                    Self::Rms(weights.rms_norm(names[which], width, eps)?)
                }
                HeadNorm::RmsOfAll(names, eps) => {
                    Self::RmsOfAll(weights.rms_norm(names[which], heads[which] * width, eps)?)
                }
                HeadNorm::LessOne(names, eps) => {
                    Self::LessOne(LessOneNorm::new(weights, names[which], width, eps)?)
                }
                HeadNorm::Layer(names, eps) => {
                    Self::Layer(weights.layer_norm(names[which], width, eps)?)
                }
                HeadNorm::Plain(eps) => Self::Layer(Arc::new(LayerNorm::new(None, None, eps)?)),
            })
        };
        Ok([one(0)?, one(1)?])
    }

    /// The norm, if a GPU can do it while it joins heads.
    pub(super) fn joins(&self) -> Option<&RmsNorm> {
        match self {
            Self::Rms(norm) => Some(norm),
            _ => None,
        }
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// (b, n, heads * d) normalised.
    pub(super) fn forward(&self, x: Tensor, heads: usize) -> Result<Tensor> {
        let [b, n, width] = x.dims3()?;
        let each = || x.reshape([b, n, heads, width / heads.max(1)]);
        let normed = match self {
            Self::None => return Ok(x),
            Self::RmsOfAll(norm) => return Ok(norm.forward(&x)?),
            Self::Rms(norm) => norm.forward(&each()?)?,
            Self::LessOne(norm) => norm.forward(&each()?)?,
            Self::Layer(norm) => norm.forward(&each()?)?,
        };
        Ok(normed.reshape([b, n, width])?)
    }
}

/// What goes into the layers of a block: tokens as they are, or to be normalised, scaled and shifted on the way.
#[derive(Clone, Copy)]
pub enum TokenRows<'a> {
    Plain(&'a Tensor),
    Modulated(ModulatedRows<'a>),
}

impl<'a> TokenRows<'a> {
    /// `norm(x) * (1 + scale) + shift`, shift and scale (b, c).
    pub fn modulated(
        norm: &'a LayerNorm,
        x: &'a Tensor,
        shift: &'a Tensor,
        scale: &'a Tensor,
    ) -> Self {
        Self::Modulated(ModulatedRows {
            norm,
            x,
            shift,
            scale,
        })
    }

    /// The tokens as layers see them that take nothing else.
    pub fn to_tensor(self) -> Result<Tensor> {
        Ok(match self {
            Self::Plain(x) => x.clone(),
            Self::Modulated(rows) => rows.to_tensor()?,
        })
    }
}

impl<'a> From<&'a Tensor> for TokenRows<'a> {
    fn from(x: &'a Tensor) -> Self {
        Self::Plain(x)
    }
}

impl<'a> From<TokenRows<'a>> for LayerInput<'a> {
    fn from(rows: TokenRows<'a>) -> Self {
        match rows {
            TokenRows::Plain(x) => Self::Rows(x),
            TokenRows::Modulated(rows) => Self::Modulated(rows),
        }
    }
}
