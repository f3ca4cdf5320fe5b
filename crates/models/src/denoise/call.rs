//! One pass of a network, as guidance asks for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::{Tensor, repeat_to_batch};

use super::hooks::{ControlFeatures, Hooks};
use super::region::Region;
use crate::error::{ModelError, Result};

/// One input of a network besides the latent, by the way batches of it are made.
#[derive(Clone, Debug)]
pub enum CondValue {
    /// Must have equal shapes to be joined.
    Regular(Tensor),
    /// In the shape of the latent, so cut to areas as it is.
    NoiseShape(Tensor),
    /// Tokens (b, n, c): shorter ones are repeated, which attention does not notice.
    CrossAttn(Tensor),
    /// Tensors of any sizes, each (b, ...): joined one by one.
    List(Vec<Tensor>),
    /// One number for a whole batch.
    Constant(f64),
    /// One word for a whole batch.
    Word(Arc<str>),
}

/// The inputs by name.
pub type ModelConds = BTreeMap<&'static str, CondValue>;

/// Token lists of different lengths are joined if none is repeated more often than this.
const MAX_REPEAT: usize = 4;

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a.checked_div(x).map_or(0, |n| n.saturating_mul(b))
}

impl CondValue {
    /// The value for a batch of `count`, cut to a region.
    pub(super) fn fitted(&self, count: usize, region: Option<&Region>) -> Result<Self> {
        Ok(match self {
            Self::Regular(t) => Self::Regular(repeat_to_batch(t, count)?),
            Self::CrossAttn(t) => Self::CrossAttn(repeat_to_batch(t, count)?),
            Self::NoiseShape(t) => {
                let part = match region {
                    Some(region) => region.of(t, 2)?,
                    None => t.clone(),
                };
                Self::NoiseShape(repeat_to_batch(&part, count)?)
            }
            Self::List(list) => {
                let fitted = list.iter().map(|t| repeat_to_batch(t, count));
                Self::List(fitted.collect::<fresco_tensor::Result<_>>()?)
            }
            Self::Constant(_) | Self::Word(_) => self.clone(),
        })
    }

    /// Whether both are the same object, not looking at elements.
    pub(super) fn is_shared_with(&self, other: &Self) -> bool {
        let same = |a: &Tensor, b: &Tensor| {
            a.storage_address() == b.storage_address() && a.shape() == b.shape()
        };
        match (self, other) {
            (Self::Regular(a), Self::Regular(b))
            | (Self::NoiseShape(a), Self::NoiseShape(b))
            | (Self::CrossAttn(a), Self::CrossAttn(b)) => same(a, b),
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
            }
            (Self::Constant(a), Self::Constant(b)) => a == b,
            (Self::Word(a), Self::Word(b)) => a == b,
            _ => false,
        }
    }

    pub(super) fn joins(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Regular(a), Self::Regular(b)) | (Self::NoiseShape(a), Self::NoiseShape(b)) => {
                a.shape() == b.shape()
            }
            (Self::CrossAttn(a), Self::CrossAttn(b)) => match (a.shape(), b.shape()) {
                (a, b) if a == b => true,
                ([ab, an, ac], [bb, bn, bc]) if ab == bb && ac == bc && an.min(bn) > &0 => {
                    lcm(*an, *bn) / an.min(bn) <= MAX_REPEAT
                }
                _ => false,
            },
            (Self::List(a), Self::List(b)) => {
                let shapes = |list: &[Tensor]| -> Vec<Vec<usize>> {
                    list.iter().map(|t| t.shape().to_vec()).collect()
                };
                shapes(a) == shapes(b)
            }
            (Self::Constant(a), Self::Constant(b)) => a == b,
            (Self::Word(a), Self::Word(b)) => a == b,
            _ => false,
        }
    }

    /// Values that join, as one.
    pub(super) fn joined(values: &[&Self]) -> Result<Self> {
        let tensors = |values: &[&Self]| -> Vec<Tensor> {
            values.iter().filter_map(|v| v.tensor().cloned()).collect()
        };
        let cat = |list: &[Tensor]| Tensor::cat(&list.iter().collect::<Vec<_>>(), 0);
        Ok(match values {
            [Self::Regular(_), ..] => Self::Regular(cat(&tensors(values))?),
            [Self::NoiseShape(_), ..] => Self::NoiseShape(cat(&tensors(values))?),
            [Self::CrossAttn(_), ..] => {
                let mut list = tensors(values);
                let longest = list
                    .iter()
                    .try_fold(1, |n, t| t.dim(1).map(|d| lcm(n, d)))?;
                for t in &mut list {
                    let n = t.dim(1)?;
                    if n > 0 && n < longest {
                        *t = t.repeat(&[1, longest / n, 1])?;
                    }
                }
                Self::CrossAttn(cat(&list)?)
            }
            [Self::List(first), ..] => {
                let at = |i: usize| -> Vec<Tensor> {
                    values
                        .iter()
                        .filter_map(|v| v.list().get(i).cloned())
                        .collect()
                };
                let joined = (0..first.len()).map(|i| cat(&at(i)));
                Self::List(joined.collect::<fresco_tensor::Result<_>>()?)
            }
            [value @ (Self::Constant(_) | Self::Word(_)), ..] => (*value).clone(),
            [] => return Err(ModelError::invalid("conditioning", "nothing to join")),
        })
    }

    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Regular(t) | Self::NoiseShape(t) | Self::CrossAttn(t) => Some(t),
            Self::List(_) | Self::Constant(_) | Self::Word(_) => None,
        }
    }

    /// The tensors of a list; none of anything else.
    pub fn list(&self) -> &[Tensor] {
        match self {
            Self::List(list) => list,
            _ => &[],
        }
    }
}

/// The network's inputs for one batch, besides the latent.
#[derive(Clone, Debug, Default)]
pub struct CallConds(pub ModelConds);

/// One pass of a network.
pub struct Call<'a> {
    /// (b, c, ...), not yet scaled for the network.
    pub x: &'a Tensor,
    /// The noise level of every item.
    pub sigma: f32,
    pub conds: &'a CallConds,
    pub control: Option<&'a ControlFeatures>,
    pub hooks: &'a Hooks,
}

/// A network as guidance sees it.
pub trait Predict {
    /// The clean latents of a batch.
    fn predict(&self, call: &Call<'_>) -> Result<Tensor>;

    /// Bytes that a pass over a batch of this shape takes.
    fn pass_bytes(&self, shape: &[usize]) -> u64;

    /// Bytes there are; none if nobody knows.
    fn memory_free(&self) -> Option<u64>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_repeated_to_a_common_length() {
        let t = |n: usize| CondValue::CrossAttn(Tensor::from_fn([1, n, 1], |i| i as f32).unwrap());
        assert!(t(4).joins(&t(6)) && !t(4).joins(&t(7)) && !t(4).joins(&t(0)));
        let all = CondValue::joined(&[&t(4), &t(6)]).unwrap();
        let all = all.tensor().unwrap();
        assert_eq!(all.shape(), [2, 12, 1]);
        assert_eq!(all.data()[..6], [0., 1., 2., 3., 0., 1.]);
    }
}
