//! The network and what goes into it.

use std::f32::consts::TAU;
use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, Value};
use fresco_tensor::{Device, Tensor};

use super::config::{HEAD, StableAudioConfig};
use super::seconds::SecondsEmbedder;
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::epilogue::plus;
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::{ModelSampling, Prediction};
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, Blocks, HeadNorm, Heads, Looks, Mlp, MlpLayers, Pairs, QkvLayers,
    Rope, Rotation,
};

const EPS: f32 = 1e-5;
/// Latent frames of a second.
const FRAMES: f64 = 21.53;
/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 16;

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
    attention: Attention,
    prompt_attention: Attention,
    feed_forward: Mlp,
}

impl Layer {
    fn new(weights: &Walk<'_>, config: &StableAudioConfig) -> Result<Self> {
        let (dim, context) = (config.dim, config.inner_context);
        let count = dim / HEAD;
        let heads = Heads::new(count, HEAD, HeadNorm::None);
        let own = AttentionLayers::unbiased(QkvLayers::Joined("to_qkv"), "to_out", dim, heads);
        let prompt = AttentionLayers {
            qkv: QkvLayers::Paired(["to_q", "to_kv"]),
            looks: Looks::Prompt(context),
            heads: Heads::grouped(count, context / HEAD, HEAD, HeadNorm::None),
            ..own
        };
        let gated = MlpLayers::GateLast(["0.proj", "2"]);
        Ok(Self {
            norms: [
                Norm::new(weights, "pre_norm", dim)?,
                Norm::new(weights, "cross_attend_norm", dim)?,
                Norm::new(weights, "ff_norm", dim)?,
            ],
            attention: Attention::new(&weights.at("self_attn"), &own)?,
            prompt_attention: Attention::new(&weights.at("cross_attn"), &prompt)?,
            feed_forward: Mlp::new(&weights.at("ff.ff"), gated, (dim, config.inner), Bias::With)?,
        })
    }

    fn forward(&self, x: &Tensor, prompt: &Tensor, rope: &Rope) -> Result<Tensor> {
        let qkv = self.attention.qkv(&self.norms[0].forward(x)?)?;
        let x = self.attention.add(&qkv.attend(rope, Mask::None)?, x)?;
        let attention = &self.prompt_attention;
        let qkv = attention.qkv_to(&self.norms[1].forward(&x)?, prompt)?;
        let x = attention.add(&qkv.attend(Rotation::NONE, Mask::None)?, &x)?;
        let inner = self.feed_forward.inner(&self.norms[2].forward(&x)?)?;
        self.feed_forward.add(&inner, &x)
    }
}

pub struct StableAudioNetwork {
    device: Device,
    config: StableAudioConfig,
    frequencies: Vec<f32>,
    time: Mlp,
    prompt: Mlp,
    global: Mlp,
    seconds: Option<[SecondsEmbedder; 2]>,
    before: Arc<Linear>,
    first: Arc<Linear>,
    layers: Vec<Layer>,
    turns: Vec<f32>,
    last: Arc<Linear>,
    behind: Arc<Linear>,
}

conds! {
    /// What the network is told besides the latent.
    struct StableAudioConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        global: Option<&'a Tensor> = "global_embed",
        start: Option<f64> = "seconds_start",
        total: Option<f64> = "seconds_total",
    }
}

impl DiffusionNetwork for StableAudioNetwork {
    type Config = StableAudioConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN, PROMPT])]);

    fn facts(config: &StableAudioConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::STABLE_AUDIO,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_places(1, config.dim, HELD),
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
        let both = |name: &str, [input, width]: [usize; 2], bias: Bias| {
            let layers = MlpLayers::Plain(["0", "2"], Act::Silu);
            Mlp::between(&weights.at(name), layers, [input, width, width], bias)
        };
        let frequencies = weights.value("timestep_features.weight", &[config.waves, 1])?;
        let turns = inside.value("rotary_pos_emb.inv_freq", &[config.turned])?;
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            frequencies: frequencies.stored()?.to_f32()?.into_vec(),
            time: both("to_timestep_embed", [2 * config.waves, dim], Bias::With)?,
            prompt: both("to_cond_embed", [context, inner_context], Bias::Without)?,
            global: both("to_global_embed", [config.global, dim], Bias::Without)?,
            seconds: match config.seconds {
                Some(waves) => Some([
                    seconds("seconds_start", waves)?,
                    seconds("seconds_total", waves)?,
                ]),
                None => None,
            },
            before: weights.matrix("preprocess_conv", channels, channels)?,
            first: inside.matrix("project_in", dim, channels)?,
            layers: list.each(config.layers, |weights| Layer::new(weights, config))?,
            turns: turns.stored()?.to_f32()?.into_vec(),
            last: inside.matrix("project_out", channels, dim)?,
            behind: weights.matrix("postprocess_conv", channels, channels)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (device, config) = (&self.device, &self.config);
        let [b, _, frames] = input.x.dims3()?;
        let (prompt, global) = self.prompt_tokens(&StableAudioConds::read(input.conds)?)?;
        let prompt = self.prompt.forward(&prompt)?;
        let mut waves = Vec::with_capacity(b * 2 * config.waves);
        for t in input.timesteps {
            let angles = self.frequencies.iter().map(|f| TAU * t * f);
            waves.extend(angles.clone().map(f32::cos));
            waves.extend(angles.map(f32::sin));
        }
        let waves = Tensor::from_vec([b, 2 * config.waves], waves)?.to(device)?;
        let token = self
            .global
            .forward(&global)?
            .add(&self.time.forward(&waves)?)?;
        let x = input.x.permute(&[0, 2, 1])?.to(device)?;
        let x = self.before.forward_with(&x, plus(&x))?;
        let x = self.first.forward(&x)?;
        let x = Tensor::cat(&[&token.reshape([b, 1, config.dim])?, &x], 1)?;
        let angle = |i: usize| (i / config.turned) as f32 * self.turns[i % config.turned];
        let table =
            |f: fn(f32) -> f32| Tensor::from_fn([frames + 1, config.turned], |i| f(angle(i)));
        // The first channels of each head are turned.
        let rope = Rope::from_tables(table(f32::cos)?, table(f32::sin)?);
        let rope = rope.pairing(Pairs::Halves).to(device)?;
        let (kind, count, heads) = (BlockKind::DOUBLE, self.layers.len(), config.dim / HEAD);
        let blocks = Blocks::new(kind, count, heads, [1, 1, frames + 1], input);
        let (x, _) = blocks.run_pair((x, prompt), |number, x, prompt| {
            Ok((self.layers[number].forward(&x, &prompt, &rope)?, prompt))
        })?;
        let x = self.last.forward(&x.narrow(1, 1, frames)?)?;
        let x = self.behind.forward_with(&x, plus(&x))?;
        Ok(x.to(&Device::cpu())?.permute(&[0, 2, 1])?)
    }

    fn encode(config: &StableAudioConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        let frames = args.noise.shape().last().copied().unwrap_or(0) as f64;
        let number = |name: &str| args.cond.numbers.get(name).copied();
        let start = number("seconds_start").unwrap_or(0.0);
        let total = number("seconds_total").unwrap_or((frames / FRAMES).trunc());
        conds.insert("seconds_start", CondValue::Constant(start));
        conds.insert("seconds_total", CondValue::Constant(total));
        Ok(conds)
    }
}

impl StableAudioNetwork {
    /// The prompt with the lengths as tokens, (b, n, c), and the lengths as one, (b, c).
    fn prompt_tokens(&self, conds: &StableAudioConds<'_>) -> Result<(Tensor, Tensor)> {
        let device = &self.device;
        let prompt = conds.prompt;
        let prompt = prompt.to(device)?;
        if let Some(global) = conds.global {
            return Ok((prompt, global.to(device)?));
        }
        let Some([start, total]) = &self.seconds else {
            let reason = "the file has no layers that tell the model how long the sound is: it is the transformer alone, \
                and the whole checkpoint is needed";
            return Err(ModelError::invalid("model", reason));
        };
        let b = prompt.dim(0)?;
        let start = start
            .forward(conds.start.unwrap_or(0.0), device)?
            .repeat(&[b, 1, 1])?;
        let total = total
            .forward(conds.total.unwrap_or(0.0), device)?
            .repeat(&[b, 1, 1])?;
        let global = Tensor::cat(&[&start, &total], 2)?;
        let global = global.reshape([b, self.config.global])?;
        Ok((Tensor::cat(&[&prompt, &start, &total], 1)?, global))
    }
}
