//! Test objects of the latent, conditioning, sigmas, sampling, text and hooks areas.

use std::sync::{Arc, LazyLock};

use fresco_graph::{Map, NodeRegistry, Value, map};
use fresco_models::denoise::hooks::{BlockFlow, BlockHook, BlockInfo, BlockKind, Moment};
use fresco_models::guidance::{self, GuidanceStep};
use fresco_models::samplers::SamplerName;
use fresco_models::{LatentFormat, ModelError, ModelSampling, Prediction, Scheduler, Spacing};
use fresco_nodes::hooks::{Hook, HookKeyframe, HookKeyframes, Hooks};
use fresco_nodes::latent::operation::LatentOperation;
use fresco_nodes::sampling::{BaseModel, Model, Noise, Sampler};
use fresco_nodes::types::{Latent, tensor};
use fresco_tensor::{Result, Tensor, synthetic};

use crate::store::Case;
use crate::{objects, run};

/// An input object, or nothing if it is not of this file.
pub(crate) fn build(kind: &str, spec: &Map, _registry: &NodeRegistry) -> Option<Value> {
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
                "flux" => ModelSampling::exponential_flow(1.15),
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
        Spacing::RatioFlow => ["ModelSamplingCosmosRFlow", "ModelSamplingContinuousEDM"],
        Spacing::Flow { .. } => ["ModelSamplingDiscreteFlow", "Module"],
        Spacing::ExponentialFlow { .. } => ["ModelSamplingFlux", "Module"],
        Spacing::Cosine { .. } => ["StableCascadeSampling", "ModelSamplingDiscrete"],
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
        Spacing::ExponentialFlow { shift } => {
            facts.insert("shift".into(), shift.into());
        }
        Spacing::Cosine { shift } => {
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

fn at_block(kind: BlockKind, number: usize, sigma: f32) -> BlockInfo<'static> {
    BlockInfo {
        kind,
        number,
        index: 0,
        heads: 0,
        size: [1, 0, 0],
        original: &[],
        sigma,
        cond_or_uncond: &[],
    }
}

/// What a hook makes of backbone and skip on their way into an output block.
fn into_block(
    hook: &dyn BlockHook,
    h: Tensor,
    skip: Tensor,
) -> std::result::Result<(Tensor, Tensor), ModelError> {
    let flow = BlockFlow {
        h,
        beside: Some(skip.clone()),
    };
    let out = hook.apply(flow, &at_block(BlockKind::OUTPUT, 0, 14.0))?;
    Ok((out.h, out.beside.unwrap_or(skip)))
}

/// What the patches of a model make of the golden predictions.
fn guidance_facts(model: &Model) -> guidance::Result<Value> {
    let patches = &model.patches;
    let mut facts = Map::new();
    if let Some(mask) = &patches.denoise_mask {
        let shades =
            synthetic::value("dd.mask", &[1, 1, 6, 5], 1.0)?.map(|v| f32::midpoint(v, 1.0));
        let levels = [14.6, 7.0, 3.0, 1.0, 0.0];
        let of = |sigma| tensor(mask.mask(&model.sampling, sigma, &shades, &levels));
        return Ok([14.0, 5.0, 1.0, 0.1].map(of).into());
    }
    let of_block = |kind, moment| patches.hooks.of_block(kind, moment).next();
    let into_output = of_block(BlockKind::OUTPUT, Moment::Before);
    let after_input = [
        ("set_model_input_block_patch", Moment::After),
        ("set_model_input_block_patch_after_skip", Moment::AfterSkip),
    ];
    let after_input = after_input
        .into_iter()
        .find_map(|(hook, moment)| Some((hook, of_block(BlockKind::INPUT, moment)?)));
    if let (Some(free_u), None) = (into_output, after_input) {
        for channels in [32, 16, 8] {
            let shape = [2, channels, 6, 5];
            let h = synthetic::value(&format!("fu.h{channels}"), &shape, 1.0)?;
            let skip = synthetic::value(&format!("fu.s{channels}"), &shape, 1.0)?;
            let (h, skip) = into_block(free_u, h, skip)?;
            facts.insert(format!("h{channels}").into(), tensor(h));
            facts.insert(format!("hsp{channels}").into(), tensor(skip));
        }
    }
    if let (Some(up), Some((hook, down))) = (into_output, after_input) {
        let h = synthetic::value("ds.h", &[2, 4, 9, 7], 1.0)?;
        for (block, sigma) in [(3, 14.0), (3, 0.2), (2, 14.0)] {
            let key = format!("{hook}_block{block}_sigma{sigma:.1}");
            let flow = BlockFlow {
                h: h.clone(),
                beside: None,
            };
            let out = down.apply(flow, &at_block(BlockKind::INPUT, block, sigma))?;
            facts.insert(key.into(), tensor(out.h));
        }
        let small = synthetic::value("ds.o", &[2, 4, 5, 4], 1.0)?;
        facts.insert("output_h".into(), tensor(into_block(up, small, h)?.0));
    }
    for (call, (suffix, sigma)) in [("", 2.5), ("2", 1.25)].into_iter().enumerate() {
        let value = |name: &str, scale| {
            synthetic::value(&format!("g.{name}{suffix}"), &[1, 4, 6, 5], scale)
        };
        let (x, cond, uncond) = (value("x", 4.0)?, value("c", 1.0)?, value("u", 1.0)?);
        let step = GuidanceStep {
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
                "sampler_function" => sampler.name.function(),
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

/// Made once: their tables are long.
static ODD_MODELS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    [
        ModelSampling::discrete(Prediction::Eps, true),
        ModelSampling::flow(0.0, 0.0),
        ModelSampling::exponential_flow(1e300),
        ModelSampling::cosine(Prediction::Lcm, f64::NAN),
        ModelSampling::continuous_edm(Prediction::Edm, f64::NAN, -1.0, 0.0),
    ]
    .map(|sampling| Model::new(Arc::new(Probe), sampling).into())
    .to_vec()
});

/// Objects of a wire type for the hostile test, from the plain to the absurd.
pub(crate) fn odd(io: &str) -> Vec<Value> {
    let keyframes = |starts: &[f64]| {
        let mut all = HookKeyframes::default();
        for start_percent in starts {
            all.add(HookKeyframe {
                strength: f64::NAN,
                start_percent: *start_percent,
                guarantee_steps: u32::MAX,
            });
        }
        Value::from(all)
    };
    match io {
        "MODEL" => ODD_MODELS.clone(),
        "NOISE" => vec![
            Noise::Disabled.into(),
            Noise::Random { seed: u64::MAX }.into(),
        ],
        "SAMPLER" => vec![Sampler::listed(SamplerName::Euler).into()],
        "HOOKS" => vec![
            Hooks::default().into(),
            Hooks(vec![Hook::new(f64::NAN, 0.0)]).into(),
        ],
        "HOOK_KEYFRAMES" => vec![keyframes(&[]), keyframes(&[f64::NAN, 2.0, f64::NAN, -1.0])],
        "LATENT_OPERATION" => vec![
            LatentOperation::TonemapReinhard { multiplier: 0.0 }.into(),
            LatentOperation::Sharpen {
                radius: usize::MAX / 4,
                sigma: 0.0,
                alpha: f64::NAN,
            }
            .into(),
        ],
        "TIMESTEPS_RANGE" => vec![
            [0.0, f64::NAN].into(),
            vec![0.5].into(),
            vec!["x", "y"].into(),
        ],
        _ => Vec::new(),
    }
}

/// Patches run inside sampling, on whatever latents the user feeds it: they may refuse, they may not panic.
#[test]
fn patches_answer_to_odd_predictions() {
    let registry = run::registry();
    let model = || odd("MODEL").remove(0);
    let shapes: [&[usize]; 7] = [
        &[1, 4, 6, 5],
        &[2, 8, 1, 1],
        &[1, 4, 0, 5],
        &[0, 4, 6, 5],
        &[1, 4, 3, 4, 4],
        &[3, 4],
        &[],
    ];
    for class in [
        "RescaleCFG",
        "Mahiro",
        "CFGZeroStar",
        "CFGNorm",
        "TCFG",
        "APG",
        "Epsilon Scaling",
        "TemporalScoreRescaling",
        "FreSca",
        "RenormCFG",
        "VideoLinearCFGGuidance",
        "VideoTriangleCFGGuidance",
        "LatentApplyOperationCFG",
        "DifferentialDiffusion",
        "FreeU",
        "FreeU_V2",
        "PatchModelAddDownscale",
    ] {
        let mut args = map! {"model" => model()};
        let node = registry.get(class).expect("a class of ours");
        for input in node.schema().inputs.iter().skip(1) {
            let value = match input.options.get("default") {
                Some(default) => default.clone(),
                None => odd("LATENT_OPERATION").first().cloned().unwrap_or_default(),
            };
            let entries = input.entries(&fresco_graph::NoListings);
            let value = entries.and_then(|e| e.first().cloned()).unwrap_or(value);
            args.insert(input.name.clone(), value);
        }
        let patched = objects::made_by(&registry, class, args);
        let patches = &patched.downcast::<Model>().expect("a model").patches;
        for a in shapes {
            for b in shapes {
                let full = |shape: &[usize], v| Tensor::full(shape, v).expect("small");
                let (x, cond, uncond) = (full(a, 0.0), full(b, 1.0), full(a, f32::NAN));
                let step = GuidanceStep {
                    x: &x,
                    sigma: 0.0,
                    cfg: 0.0,
                    cond: &cond,
                    uncond: &uncond,
                };
                for pre in &patches.pre_cfg {
                    let _ = pre.apply(&step);
                }
                if let Some(rule) = &patches.cfg_rule {
                    let _ = rule.apply(&step);
                }
                for post in &patches.post_cfg {
                    let _ = post.apply(&step, &uncond);
                }
                for placed in &patches.hooks.blocks {
                    let into = (placed.moment == Moment::Before).then(|| cond.clone());
                    let flow = BlockFlow {
                        h: x.clone(),
                        beside: into,
                    };
                    let _ = placed.hook.apply(flow, &at_block(placed.kind, 3, 14.0));
                }
                if let Some(mask) = &patches.denoise_mask {
                    let sampling = ModelSampling::flow(0.0, 0.0);
                    let _ = mask.mask(&sampling, f32::NAN, &x, &[]);
                    let _ = mask.mask(&sampling, f32::NAN, &x, &[0.0]);
                }
            }
        }
    }
}
