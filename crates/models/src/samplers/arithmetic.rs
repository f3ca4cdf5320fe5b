//! What samplers compute with: one pass over all elements per update, and the scalars between noise levels.

use fresco_tensor::Tensor;

use crate::{ModelSampling, Prediction};

/// Writes `f(x, others)` over every element of `x`. All have the shape of `x`: [`super::run::Run`] saw to it.
pub(super) fn update<const N: usize>(
    x: &mut Tensor,
    others: [&Tensor; N],
    f: impl Fn(f32, [f32; N]) -> f32,
) {
    let n = x.len();
    let others = others.map(|t| &t.data()[..n]);
    for (i, v) in x.data_mut().iter_mut().enumerate() {
        *v = f(*v, others.map(|t| t[i]));
    }
}

/// A new tensor of `f(x, others)`.
pub(super) fn combine<const N: usize>(
    x: &Tensor,
    others: [&Tensor; N],
    f: impl Fn(f32, [f32; N]) -> f32,
) -> Tensor {
    let others = others.map(|t| &t.data()[..x.len()]);
    x.map_indexed(|i, v| f(v, others.map(|t| t[i])))
}

/// The sum of tensors of one shape, each times a number; `None` of nothing.
pub(super) fn weighted_sum<'a>(
    terms: impl IntoIterator<Item = (f32, &'a Tensor)>,
) -> Option<Tensor> {
    terms.into_iter().fold(None, |sum, (c, t)| match sum {
        None => Some(t.mul_scalar(c)),
        Some(mut sum) => {
            update(&mut sum, [t], |s, [t]| s + c * t);
            Some(sum)
        }
    })
}

/// The direction of travel: the noise in `x` for one unit of level.
pub(super) fn slope(x: &Tensor, sigma: f32, denoised: &Tensor) -> Tensor {
    combine(x, [denoised], |x, [d]| (x - d) / sigma)
}

/// `x += d * dt`.
pub(super) fn advance(x: &mut Tensor, d: &Tensor, dt: f32) {
    update(x, [d], |x, [d]| x + d * dt);
}

/// Level to go down to and level of noise to add, so that both together make `to`.
pub(super) fn ancestral(from: f32, to: f32, eta: f32) -> (f32, f32) {
    if eta == 0.0 {
        return (to, 0.0);
    }
    let wanted = eta * (to * to * (from * from - to * to) / (from * from)).sqrt();
    // Not `min`: where `from` is infinite, `wanted` is not a number and all of `to` is noise.
    let up = if wanted < to { wanted } else { to };
    ((to * to - up * up).sqrt(), up)
}

/// The same for straight-line models: level to go down to, what to keep of the latent there, and noise to add.
pub(super) struct FlowAncestral {
    pub(super) down: f32,
    pub(super) keep: f32,
    pub(super) renoise: f32,
}

impl FlowAncestral {
    pub(super) fn new(from: f32, to: f32, eta: f32) -> Self {
        let down = to * (1.0 + (to / from - 1.0) * eta);
        let (a, b) = (1.0 - to, 1.0 - down);
        Self {
            down,
            keep: a / b,
            renoise: (to * to - down * down * (a * a) / (b * b)).sqrt(),
        }
    }
}

/// Halfway from one level to another in logarithm.
pub(super) fn log_middle(a: f32, b: f32) -> f32 {
    let (a, b) = (a.ln(), b.ln());
    (b - (b - a) * 0.5).exp()
}

/// `torch.lerp`, which counts from the nearer end.
pub(super) fn lerp(a: f32, b: f32, weight: f32) -> f32 {
    if weight.abs() < 0.5 {
        a + weight * (b - a)
    } else {
        b - (b - a) * (1.0 - weight)
    }
}

/// Whether the model goes on a straight line between noise and picture.
pub(super) fn is_flow(sampling: &ModelSampling) -> bool {
    sampling.prediction == Prediction::Flow
}

/// Half the logarithm of the signal-to-noise ratio at a level.
pub(super) fn half_log_snr(sampling: &ModelSampling, sigma: f32) -> f32 {
    if is_flow(sampling) {
        -(sigma / (1.0 - sigma)).ln()
    } else {
        -sigma.ln()
    }
}

/// The level of a [`half_log_snr`].
pub(super) fn level_of(sampling: &ModelSampling, lambda: f32) -> f32 {
    if is_flow(sampling) {
        1.0 / (1.0 + lambda.exp())
    } else {
        (-lambda).exp()
    }
}

/// The levels, with the first moved a little below pure noise for straight-line models, whose signal-to-noise ratio is
/// zero there.
pub(super) fn off_pure_noise(sampling: &ModelSampling, sigmas: &[f32]) -> Vec<f32> {
    let mut sigmas = sigmas.to_vec();
    if let Some(first) = sigmas.first_mut()
        && is_flow(sampling)
        && *first >= 1.0
    {
        *first = sampling.percent_to_sigma(1e-4) as f32;
    }
    sigmas
}

/// Solves a small linear system by elimination with pivots; not a number where it has no single solution.
pub(super) fn solve(mut rows: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let n = right.len();
    for k in 0..n {
        let size = |row: &Vec<f64>| row[k].abs();
        let best = (k..n).max_by(|&a, &b| size(&rows[a]).total_cmp(&size(&rows[b])));
        let best = best.expect("k is below n");
        rows.swap(k, best);
        right.swap(k, best);
        let (above, below) = rows.split_at_mut(k + 1);
        let pivot = &above[k];
        for (i, row) in below.iter_mut().enumerate() {
            let factor = row[k] / pivot[k];
            for (v, p) in row.iter_mut().zip(pivot).skip(k) {
                *v -= factor * p;
            }
            right[k + 1 + i] -= factor * right[k];
        }
    }
    for k in (0..n).rev() {
        let known: f64 = (k + 1..n).map(|j| rows[k][j] * right[j]).sum();
        right[k] = (right[k] - known) / rows[k][k];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestral_levels_add_up() {
        let (down, up) = ancestral(14.6, 5.0, 1.0);
        assert!((down * down + up * up - 25.0).abs() < 1e-4);
        assert_eq!(ancestral(14.6, 5.0, 0.0), (5.0, 0.0));
        assert_eq!(ancestral(f32::INFINITY, 0.5, 1.0), (0.0, 0.5));
    }

    #[test]
    fn small_systems() {
        let rows = vec![
            vec![0.0, 2.0, 1.0],
            vec![1.0, 1.0, 1.0],
            vec![2.0, 0.0, -1.0],
        ];
        let x = solve(rows, vec![7.0, 6.0, -1.0]);
        for (x, wanted) in x.iter().zip([1.0, 2.0, 3.0]) {
            assert!((x - wanted).abs() < 1e-12);
        }
        let singular = solve(vec![vec![1.0, 1.0], vec![1.0, 1.0]], vec![1.0, 2.0]);
        assert!(singular.iter().any(|v| !v.is_finite()));
    }

    #[test]
    fn levels_and_ratios_are_inverse() {
        for sampling in [
            ModelSampling::flow(3.0, 1000.0),
            ModelSampling::discrete(Prediction::Eps, false),
        ] {
            for sigma in [0.03f32, 0.5, 0.97] {
                let back = level_of(&sampling, half_log_snr(&sampling, sigma));
                assert!((back - sigma).abs() < 1e-6);
            }
        }
    }
}
