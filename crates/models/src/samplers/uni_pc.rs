//! UniPC (Zhao et al. 2023): predictor and corrector of up to third order, on variance-preserving samples.

use fresco_tensor::Tensor;

use super::arithmetic::{combine, solve, update, weighted_sum};
use super::denoiser::Result;
use super::run::Run;

/// How a step is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    Bh1,
    Bh2,
}

/// The method divides by the level, so a last level of zero becomes a very small one.
pub(super) fn keep_off_zero(sigmas: &mut [f32]) {
    if let Some(last) = sigmas.last_mut()
        && *last == 0.0
    {
        *last = 0.001;
    }
}

/// A level in terms of variance-preserving samples. The order of these f32 operations shows at small levels.
#[derive(Clone, Copy)]
struct Level {
    sigma: f32,
    alpha: f32,
    std: f32,
    lambda: f32,
}

impl Level {
    fn new(sigma: f32) -> Self {
        let log_alpha = 0.5 * (1.0 / (sigma * sigma + 1.0)).ln();
        let rest = 1.0 - (2.0 * log_alpha).exp();
        Self {
            sigma,
            alpha: log_alpha.exp(),
            std: rest.sqrt(),
            lambda: log_alpha - 0.5 * rest.ln(),
        }
    }

    /// The clean sample that the model sees in `x` here.
    fn predict(self, run: &mut Run<'_>, x: &Tensor) -> Result<Tensor> {
        let scale = (self.sigma * self.sigma + 1.0).sqrt();
        let scaled = x.mul_scalar(scale);
        let denoised = run.denoise(&scaled, self.sigma)?;
        let Self {
            sigma, alpha, std, ..
        } = self;
        Ok(combine(x, [&scaled, &denoised], |x, [scaled, d]| {
            (x - std * ((scaled - d) / sigma)) / alpha
        }))
    }
}

/// The levels passed and what the model saw there, newest last.
struct Past {
    levels: Vec<Level>,
    seen: Vec<Tensor>,
}

impl Past {
    /// `x` at the next level, and what the model saw in the prediction if it was corrected.
    fn step(
        &self,
        run: &mut Run<'_>,
        x: &Tensor,
        to: Level,
        order: usize,
        variant: Variant,
        correct: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let last = self.levels.len() - 1;
        let (from, seen) = (self.levels[last], &self.seen[last]);
        let h = to.lambda - from.lambda;
        let mut parts = Vec::with_capacity(order);
        let mut bends = Vec::with_capacity(order);
        for k in 1..order {
            let part = (self.levels[last - k].lambda - from.lambda) / h;
            parts.push(f64::from(part));
            bends.push(combine(&self.seen[last - k], [seen], |m, [seen]| {
                (m - seen) / part
            }));
        }
        parts.push(1.0);

        let back = -h;
        let whole = back.exp_m1();
        let measure = match variant {
            Variant::Bh1 => back,
            Variant::Bh2 => whole,
        };
        let (mut phi, mut factorial) = (whole / back - 1.0, 1.0f32);
        let (mut rows, mut right) = (Vec::new(), Vec::new());
        for i in 1..=order {
            rows.push(parts.iter().map(|r| r.powi(i as i32 - 1)).collect());
            right.push(f64::from(phi * factorial / measure));
            factorial *= (i + 1) as f32;
            phi = phi / back - 1.0 / factorial;
        }

        let (keep, take) = (to.std / from.std, to.alpha * whole);
        let base = combine(x, [seen], |x, [m]| keep * x - take * m);
        let scale = to.alpha * measure;
        let ahead = predictor(order, &rows, &right);
        let mut there = base.clone();
        if let Some(sum) = weighted_sum(ahead.iter().copied().zip(&bends)) {
            update(&mut there, [&sum], |x, [s]| x - scale * s);
        }
        if !correct {
            return Ok((there, None));
        }
        let answer = to.predict(run, &there)?;
        let weights = corrector(order, rows, right);
        let newest = weights[order - 1];
        let mut there = base;
        match weighted_sum(weights.iter().copied().zip(&bends)) {
            Some(sum) => update(&mut there, [&sum, &answer, seen], |x, [s, m, seen]| {
                x - scale * (s + newest * (m - seen))
            }),
            None => update(&mut there, [&answer, seen], |x, [m, seen]| {
                x - scale * (newest * (m - seen))
            }),
        }
        Ok((there, Some(answer)))
    }
}

fn predictor(order: usize, rows: &[Vec<f64>], right: &[f64]) -> Vec<f32> {
    match order {
        0 | 1 => Vec::new(),
        2 => vec![0.5],
        _ => {
            let inner = rows[..order - 1]
                .iter()
                .map(|row| row[..order - 1].to_vec())
                .collect();
            to_f32(&solve(inner, right[..order - 1].to_vec()))
        }
    }
}

fn corrector(order: usize, rows: Vec<Vec<f64>>, right: Vec<f64>) -> Vec<f32> {
    if order == 1 {
        vec![0.5]
    } else {
        to_f32(&solve(rows, right))
    }
}

fn to_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|v| *v as f32).collect()
}

pub(super) fn uni_pc(
    run: &mut Run<'_>,
    mut x: Tensor,
    sigmas: &[f32],
    variant: Variant,
) -> Result<Tensor> {
    let steps = sigmas.len() - 1;
    // One step has no order at all: the model is asked, and its answer not used, as in the reference.
    let order = 3.min(steps - 1);
    let levels: Vec<Level> = sigmas.iter().map(|s| Level::new(*s)).collect();
    let scale = (1.0 + sigmas[0] * sigmas[0]).sqrt();
    x.map_inplace(|v| v / scale);
    let mut past = Past {
        levels: vec![levels[0]],
        seen: vec![levels[0].predict(run, &x)?],
    };
    run.step(0, sigmas[0], &x, &past.seen[0])?;
    for index in 1..steps {
        if index < order {
            let (there, seen) = past.step(run, &x, levels[index], index, variant, true)?;
            x = there;
            past.levels.push(levels[index]);
            past.seen.extend(seen);
        } else {
            let last = index + usize::from(index == steps - 1);
            for (step, &level) in levels.iter().enumerate().take(last + 1).skip(index) {
                let order = order.min(steps + 1 - step);
                let (there, seen) = past.step(run, &x, level, order, variant, step < steps)?;
                x = there;
                if let Some(seen) = seen {
                    past.levels.rotate_left(1);
                    past.seen.rotate_left(1);
                    let end = past.levels.len() - 1;
                    past.levels[end] = level;
                    past.seen[end] = seen;
                }
            }
        }
        let seen = past.seen[past.seen.len() - 1].clone();
        run.step(index, sigmas[index], &x, &seen)?;
    }
    let alpha = levels[steps].alpha;
    x.map_inplace(|v| v / alpha);
    Ok(x)
}
