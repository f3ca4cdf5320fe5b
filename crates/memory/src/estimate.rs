//! How many bytes computing needs beside the weights: by a model's factor, shapes and size of a number. Pure.
//!
//! Tables, not physics: the numbers are the reference's, because users tuned their workflows to them.

use crate::amount::{MIB, clamp, times};

/// A fraction, so that bytes come out exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor {
    pub over: u64,
    pub under: u64,
}

impl Factor {
    pub const fn new(over: u64, under: u64) -> Self {
        Self { over, under }
    }

    pub fn value(self) -> f64 {
        self.over as f64 / self.under.max(1) as f64
    }
}

/// What a family of models says about its needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelNeeds {
    /// How much more than the rule of thumb a pass takes.
    pub factor: Factor,
    /// How reference latents count.
    pub references: References,
    /// Whether the frames that a motion goes on from count.
    pub motion: bool,
}

/// How the reference latents of a conditioning count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum References {
    #[default]
    Nothing,
    /// Their places, as those of the latent do.
    Places,
    /// A sixteenth of their values.
    Sixteenth,
}

impl ModelNeeds {
    /// A model that looks at no conditioning of these kinds.
    pub fn of(factor: Factor) -> Self {
        Self {
            factor,
            references: References::Nothing,
            motion: false,
        }
    }

    /// What a conditioning adds, in half elements (one kind counts one and a half frames). None: nothing.
    fn counted(self, conditioning: &Conditioning) -> Option<Counted> {
        let (weight, halves) = match (conditioning, self.references) {
            (Conditioning::ReferenceLatents(list), References::Places) => {
                let spatial = sum(list
                    .iter()
                    .map(|shape| product(shape.get(2..).unwrap_or(&[]))));
                (spatial, spatial.saturating_mul(2))
            }
            (Conditioning::ReferenceLatents(list), References::Sixteenth) => {
                let sixteenth = sum(list.iter().map(|shape| product(shape))) / 16;
                (sixteenth, sixteenth.saturating_mul(2))
            }
            (Conditioning::ReferenceMotion(shape), _) if self.motion => {
                // [s0, s1, 1.5, s-2, s-1]
                let last = |back: usize| {
                    shape
                        .len()
                        .checked_sub(back)
                        .and_then(|i| shape.get(i))
                        .copied()
                };
                let plane = product(&[last(2).unwrap_or(0), last(1).unwrap_or(0)]);
                let halves = plane
                    .saturating_mul(3)
                    .saturating_mul(shape.first().copied().unwrap_or(0).into());
                let channels = shape.get(1).copied().unwrap_or(0);
                (halves.saturating_mul(channels.into()), halves)
            }
            _ => return None,
        };
        Some(Counted {
            motion: matches!(conditioning, Conditioning::ReferenceMotion(_)),
            weight,
            halves,
        })
    }
}

struct Counted {
    /// The kind.
    motion: bool,
    /// Decides which one of a kind is the largest.
    weight: u128,
    halves: u128,
}

/// What of a conditioning may need memory. One for each conditioning that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conditioning {
    /// The shapes of all its reference latents.
    ReferenceLatents(Vec<Vec<u64>>),
    ReferenceMotion(Vec<u64>),
}

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Attention {
    /// Without the whole matrix in memory.
    #[default]
    Efficient,
    Plain,
}

/// One use of a diffusion model.
#[derive(Debug, Clone)]
pub struct Sampling<'a> {
    pub needs: ModelNeeds,
    /// (b, c, ...)
    pub noise: &'a [u64],
    pub conditionings: &'a [Conditioning],
    /// Bytes of a number: of the type it computes in, or else of the weights.
    pub dtype: u64,
    pub attention: Attention,
    /// Bytes that control networks add.
    pub control: u64,
}

/// What a load request is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    pub required: u64,
    pub minimum: u64,
}

/// Both sides of guidance at once, or one of them with the largest conditioning of each kind.
pub fn sampling(request: &Sampling<'_>) -> Estimate {
    let noise = area(request.noise);
    let counted: Vec<Counted> = (request.conditionings.iter())
        .filter_map(|conditioning| request.needs.counted(conditioning))
        .collect();
    let all = sum(counted.iter().map(|one| one.halves));
    let largest = sum([false, true].map(|motion| {
        let kind = counted.iter().filter(|one| one.motion == motion);
        // The first of equals, as the reference has it.
        kind.rev()
            .max_by_key(|one| one.weight)
            .map_or(0, |one| one.halves)
    }));
    let bytes = |halves: u128| {
        let bytes = halves_bytes(
            halves,
            request.needs.factor,
            request.dtype,
            request.attention,
        );
        bytes.saturating_add(request.control)
    };
    Estimate {
        required: bytes(noise.saturating_mul(4).saturating_add(all)),
        minimum: bytes(noise.saturating_mul(2).saturating_add(largest)),
    }
}

/// Bytes for an area, as for one pass at sampling.
pub fn area_bytes(area: u128, factor: Factor, dtype: u64, attention: Attention) -> u64 {
    halves_bytes(area.saturating_mul(2), factor, dtype, attention)
}

fn halves_bytes(halves: u128, factor: Factor, dtype: u64, attention: Attention) -> u64 {
    // 0.01 for each byte of a number, or 0.15.
    let hundredths = match attention {
        Attention::Efficient => u128::from(dtype),
        Attention::Plain => 15,
    };
    let over = halves
        .saturating_mul(hundredths)
        .saturating_mul(factor.over.into())
        .saturating_mul(MIB.into());
    clamp(over.div_ceil(200 * u128::from(factor.under.max(1))))
}

/// Batch times places: `shape[0]` and `shape[2..]`, channels do not count.
pub fn area(shape: &[u64]) -> u128 {
    let batch = shape.first().copied().unwrap_or(0);
    product(shape.get(2..).unwrap_or(&[])).saturating_mul(batch.into())
}

fn product(shape: &[u64]) -> u128 {
    shape.iter().fold(1, |a, b| a.saturating_mul((*b).into()))
}

fn sum(list: impl IntoIterator<Item = u128>) -> u128 {
    list.into_iter().fold(0, u128::saturating_add)
}

/// Bytes a control network adds. Only the kind that borrows the model's own layers adds any.
pub fn control_lora(parameters: u64, dtype: u64) -> u64 {
    parameters.saturating_mul(dtype)
}

/// How many of `count` conditionings that go together are computed at once: all, or a half, a third, ... of them, the
/// first for which one and a half times the estimate is free; at least one.
pub fn batch(count: usize, free: u64, mut estimate: impl FnMut(usize) -> u64) -> usize {
    let mut part = 1;
    while part <= count {
        let size = count / part;
        if u128::from(estimate(size)) * 3 < u128::from(free) * 2 {
            return size;
        }
        // The next divisor that gives another size.
        part = count / size + 1;
    }
    count.min(1)
}

/// Autoencoders, as far as their needs differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vae {
    /// SD, SDXL, SD3, Flux.
    Kl {
        amd: bool,
    },
    /// Flux2: with a batch norm of the latent.
    KlBatchNorm {
        amd: bool,
    },
    /// HunyuanImage: 64 channels.
    HunyuanImage,
    /// The refiner's: 32 channels, five dimensions.
    Refiner,
    StableAudio,
    Mochi,
    Ltxv,
    HunyuanVideo15,
    HunyuanVideo,
    Cosmos,
    Wan22,
    /// And Qwen.
    Wan21,
    Hunyuan3d,
    AceStep,
    Pixels,
    MmAudio,
    TinyWan22,
    /// The light one of HunyuanVideo 1.5.
    TinyHunyuanVideo15,
    TinyVideo,
}

impl Vae {
    /// Autoencoders of films by how they are made: with group norms over pieces of a film, with cells that are put onto
    /// channels, as a stack of blocks, with wavelets, and the small ones.
    pub const GROUPED_FILM: Self = Self::HunyuanVideo;
    pub const FOLDED_FILM: Self = Self::HunyuanVideo15;
    pub const STACKED_FILM: Self = Self::Mochi;
    pub const WAVELET_FILM: Self = Self::Cosmos;
    pub const SMALL_FILM: Self = Self::TinyVideo;

    /// Bytes for decoding a latent of this shape: (b, c, h, w), (b, c, t, h, w) or (b, c, l).
    pub fn decode(self, shape: &[u64], dtype: u64) -> u64 {
        let Dims { plane, frames } = Dims::of(shape);
        let at = |i: usize| u128::from(shape.get(i).copied().unwrap_or(1));
        let t = frames;
        let elements = match self {
            Self::Kl { amd } => return kl(many(&[2178, plane, 64]), dtype, amd),
            Self::KlBatchNorm { amd } => return kl(many(&[2178, plane, 64, 4]), dtype, amd),
            Self::HunyuanImage => many(&[700, plane, 32, 32]),
            Self::Refiner => many(&[2800, t, plane, 16, 16]),
            Self::StableAudio => many(&[1000, at(2), 2048]),
            Self::Mochi => many(&[1000, t, plane, 384]),
            Self::Ltxv => many(&[900, t, plane, 512]),
            Self::HunyuanVideo15 => many(&[3600, 4, plane, 256]),
            Self::HunyuanVideo => {
                let frames = t.saturating_sub(1).saturating_mul(4).saturating_add(1);
                many(&[2800, frames.min(8), plane, 64])
            }
            Self::Cosmos => many(&[50, t, plane, 512]),
            Self::Wan22 => many(&[8000, plane, 256]),
            Self::Wan21 => many(&[if t <= 4 { 2200 } else { 7000 }, plane, 64]),
            Self::Hunyuan3d => many(&[at(0), at(1), at(2), 1 + 2 * 16]),
            Self::AceStep => many(&[at(2), at(3), 87000]),
            Self::Pixels => many(&[at(2), at(3)]),
            // 90 * 1411.2
            Self::MmAudio => many(&[at(2), 127_008]),
            Self::TinyWan22 => return growing(many(&[1800, plane, 256]), t, 0.1, 0.7, dtype),
            Self::TinyHunyuanVideo15 => {
                return growing(many(&[1200, plane, 1024]), t, 0.05, 0.7, dtype);
            }
            Self::TinyVideo => return growing(many(&[50, plane, 1024]), t, 0.26, 0.65, dtype),
        };
        clamp(elements.saturating_mul(dtype.into()))
    }

    /// Bytes for encoding pixels of this shape: (b, c, h, w), (b, c, t, h, w), or sound (b, c, l).
    pub fn encode(self, shape: &[u64], dtype: u64) -> u64 {
        let Dims { plane, frames } = Dims::of(shape);
        let at = |i: usize| u128::from(shape.get(i).copied().unwrap_or(1));
        let t = frames;
        let elements = match self {
            Self::Kl { amd } | Self::KlBatchNorm { amd } => {
                return kl(many(&[1767, plane]), dtype, amd);
            }
            // They have no number of their own.
            Self::TinyWan22 | Self::TinyHunyuanVideo15 => many(&[1767, plane]),
            Self::HunyuanImage => many(&[700, plane]),
            Self::Refiner => many(&[2800, plane]),
            Self::StableAudio => many(&[1000, at(2)]),
            // 1.5 * 384
            Self::Mochi => many(&[576, t.max(7), plane]),
            Self::Ltxv => many(&[70, t.max(7), plane]),
            Self::HunyuanVideo15 => many(&[1400, 9, plane]),
            Self::HunyuanVideo => many(&[1400, t.min(9), plane]),
            Self::Cosmos => many(&[50, 8, eighths(t.saturating_add(7)), plane]),
            Self::Wan22 => many(&[3300, plane]),
            Self::Wan21 => many(&[if t <= 4 { 1500 } else { 6000 }, plane]),
            Self::Hunyuan3d => many(&[at(0), at(1), at(2)]),
            Self::AceStep => many(&[at(2), 330]),
            Self::Pixels => many(&[at(2), at(3)]),
            Self::MmAudio => many(&[at(2), 30]),
            Self::TinyVideo => return growing(many(&[700, plane]), t, 0.11, 0.66, dtype),
        };
        clamp(elements.saturating_mul(dtype.into()))
    }

    /// Whether it cannot be streamed in parts.
    pub fn needs_full_load(self) -> bool {
        matches!(self, Self::StableAudio | Self::AceStep)
    }
}

/// The dimensions that matter.
struct Dims {
    /// Height times width: the last two.
    plane: u128,
    /// The one before them, 1 for a picture.
    frames: u128,
}

impl Dims {
    fn of(shape: &[u64]) -> Self {
        let from_end = |back: usize| {
            shape
                .len()
                .checked_sub(back)
                .and_then(|i| shape.get(i))
                .copied()
        };
        Self {
            plane: product(&[from_end(2).unwrap_or(1), from_end(1).unwrap_or(1)]),
            frames: if shape.len() >= 5 {
                from_end(3).unwrap_or(1).into()
            } else {
                1
            },
        }
    }
}

fn many(numbers: &[u128]) -> u128 {
    numbers.iter().fold(1, |a, b| a.saturating_mul(*b))
}

/// AMD's convolutions take 2.73 times as much.
fn kl(elements: u128, dtype: u64, amd: bool) -> u64 {
    let bytes = elements.saturating_mul(dtype.into());
    clamp(if amd {
        bytes.saturating_mul(273).div_ceil(100)
    } else {
        bytes
    })
}

/// `max(1, slope * frames ^ power)` times as much.
fn growing(elements: u128, frames: u128, slope: f64, power: f64, dtype: u64) -> u64 {
    let factor = (slope * (frames as f64).powf(power)).max(1.0);
    clamp(times(clamp(elements.saturating_mul(dtype.into())), factor))
}

/// `value / 8` rounded to the nearest, halves to the even one.
fn eighths(value: u128) -> u128 {
    let (whole, rest) = (value / 8, value % 8);
    let up = rest > 4 || (rest == 4 && whole % 2 == 1);
    whole + u128::from(up)
}

/// How many items go through an autoencoder at once.
pub fn items_per_pass(free: u64, estimate: u64) -> u64 {
    (free / estimate.max(1)).max(1)
}

/// Free bytes an upscale model wants: its weights, a tile of 512 pixels a side, and the pictures.
pub fn upscale(module: u64, element: u64, scale: f64, input: u64) -> u64 {
    let tile = many(&[512 * 512 * 3, 384, element.into()]);
    let tile = times(
        clamp(tile),
        if scale.is_nan() { 1.0 } else { scale.max(1.0) },
    );
    clamp(
        tile.saturating_add(module.into())
            .saturating_add(input.into()),
    )
}
