//! Version 2: two streams that look at each other, then one, without positions.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, LayerNorm, Linear, Mask, RmsNorm, activate, add_gated, attention, concat_channels, silu,
};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::Hunyuan3dConfig;
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput,
};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::latent_format::{self, LatentFormat};
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{Embedder, chunks, part};

pub(super) const EPS: f32 = 1e-6;
const WAVES: usize = 256;
/// What a time is multiplied with, and the slowest of its waves.
const SCALE: f32 = 1000.0;
const PERIOD: f32 = 1000.0;
/// How strongly the network is told to follow the picture, unless a node says.
const GUIDANCE: f64 = 5.0;
/// Values of a token that a pass holds at its fullest, in widths of the network.
pub(super) const HELD: u64 = 16;

/// Cosines and sines of numbers: (values, WAVES).
fn waves(values: &[f32]) -> Result<Tensor> {
    let half = WAVES / 2;
    let frequencies: Vec<f32> = (0..half)
        .map(|i| (-PERIOD.ln() * i as f32 / half as f32).exp())
        .collect();
    let mut out = Buffer::with_room(values.len() * WAVES)?;
    for value in values {
        let angles = frequencies.iter().map(|f| SCALE * value * f);
        out.extend(angles.clone().map(f32::cos));
        out.extend(angles.map(f32::sin));
    }
    Ok(Tensor::from_buffer([values.len(), WAVES], out)?)
}

/// Queries, keys and values from one layer, normed in heads.
struct Heads {
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    count: usize,
}

impl Heads {
    fn new(weights: &Walk<'_>, config: &Hunyuan3dConfig) -> Result<Self> {
        let head = config.dim / config.heads;
        Ok(Self {
            q_norm: weights.rms_norm("query_norm.scale", head, EPS)?,
            k_norm: weights.rms_norm("key_norm.scale", head, EPS)?,
            count: config.heads,
        })
    }

    fn split(&self, qkv: &Tensor) -> Result<[Tensor; 3]> {
        let [q, k, v] = chunks(qkv)?;
        let normed = |x: &Tensor, norm: &RmsNorm| -> Result<Tensor> {
            let [b, n, width] = x.dims3()?;
            let each = x.reshape([b, n, self.count, width / self.count])?;
            Ok(norm.forward(&each)?.reshape([b, n, width])?)
        };
        Ok([normed(&q, &self.q_norm)?, normed(&k, &self.k_norm)?, v])
    }
}

/// One of the two streams of a block.
struct Stream {
    modulation: Arc<Linear>,
    qkv: Arc<Linear>,
    heads: Heads,
    out: Arc<Linear>,
    mlp: [Arc<Linear>; 2],
}

impl Stream {
    fn new(weights: &Walk<'_>, name: &str, config: &Hunyuan3dConfig) -> Result<Self> {
        let (dim, inner) = (config.dim, config.inner);
        let look = weights.at(format!("{name}_attn"));
        Ok(Self {
            modulation: weights.linear(&format!("{name}_mod.lin"), 6 * dim, dim)?,
            qkv: look.linear("qkv", 3 * dim, dim)?,
            heads: Heads::new(&look.at("norm"), config)?,
            out: look.linear("proj", dim, dim)?,
            mlp: [
                weights.linear(&format!("{name}_mlp.0"), inner, dim)?,
                weights.linear(&format!("{name}_mlp.2"), dim, inner)?,
            ],
        })
    }

    fn finish(
        &self,
        norm: &LayerNorm,
        x: &Tensor,
        seen: &Tensor,
        parts: &[Tensor; 6],
    ) -> Result<Tensor> {
        let x = add_gated(x.clone(), &parts[2], &self.out.forward(seen)?)?;
        let input = norm.modulated(&x, &parts[3], &parts[4])?;
        let inner = self.mlp[0].forward_with(&input, then(Act::GeluTanh))?;
        Ok(add_gated(x, &parts[5], &self.mlp[1].forward(&inner)?)?)
    }
}

struct Double {
    latent: Stream,
    prompt: Stream,
}

struct Single {
    modulation: Arc<Linear>,
    first: Arc<Linear>,
    heads: Heads,
    second: Arc<Linear>,
}

pub struct Hunyuan3dNetwork {
    device: Device,
    config: Hunyuan3dConfig,
    latent: Arc<Linear>,
    time: Embedder,
    guidance: Option<Embedder>,
    prompt: Arc<Linear>,
    doubles: Vec<Double>,
    singles: Vec<Single>,
    norm: LayerNorm,
    last_modulation: Arc<Linear>,
    last: Arc<Linear>,
}

impl DiffusionNetwork for Hunyuan3dNetwork {
    type Config = Hunyuan3dConfig;

    const WHAT: &'static str = "the transformer";

    fn facts(config: &Hunyuan3dConfig) -> ModelFacts {
        let latent = if config.is_mini() {
            latent_format::HUNYUAN_3D_2_MINI
        } else {
            latent_format::HUNYUAN_3D_2
        };
        solid_facts(latent, config.channels, config.context)
    }

    fn new(weights: &Walk<'_>, config: &Hunyuan3dConfig) -> Result<Self> {
        let (dim, inner) = (config.dim, config.inner);
        let names = ["in_layer", "out_layer"];
        let embedder = |name: &str| Embedder::new(&weights.at(name), names, WAVES, dim, true);
        let double = |number: usize| -> Result<Double> {
            let at = weights.at("double_blocks").at(number);
            Ok(Double {
                latent: Stream::new(&at, "img", config)?,
                prompt: Stream::new(&at, "txt", config)?,
            })
        };
        let single = |number: usize| -> Result<Single> {
            let at = weights.at("single_blocks").at(number);
            Ok(Single {
                modulation: at.linear("modulation.lin", 3 * dim, dim)?,
                first: at.linear("linear1", 3 * dim + inner, dim)?,
                heads: Heads::new(&at.at("norm"), config)?,
                second: at.linear("linear2", dim, dim + inner)?,
            })
        };
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            latent: weights.linear("latent_in", dim, config.channels)?,
            time: embedder("time_in")?,
            guidance: config.guided.then(|| embedder("guidance_in")).transpose()?,
            prompt: weights.linear("cond_in", dim, config.context)?,
            doubles: (0..config.doubles).map(double).collect::<Result<_>>()?,
            singles: (0..config.singles).map(single).collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: weights.linear("final_layer.adaLN_modulation.1", 2 * dim, dim)?,
            last: weights.linear("final_layer.linear", config.channels, dim)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (hooks, device) = (input.hooks, &self.device);
        let [_, _, count] = input.x.dims3()?;
        let Some(context) = input.conds.tensor("c_crossattn") else {
            return Err(ModelError::invalid("picture", "this model needs one"));
        };
        // This family counts time from noise on.
        let times: Vec<f32> = input.timesteps.iter().map(|t| 1.0 - t).collect();
        let mut signal = self.time.forward(&waves(&times)?.to(device)?)?;
        let guidance = match input.conds.0.get("guidance") {
            Some(CondValue::Constant(guidance)) => Some(*guidance as f32),
            _ => None,
        };
        if let (Some(embedder), Some(guidance)) = (&self.guidance, guidance) {
            let guidance = waves(&vec![guidance; times.len()])?.to(device)?;
            signal = signal.add(&embedder.forward(&guidance)?)?;
        }
        let signal = silu(&signal);
        let mut x = self
            .latent
            .forward(&input.x.permute(&[0, 2, 1])?.to(device)?)?;
        let mut prompt = self.prompt.forward(&context.to(device)?)?;
        for (number, block) in self.doubles.iter().enumerate() {
            hooks.check()?;
            if !hooks.skips(BlockKind::DOUBLE, number) {
                (x, prompt) = self.double(block, &x, &prompt, &signal)?;
            }
        }
        let first = prompt.dim(1)?;
        let mut all = Tensor::cat(&[&prompt, &x], 1)?;
        for (number, block) in self.singles.iter().enumerate() {
            hooks.check()?;
            if !hooks.skips(BlockKind::SINGLE, number) {
                all = self.single(block, all, &signal)?;
            }
        }
        let x = all.narrow(1, first, count)?;
        let [shift, scale] = chunks(&self.last_modulation.forward(&signal)?)?;
        let out = self
            .last
            .forward(&self.norm.modulated(&x, &shift, &scale)?)?;
        let out = out.to(&Device::cpu())?.permute(&[0, 2, 1])?;
        Ok(out.mul_scalar(-1.0))
    }

    fn encode(config: &Hunyuan3dConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = picture_conds(config.context, file, args)?;
        let guidance = args.cond.numbers.get("guidance").copied();
        let guidance = CondValue::Constant(guidance.unwrap_or(GUIDANCE));
        conds.insert("guidance", guidance);
        Ok(conds)
    }

    fn memory_required(config: &Hunyuan3dConfig, shape: &[usize]) -> u64 {
        bytes(config.dim, shape)
    }
}

impl Hunyuan3dNetwork {
    fn double(
        &self,
        block: &Double,
        x: &Tensor,
        prompt: &Tensor,
        signal: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let heads = self.config.heads;
        let start = |stream: &Stream, x: &Tensor| -> Result<([Tensor; 6], [Tensor; 3])> {
            let parts: [Tensor; 6] = chunks(&stream.modulation.forward(signal)?)?;
            let input = self.norm.modulated(x, &parts[0], &parts[1])?;
            let qkv = stream.heads.split(&stream.qkv.forward(&input)?)?;
            Ok((parts, qkv))
        };
        let (prompt_parts, prompt_qkv) = start(&block.prompt, prompt)?;
        let (parts, qkv) = start(&block.latent, x)?;
        let join = |i: usize| Tensor::cat(&[&prompt_qkv[i], &qkv[i]], 1);
        let (q, k, v) = (join(0)?, join(1)?, join(2)?);
        let seen = attention(&q, &k, &v, heads, Mask::None, None)?;
        let (first, count) = (prompt.dim(1)?, x.dim(1)?);
        let own = seen.narrow(1, first, count)?;
        let x = block.latent.finish(&self.norm, x, &own, &parts)?;
        let own = seen.narrow(1, 0, first)?;
        let prompt = block
            .prompt
            .finish(&self.norm, prompt, &own, &prompt_parts)?;
        Ok((x, prompt))
    }

    fn single(&self, block: &Single, x: Tensor, signal: &Tensor) -> Result<Tensor> {
        let (dim, heads) = (self.config.dim, self.config.heads);
        let [shift, scale, gate] = chunks(&block.modulation.forward(signal)?)?;
        let input = self.norm.modulated(&x, &shift, &scale)?;
        let all = block.first.forward(&input)?;
        let [q, k, v] = block.heads.split(&part(&all, 0, 3 * dim)?)?;
        let inner = activate(part(&all, 3 * dim, self.config.inner)?, Act::GeluTanh);
        let seen = attention(&q, &k, &v, heads, Mask::None, None)?;
        let made = block.second.forward(&concat_channels(&[&seen, &inner])?)?;
        Ok(add_gated(x, &gate, &made)?)
    }
}

/// What both versions are to the general path.
pub(super) fn solid_facts(latent: LatentFormat, channels: usize, context: usize) -> ModelFacts {
    ModelFacts {
        latent,
        latent_channels: channels,
        in_channels: channels,
        context: Some(context),
        model_channels: None,
        architecture: None,
        memory_factor: (7, 2),
        sampling: ModelSampling::flow(1.0, 1.0),
    }
}

/// The states of a picture.
pub(super) fn picture_conds(width: usize, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
    let mut conds = ModelConds::new();
    let states = args.prompt_of_width(width, file)?;
    conds.insert("c_crossattn", CondValue::Regular(states.clone()));
    Ok(conds)
}

pub(super) fn bytes(dim: usize, shape: &[usize]) -> u64 {
    let batch = shape.first().copied().unwrap_or(0) as u64;
    let tokens = batch.saturating_mul(shape.last().copied().unwrap_or(0) as u64 + 1);
    tokens.saturating_mul(dim as u64 * HELD * size_of::<f32>() as u64)
}
