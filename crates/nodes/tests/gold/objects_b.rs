//! Test objects of the latent, conditioning, sigmas, sampling, text and hooks areas.

use fresco_graph::{Map, Registry, Value, map};
use fresco_nodes::hooks::{Hook, HookKeyframes, Hooks};
use fresco_nodes::sampling::{Noise, Sampler};
use fresco_nodes::types::{Latent, tensor};
use fresco_tensor::Tensor;

use crate::store::Case;

/// An input object, or nothing if it is not of this file.
pub(crate) fn build(kind: &str, spec: &Map, _registry: &Registry) -> Option<Value> {
    match kind {
        "HOOKS" => {
            let pairs = spec.get("strengths")?.as_list()?;
            let hook = |pair: &Value| {
                let pair = pair.as_list()?;
                Some(Hook::new(pair[0].as_f64()?, pair[1].as_f64()?))
            };
            Some(Hooks(pairs.iter().map(hook).collect::<Option<_>>()?).into())
        }
        _ => None,
    }
}

/// What a golden would write down of an output object, with tensors as they are; nothing if it is not of this file.
pub(crate) fn describe(_case: &Case, value: &Value) -> Option<Value> {
    if let Some(k) = value.downcast::<HookKeyframes>() {
        return Some(map! {"keyframes" => keyframes(k)}.into());
    }
    if let Some(Hooks(hooks)) = value.downcast::<Hooks>() {
        let hooks: Vec<Value> = hooks
            .iter()
            .map(|h| {
                map! {
                    "strength_model" => h.strength_model,
                    "strength_clip" => h.strength_clip,
                    "keyframes" => keyframes(&h.keyframes),
                }
                .into()
            })
            .collect();
        return Some(map! {"hooks" => hooks}.into());
    }
    if let Some(noise) = value.downcast::<Noise>() {
        let latent = Latent::new(Tensor::zeros([2, 4, 5, 3]).ok()?);
        return Some(tensor(noise.generate(&latent).ok()?));
    }
    if let Some(sampler) = value.downcast::<Sampler>() {
        return Some(
            map! {
                "sampler_function" => &sampler.function,
                "extra_options" => plain(&sampler.options),
                "inpaint_options" => plain(&sampler.inpaint_options),
            }
            .into(),
        );
    }
    None
}

/// Options as a golden writes them: a function is only said to be one.
fn plain(options: &Map) -> Map {
    options
        .iter()
        .map(|(k, v)| match v {
            Value::Object(_) => (k.clone(), "function".into()),
            v => (k.clone(), v.clone()),
        })
        .collect()
}

fn keyframes(all: &HookKeyframes) -> Vec<Value> {
    all.all()
        .iter()
        .map(|k| {
            map! {
                "strength" => k.strength,
                "start_percent" => k.start_percent,
                "guarantee_steps" => k.guarantee_steps,
            }
            .into()
        })
        .collect()
}
