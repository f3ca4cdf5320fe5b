//! The model of a run as samplers see it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fresco_models::denoise::{Call, Guider, Inpaint, Predict};
use fresco_models::samplers::{Denoiser, SampleError};
use fresco_models::{ModelError, ModelSampling};
use fresco_tensor::{Tensor, available_memory, nn};

use crate::resident::InUse;
use crate::sampling::BaseModel;
use crate::sampling::own::OwnPrediction;

/// A model's network with the way the model is sampled.
pub(super) struct SampledNetwork<'a> {
    base: &'a dyn BaseModel,
    sampling: &'a ModelSampling,
    in_use: Option<&'a InUse>,
    free: FreeMemory,
}

impl<'a> SampledNetwork<'a> {
    pub(super) fn new(
        base: &'a dyn BaseModel,
        sampling: &'a ModelSampling,
        in_use: Option<&'a InUse>,
    ) -> Self {
        Self {
            base,
            sampling,
            in_use,
            free: FreeMemory::default(),
        }
    }
}

/// How much memory is free where a network computes. It decides which conditions share a pass, before every step; the driver is asked
/// twice a second at most, because the device waits meanwhile.
#[derive(Default)]
struct FreeMemory(Mutex<Option<(Instant, Option<u64>)>>);

impl FreeMemory {
    const HOLDS_FOR: Duration = Duration::from_millis(500);

    fn get(&self, ask: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some((at, free)) if at.elapsed() < Self::HOLDS_FOR => free,
            _ => {
                let free = ask();
                *known = Some((Instant::now(), free));
                free
            }
        }
    }
}

impl Predict for SampledNetwork<'_> {
    fn predict(&self, call: &Call<'_>) -> Result<Tensor, ModelError> {
        let pass = || self.base.apply(self.sampling, call);
        match self.in_use {
            Some(in_use) => in_use.run(pass),
            None => pass(),
        }
    }

    fn pass_bytes(&self, shape: &[usize]) -> u64 {
        self.base.pass_bytes(shape)
    }

    fn memory_free(&self) -> Option<u64> {
        self.free.get(|| {
            let device = self.base.store().map(|store| store.device());
            match device.filter(|device| !device.is_cpu()) {
                Some(device) => device.free(),
                None => available_memory(),
            }
        })
    }
}

/// The model as samplers see it.
pub(super) struct Driver<'a> {
    pub(super) guider: Guider<'a>,
    pub(super) negative: Option<Negative<'a>>,
    /// Another process joins predictions.
    pub(super) own: Option<OwnPrediction<'a>>,
    pub(super) inpaint: Option<Inpaint<'a>>,
    pub(super) name: String,
}

/// The other side of guidance by two models.
pub(super) struct Negative<'a> {
    pub(super) guider: Guider<'a>,
    pub(super) cfg: f64,
    pub(super) last: Option<Tensor>,
}

impl Negative<'_> {
    /// The first model's prediction, guided away from this one's.
    fn guide(
        &mut self,
        towards: Tensor,
        cfg: f64,
        x: &Tensor,
        sigma: f32,
    ) -> Result<Tensor, ModelError> {
        let away = self.guider.denoise(x, sigma)?;
        let out = nn::guide(&towards, &away, cfg as f32)?;
        self.last = Some(away);
        Ok(out)
    }
}

/// One prediction of all models that take part.
fn predict_step(
    guider: &mut Guider<'_>,
    negative: Option<&mut Negative<'_>>,
    x: &Tensor,
    sigma: f32,
) -> Result<Tensor, ModelError> {
    let out = guider.denoise(x, sigma)?;
    match negative {
        Some(negative) => {
            let cfg = guider.strength(negative.cfg, sigma);
            if (cfg - 1.0).abs() < 1e-9 {
                return Ok(out);
            }
            negative.guide(out, cfg, x, sigma)
        }
        None => Ok(out),
    }
}

impl Denoiser for Driver<'_> {
    fn denoise(&mut self, x: &Tensor, sigma: f32) -> Result<Tensor, SampleError> {
        let (guider, mut negative) = (&mut self.guider, self.negative.as_mut());
        let own = self.own.as_ref();
        let mut step = |x: &Tensor| match own {
            Some(own) => own.predict(guider.hooks_mut(), x, sigma),
            None => predict_step(guider, negative.as_deref_mut(), x, sigma),
        };
        let out = match &self.inpaint {
            Some(inpaint) => inpaint.denoise(x, sigma, step),
            None => step(x),
        };
        let out = out.map_err(|e| match e {
            ModelError::Cancelled => SampleError::Cancelled,
            other => SampleError::model(other),
        })?;
        if !out.is_finite() {
            return Err(SampleError::model(format!(
                "{} gave values that are not numbers at noise level {sigma}: its weights are damaged, or a LoRA, a \
                 merge or the guidance is far too strong",
                self.name
            )));
        }
        Ok(out)
    }

    fn uncond(&self) -> Option<&Tensor> {
        match &self.negative {
            Some(negative) => negative.last.as_ref(),
            None => self.guider.uncond(),
        }
    }
}
