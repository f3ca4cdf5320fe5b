//! Guidance: one prediction of a step from those of its prompts.

use std::error::Error;
use std::sync::{Arc, Mutex};

use fresco_tensor::{Axes, Generator, Tensor, TensorError, nn};

use super::Patches;
use super::batch::predict;
use super::call::Predict;
use super::cond::{Cond, Lists};
use super::guidance::{self, Again, GuidanceStep, Which};
use super::hooks::Hooks;
use super::prepare::{Encode, Setting, encode, named};
use crate::error::{ModelError, Result};
use crate::model_sampling::ModelSampling;

/// Changes inside the network that start anew with every run and may draw from its random numbers.
pub trait RunPatch: Send + Sync {
    fn install(&self, hooks: &mut Hooks, random: &Arc<Mutex<Generator>>);
}

/// How predictions are joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Guidance {
    /// `positive` away from `negative`.
    Cfg { cfg: f64 },
    /// `positive` away from `middle`, and `middle` away from `negative`.
    Dual {
        cfg_conds: f64,
        cfg_negative: f64,
        nested: bool,
    },
    /// `positive` away from `negative`, of latents of several parts with a strength of its own for what is beside the first.
    Parts { first: f64, beside: f64 },
    /// `positive` away from the part of `negative` that is not along it, both seen from `empty_negative_prompt`
    /// (Armandpour et al. 2023).
    PerpNeg { cfg: f64, neg_scale: f64 },
}

/// Guidance of another strength within a part of sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CfgOverride {
    pub cfg: f64,
    /// From 0, where everything is noise, to 1.
    pub start_percent: f64,
    pub end_percent: f64,
}

impl CfgOverride {
    fn holds(&self, sampling: &ModelSampling, sigma: f32) -> bool {
        let sigma = f64::from(sigma);
        sampling.percent_to_sigma(self.start_percent) >= sigma
            && sigma >= sampling.percent_to_sigma(self.end_percent)
    }
}

/// Equal but for rounding.
fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Errors of guidance that come from below keep their kind.
fn hook_error(error: Box<dyn Error + Send + Sync>) -> ModelError {
    match error.downcast::<ModelError>() {
        Ok(e) => *e,
        Err(e) => match e.downcast::<TensorError>() {
            Ok(e) => (*e).into(),
            Err(e) => ModelError::invalid("guidance", e.to_string()),
        },
    }
}

/// What a prompt predicts beyond an empty one, less what a negative prompt predicts in other directions.
pub(crate) fn perp_neg(
    pos: &Tensor,
    neg: &Tensor,
    empty: &Tensor,
    neg_scale: f64,
    cfg: f64,
) -> Result<Tensor> {
    let (pos, neg) = (pos.sub(empty)?, neg.sub(empty)?);
    let all: Vec<usize> = (0..pos.rank()).collect();
    let dot = neg.mul(&pos)?.sum(&all, Axes::Drop)?.item()?;
    let length = pos.norm(&all, Axes::Drop)?.item()?;
    let along = dot / (length * length);
    let across = neg.sub(&pos.mul_scalar(along))?;
    let guided = pos.sub(&across.mul_scalar(neg_scale as f32))?;
    Ok(empty.add(&guided.mul_scalar(cfg as f32))?)
}

/// Guides every step of a run.
pub struct Guider<'a> {
    pub model: &'a dyn Predict,
    /// Prepared.
    positive: Option<Arc<[Cond]>>,
    negative: Option<Arc<[Cond]>>,
    middle: Option<Arc<[Cond]>>,
    empty: Option<Arc<[Cond]>>,
    guidance: Guidance,
    patches: &'a Patches,
    hooks: Hooks,
    setting: Setting<'a>,
    encode: &'a Encode<'a>,
    /// The sampler wants the unprompted prediction.
    keep_uncond: bool,
    last_uncond: Option<Tensor>,
}

impl<'a> Guider<'a> {
    pub fn new(
        model: &'a dyn Predict,
        lists: &Lists,
        guidance: Guidance,
        patches: &'a Patches,
        setting: Setting<'a>,
        encode: &'a Encode<'a>,
    ) -> Self {
        Self {
            model,
            positive: named(lists, "positive"),
            negative: named(lists, "negative"),
            middle: named(lists, "middle"),
            empty: named(lists, "empty_negative_prompt"),
            guidance,
            patches,
            hooks: patches.hooks.clone(),
            setting,
            encode,
            keep_uncond: patches.keep_uncond,
            last_uncond: None,
        }
    }

    /// Installs what starts anew with a run.
    pub fn start(&mut self, random: &Arc<Mutex<Generator>>) {
        for patch in &self.patches.per_run {
            patch.install(&mut self.hooks, random);
        }
    }

    /// The network's hooks of this run.
    pub fn hooks_mut(&mut self) -> &mut Hooks {
        &mut self.hooks
    }

    /// Predict without the prompt even at strength 1, for samplers that look at it.
    pub fn keep_uncond(&mut self) {
        self.keep_uncond = true;
    }

    /// What the last step predicted without the prompt.
    pub fn uncond(&self) -> Option<&Tensor> {
        self.last_uncond.as_ref()
    }

    /// How strong guidance is at a noise level that would be `cfg` elsewhere.
    pub fn strength(&self, cfg: f64, sigma: f32) -> f64 {
        let mut overrides = self.patches.cfg_overrides.iter().rev();
        let found = overrides.find(|o| o.holds(self.setting.sampling, sigma));
        found.map_or(cfg, |o| o.cfg)
    }

    /// Values of the first part of an item, where the latent has several parts.
    fn first_values(&self) -> Option<usize> {
        let parts = self.hooks.parts.as_deref()?;
        let first = parts.first()?.iter().product();
        (parts.len() > 1).then_some(first)
    }

    fn lists(&self, lists: &[Option<&[Cond]>], x: &Tensor, sigma: f32) -> Result<Vec<Tensor>> {
        predict(self.model, lists, x, sigma, &self.hooks)
    }

    /// The predictions with the prompt and without.
    fn pair(
        &self,
        positive: Option<&[Cond]>,
        negative: Option<&[Cond]>,
        x: &Tensor,
        sigma: f32,
    ) -> Result<Vec<Tensor>> {
        let skipped = self.patches.skipped_in_uncond.as_ref();
        let skipped = skipped.filter(|s| negative.is_some() && s.is_active(sigma));
        let Some(skipped) = skipped else {
            return self.lists(&[positive, negative], x, sigma);
        };
        let mut out = self.lists(&[positive, None], x, sigma)?;
        let hooks = skipped.installed(&self.hooks);
        let without = predict(self.model, &[None, negative], x, sigma, &hooks)?;
        out.truncate(1);
        out.extend(without.into_iter().skip(1));
        Ok(out)
    }

    /// The pair of predictions as pre-guidance changes leave it.
    fn before(&self, step: &GuidanceStep<'_>, has_uncond: bool) -> Result<(Tensor, Tensor)> {
        let (mut cond, mut uncond) = (step.cond.clone(), step.uncond.clone());
        for pre in &self.patches.pre_cfg {
            if pre.needs_uncond() && !has_uncond {
                continue;
            }
            let now = GuidanceStep {
                cond: &cond,
                uncond: &uncond,
                ..*step
            };
            (cond, uncond) = pre.with_hooks(&now, &self.hooks).map_err(hook_error)?;
        }
        Ok((cond, uncond))
    }

    fn again<'b>(&'b self, cond: Option<&'b [Cond]>, uncond: Option<&'b [Cond]>) -> Replay<'b, 'a> {
        Replay {
            guider: self,
            cond,
            uncond,
        }
    }

    fn after(
        &mut self,
        step: &GuidanceStep<'_>,
        mut denoised: Tensor,
        cond: Option<&[Cond]>,
        uncond: Option<&[Cond]>,
    ) -> Result<Tensor> {
        for post in &self.patches.post_cfg {
            denoised = post
                .with_model(step, &denoised, &self.again(cond, uncond))
                .map_err(hook_error)?;
        }
        self.last_uncond = Some(step.uncond.clone());
        Ok(denoised)
    }

    /// Plain guidance, or the rule in its place, and what comes after it.
    fn join(
        &mut self,
        step: &GuidanceStep<'_>,
        cond: Option<&[Cond]>,
        uncond: Option<&[Cond]>,
    ) -> Result<Tensor> {
        let joined = if let Some(rule) = &self.patches.cfg_rule {
            let off = rule
                .with_model(step, &self.again(cond, uncond))
                .map_err(hook_error)?;
            step.x.sub(&off)?
        } else {
            nn::guide(step.cond, step.uncond, step.cfg as f32)?
        };
        self.after(step, joined, cond, uncond)
    }

    /// The clean latent that a noisy one is guided to.
    pub fn denoise(&mut self, x: &Tensor, sigma: f32) -> Result<Tensor> {
        match self.hooks.reused_steps.clone() {
            Some(reuse) => {
                reuse.begin_step();
                reuse.around(x, sigma, &[0], || self.denoise_anew(x, sigma))
            }
            None => self.denoise_anew(x, sigma),
        }
    }

    fn denoise_anew(&mut self, x: &Tensor, sigma: f32) -> Result<Tensor> {
        // The shared lists are borrowed apart from the guider, whose last prediction changes.
        let (positive, negative) = (self.positive.clone(), self.negative.clone());
        let (positive, mut negative) = (positive.as_deref(), negative.as_deref());
        let shortcuts = !self.keep_uncond;
        let guidance = match self.guidance {
            Guidance::Parts { first, beside }
                if is_close(first, beside) || self.first_values().is_none() =>
            {
                Guidance::Cfg { cfg: first }
            }
            other => other,
        };
        match guidance {
            Guidance::Parts { first, beside } => {
                let values = self.first_values().unwrap_or(0);
                let out = self.pair(positive, negative, x, sigma)?;
                let step = GuidanceStep {
                    x,
                    sigma,
                    cfg: first,
                    cond: &out[0],
                    uncond: &out[1],
                };
                let (cond, uncond) =
                    self.before(&step, positive.is_some() && negative.is_some())?;
                let rest = cond.dim(2)?.saturating_sub(values);
                let part = |start: usize, len: usize, cfg: f64| -> Result<Tensor> {
                    let (towards, away) =
                        (cond.narrow(2, start, len)?, uncond.narrow(2, start, len)?);
                    Ok(nn::guide(&towards, &away, cfg as f32)?)
                };
                let joined = [part(0, values, first)?, part(values, rest, beside)?];
                let joined = Tensor::cat(&[&joined[0], &joined[1]], 2)?;
                let step = GuidanceStep {
                    cond: &cond,
                    uncond: &uncond,
                    ..step
                };
                self.after(&step, joined, positive, negative)
            }
            Guidance::Cfg { cfg } => {
                // Without a negative prompt there is nothing to guide away from.
                let cfg = if negative.is_some() {
                    self.strength(cfg, sigma)
                } else {
                    cfg
                };
                if shortcuts && is_close(cfg, 1.0) {
                    negative = None;
                }
                let out = self.pair(positive, negative, x, sigma)?;
                let step = GuidanceStep {
                    x,
                    sigma,
                    cfg,
                    cond: &out[0],
                    uncond: &out[1],
                };
                let (cond, uncond) =
                    self.before(&step, positive.is_some() && negative.is_some())?;
                let step = GuidanceStep {
                    cond: &cond,
                    uncond: &uncond,
                    ..step
                };
                self.join(&step, positive, negative)
            }
            Guidance::Dual {
                cfg_conds,
                cfg_negative,
                nested,
            } => {
                let middle = self.middle.clone();
                let mut middle = middle.as_deref();
                if !nested && shortcuts && is_close(cfg_negative, 1.0) {
                    negative = None;
                    if is_close(cfg_conds, 1.0) {
                        middle = None;
                    }
                }
                let out = self.lists(&[negative, middle, positive], x, sigma)?;
                let [away, between, towards] = [&out[0], &out[1], &out[2]];
                if nested {
                    let step = GuidanceStep {
                        x,
                        sigma,
                        cfg: cfg_conds,
                        cond: towards,
                        uncond: between,
                    };
                    let text = self.join(&step, positive, middle)?;
                    return Ok(nn::guide(&text, away, cfg_negative as f32)?);
                }
                let step = GuidanceStep {
                    x,
                    sigma,
                    cfg: cfg_negative,
                    cond: between,
                    uncond: away,
                };
                let base = self.join(&step, middle, negative)?;
                let more = towards.sub(between)?.mul_scalar(cfg_conds as f32);
                Ok(base.add(&more)?)
            }
            Guidance::PerpNeg { cfg, neg_scale } => {
                let cfg = self.strength(cfg, sigma);
                let empty = self.empty.clone();
                let mut empty = empty.as_deref();
                if shortcuts && neg_scale == 0.0 {
                    negative = None;
                    if is_close(cfg, 1.0) {
                        empty = None;
                    }
                }
                let out = self.lists(&[positive, negative, empty], x, sigma)?;
                let step = GuidanceStep {
                    x,
                    sigma,
                    cfg,
                    cond: &out[0],
                    uncond: &out[1],
                };
                let (cond, uncond) =
                    self.before(&step, positive.is_some() && negative.is_some())?;
                let joined = perp_neg(&cond, &uncond, &out[2], neg_scale, cfg)?;
                let step = GuidanceStep {
                    cond: &cond,
                    uncond: &uncond,
                    ..step
                };
                self.after(&step, joined, positive, negative)
            }
        }
    }
}

/// The model behind a step, for guidance that runs it again.
struct Replay<'b, 'a> {
    guider: &'b Guider<'a>,
    cond: Option<&'b [Cond]>,
    uncond: Option<&'b [Cond]>,
}

impl Again for Replay<'_, '_> {
    fn hooks(&self) -> &Hooks {
        &self.guider.hooks
    }

    fn predict(
        &self,
        which: Which<'_>,
        x: &Tensor,
        sigma: f32,
        hooks: &Hooks,
    ) -> guidance::Result<Tensor> {
        let encoded;
        let list = match which {
            Which::Cond => self.cond,
            Which::Uncond => self.uncond,
            Which::Other(conds) => {
                let mut conds = conds.to_vec();
                let setting = Setting {
                    noise: x,
                    latent: None,
                    denoise_mask: None,
                    ..self.guider.setting
                };
                encode(&mut conds, "negative", &setting, self.guider.encode)?;
                encoded = conds;
                Some(&*encoded)
            }
        };
        let mut out = predict(self.guider.model, &[list], x, sigma, hooks)?;
        out.pop().ok_or_else(|| "no prediction".into())
    }
}
