//! An autoencoder of films that begins and ends with wavelets: sums and differences of neighbours in time, height and width,
//! twice. Convolutions are over a frame or over time, never both.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv3d, GroupNorm, Linear, Mask, Value};
use fresco_tensor::nn::{avg_pool2d, upsample_nearest};
use fresco_tensor::{Device, Tensor};

use super::autoencoder::{Autoencoder, AutoencoderConfig, Side, VaeFacts};
use super::cells::CellAttention;
use super::film::each_film;
use super::images::Vae;
use super::kl::Check;
use super::memory::VaeMemory;
use crate::error::{ModelError, Result};
use crate::store::{Layout, Walk, WeightStore};
use crate::transformer::QkvLayers;

/// The network in messages.
const WHAT: &str = "the autoencoder";

const EPS: f32 = 1e-6;
const FLAT: [usize; 3] = [1, 3, 3];
const TIME: [usize; 3] = [3, 1, 1];
/// Times that neighbours are added and subtracted, and what that makes of one cell.
const WAVES: usize = 2;
const PATCH: usize = 1 << WAVES;
const BANDS: usize = 8;
/// Latents are this wide.
const DEVIATION: f32 = 0.5;
/// More levels, and more blocks in one, than any of these has.
const MOST: usize = 64;

/// Blocks one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaveletLevel {
    pub number: usize,
    /// Channels in and out of each block.
    pub blocks: Vec<(usize, usize)>,
    /// Whether it changes the size, and the number of frames.
    pub space: bool,
    pub time: bool,
}

/// The encoder or the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaveletHalf {
    /// Channels of the first convolution, in and out.
    pub first: (usize, usize),
    /// In the order they run.
    pub levels: Vec<WaveletLevel>,
    pub middle: usize,
    /// Channels of the last convolution, in and out.
    pub last: (usize, usize),
}

/// The shape of the network. Files with one half only load too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaveletConfig {
    pub encoder: Option<WaveletHalf>,
    pub decoder: Option<WaveletHalf>,
    /// Latent frames that have a mean and a deviation of their own.
    pub measured: usize,
    latent: usize,
}

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

impl WaveletHalf {
    fn detect(store: &WeightStore, half: &str) -> Result<Option<Self>> {
        let first = format!("{half}.conv_in.0.conv3d.weight");
        if !store.has(&first) {
            return Ok(None);
        }
        let up = half == "decoder";
        let list = if up { "up" } else { "down" };
        let block = |level: usize, number: usize| {
            format!("{half}.{list}.{level}.block.{number}.conv1.0.conv3d.weight")
        };
        let count = (0..MOST).take_while(|&n| store.has(&block(n, 0))).count();
        let mut levels = Vec::new();
        for number in 0..count {
            let there = (0..MOST).take_while(|&n| store.has(&block(number, n)));
            let blocks = there.map(|n| pair(store, &block(number, n)));
            let resize = format!("{half}.{list}.{number}.{list}sample");
            let has = |conv: usize| store.has(&format!("{resize}.conv{conv}.conv3d.weight"));
            levels.push(WaveletLevel {
                number,
                blocks: blocks.collect::<Result<_>>()?,
                space: has(if up { 2 } else { 1 }),
                time: has(if up { 1 } else { 2 }),
            });
        }
        if up {
            // Numbers count from the picture inwards.
            levels.reverse();
        }
        let middle = format!("{half}.mid.block_1.conv1.0.conv3d.weight");
        Ok(Some(Self {
            first: pair(store, &first)?,
            levels,
            middle: pair(store, &middle)?.0,
            last: pair(store, &format!("{half}.conv_out.0.conv3d.weight"))?,
        }))
    }
}

impl WaveletConfig {
    pub fn is_in(store: &WeightStore) -> bool {
        ["decoder", "encoder"]
            .iter()
            .any(|half| store.has(&format!("{half}.conv_in.0.conv3d.weight")))
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let encoder = WaveletHalf::detect(store, "encoder")?;
        let decoder = WaveletHalf::detect(store, "decoder")?;
        let latent = match (&decoder, &encoder) {
            (Some(decoder), _) => decoder.first.0,
            (None, Some(encoder)) => encoder.last.1,
            (None, None) => 0,
        };
        let values = store.shape("latent_mean").map_or(0, |s| s.iter().product());
        if latent == 0 || values == 0 || !values.is_multiple_of(latent) {
            let reason = format!("{values} means do not fit latents of {latent} channels");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let found = Self {
            encoder,
            decoder,
            measured: values / latent,
            latent,
        };
        let (space, time) = found.resamplings();
        if space > 6 || time > 4 {
            let reason = format!("{space} halvings of the size and {time} of the frames");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(found)
    }

    fn resamplings(&self) -> (usize, usize) {
        let half = self.decoder.as_ref().or(self.encoder.as_ref());
        let levels = half.map_or(&[][..], |half| &half.levels);
        levels.iter().fold((0, 0), |(space, time), level| {
            (
                space + usize::from(level.space),
                time + usize::from(level.time),
            )
        })
    }

    pub fn latent_channels(&self) -> usize {
        self.latent
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        PATCH << self.resamplings().0
    }

    /// Frames for one latent frame after the first.
    pub fn temporal_ratio(&self) -> usize {
        PATCH << self.resamplings().1
    }
}

impl AutoencoderConfig for WaveletConfig {
    fn facts(&self) -> VaeFacts {
        let channels = self.latent_channels();
        VaeFacts::film(channels, self.ratio(), self.temporal_ratio())
            .with_memory(VaeMemory::Wavelet)
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        Layout::of(|weights| WaveletVae::walk(weights, self))?.verify(store, WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(WaveletVae::new(store, self)?.into())
    }
}

/// With the first frame again so many times before it.
fn preceded(x: &Tensor, times: usize) -> Result<Tensor> {
    let mut places = vec![0; times];
    places.extend(0..x.dim(0)?);
    Ok(x.index_select(0, &places)?)
}

/// Over a frame, then over time.
struct Both {
    flat: Arc<Conv3d>,
    time: Arc<Conv3d>,
}

impl Both {
    fn new(weights: &Walk<'_>, name: &str, out: usize, input: usize) -> Result<Self> {
        let weights = weights.at(name);
        Ok(Self {
            flat: weights.conv3d("0.conv3d", out, input, FLAT)?,
            time: weights.conv3d("1.conv3d", out, out, TIME)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.flat.forward(x, &[], None)?;
        Ok(self.time.strided(&preceded(&h, 2)?, 1)?)
    }
}

/// Norm, activation, convolution, twice. Norms are over whole frames.
struct Residual {
    norm1: Arc<GroupNorm>,
    conv1: Both,
    norm2: Arc<GroupNorm>,
    conv2: Both,
    shortcut: Option<Arc<Linear>>,
}

impl Residual {
    fn new(weights: &Walk<'_>, (input, out): (usize, usize)) -> Result<Self> {
        Ok(Self {
            norm1: weights.group_norm("norm1.norm", input, 1, EPS)?,
            conv1: Both::new(weights, "conv1", out, input)?,
            norm2: weights.group_norm("norm2.norm", out, 1, EPS)?,
            conv2: Both::new(weights, "conv2", out, out)?,
            shortcut: (input != out)
                .then(|| weights.linear("nin_shortcut.conv3d", out, input))
                .transpose()?,
        })
    }

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let h = self.conv1.forward(&self.norm1.forward(&x, Act::Silu)?)?;
        let h = self.conv2.forward(&self.norm2.forward(&h, Act::Silu)?)?;
        let x = match &self.shortcut {
            Some(shortcut) => shortcut.forward(&x)?,
            None => x,
        };
        Ok(x.add(&h)?)
    }
}

/// What a cell looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// The cells of its frame.
    Frame,
    /// Itself in the frames before.
    Past,
}

struct Attention {
    norm: Arc<GroupNorm>,
    cells: CellAttention,
    sight: Sight,
}

impl Attention {
    fn new(weights: &Walk<'_>, channels: usize, sight: Sight) -> Result<Self> {
        let qkv = QkvLayers::Apart(["q.conv3d", "k.conv3d", "v.conv3d"]);
        Ok(Self {
            norm: weights.group_norm("norm.norm", channels, 1, EPS)?,
            cells: CellAttention::new(weights, qkv, "proj_out.conv3d", channels)?,
            sight,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [t, h, w, c] = x.dims4()?;
        let rows = self.norm.forward(x, Act::None)?.reshape([t, h * w, c])?;
        let seen = match self.sight {
            Sight::Frame => self.cells.attend(rows, Mask::None)?,
            Sight::Past => {
                let seen = self.cells.attend(rows.permute(&[1, 0, 2])?, Mask::Causal)?;
                seen.permute(&[1, 0, 2])?
            }
        };
        self.cells.add(&seen, x)
    }
}

/// The blocks of one size and what changes it.
struct Level {
    blocks: Vec<Residual>,
    space: Option<Arc<Conv3d>>,
    time: Option<Arc<Conv3d>>,
    point: Option<Arc<Linear>>,
}

impl Level {
    fn new(weights: &Walk<'_>, level: &WaveletLevel, side: Side) -> Result<Self> {
        let list = weights.at("block");
        let blocks = level.blocks.iter().enumerate();
        let blocks = blocks.map(|(number, sizes)| Residual::new(&list.at(number), *sizes));
        let channels = level.blocks.last().map_or(0, |sizes| sizes.1);
        let resize = weights.at(side.pick("downsample", "upsample"));
        let convs = ("conv1.conv3d", "conv2.conv3d");
        let (first, second) = side.pick(convs, (convs.1, convs.0));
        let conv = |name: &str, kernel| resize.conv3d(name, channels, channels, kernel);
        Ok(Self {
            blocks: blocks.collect::<Result<_>>()?,
            space: level.space.then(|| conv(first, FLAT)).transpose()?,
            time: level.time.then(|| conv(second, TIME)).transpose()?,
            point: (level.space || level.time)
                .then(|| resize.linear("conv3.conv3d", channels, channels))
                .transpose()?,
        })
    }

    fn blocks(&self, mut x: Tensor, check: Check<'_>) -> Result<Tensor> {
        for block in &self.blocks {
            check()?;
            x = block.forward(x)?;
        }
        Ok(x)
    }

    fn down(&self, x: Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut x = self.blocks(x, check)?;
        if let Some(conv) = &self.space {
            let [_, h, w, _] = x.dims4()?;
            if h % 2 != 0 || w % 2 != 0 {
                let reason = format!("frames of {w}x{h} cells cannot be halved");
                return Err(ModelError::invalid("VAE encode", reason));
            }
            // Zeros stand to the right of a frame and below it only.
            let odd = |len: usize| -> Vec<usize> { (1..len).step_by(2).collect() };
            let made = conv.forward(&x, &[], None)?;
            let made = made.index_select(1, &odd(h))?.index_select(2, &odd(w))?;
            x = made.add(&avg_pool2d(&x, 2)?)?;
        }
        if let Some(conv) = &self.time {
            let all = preceded(&x, 1)?;
            let made = conv.strided(&preceded(&all, 1)?, 2)?;
            let count = made.dim(0)?;
            let pick = |from: usize| -> Result<Tensor> {
                let places: Vec<usize> = (0..count).map(|i| 2 * i + from).collect();
                Ok(all.index_select(0, &places)?)
            };
            x = made.add(&pick(0)?.add(&pick(1)?)?.mul_scalar(0.5))?;
        }
        self.last(x)
    }

    fn up(&self, x: Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut x = self.blocks(x, check)?;
        if let Some(conv) = &self.time {
            let frames = x.dim(0)?;
            if frames > 1 {
                let places: Vec<usize> = (1..2 * frames).map(|i| i / 2).collect();
                x = x.index_select(0, &places)?;
            }
            x = conv.strided(&preceded(&x, 2)?, 1)?.add(&x)?;
        }
        if let Some(conv) = &self.space {
            let [_, h, w, _] = x.dims4()?;
            x = upsample_nearest(&x, 2 * h, 2 * w)?;
            x = conv.forward(&x, &[], Some(x.clone()))?;
        }
        self.last(x)
    }

    fn last(&self, x: Tensor) -> Result<Tensor> {
        match &self.point {
            Some(point) => Ok(point.forward(&x)?),
            None => Ok(x),
        }
    }
}

struct Half {
    conv_in: Both,
    levels: Vec<Level>,
    middle: (Residual, [Attention; 2], Residual),
    norm_out: Arc<GroupNorm>,
    conv_out: Both,
}

impl Half {
    fn new(weights: &Walk<'_>, half: &WaveletHalf, side: Side) -> Result<Self> {
        let list = weights.at(side.pick("down", "up"));
        let levels = half.levels.iter();
        let levels = levels.map(|level| Level::new(&list.at(level.number), level, side));
        let (middle, same) = (weights.at("mid"), (half.middle, half.middle));
        let looks = |number: usize, sight| {
            Attention::new(&middle.at("attn_1").at(number), half.middle, sight)
        };
        Ok(Self {
            conv_in: Both::new(weights, "conv_in", half.first.1, half.first.0)?,
            levels: levels.collect::<Result<_>>()?,
            middle: (
                Residual::new(&middle.at("block_1"), same)?,
                [looks(0, Sight::Frame)?, looks(1, Sight::Past)?],
                Residual::new(&middle.at("block_2"), same)?,
            ),
            norm_out: weights.group_norm("norm_out.norm", half.last.0, 1, EPS)?,
            conv_out: Both::new(weights, "conv_out", half.last.1, half.last.0)?,
        })
    }

    fn middle(&self, x: Tensor, check: Check<'_>) -> Result<Tensor> {
        let (first, looks, last) = &self.middle;
        let mut x = first.forward(x)?;
        for look in looks {
            check()?;
            x = look.forward(&x)?;
        }
        last.forward(x)
    }

    fn finish(&self, x: &Tensor) -> Result<Tensor> {
        self.conv_out.forward(&self.norm_out.forward(x, Act::Silu)?)
    }
}

/// An autoencoder of films that begins and ends with wavelets.
pub struct WaveletVae {
    config: WaveletConfig,
    device: Device,
    encoder: Option<(Half, Arc<Linear>)>,
    decoder: Option<(Half, Arc<Linear>)>,
    mean: Arc<Value>,
    deviation: Arc<Value>,
}

impl WaveletVae {
    pub fn new(store: &WeightStore, config: &WaveletConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, config))
    }

    fn walk(weights: &Walk<'_>, config: &WaveletConfig) -> Result<Self> {
        let latent = config.latent;
        let encoder = config.encoder.as_ref().map(|half| -> Result<_> {
            let made = Half::new(&weights.at("encoder"), half, Side::Encoder)?;
            Ok((
                made,
                weights.linear("quant_conv.conv3d", latent, half.last.1)?,
            ))
        });
        let decoder = config.decoder.as_ref().map(|half| -> Result<_> {
            let made = Half::new(&weights.at("decoder"), half, Side::Decoder)?;
            let first = half.first.0;
            Ok((
                made,
                weights.linear("post_quant_conv.conv3d", first, latent)?,
            ))
        });
        let values = [latent * config.measured];
        Ok(Self {
            encoder: encoder.transpose()?,
            decoder: decoder.transpose()?,
            mean: weights.value("latent_mean", &values)?,
            deviation: weights.value("latent_std", &values)?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &WaveletConfig {
        &self.config
    }

    /// The mean or the deviation of so many latent frames, (t, 1, 1, c) on the device; they begin anew where there are
    /// more.
    fn measure(&self, value: &Value, frames: usize) -> Result<Tensor> {
        let (channels, known) = (self.config.latent, self.config.measured);
        let all = value.at(&self.device)?.reshape([channels, known])?;
        let places: Vec<usize> = (0..frames).map(|i| i % known).collect();
        let rows = all.permute(&[1, 0])?.index_select(0, &places)?;
        Ok(rows.reshape([frames, 1, 1, channels])?)
    }
}

impl Autoencoder for WaveletVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// The latent (b, c, t, h, w) of films (b, 3, frames, h, w) in -1..1. Frames at the end that fill no latent frame are
    /// left out.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (half, quant) = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE encode", "the file has a decoder only"))?;
        let span = self.config.temporal_ratio();
        each_film("VAE encode", pixels, |film| {
            let whole = (film.dim(0)? - 1) / span * span + 1;
            let film = film.narrow(0, 0, whole)?.to(&self.device)?;
            let mut x = preceded(&film, PATCH - 1)?;
            drop(film);
            for _ in 0..WAVES {
                x = waves(&x)?;
            }
            let mut x = half.conv_in.forward(&x)?;
            for level in &half.levels {
                x = level.down(x, check)?;
            }
            let x = half.middle(x, check)?;
            let z = quant.forward(&half.finish(&x)?)?;
            let frames = z.dim(0)?;
            let (mean, deviation) = (
                self.measure(&self.mean, frames)?,
                self.measure(&self.deviation, frames)?,
            );
            Ok(z.sub(&mean)?.div(&deviation)?.mul_scalar(DEVIATION))
        })
    }

    /// Films (b, 3, frames, h, w), about -1..1, of latents (b, c, t, h, w).
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (half, quant) = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE decode", "the file has an encoder only"))?;
        each_film("VAE decode", latent, |film| {
            let z = film.to(&self.device)?.mul_scalar(1.0 / DEVIATION);
            let frames = z.dim(0)?;
            let (mean, deviation) = (
                self.measure(&self.mean, frames)?,
                self.measure(&self.deviation, frames)?,
            );
            let z = quant.forward(&z.mul(&deviation)?.add(&mean)?)?;
            let x = half.conv_in.forward(&z)?;
            let mut x = half.middle(x, check)?;
            for level in &half.levels {
                x = level.up(x, check)?;
            }
            let mut x = half.finish(&x)?;
            for _ in 0..WAVES {
                x = unwaved(&x)?;
            }
            let frames = x.dim(0)?;
            Ok(x.narrow(0, PATCH - 1, frames - (PATCH - 1))?)
        })
    }
}

/// Sums and differences of neighbours along a dimension.
fn halves(x: &Tensor, dim: usize) -> Result<[Tensor; 2]> {
    let mut shape = x.shape().to_vec();
    if !shape[dim].is_multiple_of(2) {
        let reason = format!("{} frames, rows or columns have no pairs", shape[dim]);
        return Err(ModelError::invalid("VAE encode", reason));
    }
    shape[dim] /= 2;
    shape.insert(dim + 1, 2);
    let pairs = x.reshape(shape)?;
    let (a, b) = (pairs.select(dim + 1, 0)?, pairs.select(dim + 1, 1)?);
    Ok([a.add(&b)?, a.sub(&b)?])
}

/// Half the frames, rows and columns, with eight times the channels.
fn waves(x: &Tensor) -> Result<Tensor> {
    let mut bands = Vec::with_capacity(BANDS);
    for over_time in halves(x, 0)? {
        for over_rows in halves(&over_time, 1)? {
            bands.extend(halves(&over_rows, 2)?);
        }
    }
    let all = Tensor::cat(&bands.iter().collect::<Vec<_>>(), 3)?;
    Ok(all.mul_scalar(1.0 / BANDS as f32))
}

/// Neighbours along a dimension of their sum and difference.
fn woven(sum: &Tensor, difference: &Tensor, dim: usize) -> Result<Tensor> {
    let (a, b) = (sum.add(difference)?, sum.sub(difference)?);
    let pairs = Tensor::stack(&[&a, &b], dim + 1)?;
    let mut shape = sum.shape().to_vec();
    shape[dim] *= 2;
    Ok(pairs.reshape(shape)?)
}

/// The reverse of [`waves`].
fn unwaved(x: &Tensor) -> Result<Tensor> {
    let mut bands = x.split_last(BANDS)?;
    for dim in [2, 1, 0] {
        let pairs = bands.chunks_exact(2);
        let joined = pairs.map(|pair| woven(&pair[0], &pair[1], dim));
        bands = joined.collect::<Result<_>>()?;
    }
    bands
        .pop()
        .ok_or_else(|| ModelError::invalid("VAE decode", "nothing is left"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_come_back() {
        let x = Tensor::from_fn([4, 2, 6, 3], |i| (i * 7 % 31) as f32).unwrap();
        let made = waves(&x).unwrap();
        assert_eq!(made.shape(), [2, 1, 3, 24]);
        let sum: f32 = [0, 3, 18, 21, 36, 39, 54, 57]
            .iter()
            .map(|&i| x.data()[i])
            .sum();
        assert!((made.data()[0] - sum / 8.0).abs() < 1e-5);
        let back = unwaved(&made).unwrap();
        for (a, b) in back.data().iter().zip(x.data()) {
            assert!((a - b).abs() < 1e-4);
        }
    }
}
