//! Models that need no weights, and one way to sample with them.

use fresco_models::samplers::{
    self, Denoiser, SampleArgs, SampleError, SampleStep, SamplerName, SamplerOptions,
};
use fresco_models::{ModelSampling, Prediction, Scheduler};
use fresco_tensor::{Generator, Tensor};

/// Every sampler there is, also those that KSampler does not offer.
pub(crate) fn all() -> impl Iterator<Item = SamplerName> {
    let offered = SamplerName::ALL.iter().map(|(_, name)| *name);
    offered.chain([SamplerName::LcmUpscale, SamplerName::EulerPp])
}

/// A function of latent and level as a model, with another one for the prediction without the prompt.
pub(crate) struct Toy<F, U> {
    pub(crate) predict: F,
    pub(crate) without: U,
    pub(crate) seen: Vec<f32>,
    uncond: Option<Tensor>,
}

impl<F: FnMut(f32, f32) -> f32, U: FnMut(f32, f32) -> f32> Toy<F, U> {
    pub(crate) fn new(predict: F, without: U) -> Self {
        Self {
            predict,
            without,
            seen: Vec::new(),
            uncond: None,
        }
    }
}

impl<F: FnMut(f32, f32) -> f32, U: FnMut(f32, f32) -> f32> Denoiser for Toy<F, U> {
    fn denoise(&mut self, x: &Tensor, sigma: f32) -> Result<Tensor, SampleError> {
        self.seen.push(sigma);
        let apply = |f: &mut dyn FnMut(f32, f32) -> f32| {
            let values = x.data().iter().map(|x| f(*x, sigma)).collect();
            Tensor::from_vec(x.shape(), values)
        };
        self.uncond = Some(apply(&mut self.without)?);
        Ok(apply(&mut self.predict)?)
    }

    fn uncond(&self) -> Option<&Tensor> {
        self.uncond.as_ref()
    }
}

/// The model whose pictures are all normally distributed: every path through the levels is known.
pub(crate) fn normal() -> impl Denoiser {
    Toy::new(|x, s| x / (1.0 + s * s), |x, s| x / (1.0 + s * s))
}

/// A model with some shape to it.
pub(crate) fn bent() -> impl Denoiser {
    Toy::new(
        |x, s| 0.8 * (0.3 * x).tanh() + 0.1 * (s + x).cos(),
        |x, _| 0.5 * (0.2 * x).tanh(),
    )
}

pub(crate) fn eps() -> ModelSampling {
    ModelSampling::discrete(Prediction::Eps, false)
}

pub(crate) fn flow() -> ModelSampling {
    ModelSampling::flow(3.0, 1000.0)
}

pub(crate) fn levels(sampling: &ModelSampling, steps: usize) -> Vec<f32> {
    Scheduler::Simple.sigmas(sampling, steps).unwrap()
}

/// Samples from noise of the first level, with seed 7 for what is added.
pub(crate) fn run_with(
    name: SamplerName,
    model: &mut dyn Denoiser,
    sampling: &ModelSampling,
    sigmas: &[f32],
    options: &SamplerOptions,
    shape: &[usize],
    on_step: &mut dyn FnMut(SampleStep<'_>) -> Result<(), SampleError>,
) -> Result<Tensor, SampleError> {
    let mut global = Generator::new(5);
    let noise = global.randn(shape)?;
    let scale = match sampling.prediction {
        Prediction::Flow => 1.0,
        _ => sigmas.first().copied().unwrap_or(1.0),
    };
    let args = SampleArgs {
        sampling,
        seed: 7,
        options,
        on_step,
        global: &mut global,
    };
    let mut sigmas = sigmas.to_vec();
    samplers::sample(name, model, noise.mul_scalar(scale), &mut sigmas, args)
}

pub(crate) const SHAPE: [usize; 4] = [1, 4, 8, 8];

pub(crate) fn run(
    name: SamplerName,
    model: &mut dyn Denoiser,
    sampling: &ModelSampling,
    sigmas: &[f32],
    options: &SamplerOptions,
) -> Tensor {
    let result = run_with(name, model, sampling, sigmas, options, &SHAPE, &mut |_| {
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{}: {e}", name.name()))
}
