//! The network and what goes into it.

use std::f32::consts::FRAC_PI_2;
use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, RmsNorm, modulate, silu};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::LtxvConfig;
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::{BlockKind, Hooks};
use crate::denoise::{
    CallConds, CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::ltx2::NO_TOKEN;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, Blocks, HeadNorm, Heads, Looks, Mlp, MlpLayers, Pairs,
    PatchOrder, PictureTokens, QkvLayers, Rope, Rotation, TimeEmbed, TokenGrid, TokenMask, hides,
};

const EPS: f32 = 1e-6;
const HEAD_EPS: f32 = 1e-5;
/// Frames and pixels that a token stands for.
const FRAMES: f32 = 8.0;
const PIXELS: f32 = 32.0;
const FRAME_RATE: f64 = 25.0;
/// Frequencies rise from 1 to this.
const THETA: f64 = 10_000.0;

/// What the network is given beside the prompt.
const RATE: &str = "frame_rate";
const KEYFRAMES: &str = "keyframe_idxs";
const KNOWN: &str = "denoise_mask";

fn attention(weights: &Walk<'_>, config: &LtxvConfig, looks: Looks) -> Result<Attention> {
    let (dim, norm) = (config.dim, ["q_norm.weight", "k_norm.weight"]);
    let norm = HeadNorm::RmsOfAll(norm, HEAD_EPS);
    let heads = Heads::new(config.heads, dim / config.heads, norm);
    let qkv = QkvLayers::Apart(["to_q", "to_k", "to_v"]);
    let layers = AttentionLayers {
        looks,
        ..AttentionLayers::new(qkv, "to_out.0", dim, heads)
    };
    Attention::new(weights, &layers)
}

struct Block {
    modulation: AdaLn<6>,
    attn1: Attention,
    attn2: Attention,
    ff: Mlp,
    norm: RmsNorm,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &LtxvConfig) -> Result<Self> {
        let (dim, ffn) = (config.dim, config.ffn);
        let layers = MlpLayers::Plain(["net.0.proj", "net.2"], Act::GeluTanh);
        Ok(Self {
            modulation: AdaLn::table(weights, "scale_shift_table", &[6, dim])?,
            attn1: attention(&weights.at("attn1"), config, Looks::Own)?,
            attn2: attention(&weights.at("attn2"), config, Looks::Prompt(dim))?,
            ff: Mlp::new(&weights.at("ff"), layers, (dim, ffn), Bias::With)?,
            norm: RmsNorm::new(None, EPS)?,
        })
    }

    /// Tokens as (rows of the noise level, tokens, dim) to the same.
    fn forward(&self, x: Tensor, level: &Level, pass: &Pass<'_>) -> Result<Tensor> {
        let parts = self.modulation.forward(&level.blocks)?;
        let [shift, scale, gate, shift_ff, scale_ff, gate_ff] = parts;
        let input = modulate(self.norm.forward(&x)?, &scale, Some(&shift))?;
        let qkv = self.attn1.qkv(&input.reshape(level.joined)?)?;
        drop(input);
        let seen = qkv.attend(pass.rope, Mask::None)?.reshape(level.apart)?;
        let x = self.attn1.add_gated(&seen, x, &gate)?;
        let x = x.reshape(level.joined)?;
        let qkv = self.attn2.qkv_to(&x, pass.text)?;
        let x = self
            .attn2
            .add(&qkv.attend(Rotation::NONE, pass.mask)?, &x)?;
        let x = x.reshape(level.apart)?;
        let input = modulate(self.norm.forward(&x)?, &scale_ff, Some(&shift_ff))?;
        let inner = self.ff.inner(&input)?;
        drop(input);
        self.ff.add_gated(&inner, x, &gate_ff)
    }
}

/// What all blocks of a pass look at.
struct Pass<'a> {
    text: &'a Tensor,
    rope: &'a Rope,
    mask: Mask<'a>,
}

/// How the noise level is told: rows for each item, each frame or each token.
struct Level {
    /// (rows, dim), for the end.
    plain: Tensor,
    /// (rows, 6 * dim), for blocks.
    blocks: Tensor,
    apart: [usize; 3],
    joined: [usize; 3],
}

pub struct LtxvNetwork {
    device: Device,
    config: LtxvConfig,
    cells: PictureTokens,
    time: TimeEmbed,
    time_blocks: Arc<Linear>,
    text: Mlp,
    blocks: Vec<Block>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
}

conds! {
    /// What the network is told besides the latent.
    struct LtxvConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
        known: Option<&'a Tensor> = KNOWN,
        keyframes: Option<&'a Tensor> = KEYFRAMES,
        rate: Option<f64> = RATE,
    }
}

impl DiffusionNetwork for LtxvNetwork {
    type Config = LtxvConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, OWN, PROMPT])]);

    fn facts(config: &LtxvConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::LTXV,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: config.pass(),
            sampling: ModelSampling::exponential_flow(2.37),
        }
    }

    fn new(weights: &Walk<'_>, config: &LtxvConfig) -> Result<Self> {
        let dim = config.dim;
        let level = weights.at("adaln_single");
        let time = level.at("emb.timestep_embedder");
        let text = weights.at("caption_projection");
        let layers = ["linear_1", "linear_2"];
        let list = weights.at("transformer_blocks");
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: PictureTokens::new(
                weights.linear("patchify_proj", dim, config.channels)?,
                weights.linear("proj_out", config.channels, dim)?,
                1,
                [PatchOrder::ChannelFirst; 2],
            ),
            time: TimeEmbed::new(&time, layers, config.waves, dim)?,
            time_blocks: level.linear("linear", 6 * dim, dim)?,
            text: Mlp::between(
                &text,
                MlpLayers::Plain(layers, Act::GeluTanh),
                [config.context, dim, dim],
                Bias::With,
            )?,
            blocks: list.each(config.blocks, |weights| Block::new(weights, config))?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::table(weights, "scale_shift_table", &[2, dim])?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let levels = match LtxvConds::read(input.conds)?.known {
            Some(mask) => by_token(input.timesteps, mask, input.x.shape())?,
            None => input.timesteps.to_vec(),
        };
        self.pass(input.x, &levels, input.conds, input.hooks)
    }

    fn encode(config: &LtxvConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tensors = &args.cond.tensors;
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        if let Some(mask) = tensors.get("attention_mask").filter(|mask| hides(mask)) {
            conds.insert(names::MASK, CondValue::Regular(mask.clone()));
        }
        let rate = args.cond.numbers.get(RATE).copied();
        conds.insert(RATE, CondValue::Constant(rate.unwrap_or(FRAME_RATE)));
        if let Some(places) = tensors.get(KEYFRAMES) {
            conds.insert(KEYFRAMES, CondValue::Regular(places.clone()));
        }
        let mask = tensors.get("concat_mask").or(args.denoise_mask);
        if let Some(mask) = mask {
            let mask = mask.narrow(1, 0, 1)?;
            conds.insert(KNOWN, CondValue::NoiseShape(mask));
        }
        Ok(conds)
    }

    fn sees_known_clean(_: &LtxvConfig) -> bool {
        true
    }
}

/// The level of each token: the less of it there is to make, the lower.
fn by_token(levels: &[f32], mask: &Tensor, shape: &[usize]) -> Result<Vec<f32>> {
    let mut whole = shape.to_vec();
    if let Some(channels) = whole.get_mut(1) {
        *channels = 1;
    }
    let mask = mask.expand(&whole)?;
    let tokens: usize = whole.iter().skip(2).product();
    let each = mask.data().chunks(tokens.max(1)).zip(levels);
    Ok(each
        .flat_map(|(mask, level)| mask.iter().map(move |share| share * level))
        .collect())
}

impl LtxvNetwork {
    /// One pass over (b, c, t, h, w). There is a level for each item, or for each token of each item. The result is in
    /// main memory.
    pub fn pass(
        &self,
        x: &Tensor,
        levels: &[f32],
        conds: &CallConds,
        hooks: &Hooks,
    ) -> Result<Tensor> {
        let conds = LtxvConds::read(conds)?;
        let original = x.shape();
        let &[b, _, _, _, _] = original else {
            let reason = format!("{original:?} is not the shape of a video");
            return Err(ModelError::invalid("latent", reason));
        };
        let prompt = conds.prompt;
        let device = &self.device;
        let (x, places) = self.cells.enter(x, device)?;
        let grid = places.grid;
        let level = self.level(levels, [b, x.dim(1)?, self.config.dim], grid)?;
        let rope = self.rope(grid, &conds)?;
        let text = self.text.forward(&prompt.to(device)?)?;
        let mask = TokenMask::new(conds.mask, 0, device)?;
        let (kind, heads, at) = (BlockKind::DOUBLE, self.config.heads, (hooks, original));
        let blocks = Blocks::of(kind, self.blocks.len(), heads, grid, at).with_shape(level.joined);
        let both = (x.reshape(level.apart)?, text);
        let (x, _) = blocks.run_pair(both, |number, x, text| {
            let pass = Pass {
                text: &text,
                rope: &rope,
                mask: mask.mask(),
            };
            let x = self.blocks[number].forward(x, &level, &pass)?;
            Ok((x, text))
        })?;
        let [shift, scale] = self
            .last_modulation
            .forward(&level.plain.repeat(&[1, 2])?)?;
        let x = self.norm.modulated(&x, &shift, &scale)?;
        self.cells.leave(&x.reshape(level.joined)?, &places)
    }

    fn level(&self, levels: &[f32], joined: [usize; 3], grid: TokenGrid) -> Result<Level> {
        let [b, n, dim] = joined;
        if levels.len() != b && levels.len() != b * n {
            let reason = format!("{} noise levels for {b} videos of {n} tokens", levels.len());
            return Err(ModelError::invalid("noise levels", reason));
        }
        // Mostly whole frames are known: then one row does for each.
        let frame = grid[1] * grid[2];
        let frames = levels.chunks(frame.max(1));
        let alike = levels.len() == b * n
            && n > frame
            && frames
                .clone()
                .all(|frame| frame.iter().all(|v| *v == frame[0]));
        let told: Vec<f32> = if alike {
            frames.map(|frame| frame[0]).collect()
        } else {
            levels.to_vec()
        };
        let plain = self.time.forward(&told, 1000.0, &self.device)?;
        Ok(Level {
            blocks: self.time_blocks.forward(&silu(&plain))?,
            plain,
            apart: [told.len(), b * n / told.len().max(1), dim],
            joined,
        })
    }

    /// Angles of all channels. Those beyond what three axes share stay.
    fn rope(&self, [frames, rows, columns]: TokenGrid, conds: &LtxvConds<'_>) -> Result<Rope> {
        let config = &self.config;
        let mut places = Vec::with_capacity(frames * rows * columns);
        for frame in 0..frames {
            let mut at = frame as f32 * FRAMES;
            if config.causal {
                at = (at - (FRAMES - 1.0)).max(0.0);
            }
            for row in 0..rows {
                for column in 0..columns {
                    places.push([at, row as f32 * PIXELS, column as f32 * PIXELS]);
                }
            }
        }
        if let Some(keys) = conds.keyframes {
            let [_, axes, count] = keys.dims3()?;
            let Some(first) = places.len().checked_sub(count).filter(|_| axes == 3) else {
                let reason = format!("{:?} are no places of the last tokens", keys.shape());
                return Err(ModelError::invalid(KEYFRAMES, reason));
            };
            let keys = &keys.data()[..3 * count];
            if keys.contains(&NO_TOKEN) {
                let reason = "references that are smaller than the video are for LTX-2";
                return Err(ModelError::invalid(KEYFRAMES, reason));
            }
            for (at, place) in places[first..].iter_mut().enumerate() {
                *place = [0, 1, 2].map(|axis| keys[axis * count + at]);
            }
        }
        let rate = conds.rate.unwrap_or(FRAME_RATE) as f32;
        let each = config.dim / 6;
        let frequency = |k: usize| {
            let exponent = k as f64 / (each.max(2) - 1) as f64;
            THETA.powf(f64::from(exponent as f32)) as f32 * FRAC_PI_2
        };
        let frequencies: Vec<f32> = (0..each).map(frequency).collect();
        let half = config.dim / 2;
        let still = half - 3 * each;
        let mut cos = Buffer::with_room(places.len() * half)?;
        let mut sin = Buffer::with_room(places.len() * half)?;
        for [time, row, column] in places {
            let share = [time / rate, row, column];
            let share = [0, 1, 2].map(|axis| share[axis] / config.reach[axis] * 2.0 - 1.0);
            cos.extend(std::iter::repeat_n(1.0, still));
            sin.extend(std::iter::repeat_n(0.0, still));
            for frequency in &frequencies {
                let angles = share.map(|share| f64::from(frequency * share));
                cos.extend(angles.map(|angle| angle.cos() as f32));
                sin.extend(angles.map(|angle| angle.sin() as f32));
            }
        }
        let table = |values| Tensor::from_buffer([frames * rows * columns, half], values);
        let rope = Rope::from_tables(table(cos)?, table(sin)?);
        rope.pairing(Pairs::NeighboursByHead).to(&self.device)
    }
}
