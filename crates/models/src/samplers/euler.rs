//! Euler's method and what is near to it: one evaluation a step (Heun's: two or three), no memory of earlier steps.

use std::f64::consts::SQRT_2;

use fresco_tensor::{Tensor, nn};

use super::arithmetic::{
    FlowAncestral, advance, ancestral, combine, half_log_snr, is_flow, slope, update,
};
use super::denoiser::Result;
use super::run::Run;

/// The level after the noise that `s_churn` puts back, with that noise on `x` (Karras et al. 2022, algorithm 2).
pub(super) fn churn(run: &mut Run<'_>, x: &mut Tensor, sigma: f32, steps: usize) -> Result<f32> {
    let gamma = churn_of(run, sigma, steps);
    if gamma <= 0.0 {
        return Ok(sigma);
    }
    let noise = run.global_noise(x)?;
    Ok(churned(run, x, sigma, gamma, &noise))
}

fn churn_of(run: &Run<'_>, sigma: f32, steps: usize) -> f64 {
    let options = run.options;
    let level = f64::from(sigma);
    if options.s_churn > 0.0 && options.s_tmin <= level && level <= options.s_tmax {
        (options.s_churn / steps as f64).min(SQRT_2 - 1.0)
    } else {
        0.0
    }
}

fn churned(run: &Run<'_>, x: &mut Tensor, sigma: f32, gamma: f64, noise: &Tensor) -> f32 {
    let hat = sigma * (gamma + 1.0) as f32;
    let (s_noise, scale) = (run.s_noise(), (hat * hat - sigma * sigma).sqrt());
    update(x, [noise], |x, [n]| x + n * s_noise * scale);
    hat
}

/// Karras et al. 2022, algorithm 2 without the correction.
pub(super) fn euler(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    for (i, w) in sigmas.windows(2).enumerate() {
        let hat = churn(run, &mut x, w[0], sigmas.len() - 1)?;
        let denoised = run.denoise(&x, hat)?;
        run.step(i, w[0], &x, &denoised)?;
        x = nn::euler_step(&x, &denoised, hat, w[1])?;
    }
    Ok(x)
}

/// Euler's method with guidance applied to the picture but not to the noise, in its older form.
pub(super) fn euler_pp(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        let uncond = run.uncond(&x)?;
        run.step(i, w[0], &x, &denoised)?;
        let (sigma, dt) = (w[0], w[1] - w[0]);
        update(&mut x, [&denoised, &uncond], |x, [d, u]| {
            x + ((x - d + u) - d) / sigma * dt
        });
    }
    Ok(x)
}

/// Euler's method to a lower level than asked for, and noise up to the level.
pub(super) fn euler_ancestral(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let (eta, s_noise) = (run.eta(1.0), run.s_noise());
    let flow = is_flow(run.sampling);
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        run.step(i, sigma, &x, &denoised)?;
        if flow {
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let to = FlowAncestral::new(sigma, next, eta);
            let ratio = to.down / sigma;
            update(&mut x, [&denoised], |x, [d]| ratio * x + (1.0 - ratio) * d);
            if eta > 0.0 {
                renoise(run, &mut x, (sigma, next), &to)?;
            }
            continue;
        }
        let (down, up) = ancestral(sigma, next, eta);
        if down == 0.0 {
            x = denoised;
            continue;
        }
        let noise = run.noise(&x, sigma, next)?;
        let dt = down - sigma;
        update(&mut x, [&denoised, &noise], |x, [d, n]| {
            x + (x - d) / sigma * dt + n * s_noise * up
        });
    }
    Ok(x)
}

/// Brings a straight-line sample from the lower level back up with noise.
pub(super) fn renoise(
    run: &mut Run<'_>,
    x: &mut Tensor,
    (sigma, next): (f32, f32),
    to: &FlowAncestral,
) -> Result<()> {
    let noise = run.noise(x, sigma, next)?;
    let s_noise = run.s_noise();
    update(x, [&noise], |x, [n]| to.keep * x + n * s_noise * to.renoise);
    Ok(())
}

/// The same with CFG++ (Chung et al. 2024): the direction comes from the prediction without the prompt.
pub(super) fn euler_ancestral_cfg_pp(
    run: &mut Run<'_>,
    mut x: Tensor,
    sigmas: &[f32],
    eta: f32,
) -> Result<Tensor> {
    let s_noise = if eta > 0.0 { run.s_noise() } else { 0.0 };
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        let uncond = run.uncond(&x)?;
        run.step(i, sigma, &x, &denoised)?;
        if next == 0.0 {
            x = denoised;
            continue;
        }
        let alpha = |s: f32| s * half_log_snr(run.sampling, s).exp();
        let (alpha_s, alpha_t) = (alpha(sigma), alpha(next));
        let (down, up) = ancestral(sigma / alpha_s, next / alpha_t, eta);
        let down = alpha_t * down;
        update(&mut x, [&denoised, &uncond], |x, [d, u]| {
            alpha_t * d + down * ((x - alpha_s * u) / sigma)
        });
        if s_noise > 0.0 {
            let noise = run.noise(&x, sigma, next)?;
            update(&mut x, [&noise], |x, [n]| x + alpha_t * n * s_noise * up);
        }
    }
    Ok(x)
}

/// Karras et al. 2022, algorithm 2.
pub(super) fn heun(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    for (i, w) in sigmas.windows(2).enumerate() {
        let next = w[1];
        let hat = churn(run, &mut x, w[0], sigmas.len() - 1)?;
        let denoised = run.denoise(&x, hat)?;
        run.step(i, w[0], &x, &denoised)?;
        let dt = next - hat;
        let d = slope(&x, hat, &denoised);
        if next == 0.0 {
            advance(&mut x, &d, dt);
            continue;
        }
        let there = combine(&x, [&d], |x, [d]| x + d * dt);
        let denoised = run.denoise(&there, next)?;
        update(&mut x, [&d, &there, &denoised], |x, [d, x2, d2]| {
            x + (d + (x2 - d2) / next) * 0.5 * dt
        });
    }
    Ok(x)
}

/// Heun's method with up to three evaluations, weighted by level.
pub(super) fn heunpp2(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let (first, end) = (sigmas[0], sigmas[sigmas.len() - 1]);
    for (i, w) in sigmas.windows(2).enumerate() {
        let next = w[1];
        // Drawn even where it is not used, which moves the generator for whoever draws next.
        let noise = run.global_noise(&x)?;
        let gamma = churn_of(run, w[0], sigmas.len() - 1);
        let hat = if gamma > 0.0 {
            churned(run, &mut x, w[0], gamma, &noise)
        } else {
            w[0]
        };
        drop(noise);
        let denoised = run.denoise(&x, hat)?;
        run.step(i, w[0], &x, &denoised)?;
        let d = slope(&x, hat, &denoised);
        let dt = next - hat;
        let Some(&after) = sigmas.get(i + 2).filter(|_| next != end) else {
            advance(&mut x, &d, dt);
            continue;
        };
        let x2 = combine(&x, [&d], |x, [d]| x + d * dt);
        let d2 = slope(&x2, next, &run.denoise(&x2, next)?);
        if after == end {
            let w2 = next / (2.0 * first);
            let w1 = 1.0 - w2;
            update(&mut x, [&d, &d2], |x, [d, d2]| x + (d * w1 + d2 * w2) * dt);
            continue;
        }
        let dt2 = after - next;
        let x3 = combine(&x2, [&d2], |x, [d]| x + d * dt2);
        let d3 = slope(&x3, after, &run.denoise(&x3, after)?);
        let (w2, w3) = (next / (3.0 * first), after / (3.0 * first));
        let w1 = 1.0 - w2 - w3;
        update(&mut x, [&d, &d2, &d3], |x, [d, d2, d3]| {
            x + (w1 * d + w2 * d2 + w3 * d3) * dt
        });
    }
    Ok(x)
}

/// Ho et al. 2020.
pub(super) fn ddpm(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        run.step(i, sigma, &x, &denoised)?;
        let product = 1.0 / (sigma * sigma + 1.0);
        let product_next = 1.0 / (next * next + 1.0);
        let alpha = product / product_next;
        let (inner, outer) = ((1.0 + sigma * sigma).sqrt(), (1.0 / alpha).sqrt());
        let (noise_part, root) = (1.0 - alpha, (1.0 - product).sqrt());
        update(&mut x, [&denoised], |x, [d]| {
            outer * (x / inner - noise_part * ((x - d) / sigma) / root)
        });
        if next > 0.0 {
            let noise = run.noise(&x, sigma, next)?;
            let spread = ((1.0 - alpha) * (1.0 - product_next) / (1.0 - product)).sqrt();
            let scale = (1.0 + next * next).sqrt();
            update(&mut x, [&noise], |x, [n]| (x + spread * n) * scale);
        }
    }
    Ok(x)
}
