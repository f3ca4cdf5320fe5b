//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, Mask, RmsNorm, Value, matmul, modulate, silu};
use fresco_tensor::{Device, Tensor};

use super::codes::CodeDecoder;
use super::condition::ConditionEncoder;
use super::config::{Ace15Config, LayerShape};
use super::layers::{EPS, attention, feed_forward, near, rope};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::{ModelError, Result};
use crate::latent_format::{self, LatentFormat};
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{AdaLn, Attention, Blocks, Looks, Mlp, Rope, Rotation, TimeEmbed};

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 16;
/// What times are multiplied with before they become waves.
const SCALE: f32 = 1000.0;

/// A time as numbers, and as what all layers are moved by.
struct Time {
    embedder: TimeEmbed,
    rows: Arc<Linear>,
}

impl Time {
    fn new(weights: &Walk<'_>, config: &Ace15Config) -> Result<Self> {
        let dim = config.block.dim;
        let names = ["linear_1", "linear_2"];
        Ok(Self {
            embedder: TimeEmbed::new(weights, names, config.waves, dim)?,
            rows: weights.linear("time_proj", 6 * dim, dim)?,
        })
    }

    fn forward(&self, times: &[f32], device: &Device) -> Result<[Tensor; 2]> {
        let said = self.embedder.forward(times, SCALE, device)?;
        let rows = self.rows.forward(&silu(&said))?;
        Ok([said, rows])
    }
}

struct Block {
    modulation: AdaLn<6>,
    attention: Attention,
    cross: Attention,
    feed_forward: Mlp,
    norms: [Arc<RmsNorm>; 3],
}

impl Block {
    fn new(weights: &Walk<'_>, shape: LayerShape) -> Result<Self> {
        let norm = |name: &str| weights.rms_norm(name, shape.dim, EPS);
        Ok(Self {
            modulation: AdaLn::table(weights, "scale_shift_table", &[1, 6, shape.dim])?,
            attention: attention(&weights.at("self_attn"), shape, Looks::Own)?,
            cross: attention(&weights.at("cross_attn"), shape, Looks::Prompt(shape.dim))?,
            feed_forward: feed_forward(&weights.at("mlp"), shape)?,
            norms: [
                norm("self_attn_norm.weight")?,
                norm("cross_attn_norm.weight")?,
                norm("mlp_norm.weight")?,
            ],
        })
    }

    fn forward(
        &self,
        x: Tensor,
        prompt: &Tensor,
        rows: &Tensor,
        rope: &Rope,
        mask: Mask<'_>,
    ) -> Result<Tensor> {
        let [shift, scale, gate, shift2, scale2, gate2] = self.modulation.forward(rows)?;
        let input = modulate(self.norms[0].forward(&x)?, &scale, Some(&shift))?;
        let seen = self.attention.qkv(&input)?.attend(rope, mask)?;
        let x = self.attention.add_gated(&seen, x, &gate)?;
        let qkv = self.cross.qkv_to(&self.norms[1].forward(&x)?, prompt)?;
        let x = self
            .cross
            .add(&qkv.attend(Rotation::NONE, Mask::None)?, &x)?;
        let input = modulate(self.norms[2].forward(&x)?, &scale2, Some(&shift2))?;
        let inner = self.feed_forward.inner(&input)?;
        self.feed_forward.add_gated(&inner, x, &gate2)
    }
}

pub struct Ace15Network {
    device: Device,
    config: Ace15Config,
    first: Arc<Linear>,
    times: [Time; 2],
    prompt: Arc<Linear>,
    condition: Option<ConditionEncoder>,
    codes: Option<CodeDecoder>,
    blocks: Vec<Block>,
    norm: Arc<RmsNorm>,
    table: Arc<Value>,
    last: Arc<Value>,
    last_bias: Arc<Value>,
}

conds! {
    /// What the network is told besides the latent.
    struct Ace15Conds<'a> {
        tags: &'a Tensor = names::PROMPT,
        voice: Option<&'a Tensor> = "voice",
        lyrics: Option<&'a Tensor> = "lyrics",
        given: Option<&'a Tensor> = "beside",
        source: Option<&'a Tensor> = "source",
        codes: Option<&'a Tensor> = "codes",
        end: Option<f64> = "timestep_r",
    }
}

impl DiffusionNetwork for Ace15Network {
    type Config = Ace15Config;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN, PROMPT])]);

    fn facts(config: &Ace15Config) -> ModelFacts {
        let text = config.condition.as_ref().map(|condition| condition.text);
        ModelFacts {
            latent: LatentFormat {
                channels: config.channels,
                ..latent_format::STABLE_AUDIO
            },
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(text.unwrap_or(config.context)),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_places(config.patch, config.block.dim, HELD),
            sampling: ModelSampling::flow(3.0, 1.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &Ace15Config) -> Result<Self> {
        let (dim, list) = (config.block.dim, weights.at("layers"));
        let kernel = [dim, config.channels + config.beside, config.patch];
        let condition = config.condition.as_ref();
        let codes = config.codes.as_ref();
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            first: weights.flat_linear("proj_in_conv", &kernel)?,
            times: [
                Time::new(&weights.at("time_embed"), config)?,
                Time::new(&weights.at("time_embed_r"), config)?,
            ],
            prompt: weights.linear("condition_embedder", dim, config.context)?,
            condition: condition
                .map(|condition| ConditionEncoder::new(weights, condition))
                .transpose()?,
            codes: codes
                .map(|codes| CodeDecoder::new(weights, codes))
                .transpose()?,
            blocks: list.each(config.layers, |weights| Block::new(weights, config.block))?,
            norm: weights.rms_norm("norm_out.weight", dim, EPS)?,
            table: weights.value("scale_shift_table", &[1, 2, dim])?,
            last: weights.value(
                "proj_out_conv.weight",
                &[dim, config.channels, config.patch],
            )?,
            last_bias: weights.value("proj_out_conv.bias", &[config.channels])?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = Ace15Conds::read(input.conds)?;
        let (device, config) = (&self.device, &self.config);
        let [b, channels, frames] = input.x.dims3()?;
        if channels != config.channels {
            let reason = format!(
                "this model takes {} channels, not {channels}",
                config.channels
            );
            return Err(ModelError::invalid("latent", reason));
        }
        let prompt = self.prompt.forward(&self.tokens(&conds)?)?;
        let x = input.x.permute(&[0, 2, 1])?.to(device)?;
        let beside = self.beside(&conds, b, frames)?;
        let x = Tensor::cat(&[&beside, &x], 2)?;
        let count = frames.div_ceil(config.patch);
        let missing = [b, count * config.patch - frames, x.dim(2)?];
        let x = Tensor::cat(&[&x, &Tensor::zeros_on(&x.device(), missing)?], 1)?;
        let width = x.dim(2)?;
        // Channels before frames, as kernels have them.
        let x = x.reshape([b, count, config.patch, width])?;
        let x = x.permute(&[0, 1, 3, 2])?;
        let x = self
            .first
            .forward(&x.reshape([b, count, width * config.patch])?)?;
        // Models that go by other steps than they are told are given the time that a step ends at.
        let apart: Vec<f32> = match conds.end {
            Some(end) => input.timesteps.iter().map(|t| t - end as f32).collect(),
            None => vec![0.0; input.timesteps.len()],
        };
        let [said, rows] = self.times[0].forward(input.timesteps, device)?;
        let [more_said, more_rows] = self.times[1].forward(&apart, device)?;
        let (said, rows) = (said.add(&more_said)?, rows.add(&more_rows)?);
        let rope = rope(count, config.block, device)?;
        let near = near(count, config.block.window, device)?;
        let (kind, blocks) = (BlockKind::DOUBLE, self.blocks.len());
        let blocks = Blocks::new(kind, blocks, config.block.heads, [1, 1, count], input);
        let (x, _) = blocks.run_pair((x, prompt), |number, x, prompt| {
            let mask = near.as_ref().filter(|_| number % 2 == 0);
            let mask = mask.map_or(Mask::None, Mask::Add);
            let x = self.blocks[number].forward(x, &prompt, &rows, &rope, mask)?;
            Ok((x, prompt))
        })?;
        let dim = config.block.dim;
        let table = said.reshape([b, 1, dim])?.add(&self.table.at(device)?)?;
        let (shift, scale) = (table.narrow(1, 0, 1)?, table.narrow(1, 1, 1)?);
        let x = modulate(self.norm.forward(&x)?, &scale, Some(&shift))?;
        let last = self.last.at(device)?;
        let last = last.reshape([1, dim, channels * config.patch])?;
        let out = matmul(&x.reshape([1, b * count, dim])?, &last)?;
        let out = out.reshape([b, count, channels, config.patch])?;
        let out = out
            .permute(&[0, 1, 3, 2])?
            .add(&self.last_bias.at(device)?)?;
        let out = out.reshape([b, count * config.patch, channels])?;
        let out = out.narrow(1, 0, frames)?.to(&Device::cpu())?;
        Ok(out.permute(&[0, 2, 1])?)
    }

    fn encode(config: &Ace15Config, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let width = config.condition.as_ref().map(|condition| condition.text);
        let tags = args.prompt_of_width(width.unwrap_or(config.context), file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tags.clone()));
        let mut copy = |from: &str, to: &'static str| {
            if let Some(value) = args.cond.tensors.get(from) {
                conds.insert(to, CondValue::Regular(value.clone()));
            }
        };
        copy("conditioning_lyrics", "lyrics");
        copy("reference_audio_timbre_latents", "voice");
        copy("source_latents", "source");
        copy("audio_codes", "codes");
        if conds.contains_key("codes") && config.codes.is_none() {
            let reason = format!(
                "the {} conditioning has audio codes, but the file has no detokenizer that makes latents of them: load a \
                 file that has all parts of the model, or set generate_audio_codes to false",
                args.prompt_type
            );
            return Err(ModelError::unsupported(file, reason));
        }
        Ok(conds)
    }
}

impl Ace15Network {
    /// The tokens that are looked at.
    fn tokens(&self, conds: &Ace15Conds<'_>) -> Result<Tensor> {
        let tags = conds.tags;
        let Some(condition) = &self.condition else {
            return Ok(tags.to(&self.device)?);
        };
        let voice = conds.voice;
        // Latents come with channels first.
        let voice = voice.map(|voice| voice.permute(&[0, 2, 1])).transpose()?;
        let lyrics = conds.lyrics;
        condition.forward(tags, lyrics, voice.as_ref(), &self.device)
    }

    /// What goes in beside the latent, (b, frames, channels): what it is made of, and where it is made anew, which is
    /// everywhere.
    fn beside(&self, conds: &Ace15Conds<'_>, b: usize, frames: usize) -> Result<Tensor> {
        let device = &self.device;
        if let Some(given) = conds.given {
            return Ok(given.permute(&[0, 2, 1])?.to(device)?);
        }
        let source = match (conds.source, conds.codes) {
            (Some(source), _) if source.dim(2)? == frames => {
                source.permute(&[0, 2, 1])?.to(device)?
            }
            (Some(source), _) => {
                let reason = format!(
                    "the sound to begin with has {} frames, the latent {frames}",
                    source.dim(2)?
                );
                return Err(ModelError::invalid("conditioning", reason));
            }
            (None, Some(codes)) => self.sketched(codes, frames)?,
            (None, None) => self.silence(b, frames)?,
        };
        let rest = self.config.beside.saturating_sub(source.dim(2)?);
        let ones = Tensor::ones([b, frames, rest])?.to(device)?;
        Ok(Tensor::cat(&[&source, &ones], 2)?)
    }

    fn silence(&self, b: usize, frames: usize) -> Result<Tensor> {
        let device = &self.device;
        match &self.condition {
            Some(condition) => Ok(condition.silence(frames, device)?.repeat(&[b, 1, 1])?),
            None => Ok(Tensor::zeros_on(device, [b, frames, self.config.channels])?),
        }
    }

    /// The latents that audio codes stand for, cut to so many frames; silence follows where they are too few.
    fn sketched(&self, codes: &Tensor, frames: usize) -> Result<Tensor> {
        let Some(decoder) = &self.codes else {
            let reason = "this model has no detokenizer for audio codes";
            return Err(ModelError::invalid("conditioning", reason));
        };
        let latents = decoder.forward(codes)?.to(&self.device)?;
        let [b, have, _] = latents.dims3()?;
        if have >= frames {
            return Ok(latents.narrow(1, 0, frames)?);
        }
        Ok(Tensor::cat(
            &[&latents, &self.silence(b, frames - have)?],
            1,
        )?)
    }
}
