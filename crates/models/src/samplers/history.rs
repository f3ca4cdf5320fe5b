//! Multistep methods on the slope: one evaluation a step, and the slopes of the last steps.

use std::collections::VecDeque;

use fresco_tensor::Tensor;

use super::arithmetic::{slope, update, weighted_sum};
use super::denoiser::Result;
use super::run::Run;
use crate::spread::linspace;

/// The last slopes, newest first.
struct Slopes {
    kept: VecDeque<Tensor>,
    most: usize,
}

impl Slopes {
    fn new(most: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            most,
        }
    }

    fn push(&mut self, d: Tensor) {
        self.kept.truncate(self.most.saturating_sub(1));
        self.kept.push_front(d);
    }

    /// `x += scale * sum(c_j d_j)`, the newest slope first.
    fn step(&self, x: &mut Tensor, coefficients: &[f32], scale: f32) {
        let terms = coefficients.iter().copied().zip(&self.kept);
        if let Some(sum) = weighted_sum(terms) {
            update(x, [&sum], |x, [s]| x + scale * s);
        }
    }
}

/// Points and weights of Gauss and Legendre on [-1, 1]: exact for polynomials of degree `2 count - 1`.
fn gauss_legendre(count: usize) -> Vec<(f64, f64)> {
    let n = count as f64;
    (0..count)
        .map(|k| {
            let mut x = (std::f64::consts::PI * (k as f64 + 0.75) / (n + 0.5)).cos();
            let mut derivative = 1.0;
            // Newton's method from a good first guess settles in a few rounds.
            for _ in 0..20 {
                let (mut p, mut before) = (1.0, 0.0);
                for j in 0..count {
                    let j = j as f64;
                    let next = ((2.0 * j + 1.0) * x * p - j * before) / (j + 1.0);
                    before = p;
                    p = next;
                }
                derivative = n * (x * p - before) / (x * x - 1.0);
                x -= p / derivative;
            }
            (x, 2.0 / ((1.0 - x * x) * derivative * derivative))
        })
        .collect()
}

/// What slope `j` of `order` counts from `levels[i]` to `levels[i + 1]`: the integral of its Lagrange polynomial.
fn adams(levels: &[f32], i: usize, order: usize, j: usize) -> f32 {
    let at = |k: usize| f64::from(levels[i - k]);
    let (from, to) = (f64::from(levels[i]), f64::from(levels[i + 1]));
    let (middle, half) = (0.5 * (from + to), 0.5 * (to - from));
    let polynomial = |t: f64| -> f64 {
        (0..order)
            .filter(|k| *k != j)
            .map(|k| (t - at(k)) / (at(j) - at(k)))
            .product()
    };
    let points = gauss_legendre(order / 2 + 1);
    let sum: f64 = points
        .iter()
        .map(|(x, w)| w * polynomial(middle + half * x))
        .sum();
    (sum * half) as f32
}

/// Linear multistep.
pub(super) fn lms(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let most = run.options.order.unwrap_or(4).max(1);
    let mut slopes = Slopes::new(most);
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        slopes.push(slope(&x, w[0], &denoised));
        if w[1] == 0.0 {
            x = denoised;
            continue;
        }
        let order = most.min(i + 1);
        let coefficients: Vec<f32> = (0..order).map(|j| adams(sigmas, i, order, j)).collect();
        slopes.step(&mut x, &coefficients, 1.0);
    }
    Ok(x)
}

/// Adams and Bashforth, as if all steps were equally long (Zhang et al. 2023).
pub(super) fn ipndm(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    const ORDERS: [&[f32]; 4] = [
        &[1.0],
        &[3.0 / 2.0, -1.0 / 2.0],
        &[23.0 / 12.0, -16.0 / 12.0, 5.0 / 12.0],
        &[55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0],
    ];
    let mut slopes = Slopes::new(ORDERS.len());
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        slopes.push(slope(&x, w[0], &denoised));
        if w[1] == 0.0 {
            x = denoised;
        } else {
            slopes.step(&mut x, ORDERS[i.min(3)], w[1] - w[0]);
        }
    }
    Ok(x)
}

/// The same for steps of different length.
pub(super) fn ipndm_v(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let mut slopes = Slopes::new(4);
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        slopes.push(slope(&x, w[0], &denoised));
        if w[1] == 0.0 {
            x = denoised;
        } else {
            let lengths: Vec<f32> = (0..=i.min(3))
                .map(|k| sigmas[i + 1 - k] - sigmas[i - k])
                .collect();
            slopes.step(&mut x, &variable_adams(&lengths), lengths[0]);
        }
    }
    Ok(x)
}

/// Adams and Bashforth coefficients for steps of the given lengths, this step's first.
fn variable_adams(lengths: &[f32]) -> Vec<f32> {
    let &[h, h1, ref older @ ..] = lengths else {
        return vec![1.0];
    };
    let near = 0.5 * (2.0 + h / h1);
    let far = -(h / h1) / 2.0;
    let &[h2, ref older @ ..] = older else {
        return vec![near, far];
    };
    let bend = (1.0 - h / (3.0 * (h + h1)) * (h * (h + h1)) / (h1 * (h1 + h2))) / 2.0;
    let ratio = h1 / h2;
    let &[h3, ..] = older else {
        return vec![near + bend, far - (1.0 + ratio) * bend, bend * ratio];
    };
    let sum = h + h1 + h2;
    let twist = ((1.0 - h / (3.0 * (h + h1))) / 2.0
        + (1.0 - h / (2.0 * (h + h1))) * h / (6.0 * sum))
        * (h * (h + h1) * sum)
        / (h1 * (h1 + h2) * (h1 + h2 + h3));
    let q = h1 * (h1 + h2) / (h2 * (h2 + h3));
    vec![
        near + bend + twist,
        far - (1.0 + ratio) * bend - (1.0 + ratio + q) * twist,
        bend * ratio + (ratio + q * (1.0 + h2 / h3)) * twist,
        -twist * q * ratio,
    ]
}

/// The variance-preserving equation that DEIS integrates on.
struct Vp {
    beta_min: f32,
    beta_d: f32,
}

impl Vp {
    /// For levels from 0.002 to 80, down to a time of 0.001.
    fn new() -> Self {
        const END: f64 = 1e-3;
        let log = |sigma: f32| f64::from((sigma * sigma + 1.0).ln());
        let (low, high) = (log(0.002), log(80.0));
        let beta_d = 2.0 * (low / END - high) / (END - 1.0);
        Self {
            beta_min: (high - 0.5 * beta_d) as f32,
            beta_d: beta_d as f32,
        }
    }

    fn time(&self, sigma: f32) -> f32 {
        let (min, d) = (self.beta_min, self.beta_d);
        ((min * min + 2.0 * d * (sigma * sigma + 1.0).ln()).sqrt() - min) / d
    }

    fn integrand(&self, t: f32) -> f32 {
        let (b0, gap) = (self.beta_min, self.beta_d);
        let alpha = (-0.5 * (t * t) * gap - t * b0).exp();
        let slope = -t * gap - b0;
        -0.5 * slope / (alpha * (1.0 - alpha)).sqrt()
    }

    /// What each of the last `order` slopes counts in the step from `times[i]`, the newest first.
    fn coefficients(&self, times: &[f32], i: usize, order: usize) -> Vec<f32> {
        const POINTS: usize = 10_000;
        let line = linspace(times[i], times[i + 1], POINTS);
        let width = (times[i + 1] - times[i]) / POINTS as f32;
        let weights: Vec<f32> = line.iter().map(|t| self.integrand(*t)).collect();
        let at = |k: usize| times[i - k];
        (0..order)
            .map(|j| {
                let value = |(t, w): (&f32, &f32)| {
                    let others = (0..order).filter(|k| *k != j);
                    let polynomial: f32 = others.map(|k| (t - at(k)) / (at(j) - at(k))).product();
                    f64::from(w * polynomial)
                };
                let sum: f64 = line.iter().zip(&weights).map(value).sum();
                sum as f32 * width
            })
            .collect()
    }
}

/// DEIS (Zhang and Chen 2023) in time, of third order.
pub(super) fn deis(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    const ORDER: usize = 3;
    let vp = Vp::new();
    let times: Vec<f32> = sigmas.iter().map(|s| vp.time(*s)).collect();
    let mut slopes = Slopes::new(ORDER);
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        slopes.push(slope(&x, w[0], &denoised));
        let order = ORDER.min(i + 1);
        if order == 1 || w[1] <= 0.0 {
            slopes.step(&mut x, &[1.0], w[1] - w[0]);
        } else {
            slopes.step(&mut x, &vp.coefficients(&times, i, order), 1.0);
        }
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_steps_give_the_known_coefficients() {
        let levels = [6.0, 5.0, 4.0, 3.0, 2.0];
        for (j, wanted) in [55.0f32, -59.0, 37.0, -9.0].iter().enumerate() {
            assert!((adams(&levels, 3, 4, j) + wanted / 24.0).abs() < 1e-6);
        }
        // The reference's fourth order is not that of Adams and Bashforth; the goldens have it.
        let variable = variable_adams(&[-1.0; 3]);
        for (c, wanted) in variable.iter().zip([23.0f32, -16.0, 5.0]) {
            assert!((c - wanted / 12.0).abs() < 1e-5, "{variable:?}");
        }
    }

    #[test]
    fn integrals_of_high_order() {
        for count in [1, 2, 7, 51] {
            let points = gauss_legendre(count);
            let sum: f64 = points.iter().map(|(_, w)| w).sum();
            assert!((sum - 2.0).abs() < 1e-12);
            let degree = 2 * count as i32 - 2;
            let power: f64 = points.iter().map(|(x, w)| w * x.powi(degree)).sum();
            assert!((power - 2.0 / f64::from(degree + 1)).abs() < 1e-12);
        }
    }
}
