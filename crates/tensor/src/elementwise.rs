//! Arithmetic element by element, with NumPy's broadcasting between two tensors.
//!
//! What has a name runs where its tensors are; what takes a closure runs in main memory only.

use crate::arrange::{Offsets, broadcast_strides};
use crate::buffer::{Buffer, or_raise};
use crate::cancel::{CHUNK, Cancel};
use crate::device::Device;
use crate::elements::{element_count, reserve};
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// The shape two tensors have together: sizes are aligned at the end, a missing size or 1 stretches.
pub fn broadcast_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], d: usize| {
        (d + shape.len())
            .checked_sub(rank)
            .map_or(1, |own| shape[own])
    };
    (0..rank)
        .map(|d| match (size(a, d), size(b, d)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(TensorError::mismatch("broadcast", a, b)),
        })
        .collect()
}

/// Arithmetic on two elements that every device has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The smaller; NaN wins.
    Min,
    /// The larger; NaN wins.
    Max,
    /// `a * (1 - weight) + b * weight`.
    Lerp(f32),
}

/// Functions of one element that every device has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Unary {
    Add(f32),
    Sub(f32),
    Mul(f32),
    Div(f32),
    /// The number minus the element.
    SubFrom(f32),
    Abs,
    Sqrt,
    /// Limits to `low..=high`; NaN stays, and `high` wins where the limits cross.
    Clamp(f32, f32),
    /// To the nearest integer, halves to the even one.
    Round,
}

/// A function of every element of a list.
fn map_values(shape: &[usize], values: &[f32], f: impl Fn(f32) -> f32) -> Result<Buffer<f32>> {
    let cancel = Cancel::current();
    let mut out = reserve(shape)?;
    for part in values.chunks(CHUNK) {
        cancel.check()?;
        out.extend(part.iter().map(|&v| f(v)));
    }
    Ok(out)
}

/// A function of the elements of two lists, each with the shape of its tensor, stretched to the shape they have together.
fn zip_values(
    (shape_a, a): (&[usize], &[f32]),
    (shape_b, b): (&[usize], &[f32]),
    shape: &[usize],
    f: impl Fn(f32, f32) -> f32,
) -> Result<Buffer<f32>> {
    let mut out = reserve(shape)?;
    let cancel = Cancel::current();
    if shape_a == shape_b {
        for (a, b) in a.chunks(CHUNK).zip(b.chunks(CHUNK)) {
            cancel.check()?;
            out.extend(a.iter().zip(b).map(|(&x, &y)| f(x, y)));
        }
        return Ok(out);
    }
    if shape.contains(&0) {
        return Ok(out);
    }
    let strides =
        |of: &[usize]| broadcast_strides(of, shape).expect("broadcast_shape accepted both shapes");
    // Merge neighbours that step together in both tensors, so that the inner loops are long.
    let mut dims: Vec<(usize, isize, isize)> = Vec::with_capacity(shape.len());
    for ((&size, sa), sb) in shape.iter().zip(strides(shape_a)).zip(strides(shape_b)) {
        let n = size as isize;
        match dims.last_mut() {
            _ if size == 1 => {}
            Some(last) if last.1 == sa * n && last.2 == sb * n => {
                *last = (last.0 * size, sa, sb);
            }
            _ => dims.push((size, sa, sb)),
        }
    }
    let (inner, ia, ib) = dims.pop().unwrap_or((1, 0, 0));
    let (rows, ra, rb) = dims.pop().unwrap_or((1, 0, 0));
    let sizes: Vec<_> = dims.iter().map(|d| d.0).collect();
    let steps_a: Vec<_> = dims.iter().map(|d| d.1).collect();
    let steps_b: Vec<_> = dims.iter().map(|d| d.2).collect();
    let starts = Offsets::new(&sizes, &steps_a, 0).zip(Offsets::new(&sizes, &steps_b, 0));
    for (start_a, start_b) in starts {
        for row in 0..rows as isize {
            if inner > 0xfff || row & 0xfff == 0xfff {
                cancel.check()?;
            }
            let pa = (start_a + row * ra) as usize;
            let pb = (start_b + row * rb) as usize;
            match (ia, ib) {
                (1, 1) => {
                    let pairs = a[pa..pa + inner].iter().zip(&b[pb..pb + inner]);
                    out.extend(pairs.map(|(&x, &y)| f(x, y)));
                }
                (1, 0) => out.extend(a[pa..pa + inner].iter().map(|&x| f(x, b[pb]))),
                (0, 1) => out.extend(b[pb..pb + inner].iter().map(|&y| f(a[pa], y))),
                _ => out.extend(
                    (0..inner).map(|i| f(a[pa + i * ia as usize], b[pb + i * ib as usize])),
                ),
            }
        }
    }
    Ok(out)
}

impl Tensor {
    /// Applies a function to every element in main memory. Networks use named operations, which devices have too.
    ///
    /// # Panics
    /// If the tensor is on a device, or there is no memory for the result, as in [`Self::data_mut`].
    pub fn map(&self, f: impl Fn(f32) -> f32) -> Self {
        let out = or_raise(map_values(self.shape(), self.data(), f));
        Self::raw(self.shape().to_vec(), out)
    }

    /// Applies a function to every element and its row-major index.
    ///
    /// # Panics
    /// As [`Self::map`].
    pub fn map_indexed(&self, f: impl Fn(usize, f32) -> f32) -> Self {
        let cancel = Cancel::current();
        let mut out = or_raise(reserve(self.shape()));
        for (chunk, part) in self.data().chunks(CHUNK).enumerate() {
            cancel.stop();
            let first = chunk * CHUNK;
            out.extend(part.iter().enumerate().map(|(i, &v)| f(first + i, v)));
        }
        Self::raw(self.shape().to_vec(), out)
    }

    /// Applies a function to every element in place.
    ///
    /// # Panics
    /// As [`Self::map`].
    pub fn map_inplace(&mut self, f: impl Fn(f32) -> f32) {
        let cancel = Cancel::current();
        for part in self.data_mut().chunks_mut(CHUNK) {
            cancel.stop();
            for v in part {
                *v = f(*v);
            }
        }
    }

    /// Combines two tensors in main memory element by element after broadcasting them against each other. Networks use
    /// named operations, which devices have too.
    pub fn zip_map(&self, other: &Self, f: impl Fn(f32, f32) -> f32) -> Result<Self> {
        let (a, b) = (self.host("broadcast")?, other.host("broadcast")?);
        let shape = broadcast_shape(self.shape(), other.shape())?;
        let out = zip_values((self.shape(), a), (other.shape(), b), &shape, f)?;
        Ok(Self::raw(shape, out))
    }

    /// Arithmetic on two tensors, where they are.
    fn binary(&self, other: &Self, op: Binary) -> Result<Self> {
        self.check_device("broadcast", other)?;
        let shape = broadcast_shape(self.shape(), other.shape())?;
        let (room, out) = match self.device() {
            Device::Gpu(_) => {
                element_count(&shape)?;
                let a = self.on_gpu()?;
                let b = other.gpu_in("broadcast", a.format())?;
                let gpu = a.device();
                let (a, b) = ((self.shape(), a), (other.shape(), &*b));
                let found = gpu.binary(a, b, &shape, op)?;
                return Ok(Self::from_gpu(shape, found));
            }
            Device::Cpu | Device::Sim(_) => {
                let room = self.room_for(&shape)?;
                let a = (self.shape(), self.values());
                let b = (other.shape(), other.values());
                let out = match op {
                    Binary::Add => zip_values(a, b, &shape, |a, b| a + b),
                    Binary::Sub => zip_values(a, b, &shape, |a, b| a - b),
                    Binary::Mul => zip_values(a, b, &shape, |a, b| a * b),
                    Binary::Div => zip_values(a, b, &shape, |a, b| a / b),
                    Binary::Min => {
                        zip_values(a, b, &shape, |a, b| if a < b || a.is_nan() { a } else { b })
                    }
                    Binary::Max => {
                        zip_values(a, b, &shape, |a, b| if a > b || a.is_nan() { a } else { b })
                    }
                    Binary::Lerp(weight) => {
                        zip_values(a, b, &shape, |a, b| a * (1.0 - weight) + b * weight)
                    }
                }?;
                (room, out)
            }
        };
        Ok(Self::kept(shape, room, out))
    }

    /// A function of every element, where the tensor is.
    fn unary(&self, op: Unary) -> Result<Self> {
        let shape = self.shape();
        let (room, out) = match self.device() {
            Device::Gpu(_) => {
                let elements = self.on_gpu()?;
                let found = elements.device().unary(elements, op)?;
                return Ok(Self::from_gpu(shape, found));
            }
            Device::Cpu | Device::Sim(_) => {
                let room = self.room_for(shape)?;
                let values = self.values();
                let out = match op {
                    Unary::Add(by) => map_values(shape, values, |v| v + by),
                    Unary::Sub(by) => map_values(shape, values, |v| v - by),
                    Unary::Mul(by) => map_values(shape, values, |v| v * by),
                    Unary::Div(by) => map_values(shape, values, |v| v / by),
                    Unary::SubFrom(from) => map_values(shape, values, |v| from - v),
                    Unary::Abs => map_values(shape, values, f32::abs),
                    Unary::Sqrt => map_values(shape, values, f32::sqrt),
                    Unary::Clamp(low, high) => map_values(shape, values, |v| {
                        let v = if v < low { low } else { v };
                        if v > high { high } else { v }
                    }),
                    Unary::Round => map_values(shape, values, f32::round_ties_even),
                }?;
                (room, out)
            }
        };
        Ok(Self::kept(shape, room, out))
    }

    pub fn add(&self, other: &Self) -> Result<Self> {
        self.binary(other, Binary::Add)
    }

    pub fn sub(&self, other: &Self) -> Result<Self> {
        self.binary(other, Binary::Sub)
    }

    pub fn mul(&self, other: &Self) -> Result<Self> {
        self.binary(other, Binary::Mul)
    }

    /// Division as IEEE has it: by zero gives an infinity or NaN, never an error.
    pub fn div(&self, other: &Self) -> Result<Self> {
        self.binary(other, Binary::Div)
    }

    /// The smaller of two elements; NaN wins.
    pub fn minimum(&self, other: &Self) -> Result<Self> {
        self.binary(other, Binary::Min)
    }

    /// The larger of two elements; NaN wins.
    pub fn maximum(&self, other: &Self) -> Result<Self> {
        self.binary(other, Binary::Max)
    }

    pub fn add_scalar(&self, value: f32) -> Self {
        or_raise(self.unary(Unary::Add(value)))
    }

    pub fn sub_scalar(&self, value: f32) -> Self {
        or_raise(self.unary(Unary::Sub(value)))
    }

    pub fn mul_scalar(&self, value: f32) -> Self {
        or_raise(self.unary(Unary::Mul(value)))
    }

    pub fn div_scalar(&self, value: f32) -> Self {
        or_raise(self.unary(Unary::Div(value)))
    }

    /// `value - self`, as in inverting a mask.
    pub fn rsub_scalar(&self, value: f32) -> Self {
        or_raise(self.unary(Unary::SubFrom(value)))
    }

    pub fn abs(&self) -> Self {
        or_raise(self.unary(Unary::Abs))
    }

    pub fn sqrt(&self) -> Self {
        or_raise(self.unary(Unary::Sqrt))
    }

    /// Limits to `low..=high`; NaN stays, and `high` wins where the limits cross.
    pub fn clamp(&self, low: f32, high: f32) -> Self {
        or_raise(self.unary(Unary::Clamp(low, high)))
    }

    /// Rounds to the nearest integer, halves to the even one.
    pub fn round(&self) -> Self {
        or_raise(self.unary(Unary::Round))
    }

    /// 1 where the comparison holds, else 0.
    pub fn compare(&self, other: &Self, holds: impl Fn(f32, f32) -> bool) -> Result<Self> {
        self.zip_map(other, |a, b| f32::from(u8::from(holds(a, b))))
    }

    /// 1 where the element is above `value`, else 0.
    pub fn gt_scalar(&self, value: f32) -> Self {
        self.map(|v| f32::from(u8::from(v > value)))
    }

    /// 1 where the element is below `value`, else 0.
    pub fn lt_scalar(&self, value: f32) -> Self {
        self.map(|v| f32::from(u8::from(v < value)))
    }

    /// 1 where the element equals `value`, else 0.
    pub fn eq_scalar(&self, value: f32) -> Self {
        self.map(|v| f32::from(u8::from(v == value)))
    }

    /// `yes` where `self` is not 0, else `no`; all three are broadcast.
    pub fn where_else(&self, yes: &Self, no: &Self) -> Result<Self> {
        let shape = broadcast_shape(self.shape(), &broadcast_shape(yes.shape(), no.shape())?)?;
        let (cond, yes, no) = (
            self.expand(&shape)?,
            yes.expand(&shape)?,
            no.expand(&shape)?,
        );
        let pairs = yes.host("where")?.iter().zip(no.host("where")?);
        let choices = cond.host("where")?.iter().zip(pairs);
        let mut out = reserve(&shape)?;
        out.extend(choices.map(|(&c, (&y, &n))| if c == 0.0 { n } else { y }));
        Ok(Self::raw(shape, out))
    }

    /// `self * (1 - weight) + other * weight`.
    pub fn lerp(&self, other: &Self, weight: f32) -> Result<Self> {
        self.binary(other, Binary::Lerp(weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(shape: &[usize], data: &[f32]) -> Tensor {
        Tensor::from_vec(shape, data.to_vec()).unwrap()
    }

    #[test]
    fn broadcasting_matches_index_arithmetic() {
        let cases: [(&[usize], &[usize]); 7] = [
            (&[2, 3, 4, 5], &[2, 3, 4, 1]),
            (&[2, 3, 4, 5], &[1, 3, 1, 1]),
            (&[2, 1, 4], &[3, 1]),
            (&[3, 1], &[2, 1, 4]),
            (&[], &[2, 2]),
            (&[2, 3], &[3]),
            (&[1, 2, 1, 2], &[2, 1, 2, 1]),
        ];
        for (sa, sb) in cases {
            let a = Tensor::from_fn(sa, |i| i as f32).unwrap();
            let b = Tensor::from_fn(sb, |i| 100.0 * i as f32).unwrap();
            let sum = a.add(&b).unwrap();
            let shape = broadcast_shape(sa, sb).unwrap();
            let spread = a.expand(&shape).unwrap().into_vec();
            let expect: Vec<f32> = spread
                .iter()
                .zip(b.expand(&shape).unwrap().data())
                .map(|(x, y)| x + y)
                .collect();
            assert_eq!(
                (sum.shape(), sum.data()),
                (&shape[..], &expect[..]),
                "{sa:?} {sb:?}"
            );
        }
        assert!(t(&[2], &[0., 0.]).add(&t(&[3], &[0.; 3])).is_err());
        assert!(
            Tensor::zeros([0, 3])
                .unwrap()
                .add(&t(&[1, 3], &[0.; 3]))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn special_values() {
        let x = t(&[4], &[-1.0, 0.5, 2.0, f32::NAN]);
        let c = x.clamp(0.0, 1.0);
        assert_eq!(c.data()[..3], [0.0, 0.5, 1.0]);
        assert!(c.data()[3].is_nan());
        assert_eq!(x.clamp(3.0, 1.0).data()[..3], [1.0; 3]);
        assert!(x.maximum(&Tensor::scalar(0.0)).unwrap().data()[3].is_nan());
        assert!(Tensor::scalar(0.0).minimum(&x).unwrap().data()[3].is_nan());
        assert_eq!(
            t(&[4], &[0.5, 1.5, -0.5, 2.5]).round().data(),
            [0., 2., 0., 2.]
        );
    }

    #[test]
    fn comparing_and_choosing() {
        let x = t(&[2, 2], &[0.0, 1.0, 2.0, 3.0]);
        assert_eq!(x.gt_scalar(1.0).data(), [0., 0., 1., 1.]);
        assert_eq!(x.lt_scalar(1.0).data(), [1., 0., 0., 0.]);
        assert_eq!(x.eq_scalar(1.0).data(), [0., 1., 0., 0.]);
        let ge = x.compare(&t(&[2], &[1.0, 2.0]), |a, b| a >= b).unwrap();
        assert_eq!(ge.data(), [0., 0., 1., 1.]);
        let mixed = t(&[2], &[1.0, 0.0])
            .where_else(&x, &Tensor::scalar(9.0))
            .unwrap();
        assert_eq!(mixed.data(), [0., 9., 2., 9.]);
        assert_eq!(
            x.lerp(&Tensor::scalar(4.0), 0.25).unwrap().data(),
            [1., 1.75, 2.5, 3.25]
        );
        assert_eq!(x.rsub_scalar(1.0).data(), [1., 0., -1., -2.]);
    }
}
