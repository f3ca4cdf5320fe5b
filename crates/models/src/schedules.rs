//! Noise levels to sample at, falling, most of them ending in zero.

use std::f32::consts::{FRAC_PI_2, PI};

use crate::model_sampling::{ModelSampling, exponential_shift_f32};
use crate::spread::{beta_ppf, linspace, log_resampled, normal_ppf};
use crate::tables;

/// More steps than anyone means; asking for them is a mistake or malice.
pub const MAX_STEPS: usize = 1_000_000;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    #[error("{steps} steps are more than {MAX_STEPS}")]
    TooManySteps { steps: usize },
    #[error("a schedule needs at least one step")]
    NoSteps,
    /// No table for this coefficient.
    #[error("{coefficient}")]
    NoTable { coefficient: f64 },
    #[error("no noise levels are known for {model}")]
    UnknownModel { model: String },
}

pub type Result<T> = std::result::Result<T, ScheduleError>;

fn checked(steps: usize) -> Result<usize> {
    match steps {
        0 => Err(ScheduleError::NoSteps),
        n if n > MAX_STEPS => Err(ScheduleError::TooManySteps { steps }),
        n => Ok(n),
    }
}

fn with_zero(mut sigmas: Vec<f32>) -> Vec<f32> {
    sigmas.push(0.0);
    sigmas
}

/// The schedules that samplers offer by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    Simple,
    SgmUniform,
    Karras,
    Exponential,
    DdimUniform,
    Beta,
    Normal,
    LinearQuadratic,
    KlOptimal,
}

impl Scheduler {
    pub const ALL: [(&'static str, Self); 9] = [
        ("simple", Self::Simple),
        ("sgm_uniform", Self::SgmUniform),
        ("karras", Self::Karras),
        ("exponential", Self::Exponential),
        ("ddim_uniform", Self::DdimUniform),
        ("beta", Self::Beta),
        ("normal", Self::Normal),
        ("linear_quadratic", Self::LinearQuadratic),
        ("kl_optimal", Self::KlOptimal),
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, s)| *s)
    }

    /// The levels for so many steps; usually one more than steps.
    pub fn sigmas(self, sampling: &ModelSampling, steps: usize) -> Result<Vec<f32>> {
        let n = checked(steps)?;
        let (min, max) = (sampling.sigma_min(), sampling.sigma_max());
        match self {
            Self::Simple => Ok(simple(sampling, n)),
            Self::SgmUniform => {
                let (start, end) = (sampling.timestep(max), sampling.timestep(min));
                let steps = linspace(start, end, n + 1);
                Ok(with_zero(
                    steps[..n].iter().map(|t| sampling.sigma(*t)).collect(),
                ))
            }
            Self::Normal => {
                let (start, end) = (sampling.timestep(max), sampling.timestep(min));
                let levels = |n| {
                    linspace(start, end, n)
                        .iter()
                        .map(|t| sampling.sigma(*t))
                        .collect()
                };
                // A model whose last level is as good as nothing needs no zero after it.
                if sampling.sigma(end).abs() <= 1e-5 {
                    Ok(levels(n + 1))
                } else {
                    Ok(with_zero(levels(n)))
                }
            }
            Self::Karras => karras(n, f64::from(min), f64::from(max), 7.0),
            Self::Exponential => exponential(n, f64::from(min), f64::from(max)),
            Self::DdimUniform => Ok(ddim_uniform(sampling.sigmas(), n)),
            Self::Beta => beta(sampling, n, 0.6, 0.6),
            Self::LinearQuadratic => Ok(linear_quadratic(n)
                .iter()
                .map(|v| *v as f32 * max)
                .collect()),
            Self::KlOptimal => {
                let last = (n - 1) as f32;
                let levels = (0..n).map(|k| {
                    let a = k as f32 / last;
                    (a * min.atan() + (1.0 - a) * max.atan()).tan()
                });
                Ok(with_zero(levels.collect()))
            }
        }
    }
}

fn simple(sampling: &ModelSampling, n: usize) -> Vec<f32> {
    let table = sampling.sigmas();
    let stride = table.len() as f64 / n as f64;
    let level = |k: usize| {
        let back = (k as f64 * stride) as usize;
        table[table.len() - 1 - back.min(table.len() - 1)]
    };
    with_zero((0..n).map(level).collect())
}

fn ddim_uniform(table: &[f32], steps: usize) -> Vec<f32> {
    let near_zero = table.get(1).is_some_and(|s| s.abs() <= 1e-5);
    let steps = steps + usize::from(near_zero);
    let stride = (table.len() / steps).max(1);
    let mut sigmas: Vec<f32> = if near_zero { Vec::new() } else { vec![0.0] };
    sigmas.extend(table.iter().skip(1).step_by(stride));
    sigmas.reverse();
    sigmas
}

/// Parts of one, first slowly falling, then fast.
fn linear_quadratic(n: usize) -> Vec<f64> {
    const THRESHOLD: f64 = 0.025;
    if n == 1 {
        return vec![1.0, 0.0];
    }
    let linear = n / 2;
    let (l, q) = (linear as f64, (n - linear) as f64);
    let gap = l - THRESHOLD * n as f64;
    let square = gap / (l * q * q);
    let slope = THRESHOLD / l - 2.0 * gap / (q * q);
    let constant = square * l * l;
    let mut out: Vec<f64> = (0..n)
        .map(|i| {
            let i = i as f64;
            let value = if i < l {
                i * THRESHOLD / l
            } else {
                square * i * i + slope * i + constant
            };
            1.0 - value
        })
        .collect();
    out.push(0.0);
    out
}

/// Levels where a beta distribution over the table has equal parts.
pub fn beta(sampling: &ModelSampling, steps: usize, a: f64, b: f64) -> Result<Vec<f32>> {
    let n = checked(steps)?;
    let table = sampling.sigmas();
    let last = table.len() - 1;
    let mut sigmas = Vec::new();
    let mut before = None;
    for k in 0..n {
        let place = beta_ppf(1.0 - k as f64 / n as f64, a, b) * last as f64;
        let place = (place.round_ties_even().max(0.0) as usize).min(last);
        if before != Some(place) {
            sigmas.push(table[place]);
        }
        before = Some(place);
    }
    Ok(with_zero(sigmas))
}

/// Karras et al. 2022, equation 5.
pub fn karras(steps: usize, min: f64, max: f64, rho: f64) -> Result<Vec<f32>> {
    let n = checked(steps)?;
    let (low, high) = (min.powf(1.0 / rho), max.powf(1.0 / rho));
    let (gap, high) = ((low - high) as f32, high as f32);
    let levels = linspace(0.0, 1.0, n);
    Ok(with_zero(
        levels
            .iter()
            .map(|r| (high + r * gap).powf(rho as f32))
            .collect(),
    ))
}

pub fn exponential(steps: usize, min: f64, max: f64) -> Result<Vec<f32>> {
    let line = linspace(max.ln() as f32, min.ln() as f32, checked(steps)?);
    Ok(with_zero(line.iter().map(|v| v.exp()).collect()))
}

pub fn polyexponential(steps: usize, min: f64, max: f64, rho: f64) -> Result<Vec<f32>> {
    let (gap, low) = ((max.ln() - min.ln()) as f32, min.ln() as f32);
    let ramp = linspace(1.0, 0.0, checked(steps)?);
    let levels = ramp.iter().map(|r| (r.powf(rho as f32) * gap + low).exp());
    Ok(with_zero(levels.collect()))
}

/// Levels by a Laplace distribution of their logarithm. No zero at the end.
pub fn laplace(steps: usize, min: f64, max: f64, mu: f64, spread: f64) -> Result<Vec<f32>> {
    let (mu, spread) = (mu as f32, spread as f32);
    let level = |x: f32| {
        let side = 0.5 - x;
        let sign = if side == 0.0 { 0.0 } else { side.signum() };
        let log = mu - spread * sign * (1.0 - 2.0 * side.abs() + 1e-5).ln();
        log.exp().max(min as f32).min(max as f32)
    };
    Ok(linspace(0.0, 1.0, checked(steps)?)
        .into_iter()
        .map(level)
        .collect())
}

/// The variance-preserving schedule of score-based models.
pub fn vp(steps: usize, beta_d: f64, beta_min: f64, eps_s: f64) -> Result<Vec<f32>> {
    let (d, min) = (beta_d as f32, beta_min as f32);
    let level = |t: &f32| (d * (t * t) / 2.0 + min * t).exp_m1().sqrt();
    let times = linspace(1.0, eps_s as f32, checked(steps)?);
    Ok(with_zero(times.iter().map(level).collect()))
}

/// The last `kept` steps of falling levels, ending in zero.
fn last_steps(sigmas: &[f64], kept: usize) -> Vec<f32> {
    let from = sigmas.len().saturating_sub(kept + 1);
    let mut out: Vec<f32> = sigmas[from..].iter().map(|s| *s as f32).collect();
    if let Some(last) = out.last_mut() {
        *last = 0.0;
    }
    out
}

/// How many of the steps a `denoise` below one leaves; none means an empty schedule.
fn left_by(denoise: f64, steps: usize) -> Option<usize> {
    if denoise >= 1.0 {
        Some(steps)
    } else if denoise > 0.0 {
        Some((steps as f64 * denoise).round_ties_even() as usize)
    } else {
        None
    }
}

fn from_levels(levels: &[f64], steps: usize, denoise: f64) -> Vec<f32> {
    let Some(kept) = left_by(denoise, steps) else {
        return Vec::new();
    };
    if levels.len() == steps + 1 {
        last_steps(levels, kept)
    } else {
        last_steps(&log_resampled(levels, steps + 1), kept)
    }
}

/// Levels tuned by family (Sabour et al. 2024): `SD1`, `SDXL`, `SVD`.
pub fn align_your_steps(model: &str, steps: usize, denoise: f64) -> Result<Vec<f32>> {
    tuned(tables::ALIGN_YOUR_STEPS, model, steps, denoise)
}

/// Levels tuned by family: `FLUX`, `Wan`, `Chroma`.
pub fn optimal_steps(model: &str, steps: usize, denoise: f64) -> Result<Vec<f32>> {
    tuned(tables::OPTIMAL_STEPS, model, steps, denoise)
}

fn tuned(table: &[(&str, &[f64])], model: &str, steps: usize, denoise: f64) -> Result<Vec<f32>> {
    let steps = checked(steps)?;
    let (_, levels) = table
        .iter()
        .find(|(name, _)| *name == model)
        .ok_or_else(|| ScheduleError::UnknownModel {
            model: model.to_owned(),
        })?;
    Ok(from_levels(levels, steps, denoise))
}

/// Geometry-inspired time steps (Chen et al. 2024); the coefficient names a table in steps of 0.05.
pub fn gits(coefficient: f64, steps: usize, denoise: f64) -> Result<Vec<f32>> {
    let steps = checked(steps)?;
    let Some(kept) = left_by(denoise, steps) else {
        return Ok(Vec::new());
    };
    let hundredths = (coefficient * 100.0).round_ties_even();
    let rows = tables::GITS
        .iter()
        .find(|(c, _)| f64::from(*c) == hundredths)
        .map(|(_, rows)| *rows)
        .ok_or(ScheduleError::NoTable {
            coefficient: hundredths / 100.0,
        })?;
    let last = rows.len() - 1;
    Ok(if steps <= 20 {
        // One step has no row of its own and takes the end of the longest.
        last_steps(rows[steps.checked_sub(2).unwrap_or(last)], kept)
    } else {
        last_steps(&log_resampled(rows[last], steps + 1), kept)
    })
}

/// Even in time, shifted by an exponent.
pub fn exponential_flow(steps: usize, shift: f64) -> Result<Vec<f32>> {
    let times = linspace(1.0, 0.0, checked(steps)? + 1).into_iter();
    // At zero the shift would divide by it; the limit is zero.
    let level = |t: f32| {
        if t == 0.0 {
            0.0
        } else {
            exponential_shift_f32(shift, t)
        }
    };
    Ok(times.map(level).collect())
}

/// Levels whose logits are normally distributed, between limits that are never left: even shares of the distribution.
pub fn logit_normal(steps: usize, mean: f64, spread: f64, limits: (f64, f64)) -> Result<Vec<f32>> {
    let count = checked(steps)?;
    let level = |at: usize| {
        let logit = mean + spread * normal_ppf(at as f64 / count as f64);
        (1.0 / (1.0 + logit.exp())).clamp(limits.0, limits.1) as f32
    };
    Ok((0..=count).map(level).collect())
}

/// Linear in the number of tokens, between two known points.
pub fn token_shift(tokens: f64, base: (f64, f64), max: (f64, f64)) -> f64 {
    let slope = (max.1 - base.1) / (max.0 - base.0);
    tokens * slope + (base.1 - slope * base.0)
}

/// Stretches falling levels so that the last one before zero is this.
pub fn stretched(mut sigmas: Vec<f32>, terminal: f64) -> Vec<f32> {
    if let Some(last) = sigmas.iter().rev().find(|s| **s != 0.0).copied() {
        let scale = (1.0 - last) / (1.0 - terminal) as f32;
        for s in sigmas.iter_mut().filter(|s| **s != 0.0) {
            *s = 1.0 - (1.0 - *s) / scale;
        }
    }
    sigmas
}

/// The levels of distilled turbo models: every hundredth step, from a start given by `denoise`.
pub fn turbo(sampling: &ModelSampling, steps: usize, denoise: f64) -> Result<Vec<f32>> {
    let steps = checked(steps)?;
    let start = 10usize.saturating_sub((10.0 * denoise.max(0.0)) as usize);
    let levels = (0..10)
        .skip(start)
        .take(steps)
        .map(|k| sampling.sigma((999 - 100 * k) as f32));
    Ok(with_zero(levels.collect()))
}

/// How levels put between two others are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ease {
    Linear,
    Cosine,
    Sine,
}

impl Ease {
    fn at(self, x: f32) -> f32 {
        match self {
            Self::Linear => x,
            Self::Cosine => (x * PI / 2.0).sin(),
            Self::Sine => 1.0 - (x * FRAC_PI_2).cos(),
        }
    }
}

/// Puts `steps - 1` levels after every level between `end` and `start`.
pub fn extended(
    sigmas: &[f32],
    steps: usize,
    start: f32,
    end: f32,
    ease: Ease,
) -> Result<Vec<f32>> {
    let steps = checked(steps)?;
    if sigmas.len().saturating_mul(steps) > MAX_STEPS {
        return Err(ScheduleError::TooManySteps {
            steps: sigmas.len().saturating_mul(steps),
        });
    }
    let line = linspace(0.0, 1.0, steps + 1);
    let mut out = Vec::new();
    for pair in sigmas.windows(2) {
        out.push(pair[0]);
        if end <= pair[0] && pair[0] <= start {
            let gap = pair[1] - pair[0];
            out.extend(line[1..steps].iter().map(|x| ease.at(*x) * gap + pair[0]));
        }
    }
    out.extend(sigmas.last());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prediction;

    #[track_caller]
    fn check(given: &[f32], wanted: &[f64]) {
        assert_eq!(given.len(), wanted.len(), "{given:?}");
        for (a, b) in given.iter().zip(wanted) {
            let a = f64::from(*a);
            assert!(
                (a - b).abs() <= 2e-6 * b.abs().max(1.0),
                "{given:?} is not {wanted:?}"
            );
        }
    }

    #[test]
    fn five_steps_of_every_schedule() {
        let sampling = ModelSampling::discrete(Prediction::Eps, false);
        let wanted: [&[f64]; 9] = [
            &[
                14.6146412,
                5.08776331,
                2.27646303,
                1.16057837,
                0.569284916,
                0.0,
            ],
            &[
                14.6146402,
                5.09240818,
                2.27973056,
                1.16286457,
                0.571188867,
                0.0,
            ],
            &[
                14.6146431,
                4.79653454,
                1.27410078,
                0.247949973,
                0.0291671772,
                0.0,
            ],
            &[
                14.6146402,
                3.08897638,
                0.652891755,
                0.137996376,
                0.0291671604,
                0.0,
            ],
            &[
                5.13443089,
                2.29285383,
                1.16821599,
                0.574050248,
                0.0413144119,
                0.0,
            ],
            &[
                14.6146412, 7.37184429, 2.61523581, 1.02732933, 0.39550969, 0.0,
            ],
            &[
                14.6146402,
                4.08608103,
                1.61558032,
                0.695149541,
                0.0291671604,
                0.0,
            ],
            &[
                14.6146412, 14.4319582, 14.2492752, 12.5442343, 7.79447556, 0.0,
            ],
            &[
                14.6146326,
                2.14274144,
                0.961588025,
                0.419836193,
                0.0291671585,
                0.0,
            ],
        ];
        for ((_, scheduler), wanted) in Scheduler::ALL.iter().zip(wanted) {
            check(&scheduler.sigmas(&sampling, 5).unwrap(), wanted);
        }
    }

    #[test]
    fn four_steps_of_the_flow_models() {
        let flux = ModelSampling::exponential_flow(1.15);
        let flow = ModelSampling::flow(3.0, 1000.0);
        for (scheduler, of_flux, of_flow) in [
            (
                Scheduler::Simple,
                [1.0, 0.904530764, 0.759510934, 0.512844086, 0.0],
                [1.0, 0.9, 0.75, 0.5, 0.0],
            ),
            (
                Scheduler::SgmUniform,
                [1.0, 0.904567122, 0.759626269, 0.513159573, 0.0],
                [1.0, 0.900359035, 0.751121104, 0.50298506, 0.0],
            ),
            (
                Scheduler::Beta,
                [1.0, 0.936775744, 0.75958395, 0.402498275, 0.0],
                [1.0, 0.933534801, 0.75074929, 0.392171353, 0.0],
            ),
            (
                Scheduler::Normal,
                [1.0, 0.863376379, 0.612492085, 0.000996524002, 0.0],
                [1.0, 0.857692361, 0.602150559, 0.00892857183, 0.0],
            ),
        ] {
            check(&scheduler.sigmas(&flux, 4).unwrap(), &of_flux);
            check(&scheduler.sigmas(&flow, 4).unwrap(), &of_flow);
        }
    }

    #[test]
    fn turbo_levels() {
        let sampling = ModelSampling::discrete(Prediction::Eps, false);
        check(
            &turbo(&sampling, 4, 1.0).unwrap(),
            &[14.6146402, 8.30280304, 5.08776331, 3.32108307, 0.0],
        );
    }

    #[test]
    fn absurd_requests_are_refused() {
        let sampling = ModelSampling::discrete(Prediction::Eps, false);
        for (_, scheduler) in Scheduler::ALL {
            assert!(scheduler.sigmas(&sampling, 0).is_err());
            assert!(scheduler.sigmas(&sampling, usize::MAX).is_err());
            assert!(!scheduler.sigmas(&sampling, 1).unwrap().is_empty());
        }
        assert!(extended(&[1.0; 1000], 100_000, 1.0, 0.0, Ease::Linear).is_err());
        assert!(gits(1.23, 10, 1.0).is_err());
        assert!(karras(3, f64::NAN, -1.0, 0.0).unwrap().len() == 4);
    }
}
