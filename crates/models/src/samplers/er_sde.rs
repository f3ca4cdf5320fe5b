//! Extended reverse-time SDE solver (Cui et al. 2023), up to third order.

use fresco_tensor::Tensor;

use super::arithmetic::{combine, half_log_snr, off_pure_noise, update};
use super::denoiser::Result;
use super::run::Run;

/// Points of the numerical integrals.
const POINTS: usize = 200;

pub(super) fn er_sde(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let s_noise = run.s_noise();
    let (scaler, max_stage) = (run.options.noise_scaler, run.options.max_stage);
    let sigmas = off_pure_noise(run.sampling, sigmas);
    // Noise for one unit of signal, by level.
    let ratios: Vec<f32> = sigmas
        .iter()
        .map(|s| (-half_log_snr(run.sampling, *s)).exp())
        .collect();
    // The last prediction, and the last change of predictions.
    let mut old: Option<Tensor> = None;
    let mut old_change: Option<Tensor> = None;
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        run.step(i, sigma, &x, &denoised)?;
        if next == 0.0 {
            x = denoised.clone();
            old = Some(denoised);
            continue;
        }
        let (from, to) = (ratios[i], ratios[i + 1]);
        let (alpha_from, alpha) = (sigma / from, next / to);
        let r = scaler.scale(to) / scaler.scale(from);
        let (keep, take) = (alpha / alpha_from * r, alpha * (1.0 - r));
        update(&mut x, [&denoised], |x, [d]| keep * x + take * d);
        if let Some(old) = old.filter(|_| max_stage >= 2) {
            let dt = to - from;
            let width = -dt / POINTS as f32;
            let (mut sum, mut moment) = (0.0f64, 0.0f64);
            for k in 0..POINTS {
                let at = to + k as f32 * width;
                let scaled = scaler.scale(at);
                sum += f64::from(1.0 / scaled);
                moment += f64::from((at - from) / scaled);
            }
            let (sum, moment) = (sum as f32 * width, moment as f32 * width);
            let span = from - ratios[i - 1];
            let change = combine(&denoised, [&old], |d, [o]| (d - o) / span);
            let bend = alpha * (dt + sum * scaler.scale(to));
            update(&mut x, [&change], |x, [c]| x + bend * c);
            if let Some(old_change) = old_change.filter(|_| max_stage >= 3) {
                let span = (from - ratios[i - 2]) / 2.0;
                let bend = alpha * (dt * dt / 2.0 + moment * scaler.scale(to));
                update(&mut x, [&change, &old_change], |x, [c, o]| {
                    x + bend * ((c - o) / span)
                });
            }
            old_change = Some(change);
        }
        if s_noise > 0.0 {
            let spread = (to * to - from * from * (r * r)).sqrt();
            let spread = if spread.is_nan() { 0.0 } else { spread };
            let noise = run.noise(&x, sigma, next)?;
            update(&mut x, [&noise], |x, [n]| x + alpha * n * s_noise * spread);
        }
        old = Some(denoised);
    }
    Ok(x)
}
