//! The shape of the network, read from keys and shapes.

use crate::error::{ModelError, Result};
use crate::store::{Layout, WeightStore};
use crate::vae::Vae;
use crate::vae::autoencoder::{AutoencoderConfig, Side, VaeFacts};
use crate::vae::memory::VaeMemory;

use super::model::{ReplicatedVae, WHAT};

/// More levels, and more blocks in one, than any of these has.
const MOST: usize = 64;
/// Doublings of the number of frames of those with group norms; no shape says it.
const DOUBLED: usize = 2;

/// What changes the size after a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resample {
    /// Channels of the convolution, in and out, and of what comes out in the end.
    pub input: usize,
    pub rows: usize,
    pub to: usize,
    /// Whether the number of frames changes too.
    pub time: bool,
}

/// Blocks one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedLevel {
    /// Its number in the file.
    pub number: usize,
    /// Channels in and out of each block.
    pub blocks: Vec<(usize, usize)>,
    pub resample: Option<Resample>,
}

/// The encoder or the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedHalf {
    /// Channels of the first convolution, in and out.
    pub first: (usize, usize),
    /// In the order they run.
    pub levels: Vec<ReplicatedLevel>,
    /// Channels of the blocks at the bottom, of the last norm, and those that come out.
    pub middle: usize,
    pub last: usize,
    pub out: usize,
}

/// The shape of the network. Files with one half only load too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedConfig {
    pub encoder: Option<ReplicatedHalf>,
    pub decoder: Option<ReplicatedHalf>,
    /// Whether norms are over groups of channels; the others fold.
    pub grouped: bool,
    /// Channels that the small layers between the halves and the latent make.
    pub quant: Option<usize>,
    pub post_quant: Option<usize>,
}

/// Channels in and out of a convolution.
fn pair(store: &WeightStore, key: &str) -> Result<(usize, usize)> {
    match store.shape(key) {
        Some(&[out, input, ..]) if out > 0 && input > 0 => Ok((input, out)),
        Some(found) => Err(ModelError::Shape {
            file: store.file().to_owned(),
            key: key.to_owned(),
            expected: "a convolution".to_owned(),
            found: found.to_vec(),
        }),
        None => Err(ModelError::Missing {
            file: store.file().to_owned(),
            key: key.to_owned(),
        }),
    }
}

impl ReplicatedHalf {
    fn detect(store: &WeightStore, side: Side, grouped: bool) -> Result<Option<Self>> {
        let half = side.pick("encoder", "decoder");
        let first = format!("{half}.conv_in.conv.weight");
        if !store.has(&first) {
            return Ok(None);
        }
        let (list, resize) = side.pick(("down", "downsample"), ("up", "upsample"));
        let block = |level: usize, number: usize| {
            format!("{half}.{list}.{level}.block.{number}.conv1.conv.weight")
        };
        let count = (0..MOST).take_while(|&n| store.has(&block(n, 0))).count();
        let mut order: Vec<usize> = (0..count).collect();
        if side == Side::Decoder && grouped {
            // Numbers count from the picture inwards.
            order.reverse();
        }
        let mut levels = Vec::new();
        for (place, &number) in order.iter().enumerate() {
            let there = (0..MOST).take_while(|&n| store.has(&block(number, n)));
            let blocks = there.map(|n| pair(store, &block(number, n)));
            let key = format!("{half}.{list}.{number}.{resize}.conv.conv.weight");
            let resample = if store.has(&key) {
                let (input, rows) = pair(store, &key)?;
                let next = order.get(place + 1).map(|&n| pair(store, &block(n, 0)));
                let next = next.transpose()?.map(|(input, _)| input);
                Some(if grouped {
                    let inner = side.pick(count - 1 - number, number);
                    Resample {
                        input,
                        rows,
                        to: rows,
                        time: inner <= DOUBLED,
                    }
                } else {
                    folds(store, &key, (input, rows), next.unwrap_or(0), side)?
                })
            } else {
                None
            };
            levels.push(ReplicatedLevel {
                number,
                blocks: blocks.collect::<Result<_>>()?,
                resample,
            });
        }
        let (last, out) = pair(store, &format!("{half}.conv_out.conv.weight"))?;
        Ok(Some(Self {
            first: pair(store, &first)?,
            levels,
            middle: pair(store, &format!("{half}.mid.block_1.conv1.conv.weight"))?.0,
            last,
            out,
        }))
    }

    /// Halvings or doublings of the size, and of the number of frames.
    fn resamplings(&self) -> (usize, usize) {
        let found = self.levels.iter().filter_map(|level| level.resample);
        found.fold((0, 0), |(size, frames), one| {
            (size + 1, frames + usize::from(one.time))
        })
    }
}

/// What a layer that folds makes of its channels, by those of the level after it.
fn folds(
    store: &WeightStore,
    key: &str,
    (input, rows): (usize, usize),
    to: usize,
    side: Side,
) -> Result<Resample> {
    let (large, small) = side.pick((to, rows), (rows, to));
    let cells = large.checked_div(small).unwrap_or(0);
    if !matches!(cells, 4 | 8) || small * cells != large {
        let reason = format!("{key} makes {rows} channels of {input}, and {to} follow");
        return Err(ModelError::unsupported(store.file(), reason));
    }
    Ok(Resample {
        input,
        rows,
        to,
        time: cells == 8,
    })
}

/// The key by which such files are known.
const SIGN: &str = "conv_in.conv.weight";

impl ReplicatedConfig {
    /// Whether a store has such an autoencoder.
    pub fn is_in(store: &WeightStore) -> bool {
        ["decoder", "encoder"].iter().any(|half| {
            let middle = format!("{half}.mid.block_1.conv1.conv.weight");
            store.has(&format!("{half}.{SIGN}")) && store.has(&middle)
        })
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let grouped = ["decoder", "encoder"]
            .iter()
            .any(|half| store.has(&format!("{half}.norm_out.weight")));
        let rows = |key: &str| store.shape(key).and_then(|shape| shape.first().copied());
        let found = Self {
            encoder: ReplicatedHalf::detect(store, Side::Encoder, grouped)?,
            decoder: ReplicatedHalf::detect(store, Side::Decoder, grouped)?,
            grouped,
            quant: rows("quant_conv.weight"),
            post_quant: rows("post_quant_conv.weight"),
        };
        let (size, frames) = found.half().map_or((0, 0), ReplicatedHalf::resamplings);
        // The sizes of results are made of these.
        if size > 6 || frames > 4 {
            let reason = format!("{size} halvings of the size and {frames} of the frames");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(found)
    }

    fn half(&self) -> Option<&ReplicatedHalf> {
        self.decoder.as_ref().or(self.encoder.as_ref())
    }

    pub fn latent_channels(&self) -> usize {
        match (&self.decoder, &self.encoder) {
            (Some(decoder), _) => decoder.first.0,
            (None, Some(encoder)) => encoder.out / 2,
            (None, None) => 0,
        }
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        1 << self.half().map_or(0, |half| half.resamplings().0)
    }

    /// Frames for one latent frame after the first.
    pub fn temporal_ratio(&self) -> usize {
        1 << self.half().map_or(0, |half| half.resamplings().1)
    }
}

impl AutoencoderConfig for ReplicatedConfig {
    fn facts(&self) -> VaeFacts {
        let memory = if self.grouped {
            VaeMemory::Grouped
        } else {
            VaeMemory::Folded
        };
        let channels = self.latent_channels();
        VaeFacts::film(channels, self.ratio(), self.temporal_ratio()).with_memory(memory)
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        Layout::of(|weights| ReplicatedVae::walk(weights, self))?.verify(store, WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(ReplicatedVae::new(store, self)?.into())
    }
}
