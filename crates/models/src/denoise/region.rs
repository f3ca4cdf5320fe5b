//! Parts of a latent.

use fresco_tensor::Tensor;

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
}
