//! Which noise levels KSampler and its advanced form sample at.

use super::names::SamplerName;
use crate::ModelSampling;
use crate::schedules::{Result, Scheduler};

/// The levels of `steps` steps. With `denoise` below one, the last steps of a longer schedule; empty when nothing is to
/// be done (`denoise` of zero), and then the latent stays as it is.
pub fn ksampler_sigmas(
    sampling: &ModelSampling,
    sampler: SamplerName,
    scheduler: Scheduler,
    steps: usize,
    denoise: f64,
) -> Result<Vec<f32>> {
    if denoise > 0.9999 {
        return full(sampling, sampler, scheduler, steps);
    }
    if denoise <= 0.0 || denoise.is_nan() {
        return Ok(Vec::new());
    }
    let total = (steps as f64 / denoise) as usize;
    let sigmas = full(sampling, sampler, scheduler, total)?;
    let from = sigmas.len().saturating_sub(steps.saturating_add(1));
    Ok(sigmas[from..].to_vec())
}

fn full(
    sampling: &ModelSampling,
    sampler: SamplerName,
    scheduler: Scheduler,
    steps: usize,
) -> Result<Vec<f32>> {
    let extra = sampler.skips_penultimate();
    let mut sigmas = scheduler.sigmas(sampling, steps.saturating_add(usize::from(extra)))?;
    if extra && sigmas.len() >= 2 {
        sigmas.remove(sigmas.len() - 2);
    }
    Ok(sigmas)
}

/// The part of a schedule between two steps, ending without noise if `finish` (nothing is left over for another
/// sampler). `None` when nothing is left to do and the latent stays as it is.
pub fn step_window(
    mut sigmas: Vec<f32>,
    start: Option<usize>,
    last: Option<usize>,
    finish: bool,
) -> Option<Vec<f32>> {
    if let Some(last) = last
        && last.saturating_add(1) < sigmas.len()
    {
        sigmas.truncate(last + 1);
        if let Some(sigma) = sigmas.last_mut().filter(|_| finish) {
            *sigma = 0.0;
        }
    }
    match start {
        None => Some(sigmas),
        Some(start) if start.saturating_add(1) < sigmas.len() => Some(sigmas.split_off(start)),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prediction;

    #[test]
    fn windows() {
        let all = vec![5.0, 4.0, 3.0, 2.0, 0.0];
        let window = |start, last, finish| step_window(all.clone(), start, last, finish);
        assert_eq!(window(None, None, true), Some(all.clone()));
        assert_eq!(window(Some(0), Some(10_000), true), Some(all.clone()));
        assert_eq!(window(Some(1), Some(3), false), Some(vec![4.0, 3.0, 2.0]));
        assert_eq!(window(Some(1), Some(3), true), Some(vec![4.0, 3.0, 0.0]));
        assert_eq!(window(Some(3), None, true), Some(vec![2.0, 0.0]));
        assert_eq!(window(Some(4), None, true), None);
        assert_eq!(window(Some(2), Some(2), true), None);
        assert_eq!(window(Some(0), Some(0), true), None);
        assert_eq!(step_window(Vec::new(), Some(0), Some(0), true), None);
    }

    #[test]
    fn absurd_requests() {
        let sampling = ModelSampling::discrete(Prediction::Eps, false);
        let of = |steps, denoise| {
            ksampler_sigmas(
                &sampling,
                SamplerName::Dpm2,
                Scheduler::Normal,
                steps,
                denoise,
            )
        };
        assert!(of(10, 0.0).unwrap().is_empty());
        assert!(of(10, -1.0).unwrap().is_empty());
        assert!(of(10, f64::NAN).unwrap().is_empty());
        assert!(of(10, 1e-300).is_err());
        assert!(of(usize::MAX, 1.0).is_err());
        assert_eq!(of(1, 1.0).unwrap().len(), 2);
    }
}
