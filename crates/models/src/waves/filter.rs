//! Filters that make a sound longer or shorter without new frequencies.

use std::f64::consts::PI;

use fresco_tensor::Tensor;
use fresco_tensor::nn::add_gated;

use super::conv::replicated;
use crate::error::Result;

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        1.0
    } else {
        (PI * x).sin() / (PI * x)
    }
}

/// The modified Bessel function of order zero.
fn bessel(x: f64) -> f64 {
    let mut sum = 1.0;
    let mut term = 1.0;
    for k in 1..64 {
        term *= (x / 2.0 / f64::from(k)).powi(2);
        sum += term;
    }
    sum
}

/// A sinc in Kaiser's window that lets through what is below `cutoff`, 0.5 being all; its values sum up to one.
pub fn kaiser_filter(cutoff: f64, half_width: f64, taps: usize) -> Vec<f32> {
    let half = taps / 2;
    let damping = 2.285 * (half as f64 - 1.0) * PI * 4.0 * half_width + 7.95;
    let beta = if damping > 50.0 {
        0.1102 * (damping - 8.7)
    } else if damping >= 21.0 {
        0.5842 * (damping - 21.0).powf(0.4) + 0.07886 * (damping - 21.0)
    } else {
        0.0
    };
    let middle = (taps as f64 - 1.0) / 2.0;
    let value = |i: usize| {
        let at = if taps.is_multiple_of(2) {
            i as f64 - half as f64 + 0.5
        } else {
            i as f64 - half as f64
        };
        let share = (i as f64 - middle) / middle;
        let window = bessel(beta * (1.0 - share * share).max(0.0).sqrt()) / bessel(beta);
        2.0 * cutoff * window * sinc(2.0 * cutoff * at)
    };
    let values: Vec<f64> = (0..taps).map(value).collect();
    let sum: f64 = values.iter().sum();
    values.iter().map(|v| (v / sum) as f32).collect()
}

/// How far a Hann window reaches, in samples of the input.
const HANN_WIDTH: usize = 7;

/// A sinc in Hann's window, to make a sound `times` as long.
pub fn hann_filter(times: usize) -> Vec<f32> {
    const ROLLOFF: f64 = 0.99;
    const REACH: f64 = 6.0;
    let value = |i: usize| {
        let at = (i as f64 / times as f64 - HANN_WIDTH as f64) * ROLLOFF;
        let window = (at.clamp(-REACH, REACH) * PI / REACH / 2.0).cos().powi(2);
        (sinc(at) * window * ROLLOFF / times as f64) as f32
    };
    (0..=2 * HANN_WIDTH * times).map(value).collect()
}

/// A sum of samples, each so much later and so strong, for `count` samples.
fn weighted(x: &Tensor, taps: &[(usize, f32)], count: usize) -> Result<Tensor> {
    let [b, _, channels] = x.dims3()?;
    let mut sum = Tensor::zeros_on(&x.device(), [b, count, channels])?;
    for (later, strength) in taps {
        let gate = Tensor::full([channels], *strength)?.to(&x.device())?;
        sum = add_gated(sum, &gate, &x.narrow(1, *later, count)?)?;
    }
    Ok(sum)
}

/// (b, n, c) made `times` as long by a filter; `around` samples are repeated at both ends, and as many of the result as the
/// filter reaches before the first are left out.
fn raised_by(
    x: &Tensor,
    filter: &[f32],
    times: usize,
    (around, left_out): (usize, usize),
) -> Result<Tensor> {
    let [b, n, channels] = x.dims3()?;
    let x = replicated(x, around, around)?;
    let mut phases = Vec::with_capacity(times);
    for phase in 0..times {
        let start = phase + left_out;
        let (first, back) = (start % times, start / times);
        let taps = (first..filter.len()).step_by(times).enumerate();
        let taps: Vec<(usize, f32)> = taps
            .filter_map(|(t, at)| Some((back.checked_sub(t)?, filter[at] * times as f32)))
            .collect();
        phases.push(weighted(&x, &taps, n)?);
    }
    let all = Tensor::stack(&phases.iter().collect::<Vec<_>>(), 2)?;
    Ok(all.reshape([b, n * times, channels])?)
}

/// (b, n, c) made `times` as long with a Hann window.
pub fn raised(x: &Tensor, times: usize) -> Result<Tensor> {
    let filter = hann_filter(times);
    raised_by(x, &filter, times, (HANN_WIDTH, 2 * HANN_WIDTH * times))
}

/// Every second sample of what a filter makes.
pub fn lowered(x: &Tensor, filter: &[f32]) -> Result<Tensor> {
    let n = x.dim(1)?;
    let before = filter.len() / 2 - usize::from(filter.len().is_multiple_of(2));
    let x = replicated(x, before, filter.len() / 2)?;
    let count = n.div_ceil(2);
    let [b, length, channels] = x.dims3()?;
    // Even and odd samples by themselves, so that nothing is summed in vain.
    let even = length + length % 2;
    let x = replicated(&x, 0, even - length)?;
    let pairs = x.reshape([b, even / 2, 2 * channels])?;
    let half = |odd: usize| pairs.narrow(2, odd * channels, channels);
    let taps = |odd: usize| -> Vec<(usize, f32)> {
        let own = filter.iter().copied().skip(odd).step_by(2).enumerate();
        own.collect()
    };
    let even = weighted(&half(0)?, &taps(0), count)?;
    Ok(even.add(&weighted(&half(1)?, &taps(1), count)?)?)
}

/// Twice as long and back, around something that makes new frequencies.
pub struct Smoothed {
    filter: Vec<f32>,
}

const TAPS: usize = 12;

impl Default for Smoothed {
    fn default() -> Self {
        Self {
            filter: kaiser_filter(0.25, 0.3, TAPS),
        }
    }
}

impl Smoothed {
    pub fn around(&self, x: &Tensor, f: impl FnOnce(Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let around = TAPS / 2 - 1;
        let left_out = 2 * around + (TAPS - 2) / 2;
        let longer = raised_by(x, &self.filter, 2, (around, left_out))?;
        lowered(&f(longer)?, &self.filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_stay() {
        let x = Tensor::full([1, 9, 2], 0.5).unwrap();
        let through = Smoothed::default().around(&x, Ok).unwrap();
        assert_eq!(through.shape(), [1, 9, 2]);
        assert!(through.data().iter().all(|v| (v - 0.5).abs() < 1e-3));
        let longer = raised(&x, 3).unwrap();
        assert_eq!(longer.shape(), [1, 27, 2]);
        assert!(longer.data().iter().all(|v| (v - 0.5).abs() < 0.02));
        let sum: f32 = kaiser_filter(0.25, 0.3, 12).iter().sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }
}
