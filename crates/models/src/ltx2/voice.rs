//! Sound that is to have the voice of another: tokens before its own, and guidance towards what they change.

use std::sync::Arc;

use fresco_tensor::Tensor;

use crate::denoise::guidance::{Again, GuidanceStep, PostCfg, Result, Which};

/// The voice in a conditioning: a latent of sound.
pub const VOICE: &str = "ref_audio";

/// Beside a network: it does not hear the voice in this pass.
pub(super) struct WithoutVoice;

/// Guides the sound away from what it is without the voice.
#[derive(Clone, Copy, Debug)]
pub struct VoiceGuidance {
    pub scale: f64,
    /// Noise levels between which it acts.
    pub start_sigma: f64,
    pub end_sigma: f64,
}

impl PostCfg for VoiceGuidance {
    fn apply(&self, _: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        Ok(denoised.clone())
    }

    fn with_model(
        &self,
        step: &GuidanceStep,
        denoised: &Tensor,
        model: &dyn Again,
    ) -> Result<Tensor> {
        let sigma = f64::from(step.sigma);
        let parts = model.hooks().parts.clone();
        let video = parts.and_then(|parts| Some(parts.first()?.iter().product::<usize>()));
        let (Some(video), true) = (video, sigma <= self.start_sigma && sigma >= self.end_sigma)
        else {
            return Ok(denoised.clone());
        };
        let mut hooks = model.hooks().clone();
        hooks.beside.push(Arc::new(WithoutVoice));
        let plain = model.predict(Which::Cond, step.x, step.sigma, &hooks)?;
        // The pictures stay as they are.
        let [_, _, values] = denoised.dims3()?;
        let sound = |t: &Tensor| t.narrow(2, video, values - video);
        let towards = sound(step.cond)?.sub(&sound(&plain)?)?;
        let changed = sound(denoised)?.add(&towards.mul_scalar(self.scale as f32))?;
        Ok(Tensor::cat(&[&denoised.narrow(2, 0, video)?, &changed], 2)?)
    }
}
