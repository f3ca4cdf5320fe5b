//! SA-Solver (Xue et al. 2023): a stochastic Adams method, predictor and corrector.

use std::collections::VecDeque;

use fresco_tensor::Tensor;

use super::arithmetic::{half_log_snr, off_pure_noise, solve, update, weighted_sum};
use super::denoiser::Result;
use super::options::NoiseInterval;
use super::run::Run;

/// Which half of a step coefficients are for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Predictor,
    Corrector,
}

/// A move between two half-log ratios.
#[derive(Clone, Copy)]
struct Move {
    from: f32,
    to: f32,
    sigma_to: f32,
    tau: f32,
}

impl Move {
    /// What each of the predictions at `ratios` counts, in their order.
    fn coefficients(self, ratios: &[f32], half: Half, simple_order_2: bool) -> Vec<f32> {
        let alpha = f64::from(self.sigma_to) * f64::from(self.to).exp();
        let (s, t) = (f64::from(self.from), f64::from(self.to));
        let growth = 1.0 + f64::from(self.tau).powi(2);
        let h = t - s;
        if let ([older, _], true) = (ratios, simple_order_2) {
            let whole = -(-h * growth).exp_m1();
            let (older_part, newer_part) = match half {
                Half::Corrector => {
                    let newer = 0.5 * growth * h;
                    (whole - newer, newer)
                }
                Half::Predictor => {
                    let older = 0.5 * growth * h * h / (f64::from(*older) - s);
                    (older, whole - older)
                }
            };
            return vec![(alpha * older_part) as f32, (alpha * newer_part) as f32];
        }
        let order = ratios.len();
        let decay = (-growth * h).exp();
        let powers: Vec<f64> = (0..order as i32)
            .map(|p| t.powi(p) - s.powi(p) * decay)
            .collect();
        // Integrals of the powers under the exponential, by parts.
        let mut integrals = vec![0.0; order];
        for p in 0..order {
            let below = if p == 0 { 0.0 } else { integrals[p - 1] };
            integrals[p] = powers[p] - p as f64 / growth * below;
        }
        let rows = (0..order as i32)
            .map(|p| ratios.iter().map(|r| f64::from(*r).powi(p)).collect())
            .collect();
        solve(rows, integrals)
            .iter()
            .map(|b| (alpha * b) as f32)
            .collect()
    }

    /// `x` brought to the end of the move.
    fn apply<'a>(
        self,
        x: &Tensor,
        sigma_from: f32,
        coefficients: &[f32],
        predictions: impl Iterator<Item = &'a Tensor>,
        noise: Option<&Tensor>,
    ) -> Tensor {
        let h = self.to - self.from;
        let keep = self.sigma_to / sigma_from * (-(self.tau * self.tau) * h).exp();
        let mut out = x.mul_scalar(keep);
        let terms = coefficients.iter().copied().zip(predictions);
        if let Some(sum) = weighted_sum(terms) {
            update(&mut out, [&sum], |x, [s]| x + s);
        }
        if let Some(noise) = noise {
            update(&mut out, [noise], |x, [n]| x + n);
        }
        out
    }
}

/// `twice` evaluates the model again after the corrector.
pub(super) fn sa_solver(
    run: &mut Run<'_>,
    mut x: Tensor,
    sigmas: &[f32],
    twice: bool,
) -> Result<Tensor> {
    let options = run.options;
    let s_noise = run.s_noise();
    let sampling = run.sampling;
    let interval = options.noise_interval.unwrap_or_else(|| NoiseInterval {
        eta: f64::from(run.eta(1.0)),
        start_sigma: sampling.percent_to_sigma(0.2),
        end_sigma: sampling.percent_to_sigma(0.8),
    });
    let (predictor, corrector) = (options.predictor_order.max(1), options.corrector_order);
    let sigmas = off_pure_noise(sampling, sigmas);
    let steps = sigmas.len() - 1;
    let to_zero = sigmas[steps] == 0.0;
    let ratios: Vec<f32> = sigmas.iter().map(|s| half_log_snr(sampling, *s)).collect();

    // Oldest first.
    let mut predictions: VecDeque<Tensor> = VecDeque::new();
    let mut predicted = x.clone();
    let (mut tau, mut noise) = (0.0, None);
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&predicted, sigma)?;
        run.step(i, sigma, &predicted, &denoised)?;
        if predictions.len() >= predictor.max(corrector) {
            predictions.pop_front();
        }
        predictions.push_back(denoised);
        let known = predictions.len();
        let mut ahead = predictor.min(known);
        let mut back = if i == 0 || (next == 0.0 && !twice) {
            0
        } else {
            corrector.min(known)
        };
        if to_zero {
            ahead = ahead.min(steps - 1 - i);
            back = back.min(steps - i);
        }
        if back == 0 {
            x = predicted;
        } else {
            let step = Move {
                from: ratios[i - 1],
                to: ratios[i],
                sigma_to: sigma,
                tau,
            };
            let places = &ratios[i + 1 - back..=i];
            let c = step.coefficients(places, Half::Corrector, options.simple_order_2);
            let recent = predictions.iter().skip(known - back);
            x = step.apply(&x, sigmas[i - 1], &c, recent, noise.as_ref());
            if twice {
                let again = run.denoise(&x, sigma)?;
                predictions.pop_back();
                predictions.push_back(again);
            }
        }
        if next == 0.0 {
            predicted = predictions[known - 1].clone();
            noise = None;
            continue;
        }
        tau = interval.at(f64::from(next)) as f32;
        let ahead = ahead.max(1);
        let step = Move {
            from: ratios[i],
            to: ratios[i + 1],
            sigma_to: next,
            tau,
        };
        let places = &ratios[i + 1 - ahead..=i];
        let c = step.coefficients(places, Half::Predictor, options.simple_order_2);
        noise = if tau > 0.0 && s_noise > 0.0 {
            let spread = (-(-2.0 * (tau * tau) * (step.to - step.from)).exp_m1()).sqrt();
            let mut fresh = run.noise(&x, sigma, next)?;
            fresh.map_inplace(|n| n * next * spread * s_noise);
            Some(fresh)
        } else {
            None
        };
        let recent = predictions.iter().skip(known - ahead);
        predicted = step.apply(&x, sigma, &c, recent, noise.as_ref());
    }
    Ok(predicted)
}
