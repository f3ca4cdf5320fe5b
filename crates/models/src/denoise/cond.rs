//! One entry of a conditioning, and what a network gets of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::{Tensor, repeat_to_batch};

use super::hooks::ControlFeatures;
use super::{CallConds, Predict};
use crate::error::{ModelError, Result};

/// A box in the cells of a latent: size and offset along each dimension after the channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub size: Vec<usize>,
    pub offset: Vec<usize>,
}

/// What a dimension that an area does not speak of is long.
const WHOLE: usize = 1 << 31;

impl Region {
    /// The same box with whole dimensions added in front.
    fn widened(&self, dims: usize) -> Self {
        let missing = dims.saturating_sub(self.size.len());
        let front = |fill: usize, rest: &[usize]| {
            let mut all = vec![fill; missing];
            all.extend_from_slice(rest);
            all
        };
        Self {
            size: front(WHOLE, &self.size),
            offset: front(0, &self.offset),
        }
    }

    /// Whether this box lies in another.
    pub(super) fn is_inside(&self, other: &Self) -> bool {
        let dims = self.size.len().max(other.size.len());
        let (a, b) = (self.widened(dims), other.widened(dims));
        (0..dims).all(|d| {
            a.offset[d] >= b.offset[d] && a.offset[d] + a.size[d] <= b.offset[d] + b.size[d]
        })
    }

    pub(super) fn volume(&self) -> u128 {
        self.size.iter().map(|n| *n as u128).product()
    }

    /// The part of the box that is in a latent whose dimensions after the channels are `dims`.
    pub(super) fn clipped(&self, dims: &[usize]) -> Result<Self> {
        let mut out = self.widened(dims.len());
        out.size.truncate(dims.len());
        out.offset.truncate(dims.len());
        for (d, len) in dims.iter().enumerate() {
            let left = len.checked_sub(out.offset[d]).filter(|left| *left > 0);
            let Some(left) = left.filter(|_| out.size[d] > 0) else {
                return Err(ModelError::invalid(
                    "conditioning area",
                    format!(
                        "an area of {:?} cells at {:?} is not inside a latent of {dims:?} cells",
                        self.size, self.offset
                    ),
                ));
            };
            out.size[d] = out.size[d].min(left);
        }
        Ok(out)
    }

    /// The box of a tensor (b, c, ...).
    pub(super) fn of(&self, t: &Tensor, first: usize) -> Result<Tensor> {
        let mut part = t.clone();
        for (d, (len, start)) in self.size.iter().zip(&self.offset).enumerate() {
            part = part.narrow(first + d, *start, *len)?;
        }
        Ok(part)
    }
}

/// Where a condition counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Area {
    Cells(Region),
    /// Sizes, then offsets, as parts of the latent.
    Parts(Vec<f64>),
}

/// What a control net makes of a batch. Two conditions share a pass only with the same object.
pub trait ControlSource: Send + Sync {
    fn features(
        &self,
        x: &Tensor,
        sigma: f32,
        conds: &CallConds,
        chunks: usize,
    ) -> Result<Option<ControlFeatures>>;
}

/// One input of a network besides the latent, by the way batches of it are made.
#[derive(Clone, Debug)]
pub enum CondValue {
    /// Must have equal shapes to be joined.
    Regular(Tensor),
    /// In the shape of the latent, so cut to areas as it is.
    NoiseShape(Tensor),
    /// Tokens (b, n, c): shorter ones are repeated, which attention does not notice.
    CrossAttn(Tensor),
    /// One number for a whole batch.
    Constant(f64),
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
            Self::Constant(v) => Self::Constant(*v),
        })
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
            (Self::Constant(a), Self::Constant(b)) => a == b,
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
            [Self::Constant(v), ..] => Self::Constant(*v),
            [] => return Err(ModelError::invalid("conditioning", "nothing to join")),
        })
    }

    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Regular(t) | Self::NoiseShape(t) | Self::CrossAttn(t) => Some(t),
            Self::Constant(_) => None,
        }
    }
}

/// One entry of a conditioning.
#[derive(Clone)]
pub struct Cond {
    /// (b, n, c).
    pub tokens: Option<Tensor>,
    pub pooled: Option<Tensor>,
    pub area: Option<Area>,
    pub strength: f64,
    /// (b, h, w).
    pub mask: Option<Tensor>,
    pub mask_strength: f64,
    /// The area is the box around the mask.
    pub area_of_mask: bool,
    /// Part of the sampling after which the condition counts.
    pub start_percent: Option<f64>,
    pub end_percent: Option<f64>,
    /// The same for text that was encoded for a part of the sampling.
    pub clip_percent: Option<(f64, f64)>,
    pub control: Option<Arc<dyn ControlSource>>,
    /// The control net acts on the negative prompt too.
    pub control_to_uncond: bool,
    /// Fills what other conditions leave.
    pub is_default: bool,
    /// `positive`, `negative`, ... in place of the name of the list.
    pub prompt_type: Option<Arc<str>>,
    /// Further tensors and numbers by name, for models that know them.
    pub tensors: BTreeMap<Arc<str>, Tensor>,
    pub numbers: BTreeMap<Arc<str>, f64>,
    /// Noise levels between which the condition counts; set by preparation.
    pub start: Option<f32>,
    pub end: Option<f32>,
    /// What the network gets; set by preparation.
    pub model_conds: ModelConds,
    /// The network that predicts for this condition, in place of the one that is sampled: the same with other weights.
    pub network: Option<Arc<dyn Predict + Send + Sync>>,
}

impl Default for Cond {
    fn default() -> Self {
        Self {
            tokens: None,
            pooled: None,
            area: None,
            strength: 1.0,
            mask: None,
            mask_strength: 1.0,
            area_of_mask: false,
            start_percent: None,
            end_percent: None,
            clip_percent: None,
            control: None,
            control_to_uncond: false,
            is_default: false,
            prompt_type: None,
            tensors: BTreeMap::new(),
            numbers: BTreeMap::new(),
            start: None,
            end: None,
            model_conds: ModelConds::new(),
            network: None,
        }
    }
}

impl Cond {
    /// A plain prompt.
    pub fn new(tokens: Tensor) -> Self {
        Self {
            tokens: Some(tokens),
            ..Self::default()
        }
    }

    /// The box after preparation.
    pub(super) fn region(&self) -> Option<&Region> {
        match &self.area {
            Some(Area::Cells(region)) => Some(region),
            _ => None,
        }
    }

    pub(super) fn is_active(&self, sigma: f32) -> bool {
        !(self.start.is_some_and(|s| sigma > s) || self.end.is_some_and(|s| sigma < s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(size: [usize; 2], offset: [usize; 2]) -> Region {
        Region {
            size: size.to_vec(),
            offset: offset.to_vec(),
        }
    }

    #[test]
    fn regions_are_cut_to_the_latent() {
        let r = region([8, 20], [4, 4]);
        assert_eq!(r.clipped(&[16, 16]).unwrap(), region([8, 12], [4, 4]));
        assert!(region([8, 8], [16, 0]).clipped(&[16, 16]).is_err());
        assert!(region([0, 8], [0, 0]).clipped(&[16, 16]).is_err());
        assert!(region([4, 4], [4, 4]).is_inside(&region([8, 8], [0, 0])));
        assert!(!region([8, 4], [4, 4]).is_inside(&region([8, 8], [0, 0])));
        let video = r.clipped(&[3, 16, 16]).unwrap();
        assert_eq!((video.size, video.offset), (vec![3, 8, 12], vec![0, 4, 4]));
    }

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
