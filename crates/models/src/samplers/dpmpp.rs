//! DPM-Solver++ without a stochastic equation (Lu et al. 2022): 2S and 2M, and both with CFG++.

use fresco_tensor::Tensor;

use super::arithmetic::{FlowAncestral, ancestral, combine, is_flow, update};
use super::denoiser::Result;
use super::euler::renoise;
use super::run::Run;

fn add_noise(run: &mut Run<'_>, x: &mut Tensor, w: &[f32], up: f32) -> Result<()> {
    if w[1] > 0.0 {
        let noise = run.noise(x, w[0], w[1])?;
        let s_noise = run.s_noise();
        update(x, [&noise], |x, [n]| x + n * s_noise * up);
    }
    Ok(())
}

pub(super) fn dpmpp_2s_ancestral(
    run: &mut Run<'_>,
    mut x: Tensor,
    sigmas: &[f32],
) -> Result<Tensor> {
    if is_flow(run.sampling) {
        return dpmpp_2s_ancestral_flow(run, x, sigmas);
    }
    let eta = run.eta(1.0);
    for (i, w) in sigmas.windows(2).enumerate() {
        let sigma = w[0];
        let denoised = run.denoise(&x, sigma)?;
        let (down, up) = ancestral(sigma, w[1], eta);
        run.step(i, sigma, &x, &denoised)?;
        if down == 0.0 {
            let dt = down - sigma;
            update(&mut x, [&denoised], |x, [d]| x + (x - d) / sigma * dt);
        } else {
            let way = Halfway::new(sigma, down);
            let middle = combine(&x, [&denoised], |x, [d]| way.to_middle * x - way.half * d);
            let denoised = run.denoise(&middle, way.middle)?;
            update(&mut x, [&denoised], |x, [d]| way.to_end * x - way.whole * d);
        }
        add_noise(run, &mut x, w, up)?;
    }
    Ok(x)
}

/// The factors of a step with an evaluation in its middle.
struct Halfway {
    middle: f32,
    to_middle: f32,
    half: f32,
    to_end: f32,
    whole: f32,
}

impl Halfway {
    fn new(sigma: f32, down: f32) -> Self {
        let level = |t: f32| (-t).exp();
        let (t, next) = (-sigma.ln(), -down.ln());
        let h = next - t;
        let s = t + 0.5 * h;
        Self {
            middle: level(s),
            to_middle: level(s) / level(t),
            half: (-h * 0.5).exp_m1(),
            to_end: level(next) / level(t),
            whole: (-h).exp_m1(),
        }
    }
}

/// The level in the middle of a step of a straight-line model.
fn flow_middle(sigma: f32, down: f32) -> f32 {
    if sigma == 1.0 {
        return 0.9999;
    }
    let ratio = |s: f32| ((1.0 - s) / s).ln();
    let (t, next) = (ratio(sigma), ratio(down));
    let s = t + 0.5 * (next - t);
    1.0 / (s.exp() + 1.0)
}

fn dpmpp_2s_ancestral_flow(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let eta = run.eta(1.0);
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        run.step(i, sigma, &x, &denoised)?;
        let to = FlowAncestral::new(sigma, next, eta);
        if next == 0.0 {
            let dt = to.down - sigma;
            update(&mut x, [&denoised], |x, [d]| x + (x - d) / sigma * dt);
            continue;
        }
        let middle = flow_middle(sigma, to.down);
        let ratio = middle / sigma;
        let there = combine(&x, [&denoised], |x, [d]| ratio * x + (1.0 - ratio) * d);
        let denoised = run.denoise(&there, middle)?;
        let ratio = to.down / sigma;
        update(&mut x, [&denoised], |x, [d]| ratio * x + (1.0 - ratio) * d);
        if next > 0.0 && eta > 0.0 {
            renoise(run, &mut x, (sigma, next), &to)?;
        }
    }
    Ok(x)
}

pub(super) fn dpmpp_2s_ancestral_cfg_pp(
    run: &mut Run<'_>,
    mut x: Tensor,
    sigmas: &[f32],
) -> Result<Tensor> {
    let eta = run.eta(1.0);
    for (i, w) in sigmas.windows(2).enumerate() {
        let sigma = w[0];
        let first = run.denoise(&x, sigma)?;
        let uncond = run.uncond(&x)?;
        let (down, up) = ancestral(sigma, w[1], eta);
        run.step(i, sigma, &x, &first)?;
        if down == 0.0 {
            update(&mut x, [&first, &uncond], |x, [d, u]| {
                d + (x - u) / sigma * down
            });
        } else {
            let way = Halfway::new(sigma, down);
            let middle = combine(&x, [&first, &uncond], |x, [d, u]| {
                way.to_middle * (x + (d - u)) - way.half * d
            });
            let denoised = run.denoise(&middle, way.middle)?;
            // Of the call in the middle, while the picture it is compared with is of the first.
            let uncond = run.uncond(&x)?;
            update(&mut x, [&first, &denoised, &uncond], |x, [d, d2, u]| {
                way.to_end * (x + (d - u)) - way.whole * d2
            });
        }
        add_noise(run, &mut x, w, up)?;
    }
    Ok(x)
}

pub(super) fn dpmpp_2m(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let mut old: Option<Tensor> = None;
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        let (t, next) = (-w[0].ln(), -w[1].ln());
        let h = next - t;
        let (ratio, whole) = ((-next).exp() / (-t).exp(), (-h).exp_m1());
        match old.filter(|_| w[1] != 0.0) {
            None => update(&mut x, [&denoised], |x, [d]| ratio * x - whole * d),
            Some(old) => {
                let r = (t + sigmas[i - 1].ln()) / h;
                let (new_part, old_part) = (1.0 + 1.0 / (2.0 * r), 1.0 / (2.0 * r));
                update(&mut x, [&denoised, &old], |x, [d, o]| {
                    ratio * x - whole * (new_part * d - old_part * o)
                });
            }
        }
        old = Some(denoised);
    }
    Ok(x)
}

pub(super) fn dpmpp_2m_cfg_pp(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let mut old: Option<Tensor> = None;
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        let uncond = run.uncond(&x)?;
        run.step(i, w[0], &x, &denoised)?;
        let (t, next) = (-w[0].ln(), -w[1].ln());
        let h = next - t;
        let shrink = (-h).exp();
        match old.filter(|_| w[1] != 0.0) {
            None => update(&mut x, [&denoised, &uncond], |x, [d, u]| {
                d + -shrink * u + shrink * x
            }),
            Some(old) => {
                let r = (t + sigmas[i - 1].ln()) / h;
                let part = (-h).exp_m1() * (1.0 / (2.0 * r));
                update(&mut x, [&denoised, &uncond, &old], |x, [d, u, o]| {
                    d + (-shrink * u - part * (d - o)) + shrink * x
                });
            }
        }
        old = Some(uncond);
    }
    Ok(x)
}
