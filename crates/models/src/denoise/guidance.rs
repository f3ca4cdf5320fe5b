//! What happens between the two predictions of a step and the one sampling goes on with.
//!
//! Order in a step: every [`PreCfg`] changes the pair of predictions, a [`CfgRule`] or plain guidance makes one of them,
//! every [`PostCfg`] changes that.

use std::error::Error;
use std::sync::{Mutex, PoisonError};

use fresco_tensor::{Axes, Tensor};

use super::cond::Cond;
use super::hooks::Hooks;
use crate::fourier::scale_box;
use crate::model_sampling::{ModelSampling, Prediction};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// One step of sampling, seen after the network ran.
#[derive(Clone, Copy)]
pub struct GuidanceStep<'a> {
    /// The noisy sample.
    pub x: &'a Tensor,
    pub sigma: f32,
    pub cfg: f64,
    /// What the network makes of it with the prompt.
    pub cond: &'a Tensor,
    /// And without.
    pub uncond: &'a Tensor,
}

/// Changes the pair of predictions before guidance.
pub trait PreCfg: Send + Sync {
    fn apply(&self, step: &GuidanceStep) -> Result<(Tensor, Tensor)>;

    /// The same for changes that look at the run.
    fn with_hooks(&self, step: &GuidanceStep, _hooks: &Hooks) -> Result<(Tensor, Tensor)> {
        self.apply(step)
    }

    /// Whether steps without an unprompted prediction are left alone.
    fn needs_uncond(&self) -> bool {
        false
    }
}

/// Guidance of another kind: gives what to take off the sample.
pub trait CfgRule: Send + Sync {
    fn apply(&self, step: &GuidanceStep) -> Result<Tensor>;

    /// The same for rules that run the model again.
    fn with_model(&self, step: &GuidanceStep, _model: &dyn Again) -> Result<Tensor> {
        self.apply(step)
    }
}

/// Changes the guided prediction.
pub trait PostCfg: Send + Sync {
    fn apply(&self, step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor>;

    /// The same for changes that run the model again.
    fn with_model(
        &self,
        step: &GuidanceStep,
        denoised: &Tensor,
        _model: &dyn Again,
    ) -> Result<Tensor> {
        self.apply(step, denoised)
    }
}

/// Which prompt to run the model with.
#[derive(Clone, Copy)]
pub enum Which<'a> {
    Cond,
    Uncond,
    /// Another one than the step's.
    Other(&'a [Cond]),
}

/// The model behind a step, for guidance that runs it again.
pub trait Again {
    /// What acts inside the network in this run.
    fn hooks(&self) -> &Hooks;

    /// The prediction with one prompt alone.
    fn predict(&self, which: Which<'_>, x: &Tensor, sigma: f32, hooks: &Hooks) -> Result<Tensor>;
}

/// All dimensions but the batch.
fn item_dims(t: &Tensor) -> Vec<usize> {
    (1..t.rank()).collect()
}

/// The last three dimensions.
fn last_three(t: &Tensor) -> Vec<usize> {
    (t.rank().saturating_sub(3)..t.rank()).collect()
}

/// One factor for each item of a batch.
fn per_item(t: &Tensor, factors: Vec<f32>) -> fresco_tensor::Result<Tensor> {
    let mut shape = vec![1; t.rank()];
    shape[0] = factors.len();
    Tensor::from_vec(shape, factors)
}

/// Rescales the guided prediction to the spread of the unguided one, in velocity space (Lin et al. 2024).
#[derive(Clone, Copy, Debug)]
pub struct RescaleCfg {
    pub multiplier: f64,
}

impl CfgRule for RescaleCfg {
    fn apply(&self, step: &GuidanceStep) -> Result<Tensor> {
        let s = step.sigma;
        let (variance, root) = (s * s + 1.0, (s * s + 1.0).sqrt());
        let x = step.x.div_scalar(variance);
        let velocity = |denoised: &Tensor| -> fresco_tensor::Result<Tensor> {
            // Through the difference to the sample and back, as the reference goes.
            let off = step.x.sub(denoised)?;
            let clean = step.x.sub(&off)?;
            Ok(x.sub(&clean)?.mul_scalar(root).div_scalar(s))
        };
        let (cond, uncond) = (velocity(step.cond)?, velocity(step.uncond)?);
        let guided = uncond.add(&cond.sub(&uncond)?.mul_scalar(step.cfg as f32))?;
        let dims = item_dims(&cond);
        let ratio = cond
            .std(&dims, Axes::Keep)?
            .div(&guided.std(&dims, Axes::Keep)?)?;
        let rescaled = guided.mul(&ratio)?;
        let mixed = rescaled
            .mul_scalar(self.multiplier as f32)
            .add(&guided.mul_scalar((1.0 - self.multiplier) as f32))?;
        let clean = x.sub(&mixed.mul_scalar(s).div_scalar(root))?;
        Ok(step.x.sub(&clean)?)
    }
}

/// Limits the length of the guided prediction (Lumina 2); above a noise level there is no guidance at all.
#[derive(Clone, Copy, Debug)]
pub struct RenormCfg {
    pub truncate_at: f64,
    pub limit: f64,
    /// Channels that are guided; any beyond them are taken from the prompted prediction.
    pub channels: usize,
}

impl CfgRule for RenormCfg {
    fn apply(&self, step: &GuidanceStep) -> Result<Tensor> {
        let channels = step.cond.dim(1)?;
        let guided = self.channels.min(channels);
        let cond = step.cond.narrow(1, 0, guided)?;
        let rest = step.cond.narrow(1, guided, channels - guided)?;
        let mut out = cond.clone();
        if f64::from(step.sigma) < self.truncate_at {
            let uncond = step.uncond.narrow(1, 0, guided)?;
            out = uncond.add(&cond.sub(&uncond)?.mul_scalar(step.cfg as f32))?;
            if self.limit > 0.0 {
                let dims = item_dims(&cond);
                let most = cond.norm(&dims, Axes::Keep)?.mul_scalar(self.limit as f32);
                let factor = most.zip_map(&out.norm(&dims, Axes::Keep)?, |most, have| {
                    if have >= most { most / have } else { 1.0 }
                })?;
                out = out.mul(&factor)?;
            }
        }
        let all = Tensor::cat(&[&out, &rest], 1)?;
        Ok(step.x.sub(&all)?)
    }
}

/// Guidance that changes along the frames of a video.
#[derive(Clone, Copy, Debug)]
pub enum FrameCfg {
    /// From the least at the first frame to the full at the last.
    Linear { least: f64 },
    /// From the least up to the full in the middle and down again.
    Triangle { least: f64 },
}

impl CfgRule for FrameCfg {
    fn apply(&self, step: &GuidanceStep) -> Result<Tensor> {
        let frames = step.cond.dim(0)?;
        let scales = match *self {
            Self::Linear { least } => {
                crate::spread::linspace(least as f32, step.cfg as f32, frames)
            }
            Self::Triangle { least } => crate::spread::linspace(0.0, 1.0, frames)
                .into_iter()
                .map(|v| {
                    let height = 2.0 * (v - (v + 0.5).floor()).abs();
                    height * (step.cfg - least) as f32 + least as f32
                })
                .collect(),
        };
        let cond = step.x.sub(step.cond)?;
        let uncond = step.x.sub(step.uncond)?;
        let scale = per_item(&cond, scales)?;
        Ok(uncond.add(&cond.sub(&uncond)?.mul(&scale)?)?)
    }
}

/// Follows the prompt more where the unprompted prediction already agrees with it.
#[derive(Clone, Copy, Debug)]
pub struct Mahiro;

impl PostCfg for Mahiro {
    fn apply(&self, step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        let scale = step.cfg as f32;
        let leap = step.cond.mul_scalar(scale);
        let merged = leap.add(denoised)?.div_scalar(2.0);
        let root = |t: &Tensor| {
            t.map(|v| {
                if v == 0.0 {
                    0.0
                } else {
                    v.abs().sqrt() * v.signum()
                }
            })
        };
        let (a, b) = (root(&step.uncond.mul_scalar(scale)), root(&merged));
        let dot = a.mul(&b)?.sum(&[1], Axes::Keep)?;
        let lengths = a.norm(&[1], Axes::Keep)?.mul(&b.norm(&[1], Axes::Keep)?)?;
        let cosine = dot.zip_map(&lengths, |d, l| d / l.max(1e-8))?;
        let all: Vec<usize> = (0..cosine.rank()).collect();
        let similarity = 2.0 * (cosine.mean(&all, Axes::Drop)?.item()? + 1.0);
        Ok(denoised.zip_map(&leap, |d, l| {
            (similarity * d + (4.0 - similarity) * l) / 4.0
        })?)
    }
}

/// Scales the unprompted prediction to fit the prompted one best (Fan et al. 2025).
#[derive(Clone, Copy, Debug)]
pub struct CfgZeroStar;

impl PostCfg for CfgZeroStar {
    fn apply(&self, step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        let positive = step.x.sub(step.cond)?;
        let negative = step.x.sub(step.uncond)?;
        let dims = item_dims(&positive);
        let dot = positive.mul(&negative)?.sum(&dims, Axes::Keep)?;
        let square = negative
            .mul(&negative)?
            .sum(&dims, Axes::Keep)?
            .add_scalar(1e-8);
        let fit = dot.div(&square)?;
        let first = step.uncond.mul(&fit.sub_scalar(1.0))?;
        let second = step
            .uncond
            .mul_scalar(step.cfg as f32)
            .mul(&fit.rsub_scalar(1.0))?;
        Ok(denoised.add(&first)?.add(&second)?)
    }
}

/// Keeps the guided prediction no longer than the prompted one.
#[derive(Clone, Copy, Debug)]
pub struct CfgNorm {
    pub strength: f64,
}

impl PostCfg for CfgNorm {
    fn apply(&self, step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        let scale = step
            .cond
            .norm(&[1], Axes::Keep)?
            .zip_map(&denoised.norm(&[1], Axes::Keep)?, |c, d| {
                (c / (d + 1e-8)).clamp(0.0, 1.0)
            })?;
        Ok(denoised.mul(&scale)?.mul_scalar(self.strength as f32))
    }
}

/// Divides the predicted noise by a factor.
#[derive(Clone, Copy, Debug)]
pub struct EpsilonScaling {
    pub factor: f64,
}

impl PostCfg for EpsilonScaling {
    fn apply(&self, step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        let factor = self.factor as f32;
        Ok(step.x.zip_map(denoised, |x, d| x - (x - d) / factor)?)
    }
}

/// Temporal score rescaling: steers towards sharper or more varied results.
#[derive(Clone, Debug)]
pub struct TemporalScoreRescaling {
    pub k: f64,
    pub sigma: f64,
    pub sampling: std::sync::Arc<ModelSampling>,
}

impl PostCfg for TemporalScoreRescaling {
    fn apply(&self, step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        let s = step.sigma;
        let half_log_snr = if self.sampling.prediction == Prediction::Flow {
            ((1.0 - s) / s).ln()
        } else {
            -s.ln()
        };
        let snr = (2.0 * half_log_snr).exp();
        let alpha = s * half_log_snr.exp();
        let (variance, k) = ((self.sigma * self.sigma) as f32, self.k as f32);
        let weight = if snr == f32::INFINITY {
            k
        } else {
            (snr * variance + 1.0) / (snr * variance / k + 1.0)
        };
        Ok(step.x.div_scalar(alpha).lerp(denoised, weight)?)
    }
}

/// Adaptive projected guidance (Sadat et al. 2024): less of the part that only makes the picture stronger.
#[derive(Debug)]
pub struct Apg {
    pub eta: f64,
    pub norm_threshold: f64,
    pub momentum: f64,
    running: Mutex<Running>,
}

/// What APG remembers from step to step; a rising noise level starts over.
#[derive(Debug, Default)]
struct Running {
    average: Option<Tensor>,
    sigma: Option<f32>,
}

impl Apg {
    pub fn new(eta: f64, norm_threshold: f64, momentum: f64) -> Self {
        Self {
            eta,
            norm_threshold,
            momentum,
            running: Mutex::default(),
        }
    }
}

impl PreCfg for Apg {
    fn apply(&self, step: &GuidanceStep) -> Result<(Tensor, Tensor)> {
        let mut guidance = step.cond.sub(step.uncond)?;
        {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if running.sigma.is_some_and(|before| step.sigma > before) {
                running.average = None;
            }
            running.sigma = Some(step.sigma);
            if self.momentum != 0.0 {
                guidance = match &running.average {
                    // A latent of another size has nothing to do with the one before.
                    Some(average) if average.shape() == guidance.shape() => {
                        average.mul_scalar(self.momentum as f32).add(&guidance)?
                    }
                    _ => guidance,
                };
                running.average = Some(guidance.clone());
            }
        }
        let dims = last_three(&guidance);
        if self.norm_threshold > 0.0 {
            let threshold = self.norm_threshold as f32;
            let scale = guidance
                .norm(&dims, Axes::Keep)?
                .map(|n| (threshold / n).min(1.0));
            guidance = guidance.mul(&scale)?;
        }
        let length = step.cond.norm(&dims, Axes::Keep)?.map(|n| n.max(1e-12));
        let direction = step.cond.div(&length)?;
        let along = direction.mul(&guidance.mul(&direction)?.sum(&dims, Axes::Keep)?)?;
        let across = guidance.sub(&along)?;
        let changed = across.add(&along.mul_scalar(self.eta as f32))?;
        let rest = step.cond.sub(step.uncond)?.div_scalar(step.cfg as f32);
        let cond = step.uncond.add(&changed)?.add(&rest)?;
        Ok((cond, step.uncond.clone()))
    }
}

/// Tangential damping: the unprompted prediction keeps only what it has in common with the prompted one.
#[derive(Clone, Copy, Debug)]
pub struct TangentialDamping;

impl PreCfg for TangentialDamping {
    fn apply(&self, step: &GuidanceStep) -> Result<(Tensor, Tensor)> {
        let cond = step.x.sub(step.cond)?;
        let mut uncond = step.x.sub(step.uncond)?;
        if cond.shape() != uncond.shape() {
            return Err(format!(
                "predictions of shapes {:?} and {:?} cannot be compared",
                step.cond.shape(),
                step.uncond.shape()
            )
            .into());
        }
        let items = cond.dim(0)?.max(1);
        let len = cond.len() / items;
        for i in 0..items {
            let c = &cond.data()[i * len..(i + 1) * len];
            let u = &mut uncond.data_mut()[i * len..(i + 1) * len];
            project_on_main_direction(u, c);
        }
        Ok((step.cond.clone(), step.x.sub(&uncond)?))
    }

    fn needs_uncond(&self) -> bool {
        true
    }
}

/// Replaces `u` by its part along the first right singular vector of the two rows `u` and `c`, which is found from their
/// two-by-two products.
fn project_on_main_direction(u: &mut [f32], c: &[f32]) {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(x, y)| f64::from(*x) * f64::from(*y))
            .sum()
    };
    let (uu, uc, cc) = (dot(u, u), dot(u, c), dot(c, c));
    let root = (((uu - cc) / 2.0).powi(2) + uc * uc).sqrt();
    let largest = f64::midpoint(uu, cc) + root;
    if largest <= 0.0 {
        return;
    }
    // The eigenvector of the larger eigenvalue, from whichever form does not cancel.
    let (a, b) = if uu >= cc {
        (largest - cc, uc)
    } else {
        (uc, largest - uu)
    };
    let length = a.hypot(b);
    let (a, b) = if length > 0.0 {
        (a / length, b / length)
    } else {
        (1.0, 0.0)
    };
    // v = (a u + b c) / sqrt(largest), and u . v likewise.
    let factor = (a * uu + b * uc) / largest;
    for (u, c) in u.iter_mut().zip(c) {
        *u = (factor * (a * f64::from(*u) + b * f64::from(*c))) as f32;
    }
}

/// FreSca: scales low and high spatial frequencies of the guidance separately.
#[derive(Clone, Copy, Debug)]
pub struct FreSca {
    pub scale_low: f64,
    pub scale_high: f64,
    pub cutoff: usize,
}

impl PreCfg for FreSca {
    fn apply(&self, step: &GuidanceStep) -> Result<(Tensor, Tensor)> {
        let guidance = step.cond.sub(step.uncond)?;
        let [_, _, h, w] = guidance.dims4()?;
        let band = |len: usize| {
            let middle = len / 2;
            let reach = self.cutoff.min(middle);
            middle - reach..middle + reach
        };
        let filtered = scale_box(&guidance, band(h), band(w), self.scale_low, self.scale_high)?;
        Ok((filtered.add(step.uncond)?, step.uncond.clone()))
    }

    fn needs_uncond(&self) -> bool {
        true
    }
}

/// Differential diffusion: a mask of shades says from which step on each place may change.
#[derive(Clone, Copy, Debug)]
pub struct DifferentialDiffusion {
    pub strength: f64,
}

impl DifferentialDiffusion {
    /// The mask of one step; `sigmas` are all levels of the run.
    pub fn mask(
        &self,
        sampling: &ModelSampling,
        sigma: f32,
        mask: &Tensor,
        sigmas: &[f32],
    ) -> Tensor {
        let (Some(first), Some(last)) = (sigmas.first(), sigmas.last()) else {
            return mask.clone();
        };
        let to = sampling.timestep(sampling.sigma_min().max(*last));
        let from = sampling.timestep(*first);
        let threshold = (sampling.timestep(sigma) - to) / (from - to);
        let strength = self.strength as f32;
        mask.map(|m| {
            let open = f32::from(u8::from(m >= threshold));
            if self.strength != 0.0 && self.strength < 1.0 {
                strength * open + (1.0 - strength) * m
            } else {
                open
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_direction_of_parallel_rows_keeps_them() {
        let mut u = [1.0, 2.0, 3.0];
        project_on_main_direction(&mut u, &[2.0, 4.0, 6.0]);
        for (a, b) in u.iter().zip([1.0, 2.0, 3.0]) {
            assert!((a - b).abs() < 1e-6);
        }
        let mut zero = [0.0; 3];
        project_on_main_direction(&mut zero, &[0.0; 3]);
        assert_eq!(zero, [0.0; 3]);
        let mut across = [1.0, 0.0];
        project_on_main_direction(&mut across, &[0.0, 5.0]);
        assert!(across[0].abs() < 1e-6, "{across:?}");
    }

    #[test]
    fn apg_starts_over_when_the_noise_rises() {
        let apg = Apg::new(1.0, 0.0, 0.5);
        let t = |v: f32| Tensor::full([1, 1, 1, 2], v).unwrap();
        let (x, cond, uncond) = (t(0.0), t(2.0), t(1.0));
        let run = |sigma| {
            let step = GuidanceStep {
                x: &x,
                sigma,
                cfg: 1.0,
                cond: &cond,
                uncond: &uncond,
            };
            apg.apply(&step).unwrap().0.data()[0]
        };
        assert_eq!(run(2.0), 3.0);
        assert_eq!(run(1.0), 3.5);
        assert_eq!(run(2.0), 3.0);
    }
}
