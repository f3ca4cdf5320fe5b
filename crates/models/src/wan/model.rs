//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear, silu};
use fresco_tensor::{Axes, Device, Tensor};

use super::blocks::{Block, BlockContext, Camera, Head, Level, Vision};
use super::conditions::{
    self, CAMERA, CONTROLS, FACE, FOLLOWED, KNOWN, MORE_FRAMES, MOTION, POSE, REFERENCE, SOUND,
    STRENGTHS, VISION,
};
use super::config::{CELLS, PATCH, WanConfig};
use super::face::Face;
use super::sound::{Sound, SoundContext};
use super::speech::Speech;
use super::talk::{TalkControl, Talking};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::{BlockKind, Hooks};
use crate::denoise::{
    CallConds, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, names,
};
use crate::epilogue::plus;
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Blocks, Mlp, MlpLayers, PatchOrder, Rope, RopeScale, TimeEmbed, TokenGrid, circular_pad,
    grid_positions, to_tokens, video_from_tokens, video_to_tokens,
};

const THETA: f64 = 10_000.0;

/// The blocks that follow control videos.
struct Following {
    cells: Arc<Linear>,
    blocks: Vec<Block>,
}

pub struct WanNetwork {
    device: Device,
    config: WanConfig,
    cells: Arc<Linear>,
    reference: Option<Arc<Linear>>,
    camera: Option<Camera>,
    time: TimeEmbed,
    time_projection: Arc<Linear>,
    text: Mlp,
    vision: Option<Vision>,
    blocks: Vec<Block>,
    following: Option<Following>,
    sound: Option<Sound>,
    speech: Option<Speech>,
    face: Option<Face>,
    head: Head,
}

/// What tokens see after blocks.
struct AfterBlocks {
    /// How many tokens are the video's own.
    own: usize,
    heard: Option<SoundContext>,
    face: Option<Tensor>,
}

conds! {
    /// What the network is told besides the latent.
    struct WanConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        known: Option<&'a Tensor> = KNOWN,
        more_frames: Option<&'a Tensor> = MORE_FRAMES,
        camera: Option<&'a Tensor> = CAMERA,
        reference: Option<&'a Tensor> = REFERENCE,
        sound: Option<&'a Tensor> = SOUND,
        face: Option<&'a Tensor> = FACE,
        pose: Option<&'a Tensor> = POSE,
        followed: Option<&'a Tensor> = FOLLOWED,
        motion: Option<&'a Tensor> = MOTION,
        vision: Option<&'a Tensor> = VISION,
        controls: &'a [Tensor] = CONTROLS,
        strengths: Option<&'a Tensor> = STRENGTHS,
    }
}

impl DiffusionNetwork for WanNetwork {
    type Config = WanConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, OWN, PROMPT])]);

    fn facts(config: &WanConfig) -> ModelFacts {
        ModelFacts {
            latent: if config.out_channels == 48 {
                latent_format::WAN22
            } else {
                latent_format::WAN21
            },
            latent_channels: config.out_channels,
            in_channels: config.in_channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: config.pass(),
            sampling: ModelSampling::flow(8.0, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &WanConfig) -> Result<Self> {
        let dim = config.dim;
        let squares = |name: &str, channels: usize| weights.linear(name, dim, channels * CELLS);
        let following = config.vace.map(|vace| -> Result<Following> {
            let list = weights.at("vace_blocks");
            let block = |number: usize| Block::following(&list.at(number), config, number == 0);
            Ok(Following {
                cells: squares("vace_patch_embedding", vace.channels)?,
                blocks: (0..vace.blocks).map(block).collect::<Result<_>>()?,
            })
        });
        let camera = config.camera;
        let camera = camera.map(|camera| Camera::new(&weights.at("control_adapter"), camera, dim));
        let reference = config.reference;
        let reference = reference.map(|channels| squares("ref_conv", channels));
        let vision = config.vision;
        let vision = vision.map(|vision| Vision::new(&weights.at("img_emb"), vision, dim));
        let sound = config.sound.as_ref();
        let sound = sound.map(|sound| Sound::new(weights, config, sound));
        let speech = config.speech;
        let speech = speech.map(|speech| Speech::new(&weights.at("audio_proj"), speech));
        let face = config.face.as_ref();
        let face = face.map(|face| Face::new(weights, config, face));
        let list = weights.at("blocks");
        let names = ["time_embedding.0", "time_embedding.2"];
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: squares("patch_embedding", config.in_channels)?,
            reference: reference.transpose()?,
            camera: camera.transpose()?,
            time: TimeEmbed::new(weights, names, config.waves, dim)?,
            time_projection: weights.linear("time_projection.1", 6 * dim, dim)?,
            text: Mlp::between(
                &weights.at("text_embedding"),
                MlpLayers::Plain(["0", "2"], Act::GeluTanh),
                [config.context, dim, dim],
                Bias::With,
            )?,
            vision: vision.transpose()?,
            blocks: list.each(config.blocks, |weights| Block::new(weights, config))?,
            following: following.transpose()?,
            sound: sound.transpose()?,
            speech: speech.transpose()?,
            face: face.transpose()?,
            head: Head::new(&weights.at("head"), config)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let levels = match WanConds::read(input.conds)?.known {
            Some(mask) => by_frame(input.timesteps, mask)?,
            None => input.timesteps.to_vec(),
        };
        self.pass(input.x, &levels, input.conds, input.hooks)
    }

    fn encode(config: &WanConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        conditions::encode(config, file, args)
    }

    fn sees_known_clean(config: &WanConfig) -> bool {
        config.levels_by_frame()
    }
}

/// The level of each frame: the less of it there is to make, the lower.
fn by_frame(levels: &[f32], mask: &Tensor) -> Result<Vec<f32>> {
    let frames = mask.mean(&[1, 3, 4], Axes::Drop)?;
    let per_item = frames.dim(1)?;
    let frames = frames.data().chunks(per_item.max(1)).zip(levels);
    Ok(frames
        .flat_map(|(frames, level)| frames.iter().map(move |share| share * level))
        .collect())
}

impl WanNetwork {
    /// One pass over (b, c, t, h, w). There is a level for each item, or for each frame of each item. The result is in
    /// main memory.
    pub fn pass(
        &self,
        x: &Tensor,
        levels: &[f32],
        conds: &CallConds,
        hooks: &Hooks,
    ) -> Result<Tensor> {
        let conds = &WanConds::read(conds)?;
        let original = x.shape();
        let &[b, _, t, h, w] = original else {
            let reason = format!("{original:?} is not the shape of a video");
            return Err(ModelError::invalid("latent", reason));
        };
        let talk = hooks.beside::<TalkControl>().last();
        let begun = talk.map(|talk| talk.with_known(x)).transpose()?;
        let x = begun.as_ref().unwrap_or(x);
        let longer = match conds.more_frames {
            Some(more) => Some(Tensor::cat(&[x, more], 2)?),
            None => None,
        };
        let all = longer.as_ref().unwrap_or(x);
        let (tokens, grid) = video_to_tokens(all, PATCH, PatchOrder::ChannelFirst)?;
        let device = &self.device;
        let mut x = self.cells.forward(&tokens.to(device)?)?;
        drop(tokens);
        if let (Some(camera), Some(path)) = (&self.camera, conds.camera) {
            x = x.add(&camera.forward(path, grid, device)?)?;
        }
        x = self.with_pose(x, grid, conds)?;
        let own = x.dim(1)?;
        let (x, levels, beyond) = self.with_others(x, grid, levels, conds)?;
        let (mut x, levels) = (x, levels.as_slice());
        let mut before = 0;
        if let (Some(layer), Some(picture)) = (&self.reference, conds.reference) {
            let picture = circular_pad(picture, PATCH)?;
            let tokens = to_tokens(&picture, PATCH, PatchOrder::ChannelFirst)?;
            let tokens = layer.forward(&tokens.to(device)?)?;
            before = tokens.dim(1)?;
            if before != grid[1] * grid[2] {
                let reason = "a reference picture must have the size of the video's frames";
                return Err(ModelError::invalid("reference_latents", reason));
            }
            x = Tensor::cat(&[&tokens, &x], 1)?;
        }
        let n = x.dim(1)?;
        let level = self.level(levels, [b, n, self.config.dim])?;
        let rope = self.rope(grid, usize::from(before > 0), &beyond, hooks)?;
        let mut beside = self.beside(conds)?;
        if let Some(talk) = talk {
            beside.talk = Some(Talking::new(talk, grid, self.config.dim)?);
        }
        if let (Some(speech), Some(windows)) = (&self.speech, conds.sound) {
            let references = (n - own) / (grid[1] * grid[2]).max(1);
            beside.speech = Some(speech.tokens(windows, grid[0], references, device)?);
        }
        let heard = match (&self.sound, conds.sound) {
            (Some(sound), Some(features)) => Some(sound.hear(features, grid[0], device)?),
            _ => None,
        };
        let face = match (&self.face, conds.face) {
            (Some(face), Some(pixels)) => Some(face.tokens(pixels, grid[0], device)?),
            _ => None,
        };
        let after = AfterBlocks { own, heard, face };
        x = x.reshape(level.apart)?;
        let at = (hooks, original, grid);
        x = self.run(x, &level, &beside, &rope, (conds, &after), at)?;
        let out = self.head.forward(&x, &level)?;
        let frame = grid[1] * grid[2];
        let out = out.narrow(1, before, t * frame)?.to(&Device::cpu())?;
        let grid = [t, grid[1], grid[2]];
        video_from_tokens(&out, grid, PATCH, PatchOrder::ChannelLast, (h, w))
    }

    /// All blocks, and those that follow control videos after the ones they belong to.
    fn run(
        &self,
        x: Tensor,
        level: &Level,
        beside: &BlockContext,
        rope: &Rope,
        (conds, after): (&WanConds<'_>, &AfterBlocks),
        (hooks, original, grid): (&Hooks, &[usize], TokenGrid),
    ) -> Result<Tensor> {
        let start = self.following.as_ref().map(|_| x.clone());
        let mut controls = self.controls(conds, level)?;
        let every = match &self.following {
            Some(following) => self.blocks.len() / following.blocks.len().max(1),
            None => 0,
        };
        let following = self.following.as_ref();
        let follows = |number: usize| {
            let acts = every > 0 && number.is_multiple_of(every);
            following
                .filter(|_| acts)
                .and_then(|list| list.blocks.get(number / every))
        };
        let (kind, count) = (BlockKind::DOUBLE, self.blocks.len());
        let blocks = Blocks::of(kind, count, self.config.heads, grid, (hooks, original));
        let own = |number: usize, x: Tensor| -> Result<Tensor> {
            let x = self.blocks[number].forward(Some(number), x, level, beside, rope)?;
            self.after_block(number, x, level, after)
        };
        blocks
            .with_shape(level.joined)
            .run_then(x, own, |number, mut x| {
                let Some(block) = follows(number) else {
                    return Ok(x);
                };
                for (tokens, strength) in &mut controls {
                    if let (Some(layer), Some(start)) = (&block.before, &start) {
                        *tokens = layer.forward_with(tokens, plus(start))?;
                    }
                    *tokens = block.forward(None, tokens.clone(), level, beside, rope)?;
                    if let Some(layer) = &block.after {
                        let adds = layer.forward(tokens)?;
                        x = x.add(&adds.mul_scalar(*strength))?;
                    }
                }
                Ok(x)
            })
    }

    /// What tokens of the video hear, and what they see of a face.
    fn after_block(
        &self,
        number: usize,
        x: Tensor,
        level: &Level,
        after: &AfterBlocks,
    ) -> Result<Tensor> {
        let mut x = x;
        if let (Some(sound), Some(heard)) = (&self.sound, &after.heard) {
            let all = x.reshape(level.joined)?;
            let own = all.narrow(1, 0, after.own)?;
            if let Some(own) = sound.after(number, &own, heard)? {
                let rest = level.joined[1] - after.own;
                let all = if rest > 0 {
                    Tensor::cat(&[&own, &all.narrow(1, after.own, rest)?], 1)?
                } else {
                    own
                };
                x = all.reshape(level.apart)?;
            }
        }
        if let (Some(face), Some(tokens)) = (&self.face, &after.face)
            && let Some(changed) = face.after(number, &x, tokens)?
        {
            x = changed;
        }
        Ok(x)
    }

    /// Tokens with what poses add to all frames but the first.
    fn with_pose(&self, x: Tensor, grid: TokenGrid, conds: &WanConds<'_>) -> Result<Tensor> {
        let (Some(face), Some(pose)) = (&self.face, conds.pose) else {
            return Ok(x);
        };
        let (tokens, found) = video_to_tokens(pose, PATCH, PatchOrder::ChannelFirst)?;
        if found[1..] != grid[1..] {
            let reason = "poses must have the size of the video's frames";
            return Err(ModelError::invalid("pose_video_latent", reason));
        }
        let frame = grid[1] * grid[2];
        let count = found[0].min(grid[0] - 1) * frame;
        if count == 0 {
            return Ok(x);
        }
        let made = face.pose(&tokens.narrow(1, 0, count)?.to(&self.device)?)?;
        let n = x.dim(1)?;
        let changed = x.narrow(1, frame, count)?.add(&made)?;
        let (first, rest) = (x.narrow(1, 0, frame)?, n - frame - count);
        if rest == 0 {
            return Ok(Tensor::cat(&[&first, &changed], 1)?);
        }
        let last = x.narrow(1, frame + count, rest)?;
        Ok(Tensor::cat(&[&first, &changed, &last], 1)?)
    }

    /// Tokens of the video with those that stand behind them in networks that follow sound or speech: a reference, and
    /// earlier frames. The noise levels with theirs, and where they are.
    fn with_others(
        &self,
        x: Tensor,
        grid: TokenGrid,
        levels: &[f32],
        conds: &WanConds<'_>,
    ) -> Result<(Tensor, Vec<f32>, Vec<[f64; 3]>)> {
        let (mut x, mut levels, mut places) = (x, levels.to_vec(), Vec::new());
        if self.sound.is_none() && self.speech.is_none() {
            return Ok((x, levels, places));
        }
        let b = x.dim(0)?;
        // One for each frame, where frames that are not noisy follow.
        let by_frame = |levels: &[f32], frames: usize| -> Vec<Vec<f32>> {
            let each = levels.len() / b.max(1);
            let one = |item: usize| -> Vec<f32> {
                let own = &levels[item * each..][..each];
                if each == 1 {
                    vec![own[0]; frames]
                } else {
                    own.to_vec()
                }
            };
            (0..b).map(one).collect()
        };
        let mut lists = by_frame(&levels, grid[0]);
        if let Some(sound) = &self.sound {
            if let Some(video) = conds.followed {
                let (tokens, found) = video_to_tokens(video, PATCH, PatchOrder::ChannelFirst)?;
                if found != grid {
                    let reason = format!("it is for {found:?} tokens, the video has {grid:?}");
                    return Err(ModelError::invalid(FOLLOWED, reason));
                }
                x = x.add(&sound.control(&tokens.to(&self.device)?)?)?;
            }
            x = sound.kind(&x, 0)?;
        }
        if let Some(reference) = conds.reference {
            let (tokens, found) = video_to_tokens(reference, PATCH, PatchOrder::ChannelFirst)?;
            if found[1..] != grid[1..] {
                let reason = "a reference picture must have the size of the video's frames";
                return Err(ModelError::invalid("reference_latents", reason));
            }
            let mut tokens = self.cells.forward(&tokens.to(&self.device)?)?;
            let start = match &self.sound {
                Some(sound) => {
                    tokens = sound.kind(&tokens, 1)?;
                    (grid[0] + 9).max(30)
                }
                None => grid[0],
            };
            x = Tensor::cat(&[&x, &tokens], 1)?;
            for frame in 0..found[0] {
                let index = (start + frame) as f64;
                places.extend(grid_positions(index, (grid[1], grid[2]), (0.0, 0.0)));
            }
            for list in &mut lists {
                list.resize(list.len() + found[0], 0.0);
            }
        }
        if let Some(sound) = &self.sound {
            if let Some(motion) = conds.motion {
                let (tokens, at) = sound.earlier(motion, &self.device)?;
                x = Tensor::cat(&[&x, &sound.kind(&tokens, 2)?], 1)?;
                places.extend(at);
                for list in &mut lists {
                    *list = list.iter().flat_map(|level| [*level, *level]).collect();
                    list.extend([0.0; 3]);
                }
            }
            levels = lists.concat();
        }
        Ok((x, levels, places))
    }

    /// The features of a sound for each frame, for tests: the vectors, then the tokens.
    pub fn sound_features(&self, features: &Tensor, frames: usize) -> Result<Option<[Tensor; 2]>> {
        let Some(sound) = &self.sound else {
            return Ok(None);
        };
        let [whole, local] = sound.features(features, frames, &self.device)?;
        let cpu = Device::cpu();
        Ok(Some([whole.to(&cpu)?, local.to(&cpu)?]))
    }

    /// What windows of speech become, for tests.
    pub fn spoken(&self, windows: &Tensor, frames: usize) -> Result<Option<Tensor>> {
        let Some(speech) = &self.speech else {
            return Ok(None);
        };
        let tokens = speech.tokens(windows, frames, 0, &self.device)?;
        Ok(Some(tokens.to(&Device::cpu())?))
    }

    /// How a face moves in pictures (n, 3, h, w), and what becomes of that, for tests.
    pub fn face_motion(&self, pictures: &Tensor) -> Result<Option<[Tensor; 2]>> {
        let Some(face) = &self.face else {
            return Ok(None);
        };
        let motion = face.motion(pictures, &self.device)?;
        let encoded = face.encoded(&motion.unsqueeze(0)?)?;
        let cpu = Device::cpu();
        Ok(Some([motion.to(&cpu)?, encoded.to(&cpu)?]))
    }

    /// Tokens of control videos, with how much each counts.
    fn controls(&self, conds: &WanConds<'_>, level: &Level) -> Result<Vec<(Tensor, f32)>> {
        let Some(following) = &self.following else {
            return Ok(Vec::new());
        };
        let strengths = conds.strengths;
        let strength = |at: usize| strengths.and_then(|s| s.data().get(at).copied());
        let each = conds.controls.iter().enumerate();
        each.map(|(at, video)| {
            let (tokens, _) = video_to_tokens(video, PATCH, PatchOrder::ChannelFirst)?;
            let tokens = following.cells.forward(&tokens.to(&self.device)?)?;
            if tokens.shape() != level.joined {
                let reason = "a control video must have the size and length of the video";
                return Err(ModelError::invalid("vace_context", reason));
            }
            Ok((tokens.reshape(level.apart)?, strength(at).unwrap_or(1.0)))
        })
        .collect()
    }

    fn level(&self, levels: &[f32], joined: [usize; 3]) -> Result<Level> {
        let [b, n, dim] = joined;
        let each = levels.len() / b.max(1);
        if b == 0 || each * b != levels.len() || each == 0 || each > n {
            let reason = format!("{} noise levels for {b} videos", levels.len());
            return Err(ModelError::invalid("noise levels", reason));
        }
        let mut plain = self.time.forward(levels, 1.0, &self.device)?;
        let mut blocks = self.time_projection.forward(&silu(&plain))?;
        let mut rows = levels.len();
        if !n.is_multiple_of(each) {
            // Frames that are there besides count as the last ones: every level holds for as many tokens.
            let spread = n / each + 1;
            let of = (0..b).flat_map(|item| (0..n).map(move |token| item * each + token / spread));
            let of: Vec<usize> = of.collect();
            plain = plain.index_select(0, &of)?;
            blocks = blocks.index_select(0, &of)?;
            rows = b * n;
        }
        Ok(Level {
            plain,
            blocks,
            apart: [rows, b * n / rows, dim],
            joined,
        })
    }

    /// The prompt, and what is looked at as pictures: what a vision network saw comes before the words.
    fn beside(&self, conds: &WanConds<'_>) -> Result<BlockContext> {
        let prompt = conds.prompt;
        let text = self.text.forward(&prompt.to(&self.device)?)?;
        let (Some(vision), Some(states)) = (&self.vision, conds.vision) else {
            return Ok(BlockContext {
                text,
                pictures: None,
                speech: None,
                talk: None,
            });
        };
        let count = states.dim(1)?;
        let all = Tensor::cat(&[&vision.forward(&states.to(&self.device)?)?, &text], 1)?;
        let rest = all.dim(1)?.checked_sub(count).filter(|rest| *rest > 0);
        let Some(rest) = rest else {
            let reason =
                format!("there are {count} states of a picture, and too few words after them");
            return Err(ModelError::invalid("clip_vision_output", reason));
        };
        Ok(BlockContext {
            text: all.narrow(1, count, rest)?,
            pictures: Some(all.narrow(1, 0, count)?),
            speech: None,
            talk: None,
        })
    }

    /// Frames of which some come before the video's own, and tokens beyond them.
    fn rope(
        &self,
        [frames, rows, columns]: TokenGrid,
        before: usize,
        beyond: &[[f64; 3]],
        hooks: &Hooks,
    ) -> Result<Rope> {
        let scale = hooks.beside::<RopeScale>().last().copied();
        let scale = scale.unwrap_or_default();
        let mut positions = Vec::with_capacity((frames + before) * rows * columns * 3);
        for frame in 0..frames + before {
            for row in 0..rows {
                for column in 0..columns {
                    positions.extend(scale.of([frame, row, column]));
                }
            }
        }
        positions.extend_from_slice(beyond.as_flattened());
        Rope::new(&positions, &self.config.axes(), THETA)?.to(&self.device)
    }
}
