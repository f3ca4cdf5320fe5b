//! Parts of sampling that code of another process computes: guidance, samplers and noise of Python packs.

use std::error::Error;
use std::fmt;

use fresco_graph::{Back, Callback, Cx, Map, NodeError, Value, map};
use fresco_models::ModelError;
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{
    Cond, Encode, Guidance, Guider, Lists, Patches, Predict, Setting, predict,
};
use fresco_models::guidance::{self, Again, CfgRule, GuidanceStep, PostCfg, PreCfg, Which};
use fresco_models::samplers::{Denoiser, SampleArgs, SampleError, SampleStep, SamplerName};
use fresco_models::schedules::MAX_STEPS;
use fresco_tensor::Tensor;

use super::run::{Guided, Sampled, Watch};
use super::{Model, Sampler, StartNoise};
use crate::for_packs::sampling_info;
use crate::types::{Latent, as_tensor, tensor};

/// An error of another process on its way through samplers.
pub struct Foreign(pub NodeError);

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind(), self.0.message())
    }
}

impl Error for Foreign {}

fn callback(value: &Value) -> Result<&dyn Callback, NodeError> {
    let object = match value {
        Value::Object(object) => object.callback(),
        _ => None,
    };
    object.ok_or_else(|| NodeError::type_error("this value cannot be called"))
}

/// Answers nothing: for functions that only get and give.
fn nothing(what: &str, _: Vec<Value>) -> Result<Value, NodeError> {
    Err(NodeError::runtime(format!(
        "{what:?} cannot be asked from here"
    )))
}

fn call(
    value: &Value,
    method: &str,
    arguments: Vec<Value>,
    back: &mut Back<'_>,
) -> Result<Value, NodeError> {
    callback(value)?.call(method, arguments, back)
}

/// A tensor that must have a shape.
fn shaped(value: &Value, wanted: &[usize], what: &str) -> Result<Tensor, NodeError> {
    let tensor = as_tensor(value)
        .ok_or_else(|| NodeError::type_error(format!("{what} gave no tensor, but {value:?}")))?;
    if tensor.shape() != wanted {
        return Err(NodeError::value_error(format!(
            "{what} gave a tensor of shape {:?} instead of {wanted:?}",
            tensor.shape()
        )));
    }
    Ok(tensor.clone())
}

/// The seed of noise that another process draws.
pub(super) fn seed_of(noise: &Value) -> u64 {
    let seed = call(noise, "fresco_seed", Vec::new(), &mut nothing).ok();
    let seed = seed.and_then(|seed| seed.as_int());
    seed.and_then(|seed| u64::try_from(seed).ok()).unwrap_or(0)
}

pub(super) fn draw(noise: &Value, latent: &Latent) -> Result<Tensor, NodeError> {
    let drawn = call(
        noise,
        "generate_noise",
        vec![latent.clone().into()],
        &mut nothing,
    )?;
    shaped(&drawn, latent.samples()?.shape(), "generate_noise")
}

/// The noise levels of a schedule that another process computes.
pub(crate) fn own_levels(
    schedule: &Value,
    model: &Model,
    steps: usize,
) -> Result<Vec<f32>, NodeError> {
    if steps > MAX_STEPS {
        return Err(NodeError::value_error(format!(
            "{steps} steps are too many; {MAX_STEPS} can be"
        )));
    }
    let arguments = vec![model.clone().into(), Value::from(steps)];
    let answer = call(schedule, "fresco_sigmas", arguments, &mut nothing)?;
    let levels = as_tensor(&answer)
        .filter(|levels| levels.rank() == 1)
        .ok_or_else(|| {
            NodeError::type_error(format!(
                "a schedule of a pack gave no row of noise levels, but {answer:?}"
            ))
        })?;
    let levels = levels.data().to_vec();
    if levels.is_empty() || levels.iter().any(|level| !level.is_finite()) {
        return Err(NodeError::value_error(
            "a schedule of a pack gave noise levels that are not numbers, or none",
        ));
    }
    Ok(levels)
}

/// The same as KSampler uses schedules: for a part of the noise, and without the level that some samplers leave out.
pub(super) fn own_schedule(
    schedule: &Value,
    model: &Model,
    sampler: SamplerName,
    steps: usize,
    denoise: f64,
) -> Result<Vec<f32>, NodeError> {
    let full = |steps: usize| -> Result<Vec<f32>, NodeError> {
        let extra = sampler.skips_penultimate();
        let mut levels = own_levels(schedule, model, steps.saturating_add(usize::from(extra)))?;
        if extra && levels.len() >= 2 {
            levels.remove(levels.len() - 2);
        }
        Ok(levels)
    };
    if denoise > 0.9999 {
        return full(steps);
    }
    if denoise <= 0.0 || denoise.is_nan() {
        return Ok(Vec::new());
    }
    let levels = full((steps as f64 / denoise) as usize)?;
    let from = levels.len().saturating_sub(steps.saturating_add(1));
    Ok(levels[from..].to_vec())
}

/// What conditionings of a guider of another process are called here; it knows them by their place.
pub(super) const OWN_LISTS: [&str; 8] = [
    "own0", "own1", "own2", "own3", "own4", "own5", "own6", "own7",
];

/// A guider of another process.
#[derive(Clone)]
pub struct OwnGuider {
    pub guider: Value,
    /// Whether it does something of its own around the loop over the steps, which it asks for.
    pub loops: bool,
}

/// Reports every step to a function of another process.
pub(crate) fn report_steps(
    callback: Option<Value>,
) -> impl FnMut(&SampleStep<'_>) -> Result<(), NodeError> {
    move |step| {
        let Some(Value::Object(object)) = &callback else {
            return Ok(());
        };
        let Some(callback) = object.callback() else {
            return Ok(());
        };
        let told = vec![
            Value::from(step.index),
            tensor(step.denoised.clone()),
            tensor(step.x.clone()),
            Value::from(step.total),
        ];
        callback
            .call("", told, &mut |_, _| Ok(Value::Null))
            .map(|_| ())
    }
}

impl OwnGuider {
    /// Lets the other process sample, which asks for runs: as often as it likes, with what it makes of noise, latent, levels
    /// and mask.
    #[expect(clippy::too_many_arguments, reason = "a run has so many parts")]
    pub(super) fn run(
        &self,
        guided: &Guided,
        noise: StartNoise,
        seed: u64,
        sampler: &Sampler,
        sigmas: &[f32],
        latent: Latent,
        cx: &Cx,
        watch: &mut Watch<'_>,
    ) -> Result<Sampled, NodeError> {
        // What it does around a run is done by it, whoever asks for the run.
        let plain;
        let guided = match guided.model.around {
            Some(_) => {
                let mut inner = guided.clone();
                inner.model.around = None;
                plain = inner;
                &plain
            }
            None => guided,
        };
        if latent.parts().is_some() {
            return Err(NodeError::value_error(
                "a guider of a pack with a loop of its own cannot sample a video together with its sound: take them apart \
                 with LTXVSeparateAVLatent",
            ));
        }
        let clean = latent.samples()?.clone();
        let (drawn, _) = noise.draw(&latent)?;
        let mut denoised = None;
        let mut failed = None;
        let mut back = |what: &str, mut given: Vec<Value>| -> Result<Value, NodeError> {
            if what != "run" {
                return nothing(what, Vec::new());
            }
            given.resize(7, Value::Null);
            let field = |at: usize, what: &str| {
                let found = as_tensor(&given[at]).cloned();
                found.ok_or_else(|| NodeError::type_error(format!("{what} is not a tensor")))
            };
            let noise = StartNoise::Given(field(0, "the noise of a guider")?, seed);
            let mut latent = Latent::new(field(1, "the latent of a guider")?);
            let sampler = Sampler::try_from_value(given[2].clone())?;
            let levels = field(3, "the row of noise levels of a guider")?;
            if let Some(mask) = as_tensor(&given[4]) {
                latent = latent.with_tensor("noise_mask", mask.clone());
            }
            let seed = given[5].as_int().map_or(seed, |seed| seed as u64);
            let mut tell = report_steps(Some(given[6].clone()));
            let mut each = |step: &SampleStep<'_>| {
                watch(step)?;
                tell(step)
            };
            let levels = levels.data();
            let made = guided.sample_watched(noise, seed, &sampler, levels, latent, cx, &mut each);
            match made {
                Ok(made) => {
                    denoised = made.denoised;
                    Ok(tensor(made.latent.samples()?.clone()))
                }
                // The process is told that it failed; why is ours to say.
                Err(error) => {
                    let interrupted = matches!(error, NodeError::Interrupted);
                    let told = if interrupted {
                        NodeError::Interrupted
                    } else {
                        NodeError::runtime(error.message().to_owned())
                    };
                    failed = Some(error);
                    Err(told)
                }
            }
        };
        let question = vec![
            tensor(drawn),
            tensor(clean.clone()),
            sampler.clone().into(),
            tensor(Tensor::from_slice(sigmas)),
            latent
                .tensor("noise_mask")
                .map_or(Value::Null, |mask| tensor(mask.clone())),
            Value::from(seed),
        ];
        let made = call(&self.guider, "fresco_loop", question, &mut back);
        if let Some(error) = failed {
            return Err(error);
        }
        let made = shaped(&made?, clean.shape(), "the guider of a pack")?;
        Ok(Sampled {
            latent: latent.with_tensor("samples", made),
            denoised,
        })
    }
}

/// Guidance by another process, which asks for the predictions that it joins.
pub(super) struct OwnPrediction<'a> {
    pub(super) guider: &'a Value,
    pub(super) network: &'a dyn Predict,
    pub(super) lists: &'a Lists,
    pub(super) patches: &'a Patches,
    pub(super) setting: Setting<'a>,
    pub(super) encode: &'a Encode<'a>,
    pub(super) seed: u64,
}

impl OwnPrediction<'_> {
    fn list(&self, place: Option<&Value>) -> Option<&[Cond]> {
        let place = usize::try_from(place?.as_int()?).ok()?;
        let wanted = OWN_LISTS.get(place)?;
        let found = self.lists.iter().find(|(name, _)| &**name == *wanted);
        found.map(|(_, list)| &list[..])
    }

    /// Two of the conditionings joined as a guider of ours does it, with all that was set on the model.
    fn guide(
        &self,
        hooks: &Hooks,
        x: &Tensor,
        sigma: f32,
        given: &[Value],
    ) -> Result<Tensor, ModelError> {
        let cfg = given.get(2).and_then(Value::as_f64).unwrap_or(1.0);
        let mut lists = Lists::new();
        for (name, place) in [("positive", given.get(3)), ("negative", given.get(4))] {
            if let Some(list) = self.list(place) {
                lists.push((name.into(), list.to_vec()));
            }
        }
        let guidance = Guidance::Cfg { cfg };
        let mut guider = Guider::new(
            self.network,
            &lists,
            guidance,
            self.patches,
            self.setting,
            self.encode,
        );
        *guider.hooks_mut() = hooks.clone();
        guider.denoise(x, sigma)
    }

    pub(super) fn predict(
        &self,
        hooks: &Hooks,
        x: &Tensor,
        sigma: f32,
    ) -> Result<Tensor, ModelError> {
        let shape = x.shape().to_vec();
        let mut failed = None;
        let mut back = |what: &str, given: Vec<Value>| -> Result<Value, NodeError> {
            let x = shaped(given.first().unwrap_or(&Value::Null), &shape, what)?;
            let level = given.get(1).and_then(Value::as_f64);
            let level = level.map_or(sigma, |level| level as f32);
            let answer = match what {
                "predict" => {
                    let places = given.get(2).and_then(Value::as_list).unwrap_or_default();
                    let wanted: Vec<_> = places.iter().map(|one| self.list(Some(one))).collect();
                    predict(self.network, &wanted, &x, level, hooks)
                        .map(|all| all.into_iter().map(tensor).collect::<Vec<Value>>().into())
                }
                "guide" => self.guide(hooks, &x, level, &given).map(tensor),
                other => return nothing(other, Vec::new()),
            };
            // The process is told that it failed; why is ours to say.
            answer.map_err(|error| {
                let text = error.to_string();
                let cancelled = matches!(error, ModelError::Cancelled);
                failed = Some(error);
                if cancelled {
                    NodeError::Interrupted
                } else {
                    NodeError::runtime(text)
                }
            })
        };
        let arguments = vec![
            tensor(x.clone()),
            Value::Float(f64::from(sigma)),
            Value::from(self.seed),
            tensor(Tensor::from_slice(&hooks.schedule)),
        ];
        let predicted = call(self.guider, "fresco_predict", arguments, &mut back);
        if let Some(error) = failed {
            return Err(error);
        }
        predicted
            .and_then(|value| shaped(&value, &shape, "the guider of a pack"))
            .map_err(|error| match error {
                NodeError::Interrupted => ModelError::Cancelled,
                other => ModelError::invalid("guidance", Foreign(other).to_string()),
            })
    }
}

/// A function of a pack in place of guidance, before or after it.
pub(crate) struct OwnGuidance(pub(crate) Value);

/// Which of a step's two prompts a pack means by a number.
fn which<'a>(place: &Value) -> Option<Which<'a>> {
    match place.as_int()? {
        0 => Some(Which::Cond),
        1 => Some(Which::Uncond),
        _ => None,
    }
}

impl OwnGuidance {
    /// Calls the function. It gets the noise levels of the run, and may ask for more predictions where there is a model.
    fn ask(
        &self,
        way: &str,
        step: &GuidanceStep<'_>,
        levels: &[f32],
        model: Option<&dyn Again>,
        more: &[&Tensor],
    ) -> guidance::Result<Value> {
        let mut arguments: Vec<Value> = vec![
            way.into(),
            tensor(step.x.clone()),
            Value::Float(f64::from(step.sigma)),
            Value::Float(step.cfg),
            tensor(step.cond.clone()),
            tensor(step.uncond.clone()),
            tensor(Tensor::from_slice(levels)),
        ];
        arguments.extend(more.iter().map(|t| tensor((*t).clone())));
        let mut failed = None;
        let mut back = |what: &str, given: Vec<Value>| -> Result<Value, NodeError> {
            let (Some(model), "predict") = (model, what) else {
                return nothing(what, Vec::new());
            };
            let x = shaped(given.first().unwrap_or(&Value::Null), step.x.shape(), what)?;
            let level = given.get(1).and_then(Value::as_f64);
            let level = level.map_or(step.sigma, |level| level as f32);
            let places = given.get(2).and_then(Value::as_list).unwrap_or_default();
            let mut made: Vec<Value> = Vec::new();
            for place in places {
                let predicted = match which(place) {
                    Some(which) => model.predict(which, &x, level, model.hooks()),
                    None => Tensor::zeros(x.shape().to_vec()).map_err(Into::into),
                };
                // The process is told that it failed; why is ours to say.
                made.push(tensor(predicted.map_err(|error| {
                    let told = NodeError::runtime(error.to_string());
                    failed = Some(error);
                    told
                })?));
            }
            Ok(made.into())
        };
        let answer = call(&self.0, "fresco_guidance", arguments, &mut back);
        if let Some(error) = failed {
            return Err(error);
        }
        answer.map_err(|error| Box::new(Foreign(error)).into())
    }

    fn one(value: &Value, step: &GuidanceStep<'_>) -> guidance::Result<Tensor> {
        shaped(value, step.x.shape(), "a function of a pack for guidance")
            .map_err(|error| Box::new(Foreign(error)).into())
    }
}

impl CfgRule for OwnGuidance {
    fn apply(&self, step: &GuidanceStep) -> guidance::Result<Tensor> {
        Self::one(&self.ask("cfg", step, &[], None, &[])?, step)
    }

    fn with_model(&self, step: &GuidanceStep, model: &dyn Again) -> guidance::Result<Tensor> {
        let levels = &model.hooks().schedule;
        Self::one(&self.ask("cfg", step, levels, Some(model), &[])?, step)
    }
}

impl PostCfg for OwnGuidance {
    fn apply(&self, step: &GuidanceStep, denoised: &Tensor) -> guidance::Result<Tensor> {
        Self::one(&self.ask("post", step, &[], None, &[denoised])?, step)
    }

    fn with_model(
        &self,
        step: &GuidanceStep,
        denoised: &Tensor,
        model: &dyn Again,
    ) -> guidance::Result<Tensor> {
        let levels = &model.hooks().schedule;
        let made = self.ask("post", step, levels, Some(model), &[denoised])?;
        Self::one(&made, step)
    }
}

impl OwnGuidance {
    fn before(
        &self,
        step: &GuidanceStep<'_>,
        levels: &[f32],
    ) -> guidance::Result<(Tensor, Tensor)> {
        let both = self.ask("pre", step, levels, None, &[])?;
        let Some([cond, uncond]) = both.as_list() else {
            let error = NodeError::type_error("a pre-cfg function gave no pair of predictions");
            return Err(Box::new(Foreign(error)).into());
        };
        Ok((Self::one(cond, step)?, Self::one(uncond, step)?))
    }
}

impl PreCfg for OwnGuidance {
    fn apply(&self, step: &GuidanceStep) -> guidance::Result<(Tensor, Tensor)> {
        self.before(step, &[])
    }

    fn with_hooks(&self, step: &GuidanceStep, hooks: &Hooks) -> guidance::Result<(Tensor, Tensor)> {
        self.before(step, &hooks.schedule)
    }
}

/// A sampler whose loop runs in another process, which asks for every prediction.
#[derive(Clone)]
pub struct OwnSampler(pub Value);

impl fmt::Debug for OwnSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sampler of a pack")
    }
}

impl OwnSampler {
    pub(super) fn sample(
        &self,
        model: &mut dyn Denoiser,
        x: Tensor,
        sigmas: &[f32],
        args: SampleArgs<'_>,
        options: &Map,
    ) -> Result<Tensor, SampleError> {
        let shape = x.shape().to_vec();
        let about = map! {
            "seed" => args.seed,
            "sigma_min" => f64::from(args.sampling.sigma_min()),
            "sigma_max" => f64::from(args.sampling.sigma_max()),
            "options" => options.clone(),
            "sampling" => sampling_info(args.sampling),
        };
        let question = vec![
            tensor(x),
            tensor(Tensor::from_slice(sigmas)),
            Value::from(about),
        ];
        let on_step = args.on_step;
        let total = sigmas.len().saturating_sub(1);
        let mut stopped = None;
        let mut back = |what: &str, given: Vec<Value>| -> Result<Value, NodeError> {
            let number = |at: usize| given.get(at).and_then(Value::as_f64).unwrap_or(0.0);
            let field = |at: usize| shaped(given.get(at).unwrap_or(&Value::Null), &shape, what);
            let answer = match what {
                "denoise" => model.denoise(&field(0)?, number(1) as f32).map(tensor),
                "step" => on_step(SampleStep {
                    index: number(0).max(0.0) as usize,
                    total,
                    sigma: number(1) as f32,
                    x: &field(2)?,
                    denoised: &field(3)?,
                })
                .map(|()| Value::Null),
                other => return nothing(other, Vec::new()),
            };
            // The process is told that it failed; why is ours to say.
            answer.map_err(|error| {
                let text = error.to_string();
                let cancelled = matches!(error, SampleError::Cancelled);
                stopped = Some(error);
                if cancelled {
                    NodeError::Interrupted
                } else {
                    NodeError::runtime(text)
                }
            })
        };
        let sampled = call(&self.0, "fresco_sample", question, &mut back);
        if let Some(error) = stopped {
            return Err(error);
        }
        sampled
            .and_then(|value| shaped(&value, &shape, "a sampler of a pack"))
            .map_err(|error| match error {
                NodeError::Interrupted => SampleError::Cancelled,
                other => SampleError::model(Foreign(other)),
            })
    }
}
