//! Every sampler on an analytic model, against the reference.

use fresco_models::samplers::{
    self, Denoiser, SampleArgs, SampleError, SamplerName, SamplerOptions, ksampler_sigmas,
};
use fresco_models::{ModelSampling, Prediction, Scheduler};
use fresco_tensor::{Generator, Tensor};

use crate::golden::{json, relative_error, tensors};
use crate::levels::sampling_of;
use crate::support::{bent, eps, flow, levels, run};

/// The model of the golden runs.
struct Analytic<'a> {
    sampling: &'a ModelSampling,
    cfg: f32,
    seen: Vec<f32>,
    uncond: Option<Tensor>,
    /// Mask, latent and noise of an inpainting run.
    inpaint: Option<(Tensor, Tensor, Tensor)>,
}

impl Analytic<'_> {
    fn predict(&mut self, x: &Tensor, sigma: f32) -> Tensor {
        let c = if self.sampling.prediction == Prediction::Flow {
            (1.0 - sigma) / ((1.0 - sigma) * (1.0 - sigma) + sigma * sigma)
        } else {
            1.0 / (1.0 + sigma * sigma)
        };
        let cfg = self.cfg;
        self.uncond = Some(x.map(|x| x * c * 0.7));
        x.map(|x| {
            let cond = x * c * 0.9 + 0.1 * x.sin();
            let uncond = x * c * 0.7;
            uncond + (cond - uncond) * cfg
        })
    }
}

impl Denoiser for Analytic<'_> {
    fn denoise(&mut self, x: &Tensor, sigma: f32) -> Result<Tensor, SampleError> {
        self.seen.push(sigma);
        let Some((mask, latent, noise)) = self.inpaint.clone() else {
            return Ok(self.predict(x, sigma));
        };
        let kept = self.sampling.noise_scaling(sigma, &noise, &latent, false)?;
        let inside = x.mul(&mask)?;
        let outside = mask.map(|m| 1.0 - m);
        let mixed = inside.add(&kept.mul(&outside)?)?;
        let denoised = self.predict(&mixed, sigma);
        Ok(denoised.mul(&mask)?.add(&latent.mul(&outside)?)?)
    }

    fn uncond(&self) -> Option<&Tensor> {
        self.uncond.as_ref()
    }
}

#[test]
fn every_sampler_of_the_reference() {
    let (gold, about) = (tensors("samplers"), json("samplers"));
    let mut checked = 0;
    let mut failures = Vec::new();
    for (key, run) in about["runs"].as_object().unwrap() {
        let text = |name: &str| run[name].as_str().unwrap();
        let number = |name: &str| run[name].as_f64().unwrap();
        let sampling = sampling_of(text("model"));
        let name = SamplerName::named(text("sampler")).unwrap();
        let scheduler = Scheduler::named(text("scheduler")).unwrap();
        let steps = run["steps"].as_u64().unwrap() as usize;
        let seed = run["seed"].as_u64().unwrap();
        let mut sigmas =
            ksampler_sigmas(&sampling, name, scheduler, steps, number("denoise")).unwrap();

        let mut global = Generator::new(seed);
        let noise = global.randn(&[1, 4, 8, 8]).unwrap();
        let latent = if key.starts_with("img2img") || key.starts_with("inpaint") {
            gold.tensor("in/latent").unwrap()
        } else {
            Tensor::zeros([1, 4, 8, 8]).unwrap()
        };
        let max = sampling.sigma_max();
        let max_denoise = sigmas[0] >= max || (sigmas[0] - max).abs() <= 1e-5 * max;
        let x = sampling
            .noise_scaling(sigmas[0], &noise, &latent, max_denoise)
            .unwrap();
        let inpaint = key.starts_with("inpaint").then(|| {
            let mask = gold.tensor("in/mask").unwrap();
            let noise = if name.redraws_inpaint_noise() {
                Generator::new(seed + 1).randn(&[1, 4, 8, 8]).unwrap()
            } else {
                noise.clone()
            };
            (mask, latent.clone(), noise)
        });
        let mut model = Analytic {
            sampling: &sampling,
            cfg: number("cfg") as f32,
            seen: Vec::new(),
            uncond: None,
            inpaint,
        };
        let mut told = Vec::new();
        let args = SampleArgs {
            sampling: &sampling,
            seed,
            options: &SamplerOptions::default(),
            on_step: &mut |step| {
                assert_eq!(step.x.shape(), step.denoised.shape());
                told.push(step.index as u64);
                Ok(())
            },
            global: &mut global,
        };
        let result = samplers::sample(name, &mut model, x, &mut sigmas, args).unwrap();
        let result = sampling.inverse_noise_scaling(sigmas[sigmas.len() - 1], &result);

        let wanted = gold.tensor(key).unwrap();
        let error = relative_error(result.data(), wanted.data());
        checked += 1;
        if error.is_nan() || error > 5e-6 {
            failures.push(format!("{key}: relative error {error:e}"));
        }
        let levels: Vec<f32> = run["call_sigmas"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_f64().unwrap() as f32)
            .collect();
        if levels.len() != model.seen.len()
            || levels
                .iter()
                .zip(&model.seen)
                .any(|(a, b)| (a - b).abs() > 1e-5 * a.abs())
        {
            failures.push(format!("{key}: saw {:?}, not {levels:?}", model.seen));
        }
        let steps: Vec<u64> = run["callback_steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_u64().unwrap())
            .collect();
        if steps != told {
            failures.push(format!("{key}: told {told:?}, not {steps:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(checked, 186);
}

/// A second set, with another model, more steps and another seed; the first values of each result.
#[test]
fn every_sampler_of_the_specification() {
    let gold = json("samplers_toy");
    let mut checked = 0;
    for (kind, sampling) in [("eps", eps()), ("flow", flow())] {
        for (key, wanted) in gold[kind].as_object().unwrap() {
            let name = SamplerName::named(key).unwrap();
            let sigmas = if name.skips_penultimate() {
                ksampler_sigmas(&sampling, name, Scheduler::Simple, 8, 1.0).unwrap()
            } else {
                levels(&sampling, 8)
            };
            let options = SamplerOptions::default();
            let out = run(name, &mut bent(), &sampling, &sigmas, &options);
            let wanted: Vec<f32> = wanted
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_f64().unwrap() as f32)
                .collect();
            let error = relative_error(&out.data()[..wanted.len()], &wanted);
            assert!(error <= 1e-5, "{kind} {key}: {error:e}");
            checked += 1;
        }
    }
    assert_eq!(checked, 86);
}
