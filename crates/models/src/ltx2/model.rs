//! The network and what goes into it.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, Value};
use fresco_tensor::{Device, Tensor, repeat_to_batch};

use super::config::{Ltx2Config, StreamConfig};
use super::connector::Connector;
use super::layers::{
    EPS, LevelRows, Rows, SOUND, Spread, StreamBlock, StreamLevels, StreamPass, VIDEO, Widths,
    attention,
};
use super::positions::{self, kept_tokens, of_pictures, of_sound};
use super::voice::{VOICE, WithoutVoice};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::{BlockKind, Hooks};
use crate::denoise::{
    BesideLatent, CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput,
    names, pack_parts, unpack_parts,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, Blocks, Looks, Mlp, MlpLayers, PatchOrder, Rotation, TokenGrid, TokenMask, hides,
    part, video_from_tokens, video_to_tokens,
};

const FRAME_RATE: f64 = 25.0;

/// What the network is given beside the prompt.
const RATE: &str = "frame_rate";
const KEYFRAMES: &str = "keyframe_idxs";
const KNOWN: &str = "denoise_mask";

/// A block: each stream for itself, and where they look at each other.
struct Block {
    video: StreamBlock,
    sound: StreamBlock,
    to_video: Attention,
    to_sound: Attention,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &Ltx2Config) -> Result<Self> {
        let (video, sound) = (&config.video, &config.sound);
        let across = |to: &StreamConfig, from: &StreamConfig| Widths {
            input: to.dim,
            looks: Looks::Beside(from.dim),
            inner: config.cross,
            heads: sound.heads,
            gated: config.gated,
        };
        let to_video = weights.at("audio_to_video_attn");
        let to_sound = weights.at("video_to_audio_attn");
        Ok(Self {
            video: StreamBlock::new(weights, &VIDEO, video, config)?,
            sound: StreamBlock::new(weights, &SOUND, sound, config)?,
            to_video: attention(&to_video, across(video, sound))?,
            to_sound: attention(&to_sound, across(sound, video))?,
        })
    }

    fn forward(
        &self,
        video: Tensor,
        sound: Option<Tensor>,
        passes: (&StreamPass<'_>, Option<&StreamPass<'_>>),
    ) -> Result<(Tensor, Option<Tensor>)> {
        let of_video = passes.0;
        let video = self.video.first(video, of_video)?;
        let (Some(sound), Some(of_sound)) = (sound, passes.1) else {
            return Ok((self.video.last(&video, of_video.levels)?, None));
        };
        let sound = self.sound.first(sound, of_sound)?;
        let (seen_video, seen_sound) = (self.video.normed(&video)?, self.sound.normed(&sound)?);
        let look = |second: bool| -> Result<(Tensor, Tensor)> {
            Ok((
                self.video.across(&seen_video, of_video.levels, second)?,
                self.sound.across(&seen_sound, of_sound.levels, second)?,
            ))
        };
        let (x, from) = look(false)?;
        let turns = Rotation::new(of_video.cross_turns, of_sound.cross_turns);
        let seen = self.to_video.qkv_to(&x, &from)?.attend(turns, Mask::None)?;
        let (attention, levels) = (&self.to_video, of_video.levels);
        let video = self.video.add_across(attention, &seen, &video, levels)?;
        let (from, x) = look(true)?;
        let turns = Rotation::new(of_sound.cross_turns, of_video.cross_turns);
        let seen = self.to_sound.qkv_to(&x, &from)?.attend(turns, Mask::None)?;
        let (attention, levels) = (&self.to_sound, of_sound.levels);
        let sound = self.sound.add_across(attention, &seen, &sound, levels)?;
        drop((x, from, seen, seen_video, seen_sound));
        Ok((
            self.video.last(&video, of_video.levels)?,
            Some(self.sound.last(&sound, of_sound.levels)?),
        ))
    }
}

/// What one stream has outside of the blocks.
struct Ends {
    cells: Arc<Linear>,
    level: LevelRows,
    cross: LevelRows,
    gate: LevelRows,
    prompt: Option<LevelRows>,
    text: Option<Mlp>,
    norm: LayerNorm,
    table: Arc<Value>,
    last: Arc<Linear>,
}

/// How keys outside of the blocks are called.
struct EndNames {
    stream: &'static str,
    cross: &'static str,
    gate: &'static str,
}

const VIDEO_ENDS: EndNames = EndNames {
    stream: "",
    cross: "av_ca_video_scale_shift_adaln_single",
    gate: "av_ca_a2v_gate_adaln_single",
};

const SOUND_ENDS: EndNames = EndNames {
    stream: "audio_",
    cross: "av_ca_audio_scale_shift_adaln_single",
    gate: "av_ca_v2a_gate_adaln_single",
};

impl Ends {
    fn new(
        weights: &Walk<'_>,
        names: &EndNames,
        stream: &StreamConfig,
        config: &Ltx2Config,
    ) -> Result<Self> {
        let StreamConfig { channels, dim, .. } = *stream;
        let named = |rest: &str| format!("{}{rest}", names.stream);
        let rows =
            |name: &str, count: usize| LevelRows::new(&weights.at(name), dim, count, config.waves);
        let text = || {
            let weights = weights.at(named("caption_projection"));
            let layers = MlpLayers::Plain(["linear_1", "linear_2"], Act::GeluTanh);
            Mlp::between(&weights, layers, [stream.context, dim, dim], Bias::With)
        };
        let prompt = || rows(&named("prompt_adaln_single"), 2);
        Ok(Self {
            cells: weights.linear(&named("patchify_proj"), dim, channels)?,
            level: rows(&named("adaln_single"), config.rows())?,
            cross: rows(names.cross, 4)?,
            gate: rows(names.gate, 1)?,
            prompt: config.prompt_levels.then(prompt).transpose()?,
            text: config.projected.then(text).transpose()?,
            norm: LayerNorm::new(None, None, EPS)?,
            table: weights.value(&named("scale_shift_table"), &[2, dim])?,
            last: weights.linear(&named("proj_out"), channels, dim)?,
        })
    }

    /// What the levels of a stream say. `told` is one for each item or for each token, `alone` one for each item.
    fn levels(
        &self,
        config: &Ltx2Config,
        joined: [usize; 3],
        told: &[f32],
        alone: &[f32],
        device: &Device,
    ) -> Result<StreamLevels> {
        let [b, n, dim] = joined;
        let fits =
            !told.is_empty() && told.len().is_multiple_of(b) && (b * n).is_multiple_of(told.len());
        if !fits || alone.len() != b {
            let reason = format!("{} noise levels for {b} items of {n} tokens", told.len());
            return Err(ModelError::invalid("noise levels", reason));
        }
        let (rows, plain) = self.level.forward(told, device)?;
        // Older networks tell each stream its own level there.
        let across = if config.prompted { alone } else { told };
        let share = config.gate_scale / config.scale;
        let gates: Vec<f32> = across.iter().map(|level| level * share).collect();
        let prompt = match &self.prompt {
            Some(prompt) => Some(prompt.forward(alone, device)?.0),
            // Nothing is added to what the tables of the blocks say.
            None if config.prompted => Some(Tensor::zeros([b, 2 * dim])?.to(&rows.device())?),
            None => None,
        };
        Ok(StreamLevels {
            spread: Spread::new(joined, told.len()),
            rows,
            plain,
            across: Spread::new(joined, across.len()),
            cross_rows: self.cross.forward(across, device)?.0,
            cross_gate: self.gate.forward(&gates, device)?.0,
            prompt,
        })
    }

    fn prompt(&self, text: &Tensor, device: &Device) -> Result<Tensor> {
        let text = text.to(device)?;
        match &self.text {
            Some(layers) => layers.forward(&text),
            None => Ok(text),
        }
    }

    fn finish(&self, x: &Tensor, levels: &StreamLevels) -> Result<Tensor> {
        let said = levels.plain.repeat(&[1, 2])?;
        let rows = Rows::new(&self.table, 0, &said)?;
        let x = self.norm.forward(x)?;
        let x = levels.spread.modulate(&x, &rows.row(1)?, &rows.row(0)?)?;
        Ok(self.last.forward(&x)?.to(&Device::cpu())?)
    }
}

/// One pass over tokens.
pub struct Ltx2Tokens<'a> {
    /// (b, n, channels), frame by frame and row by row.
    pub video: &'a Tensor,
    pub grid: TokenGrid,
    /// (b, m, channels).
    pub sound: Option<&'a Tensor>,
    /// Prompts for pictures and for sound, as connectors make them.
    pub text: [&'a Tensor; 2],
    /// (b, words): ones for words that are seen.
    pub mask: Option<&'a Tensor>,
    /// Noise levels, scaled: for each item, or for each token of each item.
    pub levels: &'a [f32],
    pub sound_levels: &'a [f32],
    /// Of each item.
    pub alone: &'a [f32],
    pub rate: f32,
    /// Places of the last tokens.
    pub keyframes: Option<&'a Tensor>,
    /// (n): ones for tokens that are single pictures.
    pub marks: Option<&'a Tensor>,
    /// How many of the sound's tokens are another that was over when it begins.
    pub earlier: usize,
    /// The tokens of the grid that are there, if not all are; levels are then one for each token.
    pub kept: Option<&'a [usize]>,
}

/// A prompt and what the connectors made of it.
struct Connected {
    words: Tensor,
    made: [Tensor; 2],
}

pub struct Ltx2Network {
    device: Device,
    config: Ltx2Config,
    video: Ends,
    sound: Ends,
    mark: Option<Arc<Value>>,
    blocks: Vec<Block>,
    connectors: Option<[Connector; 2]>,
    /// Prompts stay the same for all steps of a run.
    connected: Mutex<Vec<Connected>>,
}

/// Prompts that are remembered.
const REMEMBERED: usize = 4;

conds! {
    /// What the network is told besides the latent.
    struct Ltx2Conds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
        known: Option<&'a Tensor> = KNOWN,
        keyframes: Option<&'a Tensor> = KEYFRAMES,
        voice: Option<&'a Tensor> = VOICE,
        rate: Option<f64> = RATE,
    }
}

impl DiffusionNetwork for Ltx2Network {
    type Config = Ltx2Config;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, OWN, PROMPT])]);

    fn facts(config: &Ltx2Config) -> ModelFacts {
        ModelFacts {
            latent: latent_format::LTXV,
            latent_channels: config.video.channels,
            in_channels: config.video.channels,
            context: Some(config.prompt_width()),
            model_channels: None,
            architecture: None,
            pass: config.pass(),
            sampling: ModelSampling::exponential_flow(2.37),
        }
    }

    fn new(weights: &Walk<'_>, config: &Ltx2Config) -> Result<Self> {
        let list = weights.at("transformer_blocks");
        let connectors = config.connectors.as_ref().map(|[video, sound]| {
            let at = |name: &str| weights.at(name);
            Ok::<_, ModelError>([
                Connector::new(&at("video_embeddings_connector"), video)?,
                Connector::new(&at("audio_embeddings_connector"), sound)?,
            ])
        });
        let mark = || weights.value("keyframes_abs_pos_embedding", &[1, config.video.dim]);
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            video: Ends::new(weights, &VIDEO_ENDS, &config.video, config)?,
            sound: Ends::new(weights, &SOUND_ENDS, &config.sound, config)?,
            mark: config.marked.then(mark).transpose()?,
            blocks: list.each(config.blocks, |weights| Block::new(weights, config))?,
            connectors: connectors.transpose()?,
            connected: Mutex::default(),
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = Ltx2Conds::read(input.conds)?;
        let shapes = input.hooks.parts.as_deref();
        let split = |x: &Tensor| -> Result<(Tensor, Option<Tensor>)> {
            let Some(shapes) = shapes else {
                return Ok((x.clone(), None));
            };
            let mut parts = unpack_parts(x, shapes)?.into_iter();
            let Some(video) = parts.next() else {
                return Err(ModelError::invalid("latent", "it has no parts"));
            };
            Ok((video, parts.next()))
        };
        let (video, sound) = split(input.x)?;
        let known = conds.known.map(&split).transpose()?;
        let (known_video, known_sound) = known.map_or((None, None), |(v, s)| (Some(v), s));
        let scale = self.config.scale;
        let alone: Vec<f32> = input.timesteps.iter().map(|t| t * scale).collect();
        let &[_, _, _, h, w] = video.shape() else {
            let reason = format!("{:?} is not the shape of a video", video.shape());
            return Err(ModelError::invalid("latent", reason));
        };
        let (tokens, grid) = video_to_tokens(&video, 1, PatchOrder::ChannelFirst)?;
        let sounds = sound.as_ref().map(|sound| self.sound_tokens(sound));
        let sounds = sounds.transpose()?;
        let keys = conds.keyframes;
        let kept = kept_tokens(tokens.dim(1)?, keys)?;
        let levels = match &known_video {
            Some(mask) => by_token(&alone, mask, video.shape(), grid[1] * grid[2])?,
            None => alone.clone(),
        };
        let levels = match &kept {
            Some(kept) => of_kept(&levels, tokens.dim(0)?, tokens.dim(1)?, kept)?,
            None => levels,
        };
        let mut sound_levels = match (&known_sound, &sound) {
            (Some(mask), Some(sound)) => sound_levels(&alone, mask, sound.shape())?,
            _ => alone.clone(),
        };
        // A voice to be like comes before the sound, and has no noise.
        let voice = conds.voice;
        let voice = voice.filter(|_| input.hooks.beside::<WithoutVoice>().next().is_none());
        let (mut sounds, mut earlier) = (sounds, 0);
        if let (Some(own), Some(voice)) = (&sounds, voice) {
            let [b, n, _] = own.dims3()?;
            let voice = repeat_to_batch(&self.sound_tokens(voice)?, b)?;
            earlier = voice.dim(1)?;
            sound_levels = after_quiet(&sound_levels, b, n, earlier)?;
            sounds = Some(Tensor::cat(&[&voice, own], 1)?);
        }
        let (text, mask) = self.text(&conds)?;
        let marks = match keys {
            Some(keys) if self.mark.is_some() => Some(last_marked(tokens.dim(1)?, keys.dim(2)?)?),
            _ => None,
        };
        let rate = conds.rate.unwrap_or(FRAME_RATE) as f32;
        let pass = Ltx2Tokens {
            video: &tokens,
            grid,
            sound: sounds.as_ref(),
            text: [&text[0], &text[1]],
            mask: mask.as_ref(),
            levels: &levels,
            sound_levels: &sound_levels,
            alone: &alone,
            rate: if rate > 0.0 { rate } else { FRAME_RATE as f32 },
            keyframes: keys,
            marks: marks.as_ref(),
            earlier,
            kept: kept.as_deref(),
        };
        let (mut made, mut made_sound) = self.pass(&pass, input.hooks)?;
        if let Some(kept) = &kept {
            made = among_all(&made, tokens.dim(1)?, kept)?;
        }
        if let (Some(sound), true) = (&mut made_sound, earlier > 0) {
            *sound = sound.narrow(1, earlier, sound.dim(1)? - earlier)?;
        }
        let made = video_from_tokens(&made, grid, 1, PatchOrder::ChannelFirst, (h, w))?;
        match (sound, made_sound) {
            (Some(sound), Some(made_sound)) => {
                let &[b, c, n, f] = sound.shape() else {
                    return Err(ModelError::invalid("latent", "its sound has no frames"));
                };
                let made_sound = made_sound.reshape([b, n, c, f])?.permute(&[0, 2, 1, 3])?;
                pack_parts(&[made, made_sound])
            }
            _ if shapes.is_some() => pack_parts(&[made]),
            _ => Ok(made),
        }
    }

    fn encode(config: &Ltx2Config, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tensors = &args.cond.tensors;
        let tokens = args.prompt_of_width(config.prompt_width(), file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        if let Some(mask) = tensors.get("attention_mask").filter(|mask| hides(mask)) {
            conds.insert(names::MASK, CondValue::Regular(mask.clone()));
        }
        let rate = args.cond.numbers.get(RATE).copied();
        conds.insert(RATE, CondValue::Constant(rate.unwrap_or(FRAME_RATE)));
        if let Some(places) = tensors.get(KEYFRAMES) {
            conds.insert(KEYFRAMES, CondValue::Regular(places.clone()));
        }
        if let Some(voice) = tensors.get(VOICE) {
            conds.insert(VOICE, CondValue::Regular(voice.clone()));
        }
        if let Some(mask) = args.denoise_mask {
            conds.insert(KNOWN, CondValue::NoiseShape(mask.clone()));
        }
        Ok(conds)
    }

    fn rest(&self) {
        self.remembered().clear();
    }

    fn sees_known_clean(_: &Ltx2Config) -> bool {
        true
    }

    fn beside(config: &Ltx2Config) -> Option<BesideLatent> {
        Some(BesideLatent {
            values: config.sound.channels,
            rows_first: false,
            shift: None,
            silence: None,
        })
    }
}

/// The level of each token, or of each frame if all of a frame have the same: the less of it there is to make, the lower.
fn by_token(levels: &[f32], mask: &Tensor, shape: &[usize], frame: usize) -> Result<Vec<f32>> {
    let mut whole = shape.to_vec();
    if let Some(channels) = whole.get_mut(1) {
        *channels = 1;
    }
    let mask = mask.narrow(1, 0, 1)?.expand(&whole)?;
    let tokens: usize = whole.iter().skip(2).product();
    let each = mask.data().chunks(tokens.max(1)).zip(levels);
    let all = each.flat_map(|(mask, level)| mask.iter().map(move |share| share * level));
    Ok(alike(all.collect(), frame))
}

/// The same of sound (b, c, n, f).
fn sound_levels(levels: &[f32], mask: &Tensor, shape: &[usize]) -> Result<Vec<f32>> {
    let &[b, _, n, _] = shape else {
        return Err(ModelError::invalid("latent", "its sound has no frames"));
    };
    let mask = mask.expand(shape)?.narrow(1, 0, 1)?.narrow(3, 0, 1)?;
    let each = mask.data().chunks(n.max(1)).zip(levels).take(b);
    let all = each.flat_map(|(mask, level)| mask.iter().map(move |share| share * level));
    Ok(alike(all.collect(), n))
}

/// Levels of the tokens that are there, one for each, of levels for all, for frames or for items.
fn of_kept(levels: &[f32], items: usize, tokens: usize, kept: &[usize]) -> Result<Vec<f32>> {
    let each = levels.len() / items.max(1);
    if items == 0 || each == 0 || !tokens.is_multiple_of(each) {
        let reason = format!("{} noise levels for {items} items", levels.len());
        return Err(ModelError::invalid("noise levels", reason));
    }
    let holds = tokens / each;
    let own = levels.chunks_exact(each);
    Ok(own
        .flat_map(|own| kept.iter().map(move |at| own[at / holds]))
        .collect())
}

/// Tokens (b, kept, c) in their places among all; the others are zero.
fn among_all(made: &Tensor, tokens: usize, kept: &[usize]) -> Result<Tensor> {
    let [b, count, width] = made.dims3()?;
    let mut all = Tensor::zeros([b, tokens, width])?;
    let (source, target) = (made.data(), all.data_mut());
    for item in 0..b {
        for (at, place) in kept.iter().enumerate().take(count) {
            target[(item * tokens + place) * width..][..width]
                .copy_from_slice(&source[(item * count + at) * width..][..width]);
        }
    }
    Ok(all)
}

/// Levels of a sound's tokens, one for each, after as many tokens without noise as came before it.
fn after_quiet(levels: &[f32], items: usize, count: usize, before: usize) -> Result<Vec<f32>> {
    let each = levels.len() / items.max(1);
    if items == 0 || each == 0 || !count.is_multiple_of(each) {
        let reason = format!("{} noise levels for {items} sounds", levels.len());
        return Err(ModelError::invalid("noise levels", reason));
    }
    let holds = count / each;
    let one = |own: &[f32]| -> Vec<f32> {
        let quiet = std::iter::repeat_n(0.0, before);
        quiet.chain((0..count).map(|at| own[at / holds])).collect()
    };
    Ok(levels.chunks_exact(each).flat_map(one).collect())
}

/// One of each `count` if all of them are equal.
fn alike(all: Vec<f32>, count: usize) -> Vec<f32> {
    if count == 0 {
        return all;
    }
    let equal = |part: &[f32]| part.iter().all(|v| *v == part[0]);
    if all.len().is_multiple_of(count) && all.chunks(count).all(equal) {
        return all.chunks(count).map(|part| part[0]).collect();
    }
    all
}

/// Ones for the last tokens.
fn last_marked(tokens: usize, count: usize) -> Result<Tensor> {
    let first = tokens.saturating_sub(count);
    Ok(Tensor::from_fn([tokens], |i| {
        f32::from(u8::from(i >= first))
    })?)
}

impl Ltx2Network {
    /// Sound (b, c, n, f) as tokens (b, n, c * f).
    fn sound_tokens(&self, sound: &Tensor) -> Result<Tensor> {
        let wanted = self.config.sound.channels;
        match *sound.shape() {
            [b, c, n, f] if c * f == wanted => {
                Ok(sound.permute(&[0, 2, 1, 3])?.reshape([b, n, wanted])?)
            }
            ref other => {
                let reason = format!("sound of shape {other:?} has no tokens of {wanted} values");
                Err(ModelError::invalid("latent", reason))
            }
        }
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, Vec<Connected>> {
        // Entries are put in whole.
        let connected = self.connected.lock();
        connected.unwrap_or_else(PoisonError::into_inner)
    }

    /// The prompts of both streams, and which of their words are seen.
    fn text(&self, conds: &Ltx2Conds<'_>) -> Result<([Tensor; 2], Option<Tensor>)> {
        let prompt = conds.prompt;
        let mask = conds.mask;
        let Some(connectors) = &self.connectors else {
            let (video, sound) = (self.config.video.context, self.config.sound.context);
            let text = [part(prompt, 0, video)?, part(prompt, video, sound)?];
            return Ok((text, mask.cloned()));
        };
        let mut made: [Vec<Tensor>; 2] = Default::default();
        let words = |item: usize| -> Result<Tensor> {
            let words = prompt.narrow(0, item, 1)?;
            let Some(mask) = mask else { return Ok(words) };
            let mask = mask.narrow(0, item, 1)?;
            let seen = mask.data().iter().enumerate().filter(|(_, v)| **v != 0.0);
            let seen: Vec<usize> = seen.map(|(at, _)| at).collect();
            Ok(words.index_select(1, &seen)?)
        };
        let items = prompt.dim(0)?;
        let all = (0..items).map(words).collect::<Result<Vec<_>>>()?;
        let longest = all.iter().map(|words| words.shape()[1]).max().unwrap_or(0);
        let length = connectors[0]
            .length(longest)
            .max(connectors[1].length(longest));
        for words in all {
            let [video, sound] = self.connect(connectors, words, length)?;
            made[0].push(video);
            made[1].push(sound);
        }
        let join = |list: &[Tensor]| Tensor::cat(&list.iter().collect::<Vec<_>>(), 0);
        Ok(([join(&made[0])?, join(&made[1])?], None))
    }

    /// What connectors make of a prompt, in main memory.
    fn connect(
        &self,
        [video, sound]: &[Connector; 2],
        words: Tensor,
        length: usize,
    ) -> Result<[Tensor; 2]> {
        let mut known = self.remembered();
        let same = |one: &&Connected| {
            one.made[0].shape()[1] == length
                && one.words.shape() == words.shape()
                && one.words.data() == words.data()
        };
        if let Some(found) = known.iter().find(same) {
            return Ok(found.made.clone());
        }
        let width = words.dim(2)?;
        let halves = match &self.config.connectors {
            Some([first, second]) if first.dim + second.dim == width => [
                part(&words, 0, first.dim)?,
                part(&words, first.dim, second.dim)?,
            ],
            _ => [words.clone(), words.clone()],
        };
        let cpu = Device::cpu();
        let made = [
            video.forward(&halves[0], length)?.to(&cpu)?,
            sound.forward(&halves[1], length)?.to(&cpu)?,
        ];
        if known.len() >= REMEMBERED {
            known.remove(0);
        }
        known.push(Connected {
            words,
            made: made.clone(),
        });
        Ok(made)
    }

    /// One pass over tokens; results are in main memory.
    pub fn pass(&self, pass: &Ltx2Tokens<'_>, hooks: &Hooks) -> Result<(Tensor, Option<Tensor>)> {
        let (config, device) = (&self.config, &self.device);
        let there = |x: &Tensor, dim: usize| -> Result<Tensor> {
            match pass.kept {
                Some(kept) => Ok(x.index_select(dim, kept)?),
                None => Ok(x.clone()),
            }
        };
        let mut video = self
            .video
            .cells
            .forward(&there(pass.video, 1)?.to(device)?)?;
        if let (Some(mark), Some(marks)) = (&self.mark, pass.marks) {
            let mark = mark.at(device)?.reshape([1, 1, config.video.dim])?;
            let marks = there(marks, 0)?;
            let marks = marks.reshape([1, marks.len(), 1])?.to(device)?;
            video = video.add(&marks.mul(&mark)?)?;
        }
        let sound = match pass.sound {
            Some(sound) => Some(self.sound.cells.forward(&sound.to(device)?)?),
            None => None,
        };
        let mut places = of_pictures(pass.grid, pass.rate, config.reach, pass.keyframes)?;
        if let Some(kept) = pass.kept {
            let of = |at: &usize| places.get(3 * at..3 * at + 3).unwrap_or_default().to_vec();
            places = kept.iter().flat_map(of).collect();
        }
        let times: Vec<f32> = places.chunks_exact(3).map(|place| place[0]).collect();
        let turns = |shares: &[f32], axes: usize, dim: usize, heads: usize| {
            positions::turns(shares, axes, (dim, heads), config.split, device)
        };
        let across = |shares: &[f32]| turns(shares, 1, config.cross, config.sound.heads);
        let mask = TokenMask::new(pass.mask, 0, device)?;
        let levels = self
            .video
            .levels(config, video.dims3()?, pass.levels, pass.alone, device)?;
        let text = self.video.prompt(pass.text[0], device)?;
        let own = turns(&places, 3, config.video.dim, config.video.heads)?;
        // Seconds of both streams are compared, so both reach equally far.
        let reach = config.reach[0].max(config.sound_reach);
        let rescaled: Vec<f32> = times.iter().map(|t| t * config.reach[0] / reach).collect();
        let of_video = StreamPass {
            levels: &levels,
            turns: &own,
            cross_turns: &across(&rescaled)?,
            text: &text,
            mask: mask.mask(),
        };
        let beside = match &sound {
            Some(sound) => {
                let joined = sound.dims3()?;
                let own = joined[1].saturating_sub(pass.earlier);
                let shares = of_sound(pass.earlier, own, config.sound_reach);
                let other = of_sound(pass.earlier, own, reach);
                let told = (pass.sound_levels, pass.alone);
                Some((
                    self.sound.levels(config, joined, told.0, told.1, device)?,
                    turns(&shares, 1, config.sound.dim, config.sound.heads)?,
                    across(&other)?,
                    self.sound.prompt(pass.text[1], device)?,
                ))
            }
            None => None,
        };
        let of_sound = beside
            .as_ref()
            .map(|(levels, own, cross, text)| StreamPass {
                levels,
                turns: own,
                cross_turns: cross,
                text,
                mask: mask.mask(),
            });
        let (kind, count, heads) = (BlockKind::DOUBLE, self.blocks.len(), config.video.heads);
        let blocks = Blocks::of(kind, count, heads, pass.grid, (hooks, pass.video.shape()));
        let passes = (&of_video, of_sound.as_ref());
        let blocks = blocks.with_shape(video.dims3()?);
        let (video, sound) = blocks.run_beside((video, sound), |number, video, sound| {
            self.blocks[number].forward(video, sound, passes)
        })?;
        let made = self.video.finish(&video, &levels)?;
        let sound = sound.as_ref().zip(beside.as_ref());
        let sound = sound.map(|(x, (levels, ..))| self.sound.finish(x, levels));
        Ok((made, sound.transpose()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_one_level_are_told_once() {
        assert_eq!(alike(vec![1.0, 1.0, 2.0, 2.0], 2), [1.0, 2.0]);
        assert_eq!(alike(vec![1.0, 3.0, 2.0, 2.0], 2), [1.0, 3.0, 2.0, 2.0]);
        let mask = Tensor::from_vec([1, 1, 2, 1, 1], vec![0.0, 1.0]).unwrap();
        let levels = by_token(&[10.0], &mask, &[1, 4, 2, 2, 2], 4).unwrap();
        assert_eq!(levels, [0.0, 10.0]);
        let mask = Tensor::from_vec([1, 1, 2, 1], vec![0.5, 1.0]).unwrap();
        let levels = sound_levels(&[10.0], &mask, &[1, 4, 2, 3]).unwrap();
        assert_eq!(levels, [5.0, 10.0]);
        assert_eq!(last_marked(3, 1).unwrap().data(), [0.0, 0.0, 1.0]);
    }
}
