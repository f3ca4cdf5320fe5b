//! The first version's network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, GroupNorm, Linear, RmsNorm, modulate, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks::{Block, EPS, Turns};
use super::config::{AceConfig, GROUPS};
use super::lyric_encoder::LyricEncoder;
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN_LINEAR, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{AdaLn, Blocks, TimeEmbed};

/// Numbers that say a noise level.
const WAVES: usize = 256;
/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 16;

pub struct AceNetwork {
    device: Device,
    config: AceConfig,
    early: Arc<Linear>,
    early_norm: Arc<GroupNorm>,
    early_out: Arc<Linear>,
    time: TimeEmbed,
    signal: Arc<Linear>,
    speaker: Arc<Linear>,
    genre: Arc<Linear>,
    lyrics: LyricEncoder,
    blocks: Vec<Block>,
    norm: RmsNorm,
    last_modulation: AdaLn<2>,
    last: Arc<Linear>,
}

conds! {
    /// What the network is told besides the latent.
    struct AceConds<'a> {
        tags: &'a Tensor = names::PROMPT,
        voice: Option<&'a Tensor> = "speaker_embeds",
        lyrics: Option<&'a Tensor> = "lyric_token_idx",
        lyrics_strength: Option<f64> = "lyrics_strength",
    }
}

impl DiffusionNetwork for AceNetwork {
    type Config = AceConfig;

    const HOOKS: HookPoints =
        HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN_LINEAR, PROMPT])]);

    fn facts(config: &AceConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::ACE_AUDIO,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.text),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_places(1, config.dim, HELD),
            sampling: ModelSampling::flow(3.0, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &AceConfig) -> Result<Self> {
        let (dim, early) = (config.dim, config.early);
        let first = weights.at("proj_in.early_conv_layers");
        let kernel = [early, config.channels, config.height, 1];
        let names = ["linear_1", "linear_2"];
        let list = weights.at("transformer_blocks");
        let end = weights.at("final_layer");
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            early: first.flat_linear("0", &kernel)?,
            early_norm: first.group_norm("1", early, GROUPS, EPS)?,
            early_out: first.linear("2", dim, early)?,
            time: TimeEmbed::new(&weights.at("timestep_embedder"), names, WAVES, dim)?,
            signal: weights.linear("t_block.1", 6 * dim, dim)?,
            speaker: weights.linear("speaker_embedder", dim, config.speaker)?,
            genre: weights.linear("genre_embedder", dim, config.text)?,
            lyrics: LyricEncoder::new(weights, &config.lyrics, dim)?,
            blocks: list.each(config.layers, |weights| Block::new(weights, config))?,
            norm: RmsNorm::new(None, EPS)?,
            last_modulation: AdaLn::table(&end, "scale_shift_table", &[2, dim])?,
            last: end.linear("linear", config.channels * config.height, dim)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = AceConds::read(input.conds)?;
        let (hooks, device, config) = (input.hooks, &self.device, &self.config);
        let [b, channels, height, width] = input.x.dims4()?;
        if (channels, height) != (config.channels, config.height) {
            let reason = format!(
                "this model takes latents of {} channels and {} rows, got shape {:?}",
                config.channels,
                config.height,
                input.x.shape()
            );
            return Err(ModelError::invalid("latent", reason));
        }
        let time = self.time.forward(input.timesteps, 1.0, device)?;
        let signal = self.signal.forward(&silu(&time))?;
        let columns = input.x.permute(&[0, 3, 1, 2])?;
        let columns = columns.reshape([b, width, channels * height])?.to(device)?;
        let x = self.early.forward(&columns)?;
        let x = x.reshape([b, 1, width, config.early])?;
        let x = self.early_norm.forward(&x, Act::None)?;
        let x = self
            .early_out
            .forward(&x.reshape([b, width, config.early])?)?;
        let prompt = self.prompt(&conds)?;
        hooks.check()?;
        let head = config.head();
        let own = Turns::new(width, head, config.theta, device)?;
        let other = Turns::new(prompt.dim(1)?, head, config.theta, device)?;
        let (kind, blocks) = (BlockKind::DOUBLE, self.blocks.len());
        let blocks = Blocks::new(kind, blocks, config.heads, [1, 1, width], input);
        let (x, _) = blocks.run_pair((x, prompt), |number, x, prompt| {
            let turns = [&own, &other];
            let x = self.blocks[number].forward(&self.norm, x, &prompt, turns, &signal)?;
            Ok((x, prompt))
        })?;
        let [shift, scale] = self.last_modulation.forward(&time.repeat(&[1, 2])?)?;
        let x = modulate(self.norm.forward(&x)?, &scale, Some(&shift))?;
        let out = self.last.forward(&x)?.to(&Device::cpu())?;
        // Rows before channels, as the last layer has them.
        let out = out.reshape([b, width, height, channels])?;
        Ok(out.permute(&[0, 3, 2, 1])?)
    }

    fn encode(config: &AceConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tags = args.prompt_of_width(config.text, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tags.clone()));
        if let Some(lyrics) = args.cond.tensors.get("conditioning_lyrics") {
            conds.insert("lyric_token_idx", CondValue::Regular(lyrics.clone()));
        }
        let strength = args.cond.numbers.get("lyrics_strength").copied();
        conds.insert(
            "lyrics_strength",
            CondValue::Constant(strength.unwrap_or(1.0)),
        );
        Ok(conds)
    }
}

impl AceNetwork {
    /// Whose voice it is (nobody's), the tags, and the lyrics, as tokens.
    fn prompt(&self, conds: &AceConds<'_>) -> Result<Tensor> {
        let tags = conds.tags;
        let device = &self.device;
        let b = tags.dim(0)?;
        let voice = match conds.voice {
            Some(voice) => voice.reshape([b, 1, self.config.speaker])?,
            None => Tensor::zeros([b, 1, self.config.speaker])?,
        };
        let voice = self.speaker.forward(&voice.to(device)?)?;
        let tags = self.genre.forward(&tags.to(device)?)?;
        let Some(lyrics) = conds.lyrics else {
            return Ok(Tensor::cat(&[&voice, &tags], 1)?);
        };
        let numbers = numbers(lyrics, self.config.lyrics.vocabulary)?;
        let strength = conds.lyrics_strength.unwrap_or(1.0) as f32;
        let lyrics = self.lyrics.forward(&numbers, device)?.mul_scalar(strength);
        Ok(Tensor::cat(&[&voice, &tags, &lyrics], 1)?)
    }

    /// The tokens of lyrics alone.
    pub fn lyrics(&self, numbers: &Tensor) -> Result<Tensor> {
        let numbers = self::numbers(numbers, self.config.lyrics.vocabulary)?;
        Ok(self
            .lyrics
            .forward(&numbers, &self.device)?
            .to(&Device::cpu())?)
    }
}

/// Numbers of tokens, which travel as values, as such: (b, n).
fn numbers(values: &Tensor, vocabulary: usize) -> Result<Vec<Vec<u32>>> {
    let [b, n] = *values.shape() else {
        let reason = format!("tokens of shape {:?} are no lyrics", values.shape());
        return Err(ModelError::invalid("lyrics", reason));
    };
    let known = |v: &f32| *v >= 0.0 && (*v as usize) < vocabulary;
    if b == 0 || n == 0 || !values.data().iter().all(known) {
        let reason = format!("not all of them are among the {vocabulary} tokens of the model");
        return Err(ModelError::invalid("lyrics", reason));
    }
    let lines = values.data().chunks_exact(n);
    Ok(lines
        .map(|line| line.iter().map(|v| *v as u32).collect())
        .collect())
}
