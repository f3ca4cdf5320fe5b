//! Latent consistency models: jump to the clean latent and put new noise on it.

use fresco_tensor::{Axes, Crop, Tensor, common_upscale};

use super::arithmetic::update;
use super::denoiser::Result;
use super::options::SamplerOptions;
use super::run::Run;

pub(super) fn lcm(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        x = denoised;
        if w[1] > 0.0 {
            let noise = run.noise(&x, w[0], w[1])?;
            let noise = step_noise(noise, run.options, i, sigmas.len() - 1)?;
            x = run.sampling.noise_scaling(w[1], &noise, &x, false)?;
        }
    }
    Ok(x)
}

/// The noise of a step as strong as the options want it, without what is too far from its middle.
fn step_noise(noise: Tensor, options: &SamplerOptions, at: usize, steps: usize) -> Result<Tensor> {
    let start = options.s_noise.unwrap_or(1.0);
    let end = options.s_noise_end.unwrap_or(start);
    let part = at as f64 / (steps.max(2) - 1) as f64;
    let factor = (start + (end - start) * part) as f32;
    let mut noise = noise;
    if factor != 1.0 {
        noise = noise.mul_scalar(factor);
    }
    if options.noise_limit > 0.0 {
        let all: Vec<usize> = (0..noise.rank()).collect();
        let limit = noise.std(&all, Axes::Drop)?.item()? * options.noise_limit as f32;
        noise = noise.clamp(-limit, limit);
    }
    Ok(noise)
}

/// How much larger the latent is after each of the first steps.
fn growth(total: f64, wanted: Option<usize>, levels: usize) -> Vec<f64> {
    let points = match wanted {
        None => (levels / 2 + 1).max(2),
        Some(steps) => (steps + 1).min(levels + 1),
    };
    let last = points - 1;
    (1..points)
        .map(|k| {
            if k == last {
                total
            } else {
                1.0 + (total - 1.0) / last as f64 * k as f64
            }
        })
        .collect()
}

/// The same on a latent that grows with the first steps.
pub(super) fn lcm_upscale(run: &mut Run<'_>, mut x: Tensor, sigmas: &[f32]) -> Result<Tensor> {
    let options = run.options;
    let growth = growth(options.total_upscale, options.upscale_steps, sigmas.len());
    let &[_, _, .., height, width] = x.shape() else {
        return Err(run.unfit(format!("a latent of shape {:?} has no picture", x.shape())));
    };
    let sized = |side: usize, factor: f64| (side as f64 * factor).round_ties_even() as usize;
    for (i, w) in sigmas.windows(2).enumerate() {
        let denoised = run.denoise(&x, w[0])?;
        run.step(i, w[0], &x, &denoised)?;
        x = denoised;
        if let Some(&factor) = growth.get(i) {
            let (width, height) = (sized(width, factor), sized(height, factor));
            x = common_upscale(&x, width, height, options.upscale_method, Crop::Disabled)?;
        }
        if w[1] > 0.0 {
            let noise = run.global_noise(&x)?;
            update(&mut x, [&noise], |x, [n]| x + w[1] * n);
        }
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use fresco_tensor::Tensor;

    use super::{growth, step_noise};
    use crate::samplers::SamplerOptions;

    #[test]
    fn noise_gets_weaker_and_is_cut() {
        let noise = || Tensor::from_slice(&[-3.0, -1.0, 0.0, 1.0, 3.0]);
        let options = SamplerOptions {
            s_noise: Some(2.0),
            s_noise_end: Some(1.0),
            ..SamplerOptions::default()
        };
        let largest = |at: usize, options: &SamplerOptions| {
            let noise = step_noise(noise(), options, at, 5).unwrap();
            noise.data()[4]
        };
        assert_eq!([0, 2, 4].map(|at| largest(at, &options)), [6.0, 4.5, 3.0]);
        assert_eq!(largest(3, &SamplerOptions::default()), 3.0);
        // The deviation of these numbers is the root of 5.
        let cut = SamplerOptions {
            noise_limit: 1.0,
            ..SamplerOptions::default()
        };
        assert!((largest(0, &cut) - 5f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn half_of_the_steps_grow() {
        assert_eq!(growth(2.0, None, 5), [1.5, 2.0]);
        assert_eq!(growth(2.0, Some(1), 5), [2.0]);
        assert_eq!(growth(2.0, Some(0), 5), [0.0; 0]);
        assert_eq!(growth(3.0, Some(100), 2), [2.0, 3.0]);
    }
}
