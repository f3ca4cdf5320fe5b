//! Refined exponential solver, multistep (Zhang et al. 2023), and gradient estimation (Permenter and Yuan 2024).

use fresco_tensor::Tensor;

use super::arithmetic::{ancestral, slope, update};
use super::denoiser::Result;
use super::run::Run;

/// As `torch.nan_to_num`.
fn finite(x: f32) -> f32 {
    if x.is_nan() {
        0.0
    } else {
        x.clamp(f32::MIN, f32::MAX)
    }
}

pub(super) fn res_multistep(
    run: &mut Run<'_>,
    mut x: Tensor,
    sigmas: &[f32],
    eta: f32,
    cfg_pp: bool,
) -> Result<Tensor> {
    let s_noise = run.s_noise();
    // The prediction of the step before, and the level it went down to.
    let mut last: Option<(Tensor, f32)> = None;
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        let uncond = if cfg_pp { Some(run.uncond(&x)?) } else { None };
        run.step(i, sigma, &x, &denoised)?;
        let (down, up) = ancestral(sigma, next, eta);
        match last.filter(|_| down != 0.0) {
            None => {
                if let Some(uncond) = &uncond {
                    update(&mut x, [&denoised, uncond], |x, [d, u]| {
                        d + (x - u) / sigma * down
                    });
                } else {
                    let dt = down - sigma;
                    update(&mut x, [&denoised], |x, [d]| x + (x - d) / sigma * dt);
                }
            }
            Some((old, old_down)) => {
                let t = -sigma.ln();
                let h = -down.ln() - t;
                let c2 = (-sigmas[i - 1].ln() + old_down.ln()) / h;
                let phi1 = (-h).exp_m1() / -h;
                let phi2 = (phi1 - 1.0) / -h;
                let (b1, b2) = (finite(phi1 - phi2 / c2), finite(phi2 / c2));
                let shrink = (-h).exp();
                match &uncond {
                    Some(uncond) => {
                        update(&mut x, [&denoised, uncond, &old], |x, [d, u, o]| {
                            shrink * (x + (d - u)) + h * (b1 * u + b2 * o)
                        });
                    }
                    None => update(&mut x, [&denoised, &old], |x, [d, o]| {
                        shrink * x + h * (b1 * d + b2 * o)
                    }),
                }
            }
        }
        if next > 0.0 {
            let noise = run.noise(&x, sigma, next)?;
            update(&mut x, [&noise], |x, [n]| x + n * s_noise * up);
        }
        last = Some((uncond.unwrap_or(denoised), down));
    }
    Ok(x)
}

pub(super) fn gradient_estimation(
    run: &mut Run<'_>,
    mut x: Tensor,
    sigmas: &[f32],
    cfg_pp: bool,
) -> Result<Tensor> {
    let gain = (run.options.ge_gamma - 1.0) as f32;
    let mut old: Option<Tensor> = None;
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        let d = if cfg_pp {
            slope(&x, sigma, &run.uncond(&x)?)
        } else {
            slope(&x, sigma, &denoised)
        };
        run.step(i, sigma, &x, &denoised)?;
        if next == 0.0 {
            x = denoised;
        } else {
            let dt = next - sigma;
            if cfg_pp {
                update(&mut x, [&denoised, &d], |_, [clean, d]| clean + d * next);
            } else {
                update(&mut x, [&d], |x, [d]| x + d * dt);
            }
            if let Some(old) = &old {
                update(&mut x, [&d, old], |x, [d, o]| x + gain * (d - o) * dt);
            }
        }
        old = Some(d);
    }
    Ok(x)
}
