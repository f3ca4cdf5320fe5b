//! The network and what goes into it.

use std::f32::consts::TAU;
use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, Value, attention, swiglu};
use fresco_tensor::{Device, Tensor};

use super::config::{HEAD, StableAudioConfig};
use super::seconds::SecondsEmbedder;
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput,
};
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::{ModelSampling, Prediction};
use crate::store::Walk;
use crate::transformer::{Rope, chunks, part, repeat_heads};

const EPS: f32 = 1e-5;
/// Latent frames of a second.
const FRAMES: f64 = 21.53;
/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: u64 = 16;

/// A norm with a factor for each channel.
struct Norm {
    gamma: Arc<Value>,
    norm: LayerNorm,
}

impl Norm {
    fn new(weights: &Walk<'_>, name: &str, dim: usize) -> Result<Self> {
        Ok(Self {
            gamma: weights.at(name).value("gamma", &[dim])?,
            norm: LayerNorm::new(None, None, EPS)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gamma = self.gamma.at(&x.device())?;
        Ok(self.norm.forward(x)?.mul(&gamma)?)
    }
}

struct Layer {
    norms: [Norm; 3],
    qkv: Arc<Linear>,
    out: Arc<Linear>,
    cross_q: Arc<Linear>,
    cross_kv: Arc<Linear>,
    cross_out: Arc<Linear>,
    wide: Arc<Linear>,
    narrow: Arc<Linear>,
}

impl Layer {
    fn new(weights: &Walk<'_>, config: &StableAudioConfig) -> Result<Self> {
        let (dim, inner) = (config.dim, config.inner);
        let (own, cross) = (weights.at("self_attn"), weights.at("cross_attn"));
        let feed = weights.at("ff.ff");
        Ok(Self {
            norms: [
                Norm::new(weights, "pre_norm", dim)?,
                Norm::new(weights, "cross_attend_norm", dim)?,
                Norm::new(weights, "ff_norm", dim)?,
            ],
            qkv: own.matrix("to_qkv", 3 * dim, dim)?,
            out: own.matrix("to_out", dim, dim)?,
            cross_q: cross.matrix("to_q", dim, dim)?,
            cross_kv: cross.matrix("to_kv", 2 * config.inner_context, config.inner_context)?,
            cross_out: cross.matrix("to_out", dim, dim)?,
            wide: feed.linear("0.proj", 2 * inner, dim)?,
            narrow: feed.linear("2", dim, inner)?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        prompt: &Tensor,
        rope: &Rope,
        config: &StableAudioConfig,
    ) -> Result<Tensor> {
        let heads = config.dim / HEAD;
        let [q, k, v] = chunks(&self.qkv.forward(&self.norms[0].forward(x)?)?)?;
        let (q, k) = (
            turned(&q, heads, rope, config)?,
            turned(&k, heads, rope, config)?,
        );
        let seen = attention(&q, &k, &v, heads, Mask::None, None)?;
        drop((q, k, v));
        let x = self.out.forward_with(&seen, plus(x))?;
        let q = self.cross_q.forward(&self.norms[1].forward(&x)?)?;
        let [k, v] = chunks(&self.cross_kv.forward(prompt)?)?;
        let shared = config.inner_context / HEAD;
        let k = repeat_heads(&k, shared, heads / shared)?;
        let v = repeat_heads(&v, shared, heads / shared)?;
        let seen = attention(&q, &k, &v, heads, Mask::None, None)?;
        let x = self.cross_out.forward_with(&seen, plus(&x))?;
        let inner = self.wide.forward(&self.norms[2].forward(&x)?)?;
        let [value, gate] = chunks(&inner)?;
        let made = swiglu(&gate, &value)?;
        Ok(self.narrow.forward_with(&made, plus(&x))?)
    }
}

/// Turns the first channels of each head.
fn turned(x: &Tensor, heads: usize, rope: &Rope, config: &StableAudioConfig) -> Result<Tensor> {
    let [b, n, width] = x.dims3()?;
    let count = 2 * config.turned;
    let each = x.reshape([b, n, heads, HEAD])?;
    let first = part(&each, 0, count)?.reshape([b, n, heads * count])?;
    let first = rope.half(&first, heads)?.reshape([b, n, heads, count])?;
    let rest = part(&each, count, HEAD - count)?;
    Ok(Tensor::cat(&[&first, &rest], 3)?.reshape([b, n, width])?)
}

pub struct StableAudioNetwork {
    device: Device,
    config: StableAudioConfig,
    frequencies: Vec<f32>,
    time: [Arc<Linear>; 2],
    prompt: [Arc<Linear>; 2],
    global: [Arc<Linear>; 2],
    seconds: Option<[SecondsEmbedder; 2]>,
    before: Arc<Linear>,
    first: Arc<Linear>,
    layers: Vec<Layer>,
    turns: Vec<f32>,
    last: Arc<Linear>,
    behind: Arc<Linear>,
}

fn both(layers: &[Arc<Linear>; 2], x: &Tensor) -> Result<Tensor> {
    let inner = layers[0].forward_with(x, then(Act::Silu))?;
    Ok(layers[1].forward(&inner)?)
}

impl DiffusionNetwork for StableAudioNetwork {
    type Config = StableAudioConfig;

    const WHAT: &'static str = "the transformer";

    fn facts(config: &StableAudioConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::STABLE_AUDIO,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            memory_factor: (1, 1),
            sampling: ModelSampling::continuous_v(Prediction::V, 0.03, 500.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &StableAudioConfig) -> Result<Self> {
        let StableAudioConfig {
            channels,
            dim,
            context,
            inner_context,
            ..
        } = *config;
        let inside = weights.at("transformer");
        let list = inside.at("layers");
        let seconds =
            |name: &str, waves: usize| SecondsEmbedder::new(&weights.at(name), waves, context);
        let frequencies = weights.value("timestep_features.weight", &[config.waves, 1])?;
        let turns = inside.value("rotary_pos_emb.inv_freq", &[config.turned])?;
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            frequencies: frequencies.stored()?.to_f32()?.into_vec(),
            time: [
                weights.linear("to_timestep_embed.0", dim, 2 * config.waves)?,
                weights.linear("to_timestep_embed.2", dim, dim)?,
            ],
            prompt: [
                weights.matrix("to_cond_embed.0", inner_context, context)?,
                weights.matrix("to_cond_embed.2", inner_context, inner_context)?,
            ],
            global: [
                weights.matrix("to_global_embed.0", dim, config.global)?,
                weights.matrix("to_global_embed.2", dim, dim)?,
            ],
            seconds: match config.seconds {
                Some(waves) => Some([
                    seconds("seconds_start", waves)?,
                    seconds("seconds_total", waves)?,
                ]),
                None => None,
            },
            before: weights.matrix("preprocess_conv", channels, channels)?,
            first: inside.matrix("project_in", dim, channels)?,
            layers: (0..config.layers)
                .map(|number| Layer::new(&list.at(number), config))
                .collect::<Result<_>>()?,
            turns: turns.stored()?.to_f32()?.into_vec(),
            last: inside.matrix("project_out", channels, dim)?,
            behind: weights.matrix("postprocess_conv", channels, channels)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (hooks, device, config) = (input.hooks, &self.device, &self.config);
        let [b, _, frames] = input.x.dims3()?;
        let (prompt, global) = self.said(input)?;
        let prompt = both(&self.prompt, &prompt)?;
        let mut waves = Vec::with_capacity(b * 2 * config.waves);
        for t in input.timesteps {
            let angles = self.frequencies.iter().map(|f| TAU * t * f);
            waves.extend(angles.clone().map(f32::cos));
            waves.extend(angles.map(f32::sin));
        }
        let waves = Tensor::from_vec([b, 2 * config.waves], waves)?.to(device)?;
        let token = both(&self.global, &global)?.add(&both(&self.time, &waves)?)?;
        let x = input.x.permute(&[0, 2, 1])?.to(device)?;
        let x = self.before.forward_with(&x, plus(&x))?;
        let x = self.first.forward(&x)?;
        let mut x = Tensor::cat(&[&token.reshape([b, 1, config.dim])?, &x], 1)?;
        let angle = |i: usize| (i / config.turned) as f32 * self.turns[i % config.turned];
        let table =
            |f: fn(f32) -> f32| Tensor::from_fn([frames + 1, config.turned], |i| f(angle(i)));
        let rope = Rope::from_tables(table(f32::cos)?, table(f32::sin)?).to(device)?;
        for (number, layer) in self.layers.iter().enumerate() {
            hooks.check()?;
            if !hooks.skips(BlockKind::DOUBLE, number) {
                x = layer.forward(&x, &prompt, &rope, config)?;
            }
        }
        let x = self.last.forward(&x.narrow(1, 1, frames)?)?;
        let x = self.behind.forward_with(&x, plus(&x))?;
        Ok(x.to(&Device::cpu())?.permute(&[0, 2, 1])?)
    }

    fn encode(config: &StableAudioConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert("c_crossattn", CondValue::Regular(tokens.clone()));
        let frames = args.noise.shape().last().copied().unwrap_or(0) as f64;
        let number = |name: &str| args.cond.numbers.get(name).copied();
        let start = number("seconds_start").unwrap_or(0.0);
        let total = number("seconds_total").unwrap_or((frames / FRAMES).trunc());
        conds.insert("seconds_start", CondValue::Constant(start));
        conds.insert("seconds_total", CondValue::Constant(total));
        Ok(conds)
    }

    fn memory_required(config: &StableAudioConfig, shape: &[usize]) -> u64 {
        let batch = shape.first().copied().unwrap_or(0) as u64;
        let frames = shape.last().copied().unwrap_or(0) as u64;
        let tokens = batch.saturating_mul(frames + 1);
        tokens.saturating_mul(config.dim as u64 * HELD * size_of::<f32>() as u64)
    }
}

impl StableAudioNetwork {
    /// The prompt with the lengths as tokens, (b, n, c), and the lengths as one, (b, c).
    fn said(&self, input: &NetworkInput<'_>) -> Result<(Tensor, Tensor)> {
        let device = &self.device;
        let Some(prompt) = input.conds.tensor("c_crossattn") else {
            return Err(ModelError::invalid("prompt", "this model needs one"));
        };
        let prompt = prompt.to(device)?;
        if let Some(global) = input.conds.tensor("global_embed") {
            return Ok((prompt, global.to(device)?));
        }
        let Some([start, total]) = &self.seconds else {
            let reason = "the file has no layers that tell the model how long the sound is: it is the transformer alone, \
                and the whole checkpoint is needed";
            return Err(ModelError::invalid("model", reason));
        };
        let b = prompt.dim(0)?;
        let seconds = |name: &str| match input.conds.0.get(name) {
            Some(CondValue::Constant(seconds)) => *seconds,
            _ => 0.0,
        };
        let start = start
            .forward(seconds("seconds_start"), device)?
            .repeat(&[b, 1, 1])?;
        let total = total
            .forward(seconds("seconds_total"), device)?
            .repeat(&[b, 1, 1])?;
        let global = Tensor::cat(&[&start, &total], 2)?;
        let global = global.reshape([b, self.config.global])?;
        Ok((Tensor::cat(&[&prompt, &start, &total], 1)?, global))
    }
}
