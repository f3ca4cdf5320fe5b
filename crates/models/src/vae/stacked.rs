//! An autoencoder of films as a stack of residual blocks: the encoder also sees waves of the pixels, and each of its cells
//! looks at itself in other frames.

use std::sync::Arc;

use fresco_tensor::nn::{Act, GroupNorm, Linear, Mask, RmsNorm, activate, attention};
use fresco_tensor::{Device, Tensor};

use super::autoencoder::{Autoencoder, AutoencoderConfig, VaeFacts};
use super::film::each_film;
use super::images::Vae;
use super::kl::Check;
use super::memory::VaeMemory;
use super::replicated::{Carry, Replicated};
use crate::epilogue::plus;
use crate::error::{ModelError, Result};
use crate::store::{Layout, Walk, WeightStore};

/// The network in messages.
const WHAT: &str = "the autoencoder";

const EPS: f32 = 1e-5;
const GROUPS: usize = 32;
/// Channels of a head.
const HEAD: usize = 32;
/// Waves of the pixels: these powers of two in a full turn.
const WAVES: [i32; 2] = [6, 7];
/// Cells along a side that become one.
const SIDE: usize = 2;
/// More blocks than any of these has.
const MOST: usize = 64;

/// A step between two numbers of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackedLevel {
    pub from: usize,
    pub to: usize,
    /// Frames that become one, or that one becomes.
    pub frames: usize,
    pub blocks: usize,
    /// Whether blocks look at other frames.
    pub looks: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackedHalf {
    /// Channels of the first layer, in and out, and the blocks after it.
    pub first: (usize, usize),
    pub first_blocks: usize,
    pub levels: Vec<StackedLevel>,
    pub last_blocks: usize,
    /// Whether the blocks before and after all levels look at other frames.
    pub looks: (bool, bool),
    /// Channels that come out.
    pub out: usize,
}

/// The shape of the network. Files with one half only load too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackedConfig {
    pub encoder: Option<StackedHalf>,
    pub decoder: Option<StackedHalf>,
}

fn pair(store: &WeightStore, key: &str) -> Result<(usize, usize)> {
    match store.shape(key) {
        Some(&[out, input, ..]) if out > 0 && input > 0 => Ok((input, out)),
        Some(found) => Err(ModelError::Shape {
            file: store.file().to_owned(),
            key: key.to_owned(),
            expected: "a matrix".to_owned(),
            found: found.to_vec(),
        }),
        None => Err(ModelError::Missing {
            file: store.file().to_owned(),
            key: key.to_owned(),
        }),
    }
}

/// How many blocks stand under numbers from `start` on, and whether the first looks at other frames.
fn blocks(store: &WeightStore, list: &str, start: usize) -> (usize, bool) {
    let there = |number: &usize| store.has(&format!("{list}.{number}.stack.2.weight"));
    let count = (start..start + MOST).take_while(there).count();
    let looks = store.has(&format!("{list}.{start}.attn_block.attn.qkv.weight"));
    (count, looks)
}

impl StackedHalf {
    fn encoder(store: &WeightStore) -> Result<Option<Self>> {
        if !store.has("encoder.layers.0.weight") {
            return Ok(None);
        }
        let first = pair(store, "encoder.layers.0.weight")?;
        let (first_blocks, looks) = blocks(store, "encoder.layers", 1);
        let mut at = 1 + first_blocks;
        let (mut levels, mut from) = (Vec::new(), first.1);
        while levels.len() < MOST {
            let list = format!("encoder.layers.{at}.layers");
            let key = format!("{list}.0.weight");
            if !store.has(&key) {
                break;
            }
            let (values, to) = pair(store, &key)?;
            let (count, looks) = blocks(store, &list, 1);
            levels.push(StackedLevel {
                from,
                to,
                frames: cells(store, &key, values, from)?,
                blocks: count,
                looks,
            });
            from = to;
            at += 1;
        }
        let (last_blocks, looks_last) = blocks(store, "encoder.layers", at);
        let out = pair(store, "encoder.output_proj.weight")?.1;
        Ok(Some(Self {
            first,
            first_blocks,
            levels,
            last_blocks,
            looks: (looks, looks_last),
            out,
        }))
    }

    fn decoder(store: &WeightStore) -> Result<Option<Self>> {
        if !store.has("decoder.blocks.0.0.weight") {
            return Ok(None);
        }
        let first = pair(store, "decoder.blocks.0.0.weight")?;
        let (first_blocks, _) = blocks(store, "decoder.blocks.0", 1);
        let (last, out) = pair(store, "decoder.output_proj.weight")?;
        let mut projections = Vec::new();
        while projections.len() < MOST {
            let key = format!("decoder.blocks.{}.proj.weight", projections.len() + 1);
            if !store.has(&key) {
                break;
            }
            projections.push((pair(store, &key)?, key));
        }
        let mut levels = Vec::new();
        for (number, ((from, rows), key)) in projections.iter().enumerate() {
            let next = projections.get(number + 1).map(|((from, _), _)| *from);
            let to = next.unwrap_or(last);
            let list = format!("decoder.blocks.{}.blocks", number + 1);
            levels.push(StackedLevel {
                from: *from,
                to,
                frames: cells(store, key, *rows, to)?,
                blocks: blocks(store, &list, 0).0,
                looks: false,
            });
        }
        let end = format!("decoder.blocks.{}", levels.len() + 1);
        Ok(Some(Self {
            first,
            first_blocks,
            levels,
            last_blocks: blocks(store, &end, 0).0,
            looks: (false, false),
            out,
        }))
    }

    fn frames(&self) -> usize {
        self.levels.iter().map(|level| level.frames).product()
    }
}

/// Frames of the cells that so many values of so many channels are.
fn cells(store: &WeightStore, key: &str, values: usize, channels: usize) -> Result<usize> {
    let each = channels * SIDE * SIDE;
    if each > 0 && values > 0 && values.is_multiple_of(each) && values / each <= 8 {
        return Ok(values / each);
    }
    let reason = format!("{key} has {values} values, which are no cells of {channels} channels");
    Err(ModelError::unsupported(store.file(), reason))
}

impl StackedConfig {
    pub fn is_in(store: &WeightStore) -> bool {
        store.has("decoder.blocks.0.1.stack.2.weight")
            || store.has("encoder.layers.1.stack.2.weight")
    }

    /// From a store in which convolutions whose cells do not overlap are matrices.
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let found = Self {
            encoder: StackedHalf::encoder(store)?,
            decoder: StackedHalf::decoder(store)?,
        };
        let levels = found.half().map_or(0, |half| half.levels.len());
        if levels > 6 || found.temporal_ratio() > 64 {
            let reason = format!("{levels} levels of {} frames", found.temporal_ratio());
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(found)
    }

    fn half(&self) -> Option<&StackedHalf> {
        self.decoder.as_ref().or(self.encoder.as_ref())
    }

    pub fn latent_channels(&self) -> usize {
        match (&self.decoder, &self.encoder) {
            (Some(decoder), _) => decoder.first.0,
            (None, Some(encoder)) => encoder.out / 2,
            (None, None) => 0,
        }
    }

    pub fn ratio(&self) -> usize {
        SIDE.pow(self.half().map_or(0, |half| half.levels.len() as u32))
    }

    pub fn temporal_ratio(&self) -> usize {
        self.half().map_or(1, StackedHalf::frames)
    }
}

impl AutoencoderConfig for StackedConfig {
    fn facts(&self) -> VaeFacts {
        let channels = self.latent_channels();
        VaeFacts::film(channels, self.ratio(), self.temporal_ratio())
            .with_memory(VaeMemory::Stacked)
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        Layout::of(|weights| StackedVae::walk(weights, self))?.verify(store, WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(StackedVae::new(store, self)?.into())
    }
}

/// Each cell looks at itself in all frames.
struct Look {
    norm: Arc<GroupNorm>,
    qkv: Arc<Linear>,
    out: Arc<Linear>,
    length: RmsNorm,
}

impl Look {
    fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        if !channels.is_multiple_of(HEAD) {
            let reason = format!("{channels} channels do not make heads of {HEAD}");
            return Err(weights.unsupported(reason));
        }
        Ok(Self {
            norm: weights.group_norm("norm", channels, GROUPS, EPS)?,
            qkv: weights.matrix("attn.qkv", 3 * channels, channels)?,
            out: weights.linear("attn.out", channels, channels)?,
            length: RmsNorm::new(None, 1e-24)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [t, h, w, c] = x.dims4()?;
        let all = self.qkv.forward(&self.norm.forward(x, Act::None)?)?;
        let part = |number: usize| all.narrow(3, number * c, c);
        let seen = if t == 1 {
            part(2)?
        } else {
            let rows = |x: Tensor| -> Result<Tensor> {
                let rows = x.reshape([t, h * w, c])?;
                Ok(rows.permute(&[1, 0, 2])?)
            };
            // Of length one each, which the scale makes up for.
            let unit = |x: Tensor| -> Result<Tensor> {
                let heads = rows(x)?.reshape([h * w, t, c / HEAD, HEAD])?;
                Ok(self.length.forward(&heads)?.reshape([h * w, t, c])?)
            };
            let (q, k, v) = (unit(part(0)?)?, unit(part(1)?)?, rows(part(2)?)?);
            let scale = 1.0 / (HEAD as f32 * (HEAD as f32).sqrt());
            let seen = attention(&q, &k, &v, c / HEAD, Mask::None, Some(scale))?;
            seen.permute(&[1, 0, 2])?.reshape([t, h, w, c])?
        };
        Ok(self.out.forward_with(&seen, plus(x))?)
    }
}

/// Norm, activation, convolution, twice. Norms are of each frame.
struct Block {
    norm1: Arc<GroupNorm>,
    conv1: Replicated,
    norm2: Arc<GroupNorm>,
    conv2: Replicated,
    look: Option<Look>,
}

impl Block {
    fn new(weights: &Walk<'_>, channels: usize, looks: bool) -> Result<Self> {
        let stack = weights.at("stack");
        Ok(Self {
            norm1: stack.group_norm("0", channels, GROUPS, EPS)?,
            conv1: Replicated::new(&stack, "2", channels, channels)?,
            norm2: stack.group_norm("3", channels, GROUPS, EPS)?,
            conv2: Replicated::new(&stack, "5", channels, channels)?,
            look: looks
                .then(|| Look::new(&weights.at("attn_block"), channels))
                .transpose()?,
        })
    }

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let carry = &mut Carry::default();
        let h = self
            .conv1
            .forward(&self.norm1.forward(&x, Act::Silu)?, carry)?;
        let h = self
            .conv2
            .forward(&self.norm2.forward(&h, Act::Silu)?, carry)?;
        let x = x.add(&h)?;
        match &self.look {
            Some(look) => look.forward(&x),
            None => Ok(x),
        }
    }
}

struct Level {
    resize: Arc<Linear>,
    blocks: Vec<Block>,
    shape: StackedLevel,
}

struct Half {
    first: Arc<Linear>,
    first_blocks: Vec<Block>,
    levels: Vec<Level>,
    last_blocks: Vec<Block>,
    norm: Option<Arc<GroupNorm>>,
    last: Arc<Linear>,
}

fn block_list(
    weights: &Walk<'_>,
    start: usize,
    count: usize,
    channels: usize,
    looks: bool,
) -> Result<Vec<Block>> {
    let numbers = start..start + count;
    let block = |number| Block::new(&weights.at(number), channels, looks);
    numbers.map(block).collect()
}

impl Half {
    fn encoder(weights: &Walk<'_>, half: &StackedHalf) -> Result<Self> {
        let list = weights.at("layers");
        let (input, width) = half.first;
        let mut levels = Vec::new();
        for (number, level) in half.levels.iter().enumerate() {
            let inner = list.at(1 + half.first_blocks + number).at("layers");
            let values = level.from * level.frames * SIDE * SIDE;
            levels.push(Level {
                resize: inner.linear("0", level.to, values)?,
                blocks: block_list(&inner, 1, level.blocks, level.to, level.looks)?,
                shape: *level,
            });
        }
        let inner = half.levels.last().map_or(width, |level| level.to);
        let after = 1 + half.first_blocks + half.levels.len();
        Ok(Self {
            first: list.linear("0", width, input)?,
            first_blocks: block_list(&list, 1, half.first_blocks, width, half.looks.0)?,
            levels,
            last_blocks: block_list(&list, after, half.last_blocks, inner, half.looks.1)?,
            norm: Some(weights.group_norm("output_norm", inner, GROUPS, EPS)?),
            last: weights.matrix("output_proj", half.out, inner)?,
        })
    }

    fn decoder(weights: &Walk<'_>, half: &StackedHalf) -> Result<Self> {
        let list = weights.at("blocks");
        let (input, width) = half.first;
        let mut levels = Vec::new();
        for (number, level) in half.levels.iter().enumerate() {
            let inner = list.at(number + 1);
            let values = level.to * level.frames * SIDE * SIDE;
            levels.push(Level {
                resize: inner.linear("proj", values, level.from)?,
                blocks: block_list(&inner.at("blocks"), 0, level.blocks, level.from, false)?,
                shape: *level,
            });
        }
        let (start, end) = (list.at(0), list.at(half.levels.len() + 1));
        let outer = half.levels.last().map_or(width, |level| level.to);
        Ok(Self {
            first: start.linear("0", width, input)?,
            first_blocks: block_list(&start, 1, half.first_blocks, width, false)?,
            levels,
            last_blocks: block_list(&end, 0, half.last_blocks, outer, false)?,
            norm: None,
            last: weights.linear("output_proj", half.out, outer)?,
        })
    }
}

fn run(blocks: &[Block], mut x: Tensor, check: Check<'_>) -> Result<Tensor> {
    for block in blocks {
        check()?;
        x = block.forward(x)?;
    }
    Ok(x)
}

/// An autoencoder of films as a stack of residual blocks.
pub struct StackedVae {
    config: StackedConfig,
    device: Device,
    encoder: Option<Half>,
    decoder: Option<Half>,
}

impl StackedVae {
    pub fn new(store: &WeightStore, config: &StackedConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, config))
    }

    fn walk(weights: &Walk<'_>, config: &StackedConfig) -> Result<Self> {
        let encoder = config.encoder.as_ref();
        let encoder = encoder.map(|half| Half::encoder(&weights.at("encoder"), half));
        let decoder = config.decoder.as_ref();
        let decoder = decoder.map(|half| Half::decoder(&weights.at("decoder"), half));
        Ok(Self {
            config: config.clone(),
            device: weights.device().clone(),
            encoder: encoder.transpose()?,
            decoder: decoder.transpose()?,
        })
    }

    pub fn config(&self) -> &StackedConfig {
        &self.config
    }
}

impl Autoencoder for StackedVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// The mean latent (b, c, t, h, w) of films (b, 3, frames, h, w) in -1..1. Frames at the end that fill no latent frame
    /// are left out.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let half = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE encode", "the file has a decoder only"))?;
        let span = self.config.temporal_ratio();
        each_film("VAE encode", pixels, |film| {
            let whole = (film.dim(0)? - 1) / span * span + 1;
            let film = with_waves(&film.narrow(0, 0, whole)?)?.to(&self.device)?;
            let mut x = half.first.forward(&film)?;
            drop(film);
            x = run(&half.first_blocks, x, check)?;
            for level in &half.levels {
                let cells = folded(&x, level.shape.frames)?;
                x = run(&level.blocks, level.resize.forward(&cells)?, check)?;
            }
            x = run(&half.last_blocks, x, check)?;
            if let Some(norm) = &half.norm {
                x = norm.forward(&x, Act::Silu)?;
            }
            let moments = half.last.forward(&x)?;
            let channels = moments.dim(3)?;
            Ok(moments.narrow(3, 0, channels / 2)?)
        })
    }

    /// Films (b, 3, frames, h, w), about -1..1, of latents (b, c, t, h, w).
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let half = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE decode", "the file has an encoder only"))?;
        each_film("VAE decode", latent, |film| {
            let x = half.first.forward(&film.to(&self.device)?)?;
            let mut x = run(&half.first_blocks, x, check)?;
            for level in &half.levels {
                x = run(&level.blocks, x, check)?;
                x = unfolded(&level.resize.forward(&x)?, level.shape.frames)?;
            }
            let x = run(&half.last_blocks, x, check)?;
            Ok(half.last.forward(&activate(x, Act::Silu))?)
        })
    }
}

/// Pixels (t, h, w, c) with their waves: sines, then cosines, those of each colour together. In main memory.
fn with_waves(film: &Tensor) -> Result<Tensor> {
    let turned = |turn: fn(f32) -> f32| -> Result<Tensor> {
        let each = film.repeat_interleave(3, WAVES.len())?;
        let scales = WAVES.map(|power| 2.0_f32.powi(power) * (2.0 * std::f32::consts::PI));
        Ok(each.map_indexed(|i, v| turn(scales[i % WAVES.len()] * v)))
    };
    let (sines, cosines) = (turned(f32::sin)?, turned(f32::cos)?);
    Ok(Tensor::cat(&[film, &sines, &cosines], 3)?)
}

/// So many frames, and squares of cells, onto channels; the first frame stands before itself until there are enough.
fn folded(x: &Tensor, frames: usize) -> Result<Tensor> {
    let mut places = vec![0; frames - 1];
    places.extend(0..x.dim(0)?);
    let x = x.index_select(0, &places)?;
    let [t, h, w, c] = x.dims4()?;
    if h % SIDE != 0 || w % SIDE != 0 {
        let reason = format!("frames of {w}x{h} cells cannot be halved");
        return Err(ModelError::invalid("VAE encode", reason));
    }
    let (t, h, w) = (t / frames, h / SIDE, w / SIDE);
    let x = x.narrow(0, 0, t * frames)?;
    let cells = x.reshape([t, frames, h, SIDE, w, SIDE, c])?;
    let cells = cells.permute(&[0, 2, 4, 6, 1, 3, 5])?;
    Ok(cells.reshape([t, h, w, c * frames * SIDE * SIDE])?)
}

/// The reverse, without the frames that would be before the first.
fn unfolded(x: &Tensor, frames: usize) -> Result<Tensor> {
    let [t, h, w, channels] = x.dims4()?;
    let c = channels / (frames * SIDE * SIDE);
    let cells = x.reshape([t, h, w, c, frames, SIDE, SIDE])?;
    let cells = cells.permute(&[0, 4, 1, 5, 2, 6, 3])?;
    let all = cells.reshape([t * frames, h * SIDE, w * SIDE, c])?;
    Ok(all.narrow(0, frames - 1, t * frames - (frames - 1))?)
}
