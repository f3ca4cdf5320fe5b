//! Statistics of channels and rows, and their normalisation.
//!
//! Sums are taken of differences from a value of the data, so that a large mean costs no digits; pieces have fixed
//! sizes and are added in a fixed order in f64, whatever the number of threads.

#![expect(
    unsafe_code,
    reason = "vector instructions need pointers and a check that the machine has them"
)]

use std::marker::PhantomData;

use rayon::prelude::*;

use super::isa::Isa;
use super::math::Function;
use super::math_lanes::{Kernel, Lanes, dispatch};
use super::output::{Output, OutputPlace};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::tensor::Tensor;

/// Pixels that are added up in f32 before their sum goes to f64.
const RUN: usize = 64;
/// Elements that one task works on.
const TASK: usize = 1 << 15;

/// Mean and variance of groups of channels of each picture of (items, pixels, channels): (items * groups).
fn group_statistics(
    isa: Isa,
    x: &[f32],
    items: usize,
    channels: usize,
    groups: usize,
) -> Vec<(f64, f64)> {
    let size = x.len() / items;
    let pixels = size / channels;
    let runs = pixels.div_ceil(RUN);
    let per_task = (TASK / (RUN * channels)).max(1);
    let tasks = runs.div_ceil(per_task);
    // Per task and channel: the sums of differences and of their squares.
    let mut sums = vec![0.0f64; items * tasks * channels * 2];
    sums.par_chunks_mut(channels * 2)
        .enumerate()
        .for_each(|(i, sums)| {
            let (item, task) = (i / tasks, i % tasks);
            let picture = &x[item * size..][..size];
            let mut run_sums = vec![0.0f32; channels * 2];
            for run in task * per_task..runs.min((task + 1) * per_task) {
                let part = &picture[run * RUN * channels..size.min((run + 1) * RUN * channels)];
                dispatch(
                    isa,
                    ChannelSums {
                        part,
                        origin: &picture[..channels],
                        sums: &mut run_sums,
                    },
                );
                for (sum, &run) in sums.iter_mut().zip(&run_sums) {
                    *sum += f64::from(run);
                }
            }
        });
    let width = channels / groups;
    (0..items * groups)
        .into_par_iter()
        .map(|i| {
            let (item, group) = (i / groups, i % groups);
            let of_tasks = &sums[item * tasks * channels * 2..][..tasks * channels * 2];
            let count = pixels as f64;
            // Means and squared deviations of the channels, then of the group.
            let moments: Vec<(f64, f64)> = (group * width..(group + 1) * width)
                .map(|channel| {
                    let (mut sum, mut squares) = (0.0, 0.0);
                    for task in of_tasks.chunks_exact(channels * 2) {
                        sum += task[channel];
                        squares += task[channels + channel];
                    }
                    let origin = f64::from(x[item * size + channel]);
                    (origin + sum / count, squares - sum * sum / count)
                })
                .collect();
            let mean = moments.iter().map(|m| m.0).sum::<f64>() / width as f64;
            let deviations: f64 = moments
                .iter()
                .map(|m| m.1 + count * (m.0 - mean).powi(2))
                .sum();
            // Rounding can leave a picture of one colour slightly below zero.
            (mean, (deviations / (count * width as f64)).max(0.0))
        })
        .collect()
}

/// Sums over some pixels, for every channel: of `x - origin` first, then of its square.
struct ChannelSums<'a> {
    part: &'a [f32],
    origin: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for ChannelSums<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let channels = self.origin.len();
        let pixels = self.part.len() / channels;
        let (x, origin) = (self.part.as_ptr(), self.origin.as_ptr());
        let sums = self.sums.as_mut_ptr();
        // SAFETY: the caller promises the instruction set; `part` has `pixels` times `channels` numbers, `origin`
        // `channels` and `sums` twice as many.
        unsafe {
            let mut c = 0;
            while c + 4 * V::N <= channels {
                let o: [V; 4] = [
                    V::load(origin.add(c)),
                    V::load(origin.add(c + V::N)),
                    V::load(origin.add(c + 2 * V::N)),
                    V::load(origin.add(c + 3 * V::N)),
                ];
                let (mut s, mut q) = ([V::zero(); 4], [V::zero(); 4]);
                let mut p = x.add(c);
                for _ in 0..pixels {
                    for i in 0..4 {
                        let v = V::load(p.add(i * V::N)).sub(o[i]);
                        s[i] = s[i].add(v);
                        q[i] = v.mul_add(v, q[i]);
                    }
                    p = p.wrapping_add(channels);
                }
                for i in 0..4 {
                    s[i].store(sums.add(c + i * V::N));
                    q[i].store(sums.add(channels + c + i * V::N));
                }
                c += 4 * V::N;
            }
            while c < channels {
                let n = V::N.min(channels - c);
                let o = V::load_part(origin.add(c), n);
                let (mut s, mut q) = (V::zero(), V::zero());
                for pixel in 0..pixels {
                    let v = V::load_part(x.add(pixel * channels + c), n).sub(o);
                    s = s.add(v);
                    q = v.mul_add(v, q);
                }
                s.store_part(sums.add(c), n);
                q.store_part(sums.add(channels + c), n);
                c += n;
            }
        }
    }
}

/// Group norm of (items, pixels, channels) and a function of the result. `x` is not empty.
pub(crate) fn group_norm<F: Function>(
    isa: Isa,
    x: &Tensor,
    groups: usize,
    weight: &[f32],
    bias: &[f32],
    eps: f32,
) -> Result<Buffer<f32>> {
    let mut out = Output::new(x.shape())?;
    let items = x.shape()[0];
    let affine = group_affine(isa, x.values(), items, groups, weight, bias, eps);
    let place = out.place();
    let from = OutputPlace::reading(x.values().as_ptr());
    apply::<F>(isa, from, x.len(), items, &affine, place);
    // SAFETY: `apply` wrote all items and all their elements.
    Ok(unsafe { out.finish() })
}

/// The same in the memory of `x`.
pub(crate) fn group_norm_in_place<F: Function>(
    isa: Isa,
    x: &mut Tensor,
    groups: usize,
    weight: &[f32],
    bias: &[f32],
    eps: f32,
) -> Result<()> {
    let items = x.shape()[0];
    let affine = group_affine(isa, x.values(), items, groups, weight, bias, eps);
    let data = x.values_mut()?;
    let len = data.len();
    let place = OutputPlace::new(data);
    apply::<F>(isa, place, len, items, &affine, place);
    Ok(())
}

/// One multiplication and one addition per element: factors and offsets of every item's channels.
fn group_affine(
    isa: Isa,
    x: &[f32],
    items: usize,
    groups: usize,
    weight: &[f32],
    bias: &[f32],
    eps: f32,
) -> (Vec<f32>, Vec<f32>) {
    let channels = weight.len();
    let statistics = group_statistics(isa, x, items, channels, groups);
    let width = channels / groups;
    (0..items * channels)
        .map(|i| {
            let (item, channel) = (i / channels, i % channels);
            let (mean, variance) = statistics[item * groups + channel / width];
            let factor = f64::from(weight[channel]) / (variance + f64::from(eps)).sqrt();
            (
                factor as f32,
                (f64::from(bias[channel]) - mean * factor) as f32,
            )
        })
        .unzip()
}

/// `f(x * factor + offset)` of the `len` numbers at `from` to `place`, which may be the same.
fn apply<F: Function>(
    isa: Isa,
    from: OutputPlace,
    len: usize,
    items: usize,
    (factors, offsets): &(Vec<f32>, Vec<f32>),
    place: OutputPlace,
) {
    let channels = factors.len() / items;
    let size = len / items;
    let rows = (TASK / channels).max(1) * channels;
    let tasks = size.div_ceil(rows);
    (0..items * tasks).into_par_iter().for_each(|i| {
        let (item, task) = (i / tasks, i % tasks);
        let first = item * size + task * rows;
        let last = item * size + size.min((task + 1) * rows);
        dispatch(
            isa,
            Affine::<F> {
                // SAFETY: the task's part of the input.
                x: unsafe { from.at(first) }.cast_const(),
                len: last - first,
                factors: &factors[item * channels..][..channels],
                offsets: &offsets[item * channels..][..channels],
                // SAFETY: each task writes the part of the result that it reads of `x`.
                out: unsafe { place.at(first) },
                function: PhantomData,
            },
        );
    });
}

/// `f(x * factor + offset)` by channel.
struct Affine<'a, F> {
    x: *const f32,
    /// Numbers in `x`.
    len: usize,
    factors: &'a [f32],
    offsets: &'a [f32],
    /// Room for as many numbers as `x` has; may be `x` itself, for each is read before its place is written.
    out: *mut f32,
    function: PhantomData<F>,
}

impl<F: Function> Kernel for Affine<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let channels = self.factors.len();
        let (factors, offsets) = (self.factors.as_ptr(), self.offsets.as_ptr());
        // SAFETY: the caller promises the instruction set; `x` and `out` have whole pixels of `channels` numbers.
        unsafe {
            for pixel in 0..self.len / channels {
                let x = self.x.add(pixel * channels);
                let out = self.out.add(pixel * channels);
                let mut c = 0;
                while c + V::N <= channels {
                    let y =
                        V::load(x.add(c)).mul_add(V::load(factors.add(c)), V::load(offsets.add(c)));
                    F::of(y).store(out.add(c));
                    c += V::N;
                }
                if c < channels {
                    let n = channels - c;
                    let y = V::load_part(x.add(c), n).mul_add(
                        V::load_part(factors.add(c), n),
                        V::load_part(offsets.add(c), n),
                    );
                    F::of(y).store_part(out.add(c), n);
                }
            }
        }
    }
}

/// How the rows of a layer norm are changed afterwards: times `factor`, plus `offset`. Rows share both in blocks.
pub(crate) struct RowAffine<'a> {
    pub(crate) factors: &'a [f32],
    pub(crate) offsets: &'a [f32],
    /// Rows that share factors and offsets.
    pub(crate) rows: usize,
}

/// Which statistics of a row are taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowNorm {
    /// Mean and variance.
    Layer,
    /// Root of the mean square.
    Rms,
}

/// Normalises rows of `width` numbers. `x` is not empty.
pub(crate) fn row_norm(
    isa: Isa,
    kind: RowNorm,
    x: &Tensor,
    width: usize,
    affine: Option<&RowAffine<'_>>,
    eps: f32,
) -> Result<Buffer<f32>> {
    let mut out = Output::new(x.shape())?;
    let rows = x.len() / width;
    let per_task = (TASK / width).max(1);
    let place = out.place();
    (0..rows.div_ceil(per_task))
        .into_par_iter()
        .for_each(|task| {
            for row in task * per_task..rows.min((task + 1) * per_task) {
                let affine = affine.map(|a| {
                    let first = row / a.rows * width;
                    (
                        &a.factors[first..first + width],
                        &a.offsets[first..first + width],
                    )
                });
                dispatch(
                    isa,
                    Row {
                        kind,
                        x: &x.values()[row * width..][..width],
                        affine,
                        eps,
                        // SAFETY: each row of the result is written by the task of that row.
                        out: unsafe { place.at(row * width) },
                    },
                );
            }
        });
    // SAFETY: the tasks cover all rows.
    Ok(unsafe { out.finish() })
}

struct Row<'a> {
    kind: RowNorm,
    x: &'a [f32],
    /// Factors and offsets, as long as `x`.
    affine: Option<(&'a [f32], &'a [f32])>,
    eps: f32,
    /// Room for as many numbers as `x` has.
    out: *mut f32,
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let n = self.x.len();
        let x = self.x.as_ptr();
        let mean = match self.kind {
            // SAFETY: the caller promises the instruction set.
            RowNorm::Layer => (unsafe { sum::<V>(self.x, 0.0, false) } / n as f64) as f32,
            RowNorm::Rms => 0.0,
        };
        // SAFETY: the caller promises the instruction set.
        let squares = unsafe { sum::<V>(self.x, mean, true) };
        let inverse = (1.0 / (squares / n as f64 + f64::from(self.eps)).sqrt()) as f32;
        // SAFETY: the caller promises the instruction set; all slices and `out` have `n` numbers.
        unsafe {
            let (mean, inverse) = (V::splat(mean), V::splat(inverse));
            let mut i = 0;
            while i < n {
                let part = V::N.min(n - i);
                let whole = part == V::N;
                let load = |p: *const f32| {
                    if whole {
                        V::load(p.add(i))
                    } else {
                        V::load_part(p.add(i), part)
                    }
                };
                let mut y = load(x).sub(mean).mul(inverse);
                if let Some((factors, offsets)) = self.affine {
                    y = y.mul_add(load(factors.as_ptr()), load(offsets.as_ptr()));
                }
                if whole {
                    y.store(self.out.add(i));
                } else {
                    y.store_part(self.out.add(i), part);
                }
                i += part;
            }
        }
    }
}

/// The sum of `x - origin`, or of its square. Runs of at most 64 numbers per lane are added in f32.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
unsafe fn sum<V: Lanes>(x: &[f32], origin: f32, squared: bool) -> f64 {
    let mut total = 0.0;
    // SAFETY: the caller promises the instruction set; loads stay inside the runs.
    unsafe {
        let o = V::splat(origin);
        for run in x.chunks(RUN * V::N) {
            let mut s = [V::zero(); 2];
            let vectors = run.len() / V::N;
            for i in 0..vectors {
                let v = V::load(run.as_ptr().add(i * V::N)).sub(o);
                s[i % 2] = if squared {
                    v.mul_add(v, s[i % 2])
                } else {
                    s[i % 2].add(v)
                };
            }
            total += f64::from(s[0].add(s[1]).sum());
            for &v in &run[vectors * V::N..] {
                let v = f64::from(v) - f64::from(origin);
                total += if squared { v * v } else { v };
            }
        }
    }
    total
}
