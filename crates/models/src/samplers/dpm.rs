//! DPM-Solver (Lu et al. 2022): of second order with a fixed step, with as many evaluations as asked for (`dpm_fast`),
//! and with steps of its own choosing (`dpm_adaptive`).

use fresco_tensor::Tensor;

use super::arithmetic::{
    FlowAncestral, advance, ancestral, combine, is_flow, log_middle, slope, update,
};
use super::denoiser::Result;
use super::euler::{churn, renoise};
use super::run::Run;
use crate::spread::linspace;

/// Karras et al. 2022, with the second evaluation in the middle of the step.
pub(super) fn dpm_2(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    for (i, w) in sigmas.windows(2).enumerate() {
        let next = w[1];
        let hat = churn(run, &mut x, w[0], sigmas.len() - 1)?;
        let denoised = run.denoise(&x, hat)?;
        run.step(i, w[0], &x, &denoised)?;
        let d = slope(&x, hat, &denoised);
        if next == 0.0 {
            advance(&mut x, &d, next - hat);
        } else {
            through_middle(run, &mut x, &d, hat, next)?;
        }
    }
    Ok(x)
}

/// A step by the slope in its middle.
fn through_middle(run: &mut Run<'_>, x: &mut Tensor, d: &Tensor, from: f32, to: f32) -> Result<()> {
    let middle = log_middle(from, to);
    let dt = middle - from;
    let there = combine(x, [d], |x, [d]| x + d * dt);
    let denoised = run.denoise(&there, middle)?;
    let dt = to - from;
    update(x, [&there, &denoised], |x, [x2, d2]| {
        x + (x2 - d2) / middle * dt
    });
    Ok(())
}

pub(super) fn dpm_2_ancestral(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let (eta, s_noise) = (run.eta(1.0), run.s_noise());
    let flow = is_flow(run.sampling);
    for (i, w) in sigmas.windows(2).enumerate() {
        let (sigma, next) = (w[0], w[1]);
        let denoised = run.denoise(&x, sigma)?;
        run.step(i, sigma, &x, &denoised)?;
        let d = slope(&x, sigma, &denoised);
        let straight = FlowAncestral::new(sigma, next, eta);
        let (down, up) = if flow {
            (straight.down, 0.0)
        } else {
            ancestral(sigma, next, eta)
        };
        if down == 0.0 {
            advance(&mut x, &d, down - sigma);
            continue;
        }
        through_middle(run, &mut x, &d, sigma, down)?;
        if flow {
            renoise(run, &mut x, (sigma, next), &straight)?;
        } else {
            let noise = run.noise(&x, sigma, next)?;
            update(&mut x, [&noise], |x, [n]| x + n * s_noise * up);
        }
    }
    Ok(x)
}

/// The level at a time, which here is minus its logarithm.
fn level(t: f32) -> f32 {
    (-t).exp()
}

/// The evaluations of one step. Steps of different order from the same place share them.
struct Evaluations {
    /// Noise in `x` at the start.
    start: Tensor,
    /// Noise at the first place between, once a step asked for it.
    first: Option<Tensor>,
}

impl Evaluations {
    /// Evaluates the start of a step and tells about it.
    fn new(run: &mut Run<'_>, index: usize, x: &Tensor, t: f32) -> Result<Self> {
        let sigma = level(t);
        let start = slope(x, sigma, &run.denoise(x, sigma)?);
        let denoised = combine(x, [&start], |x, [e]| x - sigma * e);
        run.step(index, sigma, x, &denoised)?;
        Ok(Self { start, first: None })
    }

    /// First order.
    fn one(&self, x: &Tensor, t: f32, next: f32) -> Tensor {
        let whole = (next - t).exp_m1();
        combine(x, [&self.start], |x, [e]| x - level(next) * whole * e)
    }

    fn first(&mut self, run: &mut Run<'_>, x: &Tensor, t: f32, h: f32, r: f32) -> Result<Tensor> {
        if let Some(first) = &self.first {
            return Ok(first.clone());
        }
        let s = t + r * h;
        let (sigma, part) = (level(s), (r * h).exp_m1());
        let there = combine(x, [&self.start], |x, [e]| x - sigma * part * e);
        let first = slope(&there, sigma, &run.denoise(&there, sigma)?);
        self.first = Some(first.clone());
        Ok(first)
    }

    /// Second order, with an evaluation at the part `r` of the step.
    fn two(&mut self, run: &mut Run<'_>, x: &Tensor, t: f32, next: f32, r: f32) -> Result<Tensor> {
        let h = next - t;
        let first = self.first(run, x, t, h, r)?;
        let (sigma, whole) = (level(next), h.exp_m1());
        Ok(combine(x, [&self.start, &first], |x, [e, e1]| {
            x - sigma * whole * e - sigma / (2.0 * r) * whole * (e1 - e)
        }))
    }

    /// Third order, with evaluations at a third and two thirds.
    fn three(&mut self, run: &mut Run<'_>, x: &Tensor, t: f32, next: f32) -> Result<Tensor> {
        const R1: f32 = 1.0 / 3.0;
        const R2: f32 = 2.0 / 3.0;
        let h = next - t;
        let first = self.first(run, x, t, h, R1)?;
        let part = R2 * h;
        let (sigma, grown) = (level(t + part), part.exp_m1());
        let bend = sigma * 2.0 * (grown / part - 1.0);
        let there = combine(x, [&self.start, &first], |x, [e, e1]| {
            x - sigma * grown * e - bend * (e1 - e)
        });
        let second = slope(&there, sigma, &run.denoise(&there, sigma)?);
        let (sigma, whole) = (level(next), h.exp_m1());
        let bend = sigma / R2 * (whole / h - 1.0);
        Ok(combine(x, [&self.start, &second], |x, [e, e2]| {
            x - sigma * whole * e - bend * (e2 - e)
        }))
    }
}

/// The times at which the run starts and ends: never at zero noise, which is infinitely far.
fn ends(run: &Run<'_>, sigmas: &[f32]) -> Result<(f32, f32)> {
    let max = sigmas[0];
    let min = match sigmas[sigmas.len() - 1] {
        0.0 => sigmas[sigmas.len() - 2],
        last => last,
    };
    if min > 0.0 && max > 0.0 {
        Ok((-max.ln(), -min.ln()))
    } else {
        Err(run.unfit(format!("cannot go from noise level {max} to {min}")))
    }
}

/// Lower level and noise to add, by time: as [`ancestral`], but never past the end.
fn ancestral_times(t: f32, next: f32, end: f32, eta: f32) -> (f32, f32) {
    if eta == 0.0 {
        return (next, 0.0);
    }
    let (down, _) = ancestral(level(t), level(next), eta);
    let to = (-down.ln()).min(end);
    (
        to,
        (level(next) * level(next) - level(to) * level(to)).sqrt(),
    )
}

/// As many evaluations as there are steps, in steps of third order as far as that goes.
pub(super) fn dpm_fast(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let (start, end) = ends(run, sigmas)?;
    let (eta, s_noise) = (run.eta(0.0), run.s_noise());
    let evaluations = sigmas.len() - 1;
    let mut orders = vec![3; evaluations / 3];
    if evaluations.is_multiple_of(3) {
        orders.pop();
        orders.extend([2, 1]);
    } else {
        orders.push(evaluations % 3);
    }
    let times = linspace(start, end, orders.len() + 1);
    for (i, (order, w)) in orders.iter().zip(times.windows(2)).enumerate() {
        let (to, up) = ancestral_times(w[0], w[1], end, eta);
        let mut evaluations = Evaluations::new(run, i, &x, w[0])?;
        x = match order {
            1 => evaluations.one(&x, w[0], to),
            2 => evaluations.two(run, &x, w[0], to, 0.5)?,
            _ => evaluations.three(run, &x, w[0], to)?,
        };
        if up > 0.0 {
            let noise = run.noise(&x, level(w[0]), level(w[1]))?;
            update(&mut x, [&noise], |x, [n]| x + up * s_noise * n);
        }
    }
    Ok(x)
}

/// Chooses the next step by how large the last errors were (Söderlind 2003).
struct StepSize {
    h: f64,
    powers: [f64; 3],
    safety: f64,
    /// Inverse errors, newest first.
    errors: Option<[f64; 3]>,
}

impl StepSize {
    /// Takes the error of a try and says whether it is small enough.
    fn accept(&mut self, error: f64) -> bool {
        let inverse = 1.0 / (error + 1e-8);
        let errors = self.errors.get_or_insert([inverse; 3]);
        errors[0] = inverse;
        let factor: f64 = errors
            .iter()
            .zip(self.powers)
            .map(|(e, power)| e.powf(power))
            .product();
        let factor = 1.0 + (factor - 1.0).atan();
        let accepted = factor >= self.safety;
        if accepted {
            errors[2] = errors[1];
            errors[1] = errors[0];
        }
        self.h *= factor;
        accepted
    }
}

/// Tries without getting ahead after which the options or the model cannot be reasonable: each one shortens the step.
const MAX_STUCK: usize = 60;
/// Most steps in all.
const MAX_TRIES: usize = 10_000;

/// Steps as long as the difference between a lower and a higher order stays small.
pub(super) fn dpm_adaptive(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let (start, end) = ends(run, sigmas)?;
    let options = run.options;
    let (eta, s_noise) = (run.eta(0.0), run.s_noise());
    let order = options.order.unwrap_or(3);
    if order != 2 && order != 3 {
        return Err(run.unfit(format!("order must be 2 or 3, not {order}")));
    }
    let forward = end > start;
    if !forward && eta != 0.0 {
        return Err(run.unfit("eta must be 0 where noise levels rise"));
    }
    let (p, i, d) = (options.pcoeff, options.icoeff, options.dcoeff);
    let divisor = if eta == 0.0 { order as f64 } else { 1.5 };
    let mut size = StepSize {
        h: options.h_init.abs() * if forward { 1.0 } else { -1.0 },
        powers: [(p + i + d) / divisor, -(p + 2.0 * d) / divisor, d / divisor],
        safety: options.accept_safety,
        errors: None,
    };
    let (rtol, atol) = (options.rtol as f32, options.atol as f32);
    let mut before = x.clone();
    let (mut s, mut stuck) = (start, 0);
    for index in 0..MAX_TRIES {
        let arrived = if forward {
            s >= end - 1e-5
        } else {
            s <= end + 1e-5
        };
        if arrived {
            return Ok(x);
        }
        let t = s + size.h as f32;
        let t = if forward { t.min(end) } else { t.max(end) };
        let (to, up) = ancestral_times(s, t, end, eta);
        let mut evaluations = Evaluations::new(run, index, &x, s)?;
        let (low, high) = if order == 2 {
            let low = evaluations.one(&x, s, to);
            (low, evaluations.two(run, &x, s, to, 0.5)?)
        } else {
            let low = evaluations.two(run, &x, s, to, 1.0 / 3.0)?;
            (low, evaluations.three(run, &x, s, to)?)
        };
        let accepted = size.accept(error(&low, &high, &before, rtol, atol));
        if !size.h.is_finite() {
            return Err(run.unfit("the model's answers are not numbers"));
        }
        stuck = if accepted && t != s { 0 } else { stuck + 1 };
        if stuck > MAX_STUCK {
            break;
        }
        if accepted {
            before = low;
            x = high;
            if up > 0.0 {
                let noise = run.noise(&x, level(s), level(t))?;
                update(&mut x, [&noise], |x, [n]| x + up * s_noise * n);
            }
            s = t;
        }
    }
    Err(run.unfit("found no step size that is small enough; raise rtol and atol"))
}

/// Size of the difference between two results, relative to what is allowed.
fn error(low: &Tensor, high: &Tensor, before: &Tensor, rtol: f32, atol: f32) -> f64 {
    let parts = low.data().iter().zip(high.data()).zip(before.data());
    let sum: f64 = parts
        .map(|((low, high), before)| {
            let allowed = atol.max(rtol * low.abs().max(before.abs()));
            f64::from((low - high) / allowed).powi(2)
        })
        .sum();
    (sum / low.len() as f64).sqrt()
}
