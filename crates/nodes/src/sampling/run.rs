//! One sampling run: latents and conditionings of nodes in, latents out, with progress, previews and cancellation.

use std::any::Any;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fresco_graph::{Cx, NodeError, Value};
use fresco_memory::{Handle, Need};
use fresco_models::denoise::hooks::Check;
use fresco_models::denoise::{
    Call, EncodeArgs, Guidance, Guider, Inpaint, Lists, Predict, Setting, fit_mask, prepare,
};
use fresco_models::samplers::{
    self, Denoiser, SampleArgs, SampleError, SampleStep, SamplerOptions,
};
use fresco_models::{ModelError, ModelSampling};
use fresco_tensor::{Generator, Tensor, TensorError, available_memory, nn};

use super::conds::Reader;
use super::own::{OwnGuider, OwnPrediction};
use super::preview::Previewer;
use super::{BaseModel, Model, Ready, Sampler, StartNoise};
use crate::control::Control;
use crate::gligen::TextBoxes;
use crate::resident::InUse;
use crate::types::{Conditioning, Latent, Nested};

mod nested;

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

/// A failure of the model room as the engine reports it.
pub fn failure(error: ModelError) -> NodeError {
    match error {
        ModelError::Cancelled => NodeError::Interrupted,
        ModelError::Tensor(e) => tensor_failure(e),
        ModelError::Layer {
            file,
            key,
            source: source @ TensorError::DeviceFull { .. },
        } => NodeError::OutOfMemory {
            message: format!("{file}: no room for the weight {key}: {source}"),
        },
        ModelError::NoRoom { reason } => NodeError::OutOfMemory { message: reason },
        other => other.into(),
    }
}

fn tensor_failure(error: TensorError) -> NodeError {
    match error {
        TensorError::Cancelled => NodeError::Interrupted,
        TensorError::NoMemory { .. }
        | TensorError::TooLarge { .. }
        | TensorError::DeviceFull { .. } => NodeError::OutOfMemory {
            message: error.to_string(),
        },
        other => other.into(),
    }
}

/// The same for samplers, which carry errors of models along.
pub fn sample_failure(error: SampleError) -> NodeError {
    match error {
        SampleError::Cancelled => NodeError::Interrupted,
        SampleError::Tensor(e) => tensor_failure(e),
        SampleError::Model(e) => boxed_failure(e),
        other => NodeError::value_error(other.to_string()),
    }
}

fn boxed_failure(error: Box<dyn Error + Send + Sync>) -> NodeError {
    let error = match error.downcast::<super::own::Foreign>() {
        Ok(e) => return e.0,
        Err(e) => e,
    };
    match error.downcast::<ModelError>() {
        Ok(e) => failure(*e),
        Err(e) => NodeError::runtime(e.to_string()),
    }
}

/// Looks at a step; an error ends sampling.
pub type Watch<'a> = dyn FnMut(&SampleStep<'_>) -> Result<(), NodeError> + 'a;

/// A model's network with the way the model is sampled.
struct SampledNetwork<'a> {
    base: &'a dyn BaseModel,
    sampling: &'a ModelSampling,
    in_use: Option<&'a InUse>,
    free: FreeMemory,
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

    fn memory_required(&self, shape: &[usize]) -> u64 {
        self.base.memory_required(shape)
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
struct Driver<'a> {
    guider: Guider<'a>,
    negative: Option<Negative<'a>>,
    /// Another process joins predictions.
    own: Option<OwnPrediction<'a>>,
    inpaint: Option<Inpaint<'a>>,
    name: String,
}

/// The other side of guidance by two models.
struct Negative<'a> {
    guider: Guider<'a>,
    cfg: f64,
    last: Option<Tensor>,
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
        if out.data().iter().any(|v| !v.is_finite()) {
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

/// Channels of an empty latent that was made without thinking of a model, and the pixels along a side of its cells.
const PLAIN_CHANNELS: usize = 4;
const CELL: usize = 8;

/// The latent in the shape that the model samples. Nodes make empty ones without knowing the model, so those get its
/// channels; a picture given to a model of videos is a video of one frame.
fn fit_latent(model: &Model, latent: Latent) -> Result<Latent, NodeError> {
    if let Some(parts) = latent.parts() {
        let parts = nested::fit(model, parts)?;
        return Ok(latent.with("samples", Value::object(Nested(parts))));
    }
    let fitted = fit_pictures(model, &latent)?;
    let beside = model.base.beside_latent();
    if let Some(shape) = beside.and_then(|beside| beside.empty_beside(fitted.shape())) {
        let parts = vec![fitted, Tensor::zeros(shape)?];
        return Ok(latent.with("samples", Value::object(Nested(parts))));
    }
    if fitted.shape() == latent.samples()?.shape() {
        return Ok(latent);
    }
    Ok(latent.with_tensor("samples", fitted))
}

/// The same for a latent of one part, or the first of several.
fn fit_pictures(model: &Model, latent: &Latent) -> Result<Tensor, NodeError> {
    let samples = latent.samples()?;
    let (wanted, dimensions) = (model.base.latent_channels(), model.base.latent_dimensions());
    let mut fitted = samples.clone();
    if dimensions == 3 && samples.rank() == 4 {
        fitted = samples.unsqueeze(2)?;
    }
    if fitted.rank() != dimensions + 2 {
        return Err(NodeError::value_error(format!(
            "{} samples latents of {} dimensions, but this one has shape {:?}",
            model.base.name(),
            in_words(dimensions + 2),
            samples.shape()
        )));
    }
    if fitted.is_empty() {
        return Err(NodeError::value_error(format!(
            "the latent of shape {:?} has nothing to sample",
            samples.shape()
        )));
    }
    if let Some(odd) = samples.data().iter().find(|v| !v.is_finite()) {
        return Err(NodeError::value_error(format!(
            "the latent to sample holds values that are not numbers ({odd})"
        )));
    }
    let channels = fitted.dim(1)?;
    if channels != wanted {
        if samples.data().iter().any(|v| *v != 0.0) {
            return Err(NodeError::value_error(format!(
                "{} samples latents of {wanted} channels, but this one has {channels}: it was made for another family of \
                 models. Encode the picture with the VAE that belongs to this model",
                model.base.name()
            )));
        }
        let mut shape = fitted.shape().to_vec();
        shape[1] = wanted;
        let ratio = model.base.latent_format().map_or(CELL, |f| f.ratio.max(1));
        if ratio != CELL && channels == PLAIN_CHANNELS {
            // Of the same size in pixels.
            for side in shape.iter_mut().rev().take(2) {
                *side = (*side * CELL / ratio).max(1);
            }
        }
        fitted = Tensor::zeros(shape)?;
    }
    Ok(fitted)
}

fn in_words(number: usize) -> String {
    match number {
        3 => "three".to_owned(),
        4 => "four".to_owned(),
        5 => "five".to_owned(),
        other => other.to_string(),
    }
}

/// Ends a pass between two blocks when the prompt was interrupted.
fn stop_when_interrupted(cx: &Cx) -> Check {
    let services = cx.services.clone();
    Arc::new(move || {
        if services.interrupted() {
            Err(ModelError::Cancelled)
        } else {
            Ok(())
        }
    })
}

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
    /// Drew the noise, and goes on.
    generator: Generator,
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
        let mut start = self.prepare(noise, sampler, latent, cx)?;
        if let Some(windows) = &self.model.patches.hooks.windows {
            start.noise = windows.noise(&start.noise, seed).map_err(failure)?;
        }
        let end = self.run(&mut start, seed, sampler, sigmas, cx, watch)?;
        self.finish(start.latent, end)
    }

    /// Draws the noise and brings the network to where it computes.
    fn prepare(
        &self,
        noise: StartNoise,
        sampler: &Sampler,
        latent: Latent,
        cx: &Cx,
    ) -> Result<Start, NodeError> {
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
        Ok(Start {
            parts,
            clean,
            noise,
            generator,
            mask,
            options,
            beside,
            ready,
            negative,
            in_use,
            latent,
        })
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

    /// Goes through all steps.
    fn run(
        &self,
        start: &mut Start,
        seed: u64,
        sampler: &Sampler,
        sigmas: &[f32],
        cx: &Cx,
        watch: &mut Watch<'_>,
    ) -> Result<End, NodeError> {
        let (model, base) = (&self.model, &start.ready.network);
        let sampling = &*model.sampling;
        let network = SampledNetwork {
            base: &**base,
            sampling,
            in_use: start.in_use.as_deref(),
            free: FreeMemory::default(),
        };
        let setting = Setting {
            sampling,
            noise: &start.noise,
            latent: Some(&start.clean),
            denoise_mask: start.mask.as_ref(),
        };
        let encode = |args: &EncodeArgs<'_>| base.extra_conds(args);
        let mut lists = self.read(sigmas[0], start.in_use.clone(), cx)?;
        for cond in lists.iter_mut().flat_map(|(_, list)| list) {
            cond.seed = seed;
        }
        let lists = prepare(lists, &setting, &encode).map_err(failure)?;
        let patches = &model.patches;
        let mut guider = Guider::new(&network, &lists, self.guidance, patches, setting, &encode);
        if sampler.name.needs_uncond() {
            guider.keep_uncond();
        }
        guider.hooks_mut().check = Some(stop_when_interrupted(cx));
        guider
            .hooks_mut()
            .beside
            .extend(start.beside.iter().cloned());
        guider.hooks_mut().seed = seed;
        guider.hooks_mut().schedule = sigmas.into();
        guider.hooks_mut().parts.clone_from(&start.parts);
        let other = start.negative.as_ref().zip(self.negative.as_deref());
        let other_network = other.map(|(ready, _)| SampledNetwork {
            base: &*ready.network,
            sampling,
            in_use: start.in_use.as_deref(),
            free: FreeMemory::default(),
        });
        let other_encode = |args: &EncodeArgs<'_>| match &other {
            Some((ready, _)) => ready.network.extra_conds(args),
            None => base.extra_conds(args),
        };
        let mut negative = match (&other, &other_network) {
            (Some((_, side)), Some(network)) => {
                let mut reader = Reader::for_run(&side.model, sigmas[0], start.in_use.clone(), cx);
                let lists = vec![("negative".into(), reader.read(&side.conditioning)?)];
                let mut lists = prepare(lists, &setting, &other_encode).map_err(failure)?;
                // Alone in its guider, it is what that one follows.
                for (name, _) in &mut lists {
                    *name = "positive".into();
                }
                let Guidance::Cfg { cfg } = self.guidance else {
                    return Err(NodeError::value_error(
                        "two models are guided by one strength",
                    ));
                };
                let plain = Guidance::Cfg { cfg: 1.0 };
                let patches = &side.model.patches;
                let mut guider =
                    Guider::new(network, &lists, plain, patches, setting, &other_encode);
                let hooks = guider.hooks_mut();
                hooks.check = Some(stop_when_interrupted(cx));
                hooks.schedule = sigmas.into();
                hooks.parts.clone_from(&start.parts);
                let shape = start.noise.shape();
                let additions = side.model.additions.iter();
                let beside = additions.map(|one| one.for_run(&side.model, shape, cx));
                hooks.beside.extend(beside.collect::<Result<Vec<_>, _>>()?);
                hooks.seed = seed;
                Some(Negative {
                    guider,
                    cfg,
                    last: None,
                })
            }
            _ => None,
        };
        let fresh = if sampler.redraws_inpaint_noise() {
            // This draw goes through the global generator, too.
            start.generator = Generator::new(seed.wrapping_add(1));
            Some(start.generator.randn(start.noise.shape())?)
        } else {
            None
        };
        let random = Arc::new(Mutex::new(start.generator.clone()));
        guider.start(&random);
        if let Some(negative) = &mut negative {
            negative.guider.start(&random);
        }
        let first = sigmas[0];
        let most = sampling.sigma_max();
        let close = (first - most).abs() <= 1e-5 * first.abs().max(most.abs());
        let all_noise = close || first > most;
        let x = sampling.noise_scaling(first, &start.noise, &start.clean, all_noise)?;
        let known_scale: &dyn Fn(f32) -> f32 = &|sigma| base.known_scale(sigma);
        let own = self.own.as_ref().map(|own| OwnPrediction {
            guider: &own.guider,
            network: &network,
            lists: &lists,
            patches,
            setting,
            encode: &encode,
            seed,
        });
        let mut driver = Driver {
            guider,
            negative,
            own,
            inpaint: start.mask.clone().map(|mask| Inpaint {
                mask,
                latent: start.clean.clone(),
                noise: fresh.unwrap_or_else(|| start.noise.clone()),
                sampling,
                differential: patches.denoise_mask,
                sigmas: sigmas.to_vec(),
                clean: base.sees_known_clean().then_some(known_scale),
            }),
            name: base.name(),
        };
        let previewer = Previewer::new(model, cx);
        let mut denoised = None;
        let mut on_step = |step: SampleStep<'_>| {
            denoised = Some(step.denoised.clone());
            watch(&step).map_err(|e| match e {
                NodeError::Interrupted => SampleError::Cancelled,
                other => SampleError::model(super::own::Foreign(other)),
            })?;
            let picture = match &start.parts {
                Some(shapes) => nested::first(step.denoised, shapes)
                    .and_then(|pictures| previewer.picture(&pictures)),
                None => previewer.picture(step.denoised),
            };
            let (done, total) = ((step.index + 1) as f64, step.total as f64);
            cx.progress(done, total, picture)
                .map_err(|_| SampleError::Cancelled)
        };
        let mut sigmas = sigmas.to_vec();
        let args = SampleArgs {
            sampling,
            seed,
            options: &start.options,
            on_step: &mut on_step,
            global: &mut start.generator,
        };
        let x = match &sampler.own {
            Some(own) => own.sample(&mut driver, x, &sigmas, args, &sampler.options),
            None => samplers::sample(sampler.name, &mut driver, x, &mut sigmas, args),
        };
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
            ready.network.memory_required(&shape)
        };
        let need = Need {
            // With and without the prompt at once, or one after the other.
            required: needed(2),
            minimum: Some(needed(1)),
            full: false,
        };
        InUse::of(cx, &handles, need).map(Some)
    }

    fn read(&self, first: f32, in_use: Option<Arc<InUse>>, cx: &Cx) -> Result<Lists, NodeError> {
        let mut reader = Reader::for_run(&self.model, first, in_use, cx);
        let mut lists = Lists::new();
        for (name, list) in &self.lists {
            if list.0.is_empty() {
                return Err(NodeError::value_error(format!(
                    "the {name} conditioning is empty: there is no prompt to sample with"
                )));
            }
            lists.push(((*name).into(), reader.read(list)?));
        }
        Ok(lists)
    }
}

/// The levels of a run must be there and make sense before anything is loaded.
pub fn steps(count: i64) -> Result<usize, NodeError> {
    usize::try_from(count)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| NodeError::value_error(format!("cannot sample in {count} steps")))
}
