//! One run of a sampler: the model, the noise it draws, and who is told about steps.

use fresco_tensor::{Generator, Tensor};

use super::denoiser::{Denoiser, Result, SampleArgs, SampleError, SampleStep};
use super::names::SamplerName;
use super::options::SamplerOptions;
use crate::ModelSampling;
use crate::brownian::BrownianNoise;

/// Where added noise comes from.
enum Noise {
    /// One draw after the other, whatever the levels.
    Draws(Box<Generator>),
    /// Noise of one path, so that it depends on the levels only and not on the number of steps.
    Brownian(BrownianNoise),
}

pub(super) struct Run<'a> {
    model: &'a mut dyn Denoiser,
    pub(super) sampling: &'a ModelSampling,
    pub(super) options: &'a SamplerOptions,
    on_step: &'a mut dyn FnMut(SampleStep<'_>) -> Result<()>,
    global: &'a mut Generator,
    noise: Noise,
    name: SamplerName,
    total: usize,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        name: SamplerName,
        model: &'a mut dyn Denoiser,
        args: SampleArgs<'a>,
        shape: &[usize],
        sigmas: &[f32],
    ) -> Self {
        let noise = if name.is_brownian() {
            let positive = sigmas.iter().copied().filter(|s| *s > 0.0);
            let low = positive.clone().fold(f32::INFINITY, f32::min);
            let high = positive.fold(0.0, f32::max);
            Noise::Brownian(BrownianNoise::new(args.seed, shape, low, high))
        } else {
            // On the CPU the reference counts on by one, so that added noise is not the initial noise again.
            Noise::Draws(Box::new(Generator::new(args.seed.wrapping_add(1))))
        };
        Self {
            model,
            sampling: args.sampling,
            options: args.options,
            on_step: args.on_step,
            global: args.global,
            noise,
            name,
            total: sigmas.len().saturating_sub(1),
        }
    }

    /// Asks the model, and checks the shape once so that all arithmetic after it can rely on it.
    pub(super) fn denoise(&mut self, x: &Tensor, sigma: f32) -> Result<Tensor> {
        let denoised = self.model.denoise(x, sigma)?;
        same_shape(x, denoised)
    }

    /// The prediction without the prompt of the last call.
    pub(super) fn uncond(&self, x: &Tensor) -> Result<Tensor> {
        let uncond = self.model.uncond().cloned().ok_or(SampleError::NoUncond)?;
        same_shape(x, uncond)
    }

    /// Tells about a step; an error here ends the run.
    pub(super) fn step(
        &mut self,
        index: usize,
        sigma: f32,
        x: &Tensor,
        denoised: &Tensor,
    ) -> Result<()> {
        (self.on_step)(SampleStep {
            index,
            total: self.total,
            sigma,
            x,
            denoised,
        })
    }

    /// Noise for going from one level to another.
    pub(super) fn noise(&mut self, x: &Tensor, from: f32, to: f32) -> Result<Tensor> {
        match &mut self.noise {
            Noise::Draws(generator) => Ok(generator.randn(x.shape())?),
            Noise::Brownian(path) => path.between(from, to),
        }
    }

    /// Noise from the generator that drew the initial noise.
    pub(super) fn global_noise(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(self.global.randn(x.shape())?)
    }

    pub(super) fn eta(&self, default: f64) -> f32 {
        self.options.eta.unwrap_or(default) as f32
    }

    pub(super) fn s_noise(&self) -> f32 {
        self.options.s_noise.unwrap_or(1.0) as f32
    }

    pub(super) fn unfit(&self, reason: impl Into<String>) -> SampleError {
        SampleError::Unfit {
            sampler: self.name.name(),
            reason: reason.into(),
        }
    }
}

fn same_shape(x: &Tensor, answer: Tensor) -> Result<Tensor> {
    if answer.shape() == x.shape() {
        Ok(answer)
    } else {
        Err(SampleError::Shape {
            given: x.shape().to_vec(),
            got: answer.shape().to_vec(),
        })
    }
}
