//! Guidance by what a network predicts with its attention disturbed.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::filter::{Border, Margins, depthwise, pad};
use fresco_tensor::nn::{Mask, attention, attention_probabilities};
use fresco_tensor::{Axes, Device, Tensor};

use super::cond::Cond;
use super::guidance::{Again, CfgRule, GuidanceStep, PostCfg, Result, Which};
use super::guide::perp_neg;
use super::hooks::{AttnReplace, BlockInfo, BlockKey, BlockKind, Hooks};
use crate::error;

/// The self-attention at the bottom of the network.
fn middle(index: Option<usize>) -> BlockKey {
    BlockKey {
        kind: BlockKind::MIDDLE,
        number: 0,
        index,
    }
}

/// Looks nowhere: every place keeps its own values.
struct Blind;

impl AttnReplace for Blind {
    fn apply(
        &self,
        _q: &Tensor,
        _k: &Tensor,
        v: &Tensor,
        _at: &BlockInfo<'_>,
    ) -> error::Result<Tensor> {
        Ok(v.clone())
    }
}

/// Perturbed attention guidance (Ahn et al. 2024): away from what the network predicts when its inner self-attention
/// looks nowhere.
#[derive(Clone, Copy, Debug)]
pub struct PerturbedAttention {
    pub scale: f64,
}

impl PerturbedAttention {
    /// Disturbs the network.
    pub fn install(self, hooks: &mut Hooks) {
        let blind = (middle(None), Arc::new(Blind) as Arc<dyn AttnReplace>);
        hooks.self_attention.replace.push(blind);
    }
}

impl PostCfg for PerturbedAttention {
    fn apply(&self, _step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        Ok(denoised.clone())
    }

    fn with_model(
        &self,
        step: &GuidanceStep,
        denoised: &Tensor,
        model: &dyn Again,
    ) -> Result<Tensor> {
        if self.scale == 0.0 {
            return Ok(denoised.clone());
        }
        let mut hooks = model.hooks().clone();
        self.install(&mut hooks);
        let blind = model.predict(Which::Cond, step.x, step.sigma, &hooks)?;
        let away = step.cond.sub(&blind)?.mul_scalar(self.scale as f32);
        Ok(denoised.add(&away)?)
    }
}

/// What the inner self-attention looked at in the last pass without the prompt: (b * heads, n, n).
type Record = Arc<Mutex<Option<Tensor>>>;

/// Attention that remembers where it looked.
struct Recorder(Record);

impl AttnReplace for Recorder {
    fn apply(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        at: &BlockInfo<'_>,
    ) -> error::Result<Tensor> {
        if let Some(chunk) = at.cond_or_uncond.iter().position(|which| *which == 1) {
            let items = q.dim(0)? / at.cond_or_uncond.len().max(1);
            let part = |t: &Tensor| t.narrow(0, chunk * items, items);
            let seen = attention_probabilities(&part(q)?, &part(k)?, at.heads)?;
            let seen = seen.to(&Device::cpu())?;
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        }
        Ok(attention(q, k, v, at.heads, Mask::None, None)?)
    }
}

/// Self-attention guidance (Hong et al. 2023): away from what the network predicts when the places it looks at most are
/// blurred.
pub struct SelfAttention {
    pub scale: f64,
    pub blur_sigma: f64,
    record: Record,
}

/// A place that gets more than this from all others is blurred.
const THRESHOLD: f32 = 1.0;

/// Half the width of the blur, in cells.
const RADIUS: usize = 4;

/// The blur takes its border from within the picture, so smaller ones are left alone.
const LEAST: usize = RADIUS;

impl SelfAttention {
    pub fn new(scale: f64, blur_sigma: f64) -> Self {
        Self {
            scale,
            blur_sigma,
            record: Record::default(),
        }
    }

    /// Makes the network remember where it looks.
    pub fn install(&self, hooks: &mut Hooks) {
        let recorder = Arc::new(Recorder(self.record.clone()));
        let at = middle(Some(0));
        hooks.self_attention.replace.push((at, recorder));
    }

    /// The Gaussian blur of a latent.
    fn blurred(&self, x: &Tensor) -> Result<Tensor> {
        let sigma = self.blur_sigma;
        if sigma <= 0.0 {
            return Ok(x.clone());
        }
        let raw: Vec<f64> = (0..=2 * RADIUS)
            .map(|i| (-0.5 * ((i as f64 - RADIUS as f64) / sigma).powi(2)).exp())
            .collect();
        let sum: f64 = raw.iter().sum();
        let size = raw.len();
        let kernel = Tensor::from_fn([size, size], |i| {
            ((raw[i / size] / sum) as f32) * ((raw[i % size] / sum) as f32)
        })?;
        let padded = pad(x, Margins::all(RADIUS), Border::Reflect)?;
        Ok(depthwise(&padded, &kernel)?)
    }

    /// The latent with what the network looked at most blurred.
    fn degraded(&self, x: &Tensor, seen: &Tensor) -> Result<Tensor> {
        let [b, _, h, w] = x.dims4()?;
        let [rows, queries, keys] = seen.dims3()?;
        let heads = rows / b.max(1);
        let ratio = {
            let part = ((h * w) as f64 / queries as f64).sqrt().ceil() as usize;
            part.max(1).next_power_of_two()
        };
        let (inner_h, inner_w) = (h.div_ceil(ratio), w.div_ceil(ratio));
        if inner_h * inner_w != keys || heads * b != rows {
            return Err(format!(
                "self-attention guidance cannot place {keys} attended places on a latent of {h} by {w} cells"
            )
            .into());
        }
        let total = seen
            .reshape([b, heads, queries, keys])?
            .mean(&[1], Axes::Drop)?;
        let total = total.sum(&[1], Axes::Drop)?.to(&Device::cpu())?;
        let mask = Tensor::from_fn([b, 1, h, w], |i| {
            let (item, y, x) = (i / (h * w), i / w % h, i % w);
            let at = (y * inner_h / h) * inner_w + x * inner_w / w;
            f32::from(u8::from(total.data()[item * keys + at] > THRESHOLD))
        })?;
        let blurred = self.blurred(x)?.mul(&mask)?;
        Ok(blurred.add(&x.mul(&mask.rsub_scalar(1.0))?)?)
    }
}

impl PostCfg for SelfAttention {
    fn apply(&self, _step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        Ok(denoised.clone())
    }

    fn with_model(
        &self,
        step: &GuidanceStep,
        denoised: &Tensor,
        model: &dyn Again,
    ) -> Result<Tensor> {
        let [_, _, h, w] = denoised.dims4()?;
        if h.min(w) <= LEAST {
            return Ok(denoised.clone());
        }
        let seen = self
            .record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(seen) = seen else {
            return Err("self-attention guidance needs a negative prompt".into());
        };
        let degraded = self.degraded(step.uncond, &seen)?;
        let noised = degraded.add(step.x)?.sub(step.uncond)?;
        let again = model.predict(Which::Uncond, &noised, step.sigma, model.hooks())?;
        let away = degraded.sub(&again)?.mul_scalar(self.scale as f32);
        Ok(denoised.add(&away)?)
    }
}

/// Perpendicular negatives as a rule of a model, with the empty prompt evaluated apart.
#[derive(Clone)]
pub struct PerpNeg {
    pub empty: Vec<Cond>,
    pub neg_scale: f64,
}

impl CfgRule for PerpNeg {
    fn apply(&self, _step: &GuidanceStep) -> Result<Tensor> {
        Err("perpendicular negatives need the model".into())
    }

    fn with_model(&self, step: &GuidanceStep, model: &dyn Again) -> Result<Tensor> {
        let empty = model.predict(Which::Other(&self.empty), step.x, step.sigma, model.hooks())?;
        let joined = perp_neg(step.cond, step.uncond, &empty, self.neg_scale, step.cfg)?;
        Ok(step.x.sub(&joined)?)
    }
}
