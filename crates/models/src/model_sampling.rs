//! What a noise level means to a model: how levels and time steps correspond ([`Spacing`]), and how the network's output
//! becomes a clean latent ([`Prediction`]).
//!
//! Everything is f32 where the reference's is, since schedules are compared number by number.

use std::f32::consts::{FRAC_PI_2, PI};
use std::sync::Arc;

use fresco_tensor::{Result, Tensor};

use crate::spread::linspace;

/// What the network predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prediction {
    /// The noise.
    Eps,
    /// Velocity between noise and picture, on the variance-preserving circle.
    V,
    Edm,
    /// Velocity on a straight line between noise and picture.
    Flow,
    /// The picture.
    X0,
    /// A picture from a picture, without noise.
    ImgToImg,
    /// The same, where a level of noise `s` means the time `s / (s + 1)`.
    RatioFlow,
    /// Noise, for models distilled to a few steps.
    Lcm,
}

/// Time steps and noise levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spacing {
    /// A table of a thousand levels; time steps are its indices.
    Discrete,
    /// Every twentieth entry of that table.
    Distilled,
    ContinuousEdm,
    ContinuousV,
    RatioFlow,
    Flow {
        shift: f64,
        multiplier: f64,
    },
    /// A flow whose shift is an exponent.
    ExponentialFlow {
        shift: f64,
    },
    /// A cosine over time.
    Cosine {
        shift: f64,
    },
}

/// Entries of the usual tables, and how many of them one distilled step covers.
const STEPS: usize = 1000;
const SKIP: usize = 20;
/// "Infinitely noisy" for conditions that hold from the start.
const BEYOND: f64 = 999_999_999.9;

/// How a model is sampled.
#[derive(Clone, Debug)]
pub struct ModelSampling {
    pub prediction: Prediction,
    pub spacing: Spacing,
    pub sigma_data: f64,
    /// What noise is multiplied by before it is put on a latent: that of training, where it was not 1.
    pub noise_scale: f32,
    sigmas: Arc<Vec<f32>>,
    log_sigmas: Arc<Vec<f32>>,
}

/// Levels, rising, of noise that is added in a thousand steps: each by `beta` of a number that rises evenly.
fn table_of(start: f64, end: f64, beta: impl Fn(f64) -> f64) -> Vec<f64> {
    let step = (end - start) / (STEPS - 1) as f64;
    let mut product = 1.0;
    let sigmas = (0..STEPS).map(|i| {
        // As torch counts: from the end in the second half.
        let at = if i < STEPS / 2 {
            start + step * i as f64
        } else {
            end - step * (STEPS - 1 - i) as f64
        };
        product *= 1.0 - beta(at);
        ((1.0 - product) / product).sqrt()
    });
    sigmas.collect()
}

/// The first and the last step of latent diffusion (Rombach et al. 2022), whose roots rise evenly.
const FIRST_STEP: f64 = 0.00085;
const LAST_STEP: f64 = 0.012;

/// The thousand levels of latent diffusion, with another last step perhaps.
fn discrete_table(last: f64, zsnr: bool) -> Vec<f64> {
    let sigmas = table_of(FIRST_STEP.sqrt(), last.sqrt(), |root| root * root);
    if zsnr { zero_terminal(&sigmas) } else { sigmas }
}

/// Shifts the levels so that the last one is nothing but noise (Lin et al. 2024).
fn zero_terminal(sigmas: &[f64]) -> Vec<f64> {
    let root: Vec<f64> = sigmas
        .iter()
        .map(|s| (1.0 / (s * s + 1.0)).sqrt())
        .collect();
    let (first, last) = (root[0], root[root.len() - 1]);
    let mut alphas: Vec<f64> = root
        .iter()
        .map(|r| ((r - last) * first / (first - last)).powi(2))
        .collect();
    // Zero would make the last level infinite.
    let end = alphas.len() - 1;
    alphas[end] = 4.897_345_189_085_343_5e-8;
    alphas.iter().map(|a| ((1.0 - a) / a).sqrt()).collect()
}

/// Moves a flow time towards noise.
fn flow_shift(shift: f64, t: f64) -> f64 {
    if shift == 1.0 {
        t
    } else {
        shift * t / (1.0 + (shift - 1.0) * t)
    }
}

fn flow_shift_f32(shift: f32, t: f32) -> f32 {
    if shift == 1.0 {
        t
    } else {
        shift * t / (1.0 + (shift - 1.0) * t)
    }
}

/// The same with an exponent for the shift.
pub(crate) fn exponential_shift(mu: f64, t: f64) -> f64 {
    mu.exp() / (mu.exp() + (1.0 / t - 1.0))
}

pub(crate) fn exponential_shift_f32(mu: f64, t: f32) -> f32 {
    // Number over tensor is the tensor's inverse times the number, so the result at 1 may be a little below 1.
    let e = mu.exp() as f32;
    1.0 / (e + (1.0 / t - 1.0)) * e
}

/// The cosine schedule (Nichol and Dhariwal 2021), shifted.
fn cosine_sigma(shift: f64, t: f32) -> f32 {
    const S: f32 = 0.008;
    let start = (S / (1.0 + S) * PI * 0.5).cos().powi(2);
    let mut alpha = ((t + S) / (1.0 + S) * PI * 0.5).cos().powi(2) / start;
    if shift != 1.0 {
        let snr = (alpha / (1.0 - alpha)).ln() + 2.0 * (1.0 / shift as f32).ln();
        alpha = 1.0 / (1.0 + (-snr).exp());
    }
    let alpha = alpha.clamp(0.0001, 0.9999);
    ((1.0 - alpha) / alpha).sqrt()
}

impl ModelSampling {
    fn from_table(prediction: Prediction, spacing: Spacing, sigmas: &[f64]) -> Self {
        Self {
            prediction,
            spacing,
            sigma_data: 1.0,
            noise_scale: 1.0,
            sigmas: Arc::new(sigmas.iter().map(|s| *s as f32).collect()),
            log_sigmas: Arc::new(sigmas.iter().map(|s| s.ln() as f32).collect()),
        }
    }

    fn from_f32(prediction: Prediction, spacing: Spacing, sigmas: Vec<f32>) -> Self {
        Self {
            prediction,
            spacing,
            sigma_data: 1.0,
            noise_scale: 1.0,
            log_sigmas: Arc::new(sigmas.iter().map(|s| s.ln()).collect()),
            sigmas: Arc::new(sigmas),
        }
    }

    /// SD 1 and 2, SDXL. `zsnr` for models trained down to pure noise.
    pub fn discrete(prediction: Prediction, zsnr: bool) -> Self {
        let table = discrete_table(LAST_STEP, zsnr);
        Self::from_table(prediction, Spacing::Discrete, &table)
    }

    /// The same with another last step than that of those.
    pub fn discrete_until(prediction: Prediction, last: f64) -> Self {
        Self::from_table(prediction, Spacing::Discrete, &discrete_table(last, false))
    }

    /// Steps that rise evenly themselves, and not by their roots.
    pub fn even_betas(prediction: Prediction, first: f64, last: f64) -> Self {
        let table = table_of(first, last, |beta| beta);
        Self::from_table(prediction, Spacing::Discrete, &table)
    }

    /// The fifty levels that distilled models know.
    pub fn distilled(prediction: Prediction, zsnr: bool) -> Self {
        let full = Self::discrete(prediction, zsnr);
        let kept = (0..STEPS / SKIP)
            .map(|i| full.sigmas[SKIP - 1 + i * SKIP])
            .collect();
        Self::from_f32(prediction, Spacing::Distilled, kept)
    }

    fn log_even(prediction: Prediction, spacing: Spacing, min: f64, max: f64) -> Self {
        let line = linspace(min.ln() as f32, max.ln() as f32, STEPS);
        Self::from_f32(prediction, spacing, line.iter().map(|v| v.exp()).collect())
    }

    pub fn continuous_edm(prediction: Prediction, min: f64, max: f64, sigma_data: f64) -> Self {
        Self {
            sigma_data,
            ..Self::log_even(prediction, Spacing::ContinuousEdm, min, max)
        }
    }

    pub fn continuous_v(prediction: Prediction, min: f64, max: f64) -> Self {
        Self::log_even(prediction, Spacing::ContinuousV, min, max)
    }

    /// A flow over levels that are even in their logarithm.
    pub fn ratio_flow(min: f64, max: f64, sigma_data: f64) -> Self {
        Self {
            sigma_data,
            ..Self::log_even(Prediction::RatioFlow, Spacing::RatioFlow, min, max)
        }
    }

    /// SD3, Wan and other straight-line models.
    pub fn flow(shift: f64, multiplier: f64) -> Self {
        let spacing = Spacing::Flow { shift, multiplier };
        let (s, m) = (shift as f32, multiplier as f32);
        let table = (1..=STEPS)
            .map(|k| flow_shift_f32(s, k as f32 / STEPS as f32 * m / m))
            .collect();
        Self::from_f32(Prediction::Flow, spacing, table)
    }

    /// A flow whose shift is the exponent of a number that grows with the picture.
    pub fn exponential_flow(shift: f64) -> Self {
        let table = (1..=10 * STEPS)
            .map(|k| exponential_shift_f32(shift, k as f32 / (10 * STEPS) as f32))
            .collect();
        Self::from_f32(Prediction::Flow, Spacing::ExponentialFlow { shift }, table)
    }

    pub fn cosine(prediction: Prediction, shift: f64) -> Self {
        let count = 10 * STEPS;
        let table = (0..count)
            .map(|x| cosine_sigma(shift, ((x + 1) as f64 / count as f64) as f32))
            .collect();
        Self::from_f32(prediction, Spacing::Cosine { shift }, table)
    }

    /// All levels, rising.
    pub fn sigmas(&self) -> &[f32] {
        &self.sigmas
    }

    pub fn sigma_min(&self) -> f32 {
        self.sigmas.first().copied().unwrap_or(0.0)
    }

    pub fn sigma_max(&self) -> f32 {
        self.sigmas.last().copied().unwrap_or(0.0)
    }

    /// The place of the table entry nearest in logarithm.
    fn nearest(&self, sigma: f32) -> usize {
        let log = sigma.ln();
        let mut best = (f32::INFINITY, 0);
        for (i, s) in self.log_sigmas.iter().enumerate() {
            let gap = (log - s).abs();
            if gap < best.0 {
                best = (gap, i);
            }
        }
        best.1
    }

    /// The level at a place between table entries.
    fn between(&self, place: f32) -> f32 {
        let last = (self.log_sigmas.len() - 1) as f32;
        let place = if place.is_nan() {
            0.0
        } else {
            place.clamp(0.0, last)
        };
        let (low, high) = (place.floor() as usize, place.ceil() as usize);
        let part = place.fract();
        ((1.0 - part) * self.log_sigmas[low] + part * self.log_sigmas[high]).exp()
    }

    /// What the network is told for a noise level.
    pub fn timestep(&self, sigma: f32) -> f32 {
        match self.spacing {
            Spacing::Discrete => self.nearest(sigma) as f32,
            Spacing::Distilled => (self.nearest(sigma) * SKIP + SKIP - 1) as f32,
            Spacing::ContinuousEdm => 0.25 * sigma.ln(),
            Spacing::ContinuousV => sigma.atan() / PI * 2.0,
            Spacing::RatioFlow => sigma / (sigma + 1.0),
            Spacing::Flow { multiplier, .. } => sigma * multiplier as f32,
            Spacing::ExponentialFlow { .. } => sigma,
            Spacing::Cosine { .. } => {
                const S: f32 = 0.008;
                let start = (S / (1.0 + S) * PI * 0.5).cos().powi(2);
                let var = (1.0 / (sigma * sigma + 1.0)).clamp(0.0, 1.0);
                (var * start).sqrt().acos() / FRAC_PI_2 * (1.0 + S) - S
            }
        }
    }

    /// The noise level of a time step.
    pub fn sigma(&self, timestep: f32) -> f32 {
        match self.spacing {
            Spacing::Discrete => self.between(timestep),
            Spacing::Distilled => self.between((timestep - (SKIP - 1) as f32) / SKIP as f32),
            Spacing::ContinuousEdm => (timestep / 0.25).exp(),
            Spacing::ContinuousV => (timestep * PI / 2.0).tan(),
            Spacing::RatioFlow => {
                let max = self.sigma_max();
                if timestep >= max / (max + 1.0) {
                    max
                } else {
                    timestep / (1.0 - timestep)
                }
            }
            Spacing::Flow { shift, multiplier } => {
                flow_shift_f32(shift as f32, timestep / multiplier as f32)
            }
            Spacing::ExponentialFlow { shift } => exponential_shift_f32(shift, timestep),
            Spacing::Cosine { shift } => cosine_sigma(shift, timestep),
        }
    }

    /// The noise level after a part of sampling.
    pub fn percent_to_sigma(&self, percent: f64) -> f64 {
        let flow = matches!(
            self.spacing,
            Spacing::Flow { .. } | Spacing::ExponentialFlow { .. }
        );
        if percent <= 0.0 {
            return if flow { 1.0 } else { BEYOND };
        }
        if percent >= 1.0 {
            return 0.0;
        }
        let left = 1.0 - percent;
        match self.spacing {
            Spacing::Discrete | Spacing::Distilled => {
                f64::from(self.sigma((left * (STEPS - 1) as f64) as f32))
            }
            Spacing::ContinuousEdm | Spacing::ContinuousV | Spacing::RatioFlow => {
                let (min, max) = (f64::from(self.sigma_min()), f64::from(self.sigma_max()));
                ((max.ln() - min.ln()) * left + min.ln()).exp()
            }
            Spacing::Flow { shift, .. } => flow_shift(shift, left),
            Spacing::ExponentialFlow { shift } => exponential_shift(shift, left),
            Spacing::Cosine { shift } => f64::from(cosine_sigma(shift, left as f32)),
        }
    }

    /// `sigma² + sigma_data²`.
    fn variance(&self, sigma: f32) -> f32 {
        sigma * sigma + (self.sigma_data * self.sigma_data) as f32
    }

    /// What the network is given for a noisy sample.
    pub fn input(&self, sigma: f32, x: &Tensor) -> Tensor {
        match self.prediction {
            Prediction::Flow | Prediction::ImgToImg => x.clone(),
            Prediction::RatioFlow => x.mul_scalar(1.0 - sigma / (sigma + 1.0)),
            _ => x.div_scalar(self.variance(sigma).sqrt()),
        }
    }

    /// The clean sample, from the network's output and the noisy sample.
    pub fn denoised(&self, sigma: f32, out: &Tensor, x: &Tensor) -> Result<Tensor> {
        let data = self.sigma_data as f32;
        let velocity = |sign: f32| {
            let variance = self.variance(sigma);
            x.zip_map(out, |x, o| {
                x * (data * data) / variance + sign * (o * sigma * data / variance.sqrt())
            })
        };
        match self.prediction {
            Prediction::Eps | Prediction::Flow => x.zip_map(out, |x, o| x - o * sigma),
            Prediction::V => velocity(-1.0),
            Prediction::Edm => velocity(1.0),
            Prediction::X0 | Prediction::ImgToImg => Ok(out.clone()),
            Prediction::RatioFlow => {
                let s = sigma / (sigma + 1.0);
                x.zip_map(out, |x, o| x * (1.0 - s) - o * s)
            }
            Prediction::Lcm => {
                let t = self.timestep(sigma) * 10.0;
                let (skip, keep) = (0.25 / (t * t + 0.25), t / (t * t + 0.25).sqrt());
                x.zip_map(out, |x, o| keep * (x - o * sigma) + skip * x)
            }
        }
    }

    /// A latent with noise of a level put on it; `max_denoise` when sampling starts from nothing but noise.
    pub fn noise_scaling(
        &self,
        sigma: f32,
        noise: &Tensor,
        latent: &Tensor,
        max_denoise: bool,
    ) -> Result<Tensor> {
        let scaled;
        let noise = if self.noise_scale == 1.0 {
            noise
        } else {
            scaled = noise.mul_scalar(self.noise_scale);
            &scaled
        };
        match self.prediction {
            Prediction::Flow => noise.zip_map(latent, |n, l| sigma * n + (1.0 - sigma) * l),
            Prediction::RatioFlow => noise.zip_map(latent, |n, l| n * sigma + l),
            _ => {
                let scale = if max_denoise {
                    (1.0 + sigma * sigma).sqrt()
                } else {
                    sigma
                };
                noise.zip_map(latent, |n, l| n * scale + l)
            }
        }
    }

    /// What is left to do to the result when sampling stops at a level.
    pub fn inverse_noise_scaling(&self, sigma: f32, latent: &Tensor) -> Tensor {
        match self.prediction {
            Prediction::Flow => latent.div_scalar(1.0 - sigma),
            _ => latent.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f32, b: f64) {
        let a = f64::from(a);
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{a} is not {b}");
    }

    #[test]
    fn the_tables_of_the_specification() {
        let discrete = ModelSampling::discrete(Prediction::Eps, false);
        close(discrete.sigma_min(), 0.0291671585);
        close(discrete.sigma_max(), 14.6146412);
        close(discrete.sigma(999.0), 14.6146402);
        let zsnr = ModelSampling::discrete(Prediction::V, true);
        for (i, wanted) in [
            (0, 0.0291671585),
            (500, 1.77455747),
            (998, 2254.23804),
            (999, 4518.76367),
        ] {
            close(zsnr.sigmas()[i], wanted);
        }
        assert_eq!(
            ModelSampling::distilled(Prediction::Lcm, false)
                .sigmas()
                .len(),
            50
        );
    }

    #[test]
    fn levels_and_time_steps_are_inverse() {
        for sampling in [
            ModelSampling::discrete(Prediction::Eps, false),
            ModelSampling::distilled(Prediction::Lcm, false),
            ModelSampling::continuous_edm(Prediction::Edm, 0.002, 120.0, 0.5),
            ModelSampling::continuous_v(Prediction::V, 0.03, 500.0),
            ModelSampling::ratio_flow(0.002, 80.0, 1.0),
            ModelSampling::cosine(Prediction::Eps, 1.0),
        ] {
            let middle = sampling.sigmas()[sampling.sigmas().len() / 2];
            let back = sampling.sigma(sampling.timestep(middle));
            assert!(
                (back - middle).abs() < 1e-3 * middle,
                "{:?}",
                sampling.spacing
            );
            assert!(sampling.sigma(f32::NAN).is_nan() || sampling.sigma(f32::NAN) >= 0.0);
        }
    }
}
