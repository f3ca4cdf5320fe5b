//! What Python packs ask of models: the methods of the objects that stand for them in the packs' process.
//!
//! They are no nodes: nobody links them, and `/object_info` does not know them. Names are `object.method`; arguments come by
//! name, as the Python side writes them (`python/fresco_host/models.py`).

pub mod listed;
mod patches;
mod text;

use fresco_graph::{Args, Cx, Map, NodeError, Value, map};
use fresco_models::denoise::Guidance;
use fresco_models::samplers::{SamplerName, ksampler_sigmas, step_window};
use fresco_models::{ModelSampling, Prediction, Scheduler, Spacing};
use fresco_tensor::Tensor;

use crate::clip::Clip;
use crate::lora::Weights as _;
use crate::sampling::own::{OwnGuidance, report_steps};
use crate::sampling::run::{Guided, failure, steps};
use crate::sampling::{Guider, Model, Noise, Sampler, StartNoise};
use crate::types::{Conditioning, Latent, Sigmas, as_tensor, tensor};
use crate::upscale::UpscaleModel;
use crate::vae::Vae;

/// Runs a method; none if there is none of this name.
pub fn call(name: &str, args: Args, cx: &Cx) -> Option<Result<Value, NodeError>> {
    let method = match name {
        "model.info" => model_info,
        "model.derive" => model_derive,
        "model.sigmas" => model_sigmas,
        "model.latent" => model_latent,
        "weights.keys" => patches::keys,
        "weights.get" => patches::get,
        "weights.names" => patches::names,
        "lora.file" => patches::file,
        "clip.derive" => text::derive,
        "clip.tokenize" => text::tokenize,
        "clip.encode" => text::encode,
        "clip.encode_alone" => text::encode_alone,
        "clip.info" => text::info,
        "clip.words" => text::words,
        "clip.numbers" => text::numbers,
        "vae.info" => vae_info,
        "upscale.info" => upscale_info,
        "upscale.run" => upscale_run,
        "sample" => sample,
        _ => return None,
    };
    Some(method(args, cx))
}

fn prediction(of: Prediction) -> &'static str {
    match of {
        Prediction::Eps => "EPS",
        Prediction::V => "V_PREDICTION",
        Prediction::Edm => "EDM",
        Prediction::Flow => "CONST",
        Prediction::X0 => "X0",
        Prediction::ImgToImg => "IMG_TO_IMG",
        Prediction::RatioFlow => "COSMOS_RFLOW",
        Prediction::Lcm => "LCM",
    }
}

/// How a model is sampled, with the names of the reference's classes.
pub(crate) fn sampling_info(sampling: &ModelSampling) -> Map {
    let (spacing, shift, multiplier) = match sampling.spacing {
        Spacing::Discrete => ("ModelSamplingDiscrete", None, None),
        Spacing::Distilled => ("ModelSamplingDiscreteDistilled", None, None),
        Spacing::ContinuousEdm => ("ModelSamplingContinuousEDM", None, None),
        Spacing::ContinuousV => ("ModelSamplingContinuousV", None, None),
        Spacing::RatioFlow => ("ModelSamplingCosmosRFlow", None, None),
        Spacing::Flow { shift, multiplier } => {
            ("ModelSamplingDiscreteFlow", Some(shift), Some(multiplier))
        }
        Spacing::ExponentialFlow { shift } => ("ModelSamplingFlux", Some(shift), None),
        Spacing::Cosine { shift } => ("StableCascadeSampling", Some(shift), None),
    };
    map! {
        "spacing" => spacing,
        "prediction" => prediction(sampling.prediction),
        "shift" => shift,
        "multiplier" => multiplier,
        "sigma_data" => sampling.sigma_data,
        "noise_scale" => f64::from(sampling.noise_scale),
        "sigmas" => tensor(Tensor::from_slice(sampling.sigmas())),
        "sigma_min" => f64::from(sampling.sigma_min()),
        "sigma_max" => f64::from(sampling.sigma_max()),
    }
}

/// Facts about a model that packs read from it.
fn model_info(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let model: Model = args.take("model")?;
    let format = model.latent_format.or_else(|| model.base.latent_format());
    let latent = format.map(|format| {
        let rgb: Vec<Value> = format
            .rgb
            .iter()
            .map(|row| row.iter().map(|n| f64::from(*n)).collect::<Vec<_>>().into())
            .collect();
        let bias: Vec<f64> = format.rgb_bias.iter().map(|n| f64::from(*n)).collect();
        map! {
            "name" => format.name,
            "scale_factor" => f64::from(format.scale),
            "shift_factor" => f64::from(format.shift),
            "latent_channels" => format.channels,
            "latent_dimensions" => format.dimensions,
            "rgb" => rgb,
            "rgb_bias" => bias,
            "taesd" => format.taesd,
        }
    });
    Ok(map! {
        "name" => model.base.name(),
        "architecture" => model.base.architecture(),
        "bytes" => model.base.bytes(),
        "latent_channels" => model.base.latent_channels(),
        "latent_dimensions" => model.base.latent_dimensions(),
        "in_channels" => model.base.in_channels(),
        "model_channels" => model.base.model_channels(),
        "latent_format" => latent,
        "sampling" => sampling_info(&model.sampling),
    }
    .into())
}

/// Latents as the network has them, or back.
fn model_latent(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let model: Model = args.take("model")?;
    let back: bool = args.take("out")?;
    let latent: Sigmas = args.take("latent")?;
    let changed = if back {
        model.process_latent_out(&latent.0)
    } else {
        model.process_latent_in(&latent.0)
    };
    Ok(tensor(changed?))
}

/// A model with what a pack changed about it.
fn model_derive(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let model: Model = args.take("model")?;
    let mut model = patches::add(model, args.take_or("patches", Vec::new())?, cx)?;
    if let Some(function) = args.take::<Option<Value>>("cfg")? {
        model.patches.cfg_rule = Some(std::sync::Arc::new(OwnGuidance(function)));
    }
    for function in args.take_or::<Vec<Value>>("pre", Vec::new())? {
        let pre = std::sync::Arc::new(OwnGuidance(function));
        model.patches.pre_cfg.push(pre);
    }
    for function in args.take_or::<Vec<Value>>("post", Vec::new())? {
        let post = std::sync::Arc::new(OwnGuidance(function));
        model.patches.post_cfg.push(post);
    }
    model.around = args.take::<Option<Value>>("around")?.or(model.around);
    if args.take_or("keep_uncond", false)? {
        model.patches.keep_uncond = true;
    }
    if let Some(wanted) = args.take::<Option<std::sync::Arc<Map>>>("sampling")? {
        let sampling = read_sampling(&wanted)?;
        model = model.with_sampling(sampling);
    }
    Ok(model.into())
}

/// The way of sampling that a pack made of the host's classes.
fn read_sampling(wanted: &Map) -> Result<ModelSampling, NodeError> {
    let text = |key: &str| wanted.get(key).and_then(Value::as_str).unwrap_or("");
    let number =
        |key: &str, default: f64| wanted.get(key).and_then(Value::as_f64).unwrap_or(default);
    let prediction = match text("prediction") {
        "EPS" => Prediction::Eps,
        "V_PREDICTION" => Prediction::V,
        "EDM" => Prediction::Edm,
        "CONST" => Prediction::Flow,
        "X0" => Prediction::X0,
        "IMG_TO_IMG" => Prediction::ImgToImg,
        "COSMOS_RFLOW" => Prediction::RatioFlow,
        "LCM" => Prediction::Lcm,
        other => {
            return Err(NodeError::value_error(format!(
                "a pack wants the prediction {other:?}, which Fresco does not know"
            )));
        }
    };
    let shift = number("shift", 1.0);
    let (first, last) = (number("first", 0.00085), number("last", 0.012));
    let mut sampling = match text("spacing") {
        "ModelSamplingDiscrete" if text("betas") == "sqrt_linear" => {
            ModelSampling::even_betas(prediction, first, last)
        }
        "ModelSamplingDiscrete" if text("betas") == "linear" && (first - 0.00085).abs() < 1e-9 => {
            ModelSampling::discrete_until(prediction, last)
        }
        "ModelSamplingDiscrete" if wanted.contains_key("betas") => {
            return Err(NodeError::value_error(format!(
                "a pack wants noise levels that begin with a step of {first}; Fresco has those that begin with 0.00085, and even ones"
            )));
        }
        "ModelSamplingDiscrete" => {
            ModelSampling::discrete(prediction, wanted.get("zsnr").is_some_and(Value::truthy))
        }
        "ModelSamplingDiscreteDistilled" => {
            ModelSampling::distilled(prediction, wanted.get("zsnr").is_some_and(Value::truthy))
        }
        "ModelSamplingContinuousEDM" | "ModelSamplingDiscreteEDM" => ModelSampling::continuous_edm(
            prediction,
            number("sigma_min", 0.002),
            number("sigma_max", 120.0),
            number("sigma_data", 1.0),
        ),
        "ModelSamplingContinuousV" => ModelSampling::continuous_v(
            prediction,
            number("sigma_min", 0.002),
            number("sigma_max", 120.0),
        ),
        "ModelSamplingCosmosRFlow" => ModelSampling::ratio_flow(
            number("sigma_min", 0.01),
            number("sigma_max", 200.0),
            number("sigma_data", 1.0),
        ),
        "ModelSamplingDiscreteFlow" => ModelSampling::flow(shift, number("multiplier", 1000.0)),
        "ModelSamplingFlux" => ModelSampling::exponential_flow(shift),
        "StableCascadeSampling" => ModelSampling::cosine(prediction, shift),
        other => {
            return Err(NodeError::value_error(format!(
                "a pack wants the noise levels of {other:?}, which Fresco does not know"
            )));
        }
    };
    sampling.prediction = prediction;
    Ok(sampling)
}

/// The noise levels of a schedule.
fn model_sigmas(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let model: Model = args.take("model")?;
    let (scheduler, sampler): (String, Option<String>) =
        (args.take("scheduler")?, args.take("sampler")?);
    let scheduler = Scheduler::named(&scheduler)
        .ok_or_else(|| NodeError::value_error(format!("unknown scheduler {scheduler:?}")))?;
    let count = steps(args.take("steps")?)?;
    let denoise = args.take_or("denoise", 1.0)?;
    let sampler = sampler.and_then(|name| SamplerName::named(&name));
    let sigmas = ksampler_sigmas(
        &model.sampling,
        sampler.unwrap_or(SamplerName::Euler),
        scheduler,
        count,
        denoise,
    )
    .map_err(|e| NodeError::value_error(e.to_string()))?;
    let whole = |value: Option<i64>| value.and_then(|n| usize::try_from(n).ok());
    let (start, last) = (whole(args.take("start")?), whole(args.take("last")?));
    let sigmas = step_window(sigmas, start, last, args.take_or("finish", false)?);
    Ok(tensor(Tensor::from_slice(&sigmas.unwrap_or_default())))
}

fn vae_info(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let vae: Vae = args.take("vae")?;
    Ok(map! {
        "latent_channels" => vae.0.latent_channels(),
        "spatial" => vae.0.spatial_ratio(),
        "temporal" => vae.0.temporal_ratio(),
        "channels" => vae.0.picture_channels(),
    }
    .into())
}

fn upscale_info(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let facts = args.take::<UpscaleModel>("upscale_model")?.facts();
    Ok(map! {"scale" => facts.scale, "kind" => facts.kind, "channels" => facts.input}.into())
}

/// Pictures (b, c, h, w) enlarged.
fn upscale_run(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let model: UpscaleModel = args.take("upscale_model")?;
    let planes: Sigmas = args.take("planes")?;
    Ok(tensor(model.enlarge(&planes.0, cx)?))
}

/// One run with noise, levels and sampler of a pack.
fn sample(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let guided = match args.take::<Option<Guider>>("guider")? {
        Some(guider) => guider.0,
        None => Guided {
            model: args.take("model")?,
            guidance: Guidance::Cfg {
                cfg: args.take("cfg")?,
            },
            lists: vec![
                ("positive", args.take::<Conditioning>("positive")?),
                ("negative", args.take::<Conditioning>("negative")?),
            ],
            negative: None,
            own: None,
        },
    };
    let seed = args.take::<Option<u64>>("seed")?.unwrap_or(0);
    let noise = match args.take::<Option<Value>>("noise")? {
        None => StartNoise::Drawn(Noise::Random { seed }),
        Some(Value::Bool(false)) => StartNoise::Drawn(Noise::Disabled),
        Some(value) => match as_tensor(&value) {
            Some(given) => StartNoise::Given(given.clone(), seed),
            None => return Err(NodeError::type_error("the noise is not a tensor")),
        },
    };
    let sampler = match args.take::<Value>("sampler")? {
        Value::Str(name) => {
            let name = SamplerName::named(&name)
                .ok_or_else(|| NodeError::value_error(format!("unknown sampler {name:?}")))?;
            Sampler::listed(name)
        }
        other => Sampler::try_from_value(other)?,
    };
    let sigmas: Sigmas = args.take("sigmas")?;
    let latent: Latent = args.take("latent")?;
    let callback: Option<Value> = args.take("callback")?;
    let mut watch = report_steps(callback);
    let sampled = guided.sample_watched(
        noise,
        seed,
        &sampler,
        sigmas.0.data(),
        latent,
        cx,
        &mut watch,
    )?;
    let out: Value = sampled.latent.into();
    let denoised: Value = sampled.denoised.map_or(Value::Null, Value::from);
    Ok(vec![out, denoised].into())
}

/// The encoder that a method is about.
fn clip(args: &mut Args) -> Result<Clip, NodeError> {
    args.take("clip")
}

/// Weights of whatever kind of model it is.
fn stores_of(
    value: Value,
) -> Result<Vec<(String, std::sync::Arc<fresco_models::WeightStore>)>, NodeError> {
    if let Some(model) = value.downcast::<Model>() {
        return model.stores();
    }
    if let Some(clip) = value.downcast::<Clip>() {
        return Ok(clip.stores());
    }
    if let Some(vae) = value.downcast::<Vae>() {
        return vae.stores();
    }
    Err(NodeError::type_error(
        "the weights of this value cannot be looked at",
    ))
}

/// A failure of the model room.
fn model_failure(error: fresco_models::ModelError) -> NodeError {
    failure(error)
}
