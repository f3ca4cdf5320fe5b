//! One sampling run: latents and conditionings of nodes in, latents out, with progress, previews and cancellation.

use std::any::Any;
use std::sync::{Arc, Mutex};

use fresco_graph::{Cx, NodeError, Value};
use fresco_memory::{Handle, Need};
use fresco_models::ModelSampling;
use fresco_models::denoise::{Guidance, Inpaint, Setting, fit_mask};
use fresco_models::samplers::{self, SampleArgs, SampleError, SampleStep, SamplerOptions};
use fresco_tensor::{Generator, Tensor};

use super::own::{OwnGuider, OwnPrediction};
use super::preview::Previewer;
use super::{Model, Ready, Sampler, StartNoise};
use crate::control::Control;
use crate::gligen::TextBoxes;
use crate::resident::InUse;
use crate::types::{Conditioning, Latent, Nested};

mod driver;
mod failures;
mod fit;
mod nested;
mod side;
mod steps;

pub use failures::{failure, sample_failure};

use driver::{Driver, Negative};
use fit::fit_latent;
use side::Side;

/// What is sampled, and how it is guided.
#[derive(Clone)]
pub struct Guided {
    pub model: Model,
    pub guidance: Guidance,
    /// Conditionings by the names that the guidance knows.
    pub lists: Vec<(&'static str, Conditioning)>,
    /// What the first model is guided away from, where another predicts that.
    pub negative: Option<Box<NegativeModel>>,
    /// A guider of another process, which joins predictions itself.
    pub own: Option<OwnGuider>,
}

/// A model for the negative prompt alone.
#[derive(Clone)]
pub struct NegativeModel {
    pub model: Model,
    pub conditioning: Conditioning,
}

/// What a run gives.
pub struct Sampled {
    /// The input with its samples replaced.
    pub latent: Latent,
    /// The same with the last step's clean latent; none if no step was made.
    pub denoised: Option<Latent>,
}

/// Looks at a step; an error ends sampling.
pub type Watch<'a> = dyn FnMut(&SampleStep<'_>) -> Result<(), NodeError> + 'a;

/// What is drawn for a run.
struct Drawn {
    clean: Tensor,
    noise: Tensor,
    generator: Generator,
    mask: Option<Tensor>,
    parts: Option<Arc<[Vec<usize>]>>,
}

/// What a run starts from.
struct Start {
    /// Shapes without the batch of the latent's parts, if it has several; all else is then (b, 1, values).
    parts: Option<Arc<[Vec<usize>]>>,
    /// The latent as the network sees it.
    clean: Tensor,
    noise: Tensor,
    /// In the shape of the latent: 1 where it is sampled.
    mask: Option<Tensor>,
    options: SamplerOptions,
    /// What acts inside the network from beside it.
    beside: Vec<Arc<dyn Any + Send + Sync>>,
    ready: Ready,
    /// Of the model for the negative prompt.
    negative: Option<Ready>,
    in_use: Option<Arc<InUse>>,
    latent: Latent,
}

/// The way that a run goes.
struct Steps<'a> {
    seed: u64,
    sampler: &'a Sampler,
    sigmas: &'a [f32],
}

/// How a run ended, as the network sees latents.
struct End {
    x: Tensor,
    /// The noise level it stopped at.
    sigma: f32,
    /// The last step's clean latent.
    denoised: Option<Tensor>,
}

impl Guided {
    /// Samples a latent along `sigmas`. `seed` is that of samplers which draw noise themselves.
    pub fn sample(
        &self,
        noise: impl Into<StartNoise>,
        seed: u64,
        sampler: &Sampler,
        sigmas: &[f32],
        latent: Latent,
        cx: &Cx,
    ) -> Result<Sampled, NodeError> {
        let noise = noise.into();
        match self.own.as_ref().filter(|own| own.loops) {
            Some(own) => {
                let latent = fit_latent(&self.model, latent)?;
                own.run(self, noise, seed, sampler, sigmas, latent, cx, &mut |_| {
                    Ok(())
                })
            }
            None => self.sample_watched(noise, seed, sampler, sigmas, latent, cx, &mut |_| Ok(())),
        }
    }

    /// The same; somebody looks at every step and may end it.
    #[expect(clippy::too_many_arguments, reason = "a run has so many parts")]
    pub fn sample_watched(
        &self,
        noise: StartNoise,
        seed: u64,
        sampler: &Sampler,
        sigmas: &[f32],
        latent: Latent,
        cx: &Cx,
        watch: &mut Watch<'_>,
    ) -> Result<Sampled, NodeError> {
        cx.check_interrupt()?;
        let latent = fit_latent(&self.model, latent)?;
        if sigmas.is_empty() {
            return Ok(Sampled {
                latent,
                denoised: None,
            });
        }
        if let Some(around) = &self.model.around {
            let mut inner = self.clone();
            inner.model.around = None;
            let own = OwnGuider {
                guider: around.clone(),
                loops: true,
            };
            return own.run(&inner, noise, seed, sampler, sigmas, latent, cx, watch);
        }
        let (mut start, generator) = self.prepare(noise, sampler, latent, cx)?;
        if let Some(windows) = &self.model.patches.hooks.windows {
            start.noise = windows.noise(&start.noise, seed).map_err(failure)?;
        }
        let steps = Steps {
            seed,
            sampler,
            sigmas,
        };
        let end = self.run(&start, generator, &steps, cx, watch)?;
        self.finish(start.latent, end)
    }

    /// Draws the noise and brings the network to where it computes. The generator that drew the noise goes on in the run.
    fn prepare(
        &self,
        noise: StartNoise,
        sampler: &Sampler,
        latent: Latent,
        cx: &Cx,
    ) -> Result<(Start, Generator), NodeError> {
        let Drawn {
            clean,
            noise,
            generator,
            mask,
            parts,
        } = match latent.parts() {
            Some(parts) => nested::draw(&self.model, parts, &latent, &noise)?,
            None => self.draw(&latent, &noise)?,
        };
        let samples = latent.pictures()?;
        let options = sampler.parse_options()?;
        let additions = self.model.additions.iter();
        let beside = additions.map(|one| one.for_run(&self.model, samples.shape(), cx));
        let beside = beside.collect::<Result<Vec<_>, _>>()?;
        let ready = self.model.ready().map_err(failure)?;
        let negative = match &self.negative {
            Some(other) => Some(self.ready_negative(&other.model)?),
            None => None,
        };
        let holds = (&ready, negative.as_ref());
        let in_use = self.lease(holds, clean.shape(), cx)?.map(Arc::new);
        let start = Start {
            parts,
            clean,
            noise,
            mask,
            options,
            beside,
            ready,
            negative,
            in_use,
            latent,
        };
        Ok((start, generator))
    }

    /// Noise, mask and the latent as the network sees it.
    fn draw(&self, latent: &Latent, noise: &StartNoise) -> Result<Drawn, NodeError> {
        let (noise, generator) = noise.draw(latent)?;
        let samples = latent.samples()?;
        let mask = match latent.tensor("noise_mask") {
            Some(mask) => Some(fit_mask(mask, samples.shape()).map_err(failure)?),
            None => None,
        };
        // An empty latent stays empty, whatever the format would make of zeros.
        let clean = if samples.data().iter().any(|v| *v != 0.0) {
            self.model.process_latent_in(samples)?
        } else {
            samples.clone()
        };
        Ok(Drawn {
            clean,
            noise,
            generator,
            mask,
            parts: None,
        })
    }

    /// The network for the negative prompt, which must work on the latents of the first.
    fn ready_negative(&self, other: &Model) -> Result<Ready, NodeError> {
        let of = |model: &Model| (model.base.latent_channels(), model.base.latent_dimensions());
        if of(other) != of(&self.model) {
            return Err(NodeError::value_error(format!(
                "{} cannot be the negative of {}: their latents have {} and {} channels",
                other.base.name(),
                self.model.base.name(),
                of(other).0,
                of(&self.model).0
            )));
        }
        other.ready().map_err(failure)
    }

    /// Joins the networks with what they follow, and goes through all steps.
    fn run(
        &self,
        start: &Start,
        mut generator: Generator,
        steps: &Steps<'_>,
        cx: &Cx,
        watch: &mut Watch<'_>,
    ) -> Result<End, NodeError> {
        let sampling = &*self.model.sampling;
        let setting = Setting {
            sampling,
            noise: &start.noise,
            latent: Some(&start.clean),
            denoise_mask: start.mask.as_ref(),
        };
        let side = Side::of_run(self, start, steps, &setting, cx)?;
        let encode = side.encoder();
        let mut guider = side.guider(start, steps, setting, &encode, cx);
        if steps.sampler.name.needs_uncond() {
            guider.keep_uncond();
        }
        let other = Side::negative(self, start, steps, &setting, cx)?;
        let other_encode = other.as_ref().map(|(other, _)| other.encoder());
        let mut negative = match (&other, &other_encode) {
            (Some((other, cfg)), Some(encode)) => Some(Negative {
                guider: other.guider(start, steps, setting, encode, cx),
                cfg: *cfg,
                last: None,
            }),
            _ => None,
        };
        let fresh = if steps.sampler.redraws_inpaint_noise() {
            // This draw goes through the global generator, too.
            generator = Generator::new(steps.seed.wrapping_add(1));
            Some(generator.randn(start.noise.shape())?)
        } else {
            None
        };
        let random = Arc::new(Mutex::new(generator.clone()));
        guider.start(&random);
        if let Some(negative) = &mut negative {
            negative.guider.start(&random);
        }
        let base = &*start.ready.network;
        let known_scale: &dyn Fn(f32) -> f32 = &|sigma| base.known_scale(sigma);
        let driver = Driver {
            guider,
            negative,
            own: self.own.as_ref().map(|own| OwnPrediction {
                guider: &own.guider,
                network: &side.network,
                lists: &side.lists,
                patches: &self.model.patches,
                setting,
                encode: &encode,
                seed: steps.seed,
            }),
            inpaint: start.mask.clone().map(|mask| Inpaint {
                mask,
                latent: start.clean.clone(),
                noise: fresh.unwrap_or_else(|| start.noise.clone()),
                sampling,
                differential: self.model.patches.denoise_mask,
                sigmas: steps.sigmas.to_vec(),
                clean: base.sees_known_clean().then_some(known_scale),
            }),
            name: base.name(),
        };
        self.walk(driver, start, generator, steps, cx, watch)
    }

    /// Goes through all steps, and shows each.
    fn walk(
        &self,
        mut driver: Driver<'_>,
        start: &Start,
        mut generator: Generator,
        steps: &Steps<'_>,
        cx: &Cx,
        watch: &mut Watch<'_>,
    ) -> Result<End, NodeError> {
        let sampling = &*self.model.sampling;
        let x = noisy(sampling, steps.sigmas[0], start)?;
        let previewer = Previewer::new(&self.model, cx);
        let mut denoised = None;
        let mut sigmas = steps.sigmas.to_vec();
        let sampler = steps.sampler;
        let x = steps::reported(&previewer, start.parts.as_ref(), cx, |reports| {
            let mut on_step = |step: SampleStep<'_>| {
                denoised = Some(step.denoised.clone());
                watch(&step).map_err(|e| match e {
                    NodeError::Interrupted => SampleError::Cancelled,
                    other => SampleError::model(super::own::Foreign(other)),
                })?;
                let (done, total) = ((step.index + 1) as f64, step.total as f64);
                reports
                    .tell(step.denoised, done, total)
                    .map_err(|_| SampleError::Cancelled)
            };
            let args = SampleArgs {
                sampling,
                seed: steps.seed,
                options: &start.options,
                on_step: &mut on_step,
                global: &mut generator,
            };
            match &sampler.own {
                Some(own) => own.sample(&mut driver, x, &sigmas, args, &sampler.options),
                None => samplers::sample(sampler.name, &mut driver, x, &mut sigmas, args),
            }
        });
        let x = x.map_err(sample_failure)?;
        Ok(End {
            x,
            sigma: sigmas.last().copied().unwrap_or(0.0),
            denoised,
        })
    }

    /// The result as nodes know latents.
    fn finish(&self, latent: Latent, end: End) -> Result<Sampled, NodeError> {
        let model = &self.model;
        let x = model.sampling.inverse_noise_scaling(end.sigma, &end.x);
        if let Some(parts) = latent.parts() {
            let apart = |x: &Tensor| -> Result<Latent, NodeError> {
                let parts = nested::finish(model, x, parts)?;
                Ok(latent.clone().with("samples", Value::object(Nested(parts))))
            };
            return Ok(Sampled {
                denoised: end.denoised.as_ref().map(apart).transpose()?,
                latent: apart(&x)?,
            });
        }
        let out = model.process_latent_out(&x)?;
        let denoised = match end.denoised {
            Some(x) => Some(model.process_latent_out(&x)?),
            None => None,
        };
        Ok(Sampled {
            denoised: denoised.map(|x| latent.clone().with_tensor("samples", x)),
            latent: latent.with_tensor("samples", out),
        })
    }

    /// Brings the network and the control nets of the conditions to where they compute. None if none of them is in the
    /// memory room.
    fn lease(
        &self,
        (ready, negative): (&Ready, Option<&Ready>),
        shape: &[usize],
        cx: &Cx,
    ) -> Result<Option<InUse>, NodeError> {
        let mut handles: Vec<&Handle> = ready.hold.iter().map(|hold| hold.handle()).collect();
        handles.extend(self.model.additions.iter().filter_map(|one| one.handle()));
        let others = self.negative.iter().flat_map(|side| &side.model.additions);
        let others = others.filter_map(|one| one.handle());
        let second = negative.and_then(|ready| ready.hold.as_ref());
        for handle in others.chain(second.map(|hold| hold.handle())) {
            if !handles.iter().any(|known| known.model() == handle.model()) {
                handles.push(handle);
            }
        }
        let other = self.negative.iter().map(|side| &side.conditioning);
        for list in self.lists.iter().map(|(_, list)| list).chain(other) {
            for cond in &list.0 {
                let control = cond.options.get("control");
                let control = control.and_then(|value| value.downcast::<Control>());
                let boxes = cond.options.get("gligen");
                let boxes = boxes.and_then(|value| value.downcast::<TextBoxes>());
                if boxes.is_some() {
                    TextBoxes::warn_of(&*ready.network);
                }
                let steering = control.map(Control::handles).unwrap_or_default();
                for handle in steering.into_iter().chain(boxes.map(TextBoxes::handle)) {
                    if !handles.iter().any(|known| known.model() == handle.model()) {
                        handles.push(handle);
                    }
                }
            }
        }
        if handles.is_empty() {
            return Ok(None);
        }
        let needed = |times: usize| {
            let mut shape = shape.to_vec();
            shape[0] *= times;
            ready.network.pass_bytes(&shape)
        };
        let need = Need {
            // With and without the prompt at once, or one after the other.
            required: needed(2),
            minimum: Some(needed(1)),
            full: false,
        };
        InUse::of(cx, &handles, need).map(Some)
    }
}

/// The latent with the noise of the first level.
fn noisy(sampling: &ModelSampling, first: f32, start: &Start) -> Result<Tensor, NodeError> {
    let most = sampling.sigma_max();
    let close = (first - most).abs() <= 1e-5 * first.abs().max(most.abs());
    let all_noise = close || first > most;
    Ok(sampling.noise_scaling(first, &start.noise, &start.clean, all_noise)?)
}

/// The levels of a run must be there and make sense before anything is loaded.
pub fn steps(count: i64) -> Result<usize, NodeError> {
    usize::try_from(count)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| NodeError::value_error(format!("cannot sample in {count} steps")))
}
