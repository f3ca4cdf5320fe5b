//! Sums, means, norms and extremes over dimensions. Sums are kept in f64 and rounded once.

use crate::device::Device;
use crate::elements::{allocate, reserve};
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// What becomes of dimensions that are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axes {
    /// They stay with size 1.
    Keep,
    Drop,
}

/// What the elements of a group become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Mean,
    Std,
    Var,
    Norm,
    Min,
    Max,
}

/// Elements that are reduced together.
struct Groups {
    /// Of the result.
    shape: Vec<usize>,
    /// Number of groups, and of elements in each.
    count: usize,
    size: usize,
    /// Dimensions in the order that has groups side by side.
    order: Vec<usize>,
}

impl Tensor {
    /// Replaces the given dimensions by one value each group, in main memory; no dimensions means all of them.
    pub fn reduce(&self, dims: &[usize], axes: Axes, f: impl Fn(&[f32]) -> f32) -> Result<Self> {
        self.host("reduce")?;
        self.reduce_there(dims, axes, f)
    }

    /// A reduction that every device has.
    fn reduce_named(&self, dims: &[usize], axes: Axes, op: Reduction) -> Result<Self> {
        match self.device() {
            Device::Gpu(_) => {
                let groups = self.groups(dims, axes)?;
                let moved = self.side_by_side(&groups)?;
                let elements = moved.on_gpu()?;
                let gpu = elements.device();
                let found = gpu.reduce(elements, groups.count, groups.size, op)?;
                Ok(Self::from_gpu(groups.shape, found))
            }
            Device::Cpu | Device::Sim(_) => match op {
                Reduction::Sum => self.reduce_there(dims, axes, |v| sum(v) as f32),
                Reduction::Mean => self.reduce_there(dims, axes, |v| mean(v) as f32),
                Reduction::Std => self.reduce_there(dims, axes, |v| variance(v).sqrt() as f32),
                Reduction::Var => self.reduce_there(dims, axes, |v| variance(v) as f32),
                Reduction::Norm => self.reduce_there(dims, axes, |v| {
                    v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt() as f32
                }),
                Reduction::Min => self.reduce_there(dims, axes, |v| extreme(v, |a, b| a < b)),
                Reduction::Max => self.reduce_there(dims, axes, |v| extreme(v, |a, b| a > b)),
            },
        }
    }

    /// With kernels of the processor, where the tensor is.
    fn reduce_there(&self, dims: &[usize], axes: Axes, f: impl Fn(&[f32]) -> f32) -> Result<Self> {
        let groups = self.groups(dims, axes)?;
        let room = self.room_for(&groups.shape)?;
        let moved = self.side_by_side(&groups)?;
        let out = if groups.size == 0 {
            allocate(&[groups.count], f(&[]))?
        } else {
            let mut out = reserve(&[groups.count])?;
            out.extend(moved.values().chunks_exact(groups.size).map(f));
            out
        };
        Ok(Self::kept(groups.shape, room, out))
    }

    /// The tensor with the elements of each group side by side.
    fn side_by_side(&self, groups: &Groups) -> Result<Self> {
        if groups.order.is_sorted() {
            return Ok(self.clone());
        }
        self.permute(&groups.order)
    }

    fn groups(&self, dims: &[usize], axes: Axes) -> Result<Groups> {
        let mut reduced = vec![dims.is_empty(); self.rank()];
        for &d in dims {
            self.check_dim("reduce", d)?;
            reduced[d] = true;
        }
        let shape: Vec<_> = (0..self.rank())
            .filter(|&d| axes == Axes::Keep || !reduced[d])
            .map(|d| if reduced[d] { 1 } else { self.shape()[d] })
            .collect();
        let (inner, outer): (Vec<usize>, Vec<usize>) = (0..self.rank()).partition(|&d| reduced[d]);
        Ok(Groups {
            shape,
            count: outer.iter().map(|&d| self.shape()[d]).product(),
            size: inner.iter().map(|&d| self.shape()[d]).product(),
            order: outer.into_iter().chain(inner).collect(),
        })
    }

    pub fn sum(&self, dims: &[usize], axes: Axes) -> Result<Self> {
        self.reduce_named(dims, axes, Reduction::Sum)
    }

    /// The mean; NaN over nothing.
    pub fn mean(&self, dims: &[usize], axes: Axes) -> Result<Self> {
        self.reduce_named(dims, axes, Reduction::Mean)
    }

    /// Standard deviation with n - 1 in the denominator; NaN for fewer than two elements.
    pub fn std(&self, dims: &[usize], axes: Axes) -> Result<Self> {
        self.reduce_named(dims, axes, Reduction::Std)
    }

    /// Variance with n - 1 in the denominator; NaN for fewer than two elements.
    pub fn var(&self, dims: &[usize], axes: Axes) -> Result<Self> {
        self.reduce_named(dims, axes, Reduction::Var)
    }

    /// Euclidean norm.
    pub fn norm(&self, dims: &[usize], axes: Axes) -> Result<Self> {
        self.reduce_named(dims, axes, Reduction::Norm)
    }

    /// The smallest element of each group; NaN wins, nothing to compare is an error.
    pub fn min(&self, dims: &[usize], axes: Axes) -> Result<Self> {
        self.refuse_empty("min")?;
        self.reduce_named(dims, axes, Reduction::Min)
    }

    /// The largest element of each group; NaN wins, nothing to compare is an error.
    pub fn max(&self, dims: &[usize], axes: Axes) -> Result<Self> {
        self.refuse_empty("max")?;
        self.reduce_named(dims, axes, Reduction::Max)
    }

    fn refuse_empty(&self, op: &'static str) -> Result<()> {
        if self.is_empty() {
            return Err(TensorError::invalid(op, "the tensor has no elements"));
        }
        Ok(())
    }
}

fn sum(values: &[f32]) -> f64 {
    // Four lanes let the additions overlap; the order is fixed, so the result is too.
    let mut lanes = [0.0f64; 4];
    let chunks = values.chunks_exact(4);
    let tail: f64 = chunks.remainder().iter().map(|&v| f64::from(v)).sum();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(v);
        }
    }
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + tail
}

fn mean(values: &[f32]) -> f64 {
    sum(values) / values.len() as f64
}

fn variance(values: &[f32]) -> f64 {
    let centre = mean(values);
    let squares: f64 = values
        .iter()
        .map(|&v| (f64::from(v) - centre).powi(2))
        .sum();
    if values.len() < 2 {
        return f64::NAN;
    }
    squares / (values.len() - 1) as f64
}

fn extreme(values: &[f32], beats: impl Fn(f32, f32) -> bool) -> f32 {
    values
        .iter()
        .copied()
        .reduce(|best, v| {
            if beats(v, best) || v.is_nan() {
                v
            } else {
                best
            }
        })
        .unwrap_or(f32::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_dimensions() {
        let t = Tensor::from_fn([2, 3, 2], |i| i as f32).unwrap();
        assert_eq!(t.sum(&[1], Axes::Drop).unwrap().data(), [6., 9., 24., 27.]);
        assert_eq!(t.sum(&[0, 2], Axes::Keep).unwrap().shape(), [1, 3, 1]);
        assert_eq!(t.sum(&[0, 2], Axes::Keep).unwrap().data(), [14., 22., 30.]);
        assert_eq!(t.mean(&[], Axes::Drop).unwrap().item(), Ok(5.5));
        assert_eq!(
            t.max(&[2], Axes::Drop).unwrap().data(),
            [1., 3., 5., 7., 9., 11.]
        );
        assert_eq!(
            t.min(&[0], Axes::Drop).unwrap().data(),
            [0., 1., 2., 3., 4., 5.]
        );
        assert!(t.sum(&[3], Axes::Drop).is_err());
    }

    #[test]
    fn spread_and_length() {
        let t = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0]);
        assert!((t.std(&[], Axes::Drop).unwrap().item().unwrap() - 1.290_994_4).abs() < 1e-6);
        assert!((t.var(&[0], Axes::Keep).unwrap().data()[0] - 5.0 / 3.0).abs() < 1e-6);
        assert_eq!(
            Tensor::from_slice(&[3.0, 4.0])
                .norm(&[0], Axes::Drop)
                .unwrap()
                .item(),
            Ok(5.0)
        );
        assert!(
            Tensor::scalar(1.0)
                .std(&[], Axes::Drop)
                .unwrap()
                .item()
                .unwrap()
                .is_nan()
        );
    }

    #[test]
    fn empty_groups() {
        let t = Tensor::zeros([2, 0]).unwrap();
        assert_eq!(t.sum(&[1], Axes::Drop).unwrap().data(), [0., 0.]);
        assert!(t.mean(&[1], Axes::Drop).unwrap().data()[0].is_nan());
        assert!(t.max(&[1], Axes::Drop).is_err());
        let nan = Tensor::from_slice(&[1.0, f32::NAN, 2.0]);
        assert!(nan.max(&[], Axes::Drop).unwrap().item().unwrap().is_nan());
        assert!(nan.min(&[], Axes::Drop).unwrap().item().unwrap().is_nan());
    }
}
