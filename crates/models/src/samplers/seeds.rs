//! SEEDS (Gonzalez et al. 2023): exponential solvers of the stochastic equation with two or three evaluations a step, and
//! Heun's method in the same form.

use fresco_tensor::Tensor;

use super::arithmetic::{combine, half_log_snr, lerp, level_of, off_pure_noise, update};
use super::denoiser::Result;
use super::options::SeedsSolver;
use super::run::Run;
use crate::ModelSampling;

/// The knobs of the two-evaluation form.
struct Knobs {
    eta: f32,
    s_noise: f32,
    r: f64,
    solver: SeedsSolver,
}

pub(super) fn seeds_2(run: &mut Run<'_>, x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let knobs = Knobs {
        eta: run.eta(1.0),
        s_noise: run.s_noise(),
        r: run.options.r,
        solver: run.options.seeds_solver,
    };
    two_stage(run, x, sigmas, &knobs)
}

/// With the second evaluation at the end of the step; without noise or with it.
pub(super) fn exp_heun_2_x0(
    run: &mut Run<'_>,
    x: Tensor,
    sigmas: &[f32],
    noisy: bool,
) -> Result<Tensor> {
    let knobs = Knobs {
        eta: if noisy { run.eta(1.0) } else { 0.0 },
        s_noise: if noisy { run.s_noise() } else { 0.0 },
        r: 1.0,
        solver: SeedsSolver::Phi2,
    };
    two_stage(run, x, sigmas, &knobs)
}

/// `z phi_2(z)`.
fn phi_2(z: f32) -> f32 {
    (z.exp_m1() - z) / z
}

/// One step between two levels.
struct Way<'a> {
    sampling: &'a ModelSampling,
    sigma: f32,
    from: f32,
    h: f32,
    eta: f32,
}

/// A place on the way.
struct SubStep {
    sigma: f32,
    alpha: f32,
    /// What is kept of `x`.
    keep: f32,
    /// The exponent of the equation there.
    whole: f32,
}

impl<'a> Way<'a> {
    fn new(sampling: &'a ModelSampling, w: &[f32], eta: f32) -> Self {
        let from = half_log_snr(sampling, w[0]);
        Self {
            sampling,
            sigma: w[0],
            from,
            h: half_log_snr(sampling, w[1]) - from,
            eta,
        }
    }

    /// The place after the part `r`, at a half-log ratio.
    fn place(&self, r: f32, lambda: f32, sigma: f32) -> SubStep {
        SubStep {
            sigma,
            alpha: sigma * lambda.exp(),
            keep: sigma / self.sigma * (-r * self.h * self.eta).exp(),
            whole: (-r * (self.h * (self.eta + 1.0))).exp_m1(),
        }
    }

    fn middle(&self, r: f32) -> SubStep {
        let lambda = lerp(self.from, self.from + self.h, r);
        self.place(r, lambda, level_of(self.sampling, lambda))
    }

    fn end(&self, next: f32) -> SubStep {
        self.place(1.0, half_log_snr(self.sampling, next), next)
    }

    /// `-h (eta + 1)` for the part `r`.
    fn exponent(&self, r: f32) -> f32 {
        -r * (self.h * (self.eta + 1.0))
    }
}

/// Noise along one step: what was drawn fades, and more comes to it.
struct Noise {
    sum: Option<Tensor>,
    at: f32,
    r: f32,
}

impl Noise {
    fn new(sigma: f32) -> Self {
        Self {
            sum: None,
            at: sigma,
            r: 0.0,
        }
    }

    /// Goes on to the part `r` of the step and adds the noise there to `x`.
    fn add(
        &mut self,
        run: &mut Run<'_>,
        x: &mut Tensor,
        way: &Way<'_>,
        r: f32,
        sigma: f32,
        s_noise: f32,
    ) -> Result<()> {
        let fresh = run.noise(x, self.at, sigma)?;
        let segment = (self.r - r) * way.h * way.eta;
        let spread = (-(segment * 2.0).exp_m1()).sqrt();
        let sum = match self.sum.take() {
            None => fresh.mul_scalar(spread),
            Some(mut sum) => {
                let fade = segment.exp();
                update(&mut sum, [&fresh], |s, [f]| s * fade + spread * f);
                sum
            }
        };
        update(x, [&sum], |x, [n]| x + n * sigma * s_noise);
        *self = Self {
            sum: Some(sum),
            at: sigma,
            r,
        };
        Ok(())
    }
}

fn two_stage(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32], knobs: &Knobs) -> Result<Tensor> {
    let Knobs { eta, s_noise, .. } = *knobs;
    let noisy = eta > 0.0 && s_noise > 0.0;
    let r = knobs.r as f32;
    let sampling = run.sampling;
    let sigmas = off_pure_noise(sampling, sigmas);
    let half = (1.0 / (2.0 * knobs.r)) as f32;
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        if w[1] == 0.0 {
            x = denoised;
            continue;
        }
        let way = Way::new(sampling, w, eta);
        let mut noise = Noise::new(w[0]);
        let place = way.middle(r);
        let take = place.alpha * place.whole;
        let mut there = combine(&x, [&denoised], |x, [d]| place.keep * x - take * d);
        if noisy {
            noise.add(run, &mut there, &way, r, place.sigma, s_noise)?;
        }
        let second = run.denoise(&there, place.sigma)?;
        let end = way.end(w[1]);
        match knobs.solver {
            SeedsSolver::Phi1 => {
                let take = end.alpha * end.whole;
                update(&mut x, [&denoised, &second], |x, [d, d2]| {
                    end.keep * x - take * lerp(d, d2, half)
                });
            }
            SeedsSolver::Phi2 => {
                let b2 = phi_2(way.exponent(1.0)) / r;
                let b1 = end.whole - b2;
                update(&mut x, [&denoised, &second], |x, [d, d2]| {
                    end.keep * x - end.alpha * (b1 * d + b2 * d2)
                });
            }
        }
        if noisy {
            noise.add(run, &mut x, &way, 1.0, w[1], s_noise)?;
        }
    }
    Ok(x)
}

pub(super) fn seeds_3(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    const R1: f32 = 1.0 / 3.0;
    const R2: f32 = 2.0 / 3.0;
    let (eta, s_noise) = (run.eta(1.0), run.s_noise());
    let noisy = eta > 0.0 && s_noise > 0.0;
    let sampling = run.sampling;
    let sigmas = off_pure_noise(sampling, sigmas);
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        if w[1] == 0.0 {
            x = denoised;
            continue;
        }
        let way = Way::new(sampling, w, eta);
        let mut noise = Noise::new(w[0]);
        let place = way.middle(R1);
        let take = place.alpha * place.whole;
        let mut there = combine(&x, [&denoised], |x, [d]| place.keep * x - take * d);
        if noisy {
            noise.add(run, &mut there, &way, R1, place.sigma, s_noise)?;
        }
        let second = run.denoise(&there, place.sigma)?;

        let place = way.middle(R2);
        let a2 = R2 / R1 * phi_2(way.exponent(R2));
        let a1 = place.whole - a2;
        there = combine(&x, [&denoised, &second], |x, [d, d2]| {
            place.keep * x - place.alpha * (a1 * d + a2 * d2)
        });
        if noisy {
            noise.add(run, &mut there, &way, R2, place.sigma, s_noise)?;
        }
        let third = run.denoise(&there, place.sigma)?;

        let end = way.end(w[1]);
        let b3 = phi_2(way.exponent(1.0)) / R2;
        let b1 = end.whole - b3;
        update(&mut x, [&denoised, &third], |x, [d, d3]| {
            end.keep * x - end.alpha * (b1 * d + b3 * d3)
        });
        if noisy {
            noise.add(run, &mut x, &way, 1.0, w[1], s_noise)?;
        }
    }
    Ok(x)
}
