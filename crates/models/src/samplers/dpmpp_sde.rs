//! DPM-Solver++ for the stochastic equation (Lu et al. 2022), with Brownian noise.

use std::collections::VecDeque;

use fresco_tensor::Tensor;

use super::arithmetic::{ancestral, combine, half_log_snr, level_of, off_pure_noise, update};
use super::denoiser::Result;
use super::options::SdeSolver;
use super::run::Run;

/// One half of a step of `dpmpp_sde`: `keep x + take d + noise`.
struct HalfStep {
    keep: f32,
    take: f32,
    noise: f32,
}

impl HalfStep {
    /// From the half-log ratio `from` to `to`; `scale` is what the level there is of its ratio.
    fn new(from: f32, to: f32, scale_from: f32, scale_to: f32, eta: f32) -> Self {
        let (down, up) = ancestral((-from).exp(), (-to).exp(), eta);
        let h = -down.ln() - from;
        Self {
            keep: scale_to / scale_from * (-h).exp(),
            take: scale_to * (-h).exp_m1(),
            noise: up,
        }
    }
}

pub(super) fn dpmpp_sde(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let (eta, s_noise, r) = (run.eta(1.0), run.s_noise(), run.options.r);
    let noisy = eta > 0.0 && s_noise > 0.0;
    let sigmas = off_pure_noise(run.sampling, sigmas);
    let fraction = 1.0 / (2.0 * r);
    let (old_part, new_part) = ((1.0 - fraction) as f32, fraction as f32);
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        run.step(i, sigma, &x, &denoised)?;
        if next == 0.0 {
            x = denoised;
            continue;
        }
        let from = half_log_snr(run.sampling, sigma);
        let to = half_log_snr(run.sampling, next);
        let middle = from + r as f32 * (to - from);
        let sigma_middle = level_of(run.sampling, middle);
        let scale = |sigma: f32, lambda: f32| sigma * lambda.exp();
        let scale_from = scale(sigma, from);
        let (scale_middle, scale_to) = (scale(sigma_middle, middle), scale(next, to));

        let part = HalfStep::new(from, middle, scale_from, scale_middle, eta);
        let mut there = combine(&x, [&denoised], |x, [d]| part.keep * x - part.take * d);
        if noisy {
            let noise = run.noise(&x, sigma, sigma_middle)?;
            update(&mut there, [&noise], |x, [n]| {
                x + scale_middle * n * s_noise * part.noise
            });
        }
        let second = run.denoise(&there, sigma_middle)?;

        let part = HalfStep::new(from, to, scale_from, scale_to, eta);
        update(&mut x, [&denoised, &second], |x, [d, d2]| {
            part.keep * x - part.take * (old_part * d + new_part * d2)
        });
        if noisy {
            let noise = run.noise(&x, sigma, next)?;
            update(&mut x, [&noise], |x, [n]| {
                x + scale_to * n * s_noise * part.noise
            });
        }
    }
    Ok(x)
}

/// A step of the 2M and 3M forms: the scalars, and the part that needs no history.
struct Multistep {
    /// Length of the step in half-log ratio.
    h: f32,
    h_eta: f32,
    alpha: f32,
    noise: f32,
}

impl Multistep {
    fn new(run: &Run<'_>, x: &mut Tensor, denoised: &Tensor, w: &[f32], eta: f32) -> Self {
        let (sigma, next) = (w[0], w[1]);
        let to = half_log_snr(run.sampling, next);
        let h = to - half_log_snr(run.sampling, sigma);
        let h_eta = h * (eta + 1.0);
        let alpha = next * to.exp();
        let keep = next / sigma * (-h * eta).exp();
        let take = alpha * -(-h_eta).exp_m1();
        update(x, [denoised], |x, [d]| keep * x + take * d);
        Self {
            h,
            h_eta,
            alpha,
            noise: next * (-(-2.0 * h * eta).exp_m1()).sqrt(),
        }
    }

    fn add_noise(&self, run: &mut Run<'_>, x: &mut Tensor, w: &[f32], eta: f32) -> Result<()> {
        let s_noise = run.s_noise();
        if eta > 0.0 && s_noise > 0.0 {
            let noise = run.noise(x, w[0], w[1])?;
            update(x, [&noise], |x, [n]| x + n * self.noise * s_noise);
        }
        Ok(())
    }
}

pub(super) fn dpmpp_2m_sde(
    run: &mut Run<'_>,
    mut x: Tensor,
    sigmas: &[f32],
    solver: SdeSolver,
) -> Result<Tensor> {
    let eta = run.eta(1.0);
    let sigmas = off_pure_noise(run.sampling, sigmas);
    let mut last: Option<(Tensor, f32)> = None;
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        if w[1] == 0.0 {
            // Nothing that follows may lean on this step, which is infinitely long.
            x = denoised;
            last = None;
            continue;
        }
        let step = Multistep::new(run, &mut x, &denoised, w, eta);
        if let Some((old, h_last)) = &last {
            let r = h_last / step.h;
            let whole = -(-step.h_eta).exp_m1();
            let bend = match solver {
                SdeSolver::Midpoint => 0.5 * step.alpha * whole * (1.0 / r),
                SdeSolver::Heun => step.alpha * (whole / -step.h_eta + 1.0) * (1.0 / r),
            };
            update(&mut x, [&denoised, old], |x, [d, o]| x + bend * (d - o));
        }
        step.add_noise(run, &mut x, w, eta)?;
        last = Some((denoised, step.h));
    }
    Ok(x)
}

pub(super) fn dpmpp_3m_sde(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let eta = run.eta(1.0);
    let sigmas = off_pure_noise(run.sampling, sigmas);
    // Newest first.
    let mut last: VecDeque<(Tensor, f32)> = VecDeque::new();
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        if w[1] == 0.0 {
            x = denoised;
            last.clear();
            continue;
        }
        let step = Multistep::new(run, &mut x, &denoised, w, eta);
        let alpha = step.alpha;
        let phi2 = (-step.h_eta).exp_m1() / step.h_eta + 1.0;
        match (last.front(), last.get(1)) {
            (Some((d1, h1)), Some((d2, h2))) => {
                let (r0, r1) = (h1 / step.h, h2 / step.h);
                let phi3 = phi2 / step.h_eta - 0.5;
                update(&mut x, [&denoised, d1, d2], |x, [d, d1, d2]| {
                    let near = (d - d1) / r0;
                    let far = (d1 - d2) / r1;
                    let first = near + (near - far) * r0 / (r0 + r1);
                    let second = (near - far) / (r0 + r1);
                    x + alpha * phi2 * first - alpha * phi3 * second
                });
            }
            (Some((d1, h1)), None) => {
                let r = h1 / step.h;
                update(&mut x, [&denoised, d1], |x, [d, d1]| {
                    x + alpha * phi2 * ((d - d1) / r)
                });
            }
            (None, _) => {}
        }
        step.add_noise(run, &mut x, w, eta)?;
        last.truncate(1);
        last.push_front((denoised, step.h));
    }
    Ok(x)
}
