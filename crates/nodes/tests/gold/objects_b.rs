//! Test objects of the latent, conditioning, sigmas, sampling, text and hooks areas.

use std::sync::Arc;

use fresco_graph::{Map, Registry, Value, map};
use fresco_models::guidance::{self, Step};
use fresco_models::{LatentFormat, ModelSampling, Prediction, Scheduler, Spacing};
use fresco_nodes::hooks::{Hook, HookKeyframes, Hooks};
use fresco_nodes::sampling::{BaseModel, Model, Noise, Sampler};
use fresco_nodes::types::{Latent, tensor};
use fresco_tensor::{Result, Tensor, synthetic};

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
        "MODEL" => {
            let sampling = match spec.get("base")?.as_str()? {
                "sd15" => ModelSampling::discrete(Prediction::Eps, false),
                "sd3" => ModelSampling::flow(3.0, 1000.0),
                "flux" => ModelSampling::flux(1.15),
                other => panic!("no base {other}"),
            };
            Some(Model::new(Arc::new(Probe), sampling).into())
        }
        _ => None,
    }
}

/// A model without a network.
struct Probe;

const PROBE_FORMAT: LatentFormat = LatentFormat::scaled(0.18215);

impl BaseModel for Probe {
    fn name(&self) -> String {
        "probe".into()
    }
    fn process_latent_in(&self, latent: &Tensor) -> Result<Tensor> {
        PROBE_FORMAT.process_in(latent)
    }
    fn process_latent_out(&self, latent: &Tensor) -> Result<Tensor> {
        PROBE_FORMAT.process_out(latent)
    }
    fn model_channels(&self) -> Option<usize> {
        Some(8)
    }
    fn in_channels(&self) -> Option<usize> {
        Some(3)
    }
}

/// Everything the model_sampling goldens recorded of a patched model.
fn sampling_facts(s: &ModelSampling) -> Result<Value> {
    let classes = match s.spacing {
        Spacing::Discrete => ["ModelSamplingDiscrete", "Module"],
        Spacing::Distilled => ["ModelSamplingDiscreteDistilled", "ModelSamplingDiscrete"],
        Spacing::ContinuousEdm => ["ModelSamplingContinuousEDM", "Module"],
        Spacing::ContinuousV => ["ModelSamplingContinuousV", "ModelSamplingContinuousEDM"],
        Spacing::CosmosFlow => ["ModelSamplingCosmosRFlow", "ModelSamplingContinuousEDM"],
        Spacing::Flow { .. } => ["ModelSamplingDiscreteFlow", "Module"],
        Spacing::Flux { .. } => ["ModelSamplingFlux", "Module"],
        Spacing::Cascade { .. } => ["StableCascadeSampling", "ModelSamplingDiscrete"],
    };
    let list = |values: &[f32]| tensor(Tensor::from_slice(values));
    let mut facts = map! {
        "class_bases" => classes,
        "sigma_min" => s.sigma_min(),
        "sigma_max" => s.sigma_max(),
    };
    match s.spacing {
        Spacing::Flow { shift, multiplier } => {
            facts.insert("shift".into(), shift.into());
            facts.insert("multiplier".into(), multiplier.into());
        }
        Spacing::Flux { shift } => {
            facts.insert("shift".into(), shift.into());
        }
        Spacing::Cascade { shift } => {
            facts.insert("shift".into(), shift.into());
            facts.insert("sigma_data".into(), s.sigma_data.into());
        }
        _ => {
            facts.insert("sigma_data".into(), s.sigma_data.into());
        }
    }
    let percents: Vec<f32> = (0..=10)
        .map(|i| s.percent_to_sigma(f64::from(i) * 0.1) as f32)
        .collect();
    facts.insert("percent_to_sigma_0_to_1_by_0.1".into(), list(&percents));
    let levels = [s.sigma_min() * 1.01, 0.25, 0.5, 0.9, s.sigma_max() * 0.99];
    facts.insert("timestep_in".into(), list(&levels));
    facts.insert("timestep_of".into(), list(&levels.map(|l| s.timestep(l))));
    facts.insert("sigmas".into(), list(s.sigmas()));
    for (name, scheduler) in [
        ("normal", Scheduler::Normal),
        ("simple", Scheduler::Simple),
        ("sgm_uniform", Scheduler::SgmUniform),
    ] {
        let sigmas = scheduler.sigmas(s, 6).expect("six steps");
        facts.insert(format!("schedule_{name}_6").into(), list(&sigmas));
    }
    let x = synthetic::value("ms.x", &[1, 4, 3, 3], 2.0)?;
    let out = synthetic::value("ms.out", &[1, 4, 3, 3], 1.0)?;
    let probe = map! {
        "calculate_input(0.6,x)" => tensor(s.input(0.6, &x)),
        "calculate_denoised(0.6,out,x)" => tensor(s.denoised(0.6, &out, &x)?),
        "noise_scaling(0.6,x,out,False)" => tensor(s.noise_scaling(0.6, &x, &out, false)?),
        "noise_scaling(0.6,x,out,True)" => tensor(s.noise_scaling(0.6, &x, &out, true)?),
        "inverse_noise_scaling(0.6,x)" => tensor(s.inverse_noise_scaling(0.6, &x)),
    };
    facts.insert("probe".into(), probe.into());
    Ok(facts.into())
}

/// What the patches of a model make of the golden predictions.
fn guidance_facts(model: &Model) -> guidance::Result<Value> {
    let patches = &model.patches;
    let mut facts = Map::new();
    if let Some(mask) = &patches.denoise_mask {
        let shades = synthetic::value("dd.mask", &[1, 1, 6, 5], 1.0)?.map(|v| (v + 1.0) / 2.0);
        let levels = [14.6, 7.0, 3.0, 1.0, 0.0];
        let of = |sigma| tensor(mask.mask(&model.sampling, sigma, &shades, &levels));
        return Ok([14.0, 5.0, 1.0, 0.1].map(of).into());
    }
    if let Some(free_u) = patches.free_u.first() {
        for channels in [32, 16, 8] {
            let shape = [2, channels, 6, 5];
            let h = synthetic::value(&format!("fu.h{channels}"), &shape, 1.0)?;
            let skip = synthetic::value(&format!("fu.s{channels}"), &shape, 1.0)?;
            let (h, skip) = free_u.apply(&h, &skip)?;
            facts.insert(format!("h{channels}").into(), tensor(h));
            facts.insert(format!("hsp{channels}").into(), tensor(skip));
        }
    }
    if let Some(downscale) = patches.downscale.first() {
        let h = synthetic::value("ds.h", &[2, 4, 9, 7], 1.0)?;
        let hook = if downscale.after_skip {
            "set_model_input_block_patch_after_skip"
        } else {
            "set_model_input_block_patch"
        };
        for (block, sigma) in [(3, 14.0), (3, 0.2), (2, 14.0)] {
            let key = format!("{hook}_block{block}_sigma{sigma:.1}");
            facts.insert(key.into(), tensor(downscale.input(block, sigma, &h)?));
        }
        let small = synthetic::value("ds.o", &[2, 4, 5, 4], 1.0)?;
        facts.insert("output_h".into(), tensor(downscale.output(&small, &h)?));
    }
    for (call, (suffix, sigma)) in [("", 2.5), ("2", 1.25)].into_iter().enumerate() {
        let value = |name: &str, scale| {
            synthetic::value(&format!("g.{name}{suffix}"), &[1, 4, 6, 5], scale)
        };
        let (x, cond, uncond) = (value("x", 4.0)?, value("c", 1.0)?, value("u", 1.0)?);
        let step = Step {
            x: &x,
            sigma,
            cfg: 7.0,
            cond: &cond,
            uncond: &uncond,
        };
        let guided = uncond.add(&cond.sub(&uncond)?.mul_scalar(7.0))?;
        let mut put = |hook: &str, value: Value| {
            facts.insert(
                format!("set_model_sampler_{hook}_function_{call}").into(),
                value,
            );
        };
        if let Some(rule) = &patches.cfg_rule {
            put("cfg", tensor(rule.apply(&step)?));
        }
        if let Some(pre) = patches.pre_cfg.first() {
            let (cond, uncond) = pre.apply(&step)?;
            put("pre_cfg", vec![tensor(cond), tensor(uncond)].into());
        }
        if let Some(post) = patches.post_cfg.first() {
            put("post_cfg", tensor(post.apply(&step, &guided)?));
        }
    }
    Ok(facts.into())
}

/// What a golden would write down of an output object, with tensors as they are; nothing if it is not of this file.
pub(crate) fn describe(case: &Case, value: &Value) -> Option<Value> {
    if let Some(model) = value.downcast::<Model>() {
        return Some(if case.class.starts_with("ModelSampling") {
            sampling_facts(&model.sampling).expect("the golden shapes fit")
        } else {
            guidance_facts(model).expect("patches work on the golden shapes")
        });
    }
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
