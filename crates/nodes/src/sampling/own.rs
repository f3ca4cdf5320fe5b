//! Parts of sampling that code of another process computes: guidance, samplers and noise of Python packs.

use std::error::Error;
use std::fmt;

use fresco_graph::{Back, Callback, Map, NodeError, Value, map};
use fresco_models::guidance::{self, CfgRule, GuidanceStep, PostCfg, PreCfg};
use fresco_models::samplers::{Denoiser, SampleArgs, SampleError, SampleStep};
use fresco_tensor::Tensor;

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

/// A function of a pack in place of guidance, before or after it.
pub(crate) struct OwnGuidance(pub(crate) Value);

impl OwnGuidance {
    fn ask(&self, way: &str, step: &GuidanceStep<'_>, more: &[&Tensor]) -> guidance::Result<Value> {
        let mut arguments: Vec<Value> = vec![
            way.into(),
            tensor(step.x.clone()),
            Value::Float(f64::from(step.sigma)),
            Value::Float(step.cfg),
            tensor(step.cond.clone()),
            tensor(step.uncond.clone()),
        ];
        arguments.extend(more.iter().map(|t| tensor((*t).clone())));
        call(&self.0, "fresco_guidance", arguments, &mut nothing)
            .map_err(|error| Box::new(Foreign(error)).into())
    }

    fn one(value: &Value, step: &GuidanceStep<'_>) -> guidance::Result<Tensor> {
        shaped(value, step.x.shape(), "a function of a pack for guidance")
            .map_err(|error| Box::new(Foreign(error)).into())
    }
}

impl CfgRule for OwnGuidance {
    fn apply(&self, step: &GuidanceStep) -> guidance::Result<Tensor> {
        Self::one(&self.ask("cfg", step, &[])?, step)
    }
}

impl PostCfg for OwnGuidance {
    fn apply(&self, step: &GuidanceStep, denoised: &Tensor) -> guidance::Result<Tensor> {
        Self::one(&self.ask("post", step, &[denoised])?, step)
    }
}

impl PreCfg for OwnGuidance {
    fn apply(&self, step: &GuidanceStep) -> guidance::Result<(Tensor, Tensor)> {
        let both = self.ask("pre", step, &[])?;
        let Some([cond, uncond]) = both.as_list() else {
            let error = NodeError::type_error("a pre-cfg function gave no pair of predictions");
            return Err(Box::new(Foreign(error)).into());
        };
        Ok((Self::one(cond, step)?, Self::one(uncond, step)?))
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
