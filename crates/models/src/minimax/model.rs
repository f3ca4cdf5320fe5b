//! The network over one sequence: words, pictures that are given, sound and pictures that are made.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, Mask, RmsNorm, Value, add_gated, modulate, silu};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::{MiniMaxConfig, PATCH, TimeConfig};
use crate::denoise::hooks::{BlockKind, Hooks};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk};
use crate::transformer::{
    Attention, AttentionLayers, Blocks, HeadNorm, Heads, Mlp, MlpLayers, Pairs, QkvLayers, Rope,
    Rotation, sinusoid,
};

const EPS: f32 = 1e-5;
const THETA: f64 = 10_000.0;
/// Kinds of tokens that a noise level says different things to: pictures, words, sound.
const TAGS: usize = 3;

/// What a run of tokens of the sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    Words,
    Pictures,
    Sound,
}

/// Tokens next to each other of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub of: Tokens,
    pub count: usize,
}

/// Everything that goes through the network together.
pub struct Sequence<'a> {
    /// (1, n, values) each, in the order of their segments.
    pub words: &'a Tensor,
    pub pictures: &'a Tensor,
    pub sound: &'a Tensor,
    pub segments: &'a [Segment],
    /// Of each token: three numbers.
    pub places: &'a [f32],
    /// Of each token: 0 for pictures, 1 for words, 2 for sound.
    pub tags: &'a [usize],
    /// How much of it is data, from 0 to 1, and which of these each token is told.
    pub times: &'a [f32],
    pub labels: &'a [usize],
}

/// Tokens next to each other that are told the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: usize,
    count: usize,
    label: usize,
    tag: usize,
}

fn runs(labels: &[usize], tags: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, (label, tag)) in labels.iter().zip(tags).enumerate() {
        match runs.last_mut() {
            Some(run) if (run.label, run.tag) == (*label, *tag) => run.count += 1,
            _ => runs.push(Run {
                start: at,
                count: 1,
                label: *label,
                tag: *tag,
            }),
        }
    }
    runs
}

/// How far the first channels of heads are turned at places on three axes.
fn turns(places: &[f32], axis: usize, device: &Device) -> Result<Rope> {
    let frequency = |k: usize| THETA.powf(-(k as f64) / axis as f64) as f32;
    let frequencies: Vec<f32> = (0..axis).map(frequency).collect();
    let count = places.len() / 3;
    let mut cos = Buffer::with_room(count * 3 * axis)?;
    let mut sin = Buffer::with_room(count * 3 * axis)?;
    for place in places {
        for frequency in &frequencies {
            let angle = f64::from(place * frequency);
            cos.push(angle.cos() as f32);
            sin.push(angle.sin() as f32);
        }
    }
    let table = |values| Tensor::from_buffer([count, 3 * axis], values);
    let rope = Rope::from_tables(table(cos)?, table(sin)?);
    rope.pairing(Pairs::Halves).to(device)
}

/// What words go through before anything else sees them, or a block of the network.
struct Block {
    norms: [Arc<RmsNorm>; 2],
    attn: Attention,
    mlp: Mlp,
    /// What noise levels say to it; nothing to those of words alone.
    told: Option<Arc<Linear>>,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &MiniMaxConfig, told: bool) -> Result<Self> {
        let (dim, width) = (config.dim, config.time.width());
        let level = || weights.linear("adaln_proj.linear", TAGS * 6 * dim, width);
        let head_norm = HeadNorm::Rms(["q_norm.weight", "k_norm.weight"], EPS);
        let heads = Heads::new(config.heads, config.head, head_norm);
        let qkv = QkvLayers::Joined("qkv_proj");
        let layers = AttentionLayers::unbiased(qkv, "out_proj", dim, heads);
        let gated = MlpLayers::GateFirst(["fc1", "fc2"]);
        Ok(Self {
            norms: [
                weights.rms_norm("norm1.weight", dim, EPS)?,
                weights.rms_norm("norm2.weight", dim, EPS)?,
            ],
            attn: Attention::new(&weights.at("attn"), &layers)?,
            mlp: Mlp::new(&weights.at("mlp"), gated, (dim, config.ffn), Bias::Without)?,
            told: told.then(level).transpose()?,
        })
    }

    /// Words looking at each other.
    fn refine(&self, x: &Tensor) -> Result<Tensor> {
        let qkv = self.attn.qkv(&self.norms[0].forward(x)?)?;
        let x = self.attn.add(&qkv.attend(Rotation::NONE, Mask::None)?, x)?;
        let inner = self.mlp.inner(&self.norms[1].forward(&x)?)?;
        self.mlp.add(&inner, &x)
    }

    fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let Some(told) = &self.told else {
            return self.refine(x);
        };
        let said = told.forward(pass.time)?;
        let dim = x.dim(2)?;
        let labels = said.dim(0)?;
        let said = said.reshape([labels * TAGS, 6 * dim])?;
        let row = |run: &Run, number: usize| -> Result<Tensor> {
            let row = said.narrow(0, run.label * TAGS + run.tag, 1)?;
            Ok(row.narrow(1, number * dim, dim)?)
        };
        let input = pass.modulated(&self.norms[0].forward(x)?, &row, [0, 1])?;
        let seen = self.attn.qkv(&input)?.attend(pass.turns, Mask::None)?;
        let x = pass.gated(x, &self.attn.out(&seen)?, &row, 2)?;
        let input = pass.modulated(&self.norms[1].forward(&x)?, &row, [3, 4])?;
        pass.gated(&x, &self.mlp.forward(&input)?, &row, 5)
    }
}

/// What all blocks of a pass look at.
struct Pass<'a> {
    /// (labels, width).
    time: &'a Tensor,
    turns: &'a Rope,
    runs: &'a [Run],
}

type Row<'a> = dyn Fn(&Run, usize) -> Result<Tensor> + 'a;

impl Pass<'_> {
    /// `x * (1 + scale) + shift`, each run with its own rows; shift and scale by number.
    fn modulated(&self, x: &Tensor, row: &Row<'_>, [shift, scale]: [usize; 2]) -> Result<Tensor> {
        self.each(|run| {
            let part = x.narrow(1, run.start, run.count)?;
            Ok(modulate(part, &row(run, scale)?, Some(&row(run, shift)?))?)
        })
    }

    /// `x + gate * y`.
    fn gated(&self, x: &Tensor, y: &Tensor, row: &Row<'_>, gate: usize) -> Result<Tensor> {
        self.each(|run| {
            let part = |x: &Tensor| x.narrow(1, run.start, run.count);
            Ok(add_gated(part(x)?, &row(run, gate)?, &part(y)?)?)
        })
    }

    fn each(&self, f: impl Fn(&Run) -> Result<Tensor>) -> Result<Tensor> {
        let parts = self.runs.iter().map(f).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?)
    }
}

enum Time {
    Layers([Arc<Linear>; 2], usize),
    Table(Arc<Value>),
}

impl Time {
    fn new(weights: &Walk<'_>, config: &TimeConfig) -> Result<Self> {
        Ok(match *config {
            TimeConfig::Layers([waves, inner, width]) => {
                let weights = weights.at("time_embedder");
                let first = weights.linear("proj_in", inner, waves)?;
                Self::Layers([first, weights.linear("proj_out", width, inner)?], waves)
            }
            TimeConfig::Table(rows, columns) => {
                Self::Table(weights.value("adaln_t_table", &[rows, columns])?)
            }
        })
    }

    /// What layers are told of each time, (times, width).
    fn forward(&self, times: &[f32], device: &Device) -> Result<Tensor> {
        match self {
            Self::Layers([first, second], waves) => {
                let waves = sinusoid(times, *waves)?.to(device)?;
                let inner = first.forward_with(&waves, then(fresco_tensor::nn::Act::Silu))?;
                Ok(silu(&second.forward(&inner)?))
            }
            Self::Table(table) => {
                let table = table.at(&Device::cpu())?;
                let (rows, columns) = (table.dim(0)?, table.dim(1)?);
                let mut out = Buffer::with_room(times.len() * columns)?;
                for time in times {
                    let at = time.clamp(0.0, 1.0) * (rows.max(1) - 1) as f32;
                    let low = (at.floor() as usize).min(rows.saturating_sub(1));
                    let high = (low + 1).min(rows.saturating_sub(1));
                    let share = at - low as f32;
                    let row = |n: usize| &table.data()[n * columns..][..columns];
                    let pairs = row(low).iter().zip(row(high));
                    out.extend(pairs.map(|(a, b)| a + (b - a) * share));
                }
                Ok(Tensor::from_buffer([times.len(), columns], out)?.to(device)?)
            }
        }
    }
}

pub struct MiniMaxNetwork {
    device: Device,
    pub(super) config: MiniMaxConfig,
    pictures: Arc<Linear>,
    sound: Arc<Linear>,
    words: Arc<Linear>,
    time: Time,
    refiners: Vec<Block>,
    refined: Arc<RmsNorm>,
    blocks: Vec<Block>,
    norm: Arc<RmsNorm>,
    told: Arc<Linear>,
    last_pictures: Arc<Linear>,
    last_sound: Arc<Linear>,
}

impl MiniMaxNetwork {
    pub(super) fn layers(weights: &Walk<'_>, config: &MiniMaxConfig) -> Result<Self> {
        let dim = config.dim;
        let values = config.channels * PATCH * PATCH;
        let list = |name: &str, count: usize, told: bool| -> Result<Vec<Block>> {
            let list = weights.at(name);
            list.each(count, |weights| Block::new(weights, config, told))
        };
        let last = weights.at("final_layer");
        Ok(Self {
            device: weights.device(),
            pictures: weights.linear("video_patch_proj", dim, values)?,
            sound: weights.linear("audio_patch_proj", dim, config.sound)?,
            words: weights.linear("condition_proj", dim, config.context)?,
            time: Time::new(weights, &config.time)?,
            refiners: list("token_refiner.blocks", config.refiners, false)?,
            refined: weights.rms_norm("token_refiner.final_norm.weight", dim, EPS)?,
            blocks: list("blocks", config.blocks, true)?,
            norm: last.rms_norm("norm.weight", dim, EPS)?,
            told: last.linear("adaln_proj.linear", 2 * dim, config.time.width())?,
            last_pictures: last.linear("video_out", values, dim)?,
            last_sound: last.linear("audio_out", config.sound, dim)?,
            config: config.clone(),
        })
    }

    /// One pass: what leads from noise to data for all tokens of pictures and of sound, in main memory.
    pub fn pass(&self, sequence: &Sequence<'_>, hooks: &Hooks) -> Result<(Tensor, Tensor)> {
        let device = &self.device;
        let total: usize = sequence.segments.iter().map(|s| s.count).sum();
        let known = sequence.times.len();
        let fits = sequence.places.len() == 3 * total
            && sequence.tags.len() == total
            && sequence.labels.len() == total
            && sequence.tags.iter().all(|tag| *tag < TAGS)
            && sequence.labels.iter().all(|label| *label < known);
        if !fits || total == 0 {
            let reason = format!("{total} tokens do not fit to what is said of them");
            return Err(ModelError::invalid("sequence", reason));
        }
        let mut words = self.words.forward(&sequence.words.to(device)?)?;
        for block in &self.refiners {
            hooks.check()?;
            words = block.refine(&words)?;
        }
        let words = self.refined.forward(&words)?;
        let pictures = self.pictures.forward(&sequence.pictures.to(device)?)?;
        let sound = self.sound.forward(&sequence.sound.to(device)?)?;
        let mut used = [0; 3];
        let mut parts = Vec::new();
        for segment in sequence.segments {
            let (at, from) = match segment.of {
                Tokens::Words => (0, &words),
                Tokens::Pictures => (1, &pictures),
                Tokens::Sound => (2, &sound),
            };
            parts.push(from.narrow(1, used[at], segment.count)?);
            used[at] += segment.count;
        }
        let x = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?;
        drop((parts, words, pictures, sound));
        let time = self.time.forward(sequence.times, device)?;
        let runs = runs(sequence.labels, sequence.tags);
        let pass = Pass {
            time: &time,
            turns: &turns(sequence.places, self.config.axis, device)?,
            runs: &runs,
        };
        let (kind, count) = (BlockKind::DOUBLE, self.blocks.len());
        let at = (hooks, sequence.pictures.shape());
        let blocks = Blocks::of(kind, count, self.config.heads, [1, 1, total], at);
        let x = blocks.run(x, |number, x| self.blocks[number].forward(&x, &pass))?;
        let said = self.told.forward(&time)?;
        let dim = self.config.dim;
        let row = |run: &Run, number: usize| -> Result<Tensor> {
            let row = said.narrow(0, run.label, 1)?;
            Ok(row.narrow(1, number * dim, dim)?)
        };
        let x = pass.modulated(&self.norm.forward(&x)?, &row, [0, 1])?;
        let of = |kind: Tokens, layer: &Linear| -> Result<Tensor> {
            let mut start = 0;
            let mut parts = Vec::new();
            for segment in sequence.segments {
                if segment.of == kind {
                    parts.push(x.narrow(1, start, segment.count)?);
                }
                start += segment.count;
            }
            let rows = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?;
            Ok(layer.forward(&rows)?.to(&Device::cpu())?)
        };
        Ok((
            of(Tokens::Pictures, &self.last_pictures)?,
            of(Tokens::Sound, &self.last_sound)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_neighbours_are_one_run() {
        let found = runs(&[0, 0, 1, 1, 0], &[1, 1, 2, 0, 0]);
        let counts: Vec<_> = found.iter().map(|r| (r.start, r.count)).collect();
        assert_eq!(counts, [(0, 2), (2, 1), (3, 1), (4, 1)]);
    }
}
