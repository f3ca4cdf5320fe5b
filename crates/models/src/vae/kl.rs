//! The autoencoder of latent diffusion (Rombach et al. 2022): pictures to latents and back.
//!
//! Its widest feature maps are far larger than its weights, so every step takes its input by value and lets go of it as
//! soon as it can. Pictures and feature maps are (b, h, w, c) inside.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, Conv3d, GroupNorm, Linear, Mask, Padding, Value};
use fresco_tensor::{Device, Tensor, trim_spare_memory};

use crate::epilogue::plus;
use crate::error::{ModelError, Result};
use crate::store::{Kernel, Layout, Walk, WeightStore};
use crate::transformer::QkvLayers;

use super::autoencoder::{Autoencoder, AutoencoderConfig, VaeFacts};
use super::cells::CellAttention;
use super::images::Vae;
use super::shuffle::{Shuffle, mean_of_groups, repeated};
use super::time_mix::{TIME, TimeMix, over_time};

const EPS: f32 = 1e-6;
/// Of every group norm here.
const GROUPS: usize = 32;

/// Asks whether to go on; an error ends the work.
pub type Check<'a> = &'a dyn Fn() -> Result<()>;

/// One resolution of an encoder or a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub channels: usize,
    pub blocks: usize,
    /// Whether the size changes after it.
    pub resample: bool,
    /// What the convolution makes that changes the size.
    pub resampled: usize,
}

/// An encoder or a decoder: its levels by their number in the file, which counts from the picture inwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    pub levels: Vec<Level>,
    /// Channels of the first convolution, in and out.
    pub first: (usize, usize),
    /// Channels that the last convolution makes.
    pub out: usize,
}

/// The shape of the network. Files with one half only load too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KlConfig {
    pub encoder: Option<Half>,
    pub decoder: Option<Half>,
    /// Channels in and out of the convolutions between the halves and the latent.
    pub quant: Option<(usize, usize)>,
    pub post_quant: Option<(usize, usize)>,
    /// Whether sizes change by putting cells onto channels and back, with what went in added.
    pub shuffled: bool,
    /// Whether four cells of a latent are one with four times the channels, brought to a common size by the means and
    /// variances in the file.
    pub packed: bool,
    /// Whether the pictures of a batch are the frames of one film to its decoder.
    pub timed: bool,
}

const MOST: usize = 64;

/// Cells along a side of a packed one.
const PACKED: usize = 2;
/// Added to the variances of packed latents.
const PACKED_EPS: f32 = 1e-4;

impl Half {
    fn detect(store: &WeightStore, half: &str, list: &str, resample: &str) -> Result<Option<Self>> {
        let Some(first) = store.shape(&format!("{half}.conv_in.weight")) else {
            return Ok(None);
        };
        let &[out, input, _, _] = first else {
            return Err(ModelError::Shape {
                file: store.file().to_owned(),
                key: format!("{half}.conv_in.weight"),
                expected: "a convolution".to_owned(),
                found: first.to_vec(),
            });
        };
        let prefix = format!("{half}.{list}.");
        let mut levels: Vec<Level> = Vec::new();
        for key in store.keys() {
            let Some(rest) = key.strip_prefix(&prefix) else {
                continue;
            };
            let mut parts = rest.split('.');
            let Some(number) = parts.next().and_then(|n| n.parse::<usize>().ok()) else {
                continue;
            };
            if number >= MOST {
                let reason = format!("{key} names too many levels");
                return Err(ModelError::unsupported(store.file(), reason));
            }
            if levels.len() <= number {
                levels.resize(
                    number + 1,
                    Level {
                        channels: 0,
                        blocks: 0,
                        resample: false,
                        resampled: 0,
                    },
                );
            }
            let level = &mut levels[number];
            match parts.next() {
                Some("block") => {
                    let block = parts.next().and_then(|n| n.parse::<usize>().ok());
                    if let Some(block) = block.filter(|&b| b < MOST) {
                        level.blocks = level.blocks.max(block + 1);
                    }
                    if rest.ends_with(".conv2.weight") || rest.ends_with(".norm2.weight") {
                        let shape = store.shape(key).unwrap_or_default();
                        level.channels = shape.first().copied().unwrap_or(0);
                    }
                }
                Some(name) if name == resample => {
                    level.resample = true;
                    if rest.ends_with(".conv.weight") {
                        let shape = store.shape(key).unwrap_or_default();
                        level.resampled = shape.first().copied().unwrap_or(0);
                    }
                }
                _ => {
                    let reason = format!("{key} belongs to no autoencoder that this version runs");
                    return Err(ModelError::unsupported(store.file(), reason));
                }
            }
        }
        let last = store.shape(&format!("{half}.conv_out.weight"));
        let last = last.and_then(|shape| shape.first().copied());
        Ok(Some(Self {
            levels,
            first: (input, out),
            out: last.ok_or_else(|| ModelError::Missing {
                file: store.file().to_owned(),
                key: format!("{half}.conv_out.weight"),
            })?,
        }))
    }

    /// Halvings or doublings of the size.
    fn resamplings(&self) -> usize {
        self.levels.iter().filter(|level| level.resample).count()
    }
}

/// Where sizes are changed by a convolution alone it keeps the number of channels.
fn is_shuffled(store: &WeightStore) -> bool {
    let keys = [
        "encoder.down.0.downsample.conv.weight",
        "decoder.up.0.upsample.conv.weight",
    ];
    let changes = |shape: &[usize]| matches!(shape, [out, input, _, _] if out != input);
    keys.iter().filter_map(|key| store.shape(key)).any(changes)
}

impl KlConfig {
    /// How the decoder sees a batch.
    fn frames(&self) -> Frames {
        if self.timed {
            Frames::Mixed
        } else {
            Frames::Apart
        }
    }

    /// Whether a store has one of the two halves.
    pub fn is_in(store: &WeightStore) -> bool {
        ["encoder", "decoder"]
            .iter()
            .any(|half| store.has(&format!("{half}.conv_in.weight")))
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let encoder = Half::detect(store, "encoder", "down", "downsample")?;
        let decoder = Half::detect(store, "decoder", "up", "upsample")?;
        if encoder.is_none() && decoder.is_none() {
            return Err(ModelError::unsupported(
                store.file(),
                "this is not an autoencoder: decoder.conv_in.weight is missing",
            ));
        }
        let pair = |key: &str| match store.shape(key) {
            Some(&[out, input, ..]) => Some((input, out)),
            _ => None,
        };
        Ok(Self {
            encoder,
            decoder,
            quant: pair("quant_conv.weight"),
            post_quant: pair("post_quant_conv.weight"),
            shuffled: is_shuffled(store),
            packed: store.has("bn.running_mean"),
            timed: store.has("decoder.conv_out.time_mix_conv.weight"),
        })
    }

    pub fn latent_channels(&self) -> usize {
        self.plain_channels() * if self.packed { PACKED * PACKED } else { 1 }
    }

    /// Before four cells become one.
    fn plain_channels(&self) -> usize {
        if let Some(decoder) = &self.decoder {
            return self.post_quant.map_or(decoder.first.0, |(input, _)| input);
        }
        let out = self.encoder.as_ref().map_or(0, |half| half.out);
        self.quant.map_or(out, |(_, out)| out) / 2
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        let half = self.decoder.as_ref().or(self.encoder.as_ref());
        let plain = 1 << half.map_or(0, Half::resamplings);
        plain * if self.packed { PACKED } else { 1 }
    }

    fn layout(&self) -> Result<Layout> {
        Layout::of(|weights| KlVae::walk(weights, self))
    }

    /// Every weight with its shape.
    pub fn weights(&self) -> Result<Vec<(String, Vec<usize>)>> {
        Ok(self.layout()?.items().to_vec())
    }
}

impl AutoencoderConfig for KlConfig {
    fn facts(&self) -> VaeFacts {
        VaeFacts::pictures(self.latent_channels(), self.ratio())
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        self.layout()?.verify(store, WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(KlVae::new(store)?.into())
    }
}

/// The network in messages.
const WHAT: &str = "the autoencoder";

/// The norm and its activation of a feature map that nobody needs afterwards.
fn consumed(norm: &GroupNorm, x: Tensor) -> Result<Tensor> {
    Ok(norm.forward_owned(x, Act::Silu)?)
}

/// Whether a network sees the pictures of a batch as the frames of a film.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frames {
    Apart,
    Mixed,
}

impl Frames {
    /// What mixes them, where they are mixed.
    fn mixed<T>(self, make: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        (self == Self::Mixed).then(make).transpose()
    }
}

/// Norm, activation, convolution, twice.
struct Residual {
    norm1: Arc<GroupNorm>,
    conv1: Arc<Conv2d>,
    norm2: Arc<GroupNorm>,
    conv2: Arc<Conv2d>,
    shortcut: Option<Arc<Linear>>,
    time: Option<TimeMix>,
}

impl Residual {
    fn new(weights: &Walk<'_>, input: usize, out: usize, frames: Frames) -> Result<Self> {
        Ok(Self {
            time: frames.mixed(|| TimeMix::new(weights, out))?,
            norm1: weights.group_norm("norm1", input, GROUPS, EPS)?,
            conv1: weights.conv("conv1", out, input, 3, 1)?,
            norm2: weights.group_norm("norm2", out, GROUPS, EPS)?,
            conv2: weights.conv("conv2", out, out, 3, 1)?,
            shortcut: (input != out)
                .then(|| weights.linear("nin_shortcut", out, input))
                .transpose()?,
        })
    }

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let (skip, normed) = if let Some(shortcut) = &self.shortcut {
            let skip = shortcut.forward(&x)?;
            (skip, consumed(&self.norm1, x)?)
        } else {
            let normed = self.norm1.forward(&x, Act::Silu)?;
            (x, normed)
        };
        let h = self.conv1.forward(&normed)?;
        // The largest values of a decoder: what nobody needs any more makes room for the next ones.
        drop(normed);
        trim_spare_memory();
        let h = consumed(&self.norm2, h)?;
        let h = self.conv2.forward_with(&h, plus(&skip))?;
        match &self.time {
            Some(time) => time.forward(h),
            None => Ok(h),
        }
    }
}

/// Attention of every position to every other.
struct Attention {
    norm: Arc<GroupNorm>,
    cells: CellAttention,
}

impl Attention {
    fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        let qkv = QkvLayers::Apart(["q", "k", "v"]);
        Ok(Self {
            norm: weights.group_norm("norm", channels, GROUPS, EPS)?,
            cells: CellAttention::new(weights, qkv, "proj_out", channels)?,
        })
    }

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let normed = self.norm.forward(&x, Act::None)?.reshape([b, h * w, c])?;
        let seen = self.cells.attend(normed, Mask::None)?;
        self.cells.add(&seen, &x)
    }
}

struct Middle {
    block_1: Residual,
    attn_1: Attention,
    block_2: Residual,
}

impl Middle {
    fn new(weights: &Walk<'_>, channels: usize, frames: Frames) -> Result<Self> {
        Ok(Self {
            block_1: Residual::new(&weights.at("block_1"), channels, channels, frames)?,
            attn_1: Attention::new(&weights.at("attn_1"), channels)?,
            block_2: Residual::new(&weights.at("block_2"), channels, channels, frames)?,
        })
    }

    fn forward(&self, x: Tensor, check: Check<'_>) -> Result<Tensor> {
        let x = self.block_1.forward(x)?;
        check()?;
        let x = self.attn_1.forward(x)?;
        check()?;
        self.block_2.forward(x)
    }
}

/// The blocks of a level and what changes the size.
struct Stage {
    blocks: Vec<Residual>,
    resample: Option<Resample>,
}

/// What changes the size after a level.
enum Resample {
    Plain(Arc<Conv2d>),
    Shuffled(Shuffle),
}

struct Coder {
    conv_in: Arc<Conv2d>,
    middle: Middle,
    /// In the order they run.
    stages: Vec<Stage>,
    norm_out: Arc<GroupNorm>,
    conv_out: Arc<Conv2d>,
    /// Over the frames that come out, where they are those of a film.
    frames: Option<Arc<Conv3d>>,
}

impl Stage {
    /// `at` are the channels that go in, and afterwards those that come out.
    fn new(
        weights: &Walk<'_>,
        at: &mut usize,
        level: Level,
        frames: Frames,
        resample: impl FnOnce(&Walk<'_>, &mut usize) -> Result<Resample>,
    ) -> Result<Self> {
        let mut blocks = Vec::new();
        for block in 0..level.blocks {
            let weights = weights.at("block").at(block);
            blocks.push(Residual::new(&weights, *at, level.channels, frames)?);
            *at = level.channels;
        }
        Ok(Self {
            blocks,
            resample: level.resample.then(|| resample(weights, at)).transpose()?,
        })
    }
}

impl Coder {
    fn encoder(weights: &Walk<'_>, half: &Half, shuffled: bool) -> Result<Self> {
        let (input, mut at) = half.first;
        let conv_in = weights.conv("conv_in", at, input, 3, 1)?;
        let mut stages = Vec::new();
        for (number, level) in half.levels.iter().enumerate() {
            let weights = weights.at("down").at(number);
            let down = |weights: &Walk<'_>, at: &mut usize| {
                if shuffled {
                    return Ok(Resample::Shuffled(Shuffle::down(weights, at, level)?));
                }
                let kernel = Kernel {
                    out: *at,
                    input: *at,
                    side: 3,
                    bias: true,
                };
                let conv = weights.conv_with("downsample.conv", kernel, 2, Padding::RightBottom)?;
                Ok(Resample::Plain(conv))
            };
            stages.push(Stage::new(&weights, &mut at, *level, Frames::Apart, down)?);
        }
        Ok(Self {
            conv_in,
            middle: Middle::new(&weights.at("mid"), at, Frames::Apart)?,
            stages,
            norm_out: weights.group_norm("norm_out", at, GROUPS, EPS)?,
            conv_out: weights.conv("conv_out", half.out, at, 3, 1)?,
            frames: None,
        })
    }

    fn decoder(weights: &Walk<'_>, half: &Half, shuffled: bool, frames: Frames) -> Result<Self> {
        let (input, mut at) = half.first;
        let conv_in = weights.conv("conv_in", at, input, 3, 1)?;
        let middle = Middle::new(&weights.at("mid"), at, frames)?;
        let mut order: Vec<(usize, &Level)> = half.levels.iter().enumerate().collect();
        if !shuffled {
            // Numbers count from the picture inwards, but for those.
            order.reverse();
        }
        let mut stages = Vec::new();
        for (number, level) in order {
            let weights = weights.at("up").at(number);
            let up = |weights: &Walk<'_>, at: &mut usize| {
                if shuffled {
                    return Ok(Resample::Shuffled(Shuffle::up(weights, at, level)?));
                }
                let conv = weights.conv("upsample.conv", *at, *at, 3, 1)?;
                Ok(Resample::Plain(conv))
            };
            stages.push(Stage::new(&weights, &mut at, *level, frames, up)?);
        }
        Ok(Self {
            conv_in,
            middle,
            stages,
            norm_out: weights.group_norm("norm_out", at, GROUPS, EPS)?,
            conv_out: weights.conv("conv_out", half.out, at, 3, 1)?,
            frames: frames
                .mixed(|| weights.conv3d("conv_out.time_mix_conv", half.out, half.out, TIME))?,
        })
    }

    fn finish(&self, h: Tensor) -> Result<Tensor> {
        let h = consumed(&self.norm_out, h)?;
        let h = self.conv_out.forward(&h)?;
        match &self.frames {
            Some(conv) => over_time(conv, &h),
            None => Ok(h),
        }
    }
}

/// Four cells as one, with what brings their channels to a common size.
struct Packing {
    mean: Arc<Value>,
    variance: Arc<Value>,
}

impl Packing {
    fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        Ok(Self {
            mean: weights.value("running_mean", &[channels])?,
            variance: weights.value("running_var", &[channels])?,
        })
    }

    fn deviation(&self, device: &Device) -> Result<Tensor> {
        Ok(self.variance.at(device)?.add_scalar(PACKED_EPS).sqrt())
    }

    /// Of (1, h, w, c).
    fn pack(&self, x: &Tensor) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let cells = x.reshape([b, h / PACKED, PACKED, w / PACKED, PACKED, c])?;
        let cells = cells.permute(&[0, 1, 3, 5, 2, 4])?;
        let cells = cells.reshape([b, h / PACKED, w / PACKED, c * PACKED * PACKED])?;
        let device = x.device();
        let centred = cells.sub(&self.mean.at(&device)?)?;
        Ok(centred.div(&self.deviation(&device)?)?)
    }

    fn unpack(&self, x: &Tensor) -> Result<Tensor> {
        let [b, h, w, channels] = x.dims4()?;
        let c = channels / (PACKED * PACKED);
        let device = x.device();
        let x = x.mul(&self.deviation(&device)?)?;
        let x = x.add(&self.mean.at(&device)?)?;
        let cells = x.reshape([b, h, w, c, PACKED, PACKED])?;
        let cells = cells.permute(&[0, 1, 4, 2, 5, 3])?;
        Ok(cells.reshape([b, h * PACKED, w * PACKED, c])?)
    }
}

/// See the [module](self).
pub struct KlVae {
    config: KlConfig,
    /// Where it computes.
    device: Device,
    encoder: Option<(Coder, Option<Arc<Linear>>)>,
    decoder: Option<(Coder, Option<Arc<Linear>>)>,
    packing: Option<Packing>,
}

impl KlVae {
    /// From a store under the names of the original; [`super::names::store`] makes one from any file.
    pub fn new(store: &WeightStore) -> Result<Self> {
        let config = KlConfig::detect(store)?;
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    fn walk(weights: &Walk<'_>, config: &KlConfig) -> Result<Self> {
        let encoder = match &config.encoder {
            Some(half) => {
                let coder = Coder::encoder(&weights.at("encoder"), half, config.shuffled)?;
                let quant = config.quant;
                let quant = quant.map(|(_, out)| weights.linear("quant_conv", out, half.out));
                Some((coder, quant.transpose()?))
            }
            None => None,
        };
        let decoder = match &config.decoder {
            Some(half) => {
                let quant = config.post_quant;
                let quant = quant
                    .map(|(latent, _)| weights.linear("post_quant_conv", half.first.0, latent));
                let quant = quant.transpose()?;
                let weights = weights.at("decoder");
                let coder = Coder::decoder(&weights, half, config.shuffled, config.frames())?;
                Some((coder, quant))
            }
            None => None,
        };
        let packing = config
            .packed
            .then(|| Packing::new(&weights.at("bn"), config.latent_channels()));
        Ok(Self {
            config: config.clone(),
            device: weights.device().clone(),
            encoder,
            decoder,
            packing: packing.transpose()?,
        })
    }

    pub fn config(&self) -> &KlConfig {
        &self.config
    }
}

impl Autoencoder for KlVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// The mean latent (b, c, h, w) of pictures (b, 3, h, w) in -1..1.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (coder, quant) = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE encode", "the file has a decoder only"))?;
        in_parts("VAE encode", pixels, &self.device, Frames::Apart, |item| {
            let mut h = coder.conv_in.forward(&item)?;
            drop(item);
            for stage in &coder.stages {
                for block in &stage.blocks {
                    check()?;
                    h = block.forward(h)?;
                }
                match &stage.resample {
                    Some(Resample::Plain(down)) => h = down.forward(&h)?,
                    Some(Resample::Shuffled(down)) => h = down.downsampled(&h)?,
                    None => {}
                }
            }
            check()?;
            let h = coder.middle.forward(h, check)?;
            let beside = self
                .config
                .shuffled
                .then(|| mean_of_groups(&h, coder.conv_out.out_channels()))
                .transpose()?;
            let mut moments = coder.finish(h)?;
            if let Some(beside) = beside {
                moments = moments.add(&beside)?;
            }
            if let Some(quant) = quant {
                moments = quant.forward(&moments)?;
            }
            let channels = moments.dim(3)?;
            let mean = moments.narrow(3, 0, channels / 2)?;
            match &self.packing {
                Some(packing) => packing.pack(&mean),
                None => Ok(mean),
            }
        })
    }

    /// Pictures (b, 3, h, w), about -1..1, of latents (b, c, h, w).
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (coder, quant) = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE decode", "the file has an encoder only"))?;
        let frames = self.config.frames();
        in_parts("VAE decode", latent, &self.device, frames, |mut item| {
            if let Some(packing) = &self.packing {
                item = packing.unpack(&item)?;
            }
            if let Some(quant) = quant {
                item = quant.forward(&item)?;
            }
            let mut h = coder.conv_in.forward(&item)?;
            if self.config.shuffled {
                h = h.add(&repeated(&item, h.dim(3)?)?)?;
            }
            drop(item);
            h = coder.middle.forward(h, check)?;
            for stage in &coder.stages {
                for block in &stage.blocks {
                    check()?;
                    h = block.forward(h)?;
                }
                check()?;
                match &stage.resample {
                    Some(Resample::Plain(up)) => {
                        let [_, rows, columns, _] = h.dims4()?;
                        h = up.upsampled(&h, (2 * rows, 2 * columns), After::default())?;
                        trim_spare_memory();
                    }
                    Some(Resample::Shuffled(up)) => {
                        h = up.upsampled(&h)?;
                        trim_spare_memory();
                    }
                    None => {}
                }
            }
            check()?;
            coder.finish(h)
        })
    }
}

/// Runs a network on each item of a batch (b, c, h, w), because one needs memory enough, or on all of them together.
fn in_parts(
    what: &'static str,
    x: &Tensor,
    device: &Device,
    frames: Frames,
    mut f: impl FnMut(Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let [b, _, h, w] = *x.shape() else {
        let reason = format!("shape {:?} is not a batch of pictures", x.shape());
        return Err(ModelError::invalid(what, reason));
    };
    if b == 0 || h == 0 || w == 0 {
        let reason = format!("there is nothing in shape {:?}", x.shape());
        return Err(ModelError::invalid(what, reason));
    }
    let mut out = Vec::with_capacity(b);
    let each = match frames {
        Frames::Apart => 1,
        Frames::Mixed => b,
    };
    for item in (0..b).step_by(each) {
        let made = f(x.narrow(0, item, each)?.nchw_to_nhwc()?.to(device)?)?;
        out.push(made.to(&Device::cpu())?.nhwc_to_nchw()?);
    }
    if out.len() == 1 {
        return Ok(out.remove(0));
    }
    Ok(Tensor::cat(&out.iter().collect::<Vec<_>>(), 0)?)
}
