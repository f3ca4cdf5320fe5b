//! Products of activations and weights: linear layers and convolutions.

use rayon::prelude::*;

use crate::dtype::Dtype;
use crate::error::Result;
use crate::nn::Act;
use crate::stored::Stored;
use crate::tensor::{Tensor, allocate};

/// Weights of shape (out, channels, taps): a linear layer has one tap, a convolution one per kernel position.
pub(crate) struct Weight {
    stored: Stored,
    out: usize,
    channels: usize,
    taps: usize,
}

/// `act(y + bias + per_item) + add` for rows of outputs.
pub(crate) struct Finish<'a> {
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) per_item: Option<&'a [f32]>,
    pub(crate) rows_per_item: usize,
    pub(crate) act: Act,
    pub(crate) add: Option<&'a [f32]>,
}

/// The input of a convolution: pictures of shape (batch, size, channels), read as if enlarged by repeating pixels and
/// with zeros around.
pub(crate) struct Picture<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) batch: usize,
    pub(crate) size: (usize, usize),
    pub(crate) channels: usize,
    pub(crate) enlarged: (usize, usize),
    pub(crate) kernel: (usize, usize),
    pub(crate) stride: usize,
    /// Zeros above and at the left.
    pub(crate) before: usize,
}

impl Weight {
    pub(crate) fn new(stored: &Stored, out: usize, channels: usize, taps: usize) -> Result<Self> {
        Ok(Self {
            stored: stored.clone(),
            out,
            channels,
            taps,
        })
    }

    pub(crate) fn out(&self) -> usize {
        self.out
    }

    pub(crate) fn channels(&self) -> usize {
        self.channels
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.stored.dtype()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.stored.bytes().len() as u64
    }

    /// The weight as it was given.
    pub(crate) fn unpack(&self) -> Result<Stored> {
        Ok(self.stored.clone())
    }

    /// (out, taps, channels) as f32.
    fn decode(&self) -> Result<Vec<f32>> {
        let flat = self.stored.to_f32()?;
        if self.taps == 1 {
            return Ok(flat.into_vec());
        }
        let mut data = allocate(&[flat.len()], 0.0)?;
        let size = self.channels * self.taps;
        for (from, to) in flat
            .data()
            .chunks_exact(size.max(1))
            .zip(data.chunks_exact_mut(size.max(1)))
        {
            for c in 0..self.channels {
                for t in 0..self.taps {
                    to[t * self.channels + c] = from[c * self.taps + t];
                }
            }
        }
        Ok(data)
    }
}

impl Finish<'_> {
    fn apply(&self, row: usize, y: &mut [f32]) {
        if let Some(bias) = self.bias {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        if let Some(per_item) = self.per_item {
            let at = row / self.rows_per_item * y.len();
            y.iter_mut().zip(&per_item[at..]).for_each(|(y, b)| *y += b);
        }
        y.iter_mut().for_each(|y| *y = act(self.act, *y));
        if let Some(add) = self.add {
            let at = row * y.len();
            y.iter_mut().zip(&add[at..]).for_each(|(y, b)| *y += b);
        }
    }
}

fn act(act: Act, x: f32) -> f32 {
    match act {
        Act::None => x,
        Act::Silu => x / (1.0 + (-x).exp()),
        Act::Gelu => gelu(x),
        Act::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        Act::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
        // Not `max`: NaN stays NaN.
        Act::Relu if x < 0.0 => 0.0,
        Act::Relu => x,
    }
}

fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    // Abramowitz and Stegun 7.1.26 is too coarse; the series and the continued fraction meet at 2.5.
    let z = x.abs() * std::f64::consts::FRAC_1_SQRT_2;
    let erfc = if z < 2.5 {
        let (mut term, mut sum) = (z, z);
        for n in 1..60 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let mut f = 0.0;
        for n in (1..60).rev() {
            f = f64::from(n) / 2.0 / (z + f);
        }
        (-z * z).exp() / (z + f) * 0.5 * std::f64::consts::FRAC_2_SQRT_PI
    };
    let cdf = if x < 0.0 { erfc } else { 2.0 - erfc } * 0.5;
    (x * cdf) as f32
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a, at) = a.as_chunks::<16>();
    let (b, bt) = b.as_chunks::<16>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + at.iter().zip(bt).map(|(a, b)| a * b).sum::<f32>()
}

/// `x` holds `rows` rows of the channels of `weight`.
pub(crate) fn linear(
    weight: &Weight,
    x: &[f32],
    rows: usize,
    shape: &[usize],
    finish: &Finish<'_>,
) -> Result<Tensor> {
    let w = weight.decode()?;
    let mut y = allocate(shape, 0.0)?;
    let k = weight.channels;
    debug_assert_eq!(x.len(), rows * k);
    if !y.is_empty() {
        y.par_chunks_mut(weight.out)
            .enumerate()
            .for_each(|(row, y)| {
                let x = &x[row * k..][..k];
                for (n, y) in y.iter_mut().enumerate() {
                    *y = dot(x, &w[n * k..][..k]);
                }
                finish.apply(row, y);
            });
    }
    Ok(Tensor::raw(shape.to_vec(), y))
}

pub(crate) fn geglu(
    weight: &Weight,
    x: &[f32],
    rows: usize,
    shape: &[usize],
    bias: Option<&[f32]>,
) -> Result<Tensor> {
    let finish = Finish {
        bias,
        per_item: None,
        rows_per_item: rows,
        act: Act::None,
        add: None,
    };
    let both = linear(weight, x, rows, &[rows, weight.out], &finish)?;
    let mut y = allocate(shape, 0.0)?;
    let half = weight.out / 2;
    if half > 0 {
        y.par_chunks_mut(half)
            .zip(both.data().par_chunks(weight.out))
            .for_each(|(y, both)| {
                for (i, y) in y.iter_mut().enumerate() {
                    *y = both[i] * gelu(both[half + i]);
                }
            });
    }
    Ok(Tensor::raw(shape.to_vec(), y))
}

pub(crate) fn conv(
    weight: &Weight,
    picture: &Picture<'_>,
    shape: &[usize; 4],
    finish: &Finish<'_>,
) -> Result<Tensor> {
    let w = weight.decode()?;
    let mut y = allocate(shape, 0.0)?;
    let [_, height, width, out] = *shape;
    let c = picture.channels;
    let (kh, kw) = picture.kernel;
    let source = |at: usize, tap: usize, from: usize, to: usize| {
        let i = (at * picture.stride + tap).checked_sub(picture.before)?;
        (i < to).then(|| i * from / to)
    };
    if !y.is_empty() {
        y.par_chunks_mut(out).enumerate().for_each(|(row, y)| {
            let (b, py, px) = (row / width / height, row / width % height, row % width);
            for ty in 0..kh {
                let Some(iy) = source(py, ty, picture.size.0, picture.enlarged.0) else {
                    continue;
                };
                for tx in 0..kw {
                    let Some(ix) = source(px, tx, picture.size.1, picture.enlarged.1) else {
                        continue;
                    };
                    let at = ((b * picture.size.0 + iy) * picture.size.1 + ix) * c;
                    let x = &picture.data[at..][..c];
                    for (n, y) in y.iter_mut().enumerate() {
                        *y += dot(x, &w[((n * kh + ty) * kw + tx) * c..][..c]);
                    }
                }
            }
            finish.apply(row, y);
        });
    }
    Ok(Tensor::raw(shape.to_vec(), y))
}
