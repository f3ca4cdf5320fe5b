//! The autoencoder of latent diffusion (Rombach et al. 2022): pictures to latents and back.
//!
//! Its widest feature maps are far larger than its weights, so every step takes its input by value and lets go of it as
//! soon as it can. Pictures and feature maps are (b, h, w, c) inside.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, GroupNorm, Linear, Mask, Padding, attention};
use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};
use crate::layout::Layout;
use crate::store::Store;
use crate::unet::{GROUPS, plus};

const EPS: f32 = 1e-6;

/// Asks whether to go on; an error ends the work.
pub type Check<'a> = &'a dyn Fn() -> Result<()>;

/// One resolution of an encoder or a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub channels: usize,
    pub blocks: usize,
    /// Whether the size changes after it.
    pub resample: bool,
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
}

const MOST: usize = 64;

impl Half {
    fn detect(store: &Store, half: &str, list: &str, resample: &str) -> Result<Option<Self>> {
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
                Some(name) if name == resample => level.resample = true,
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

    fn middle_layout(to: &mut Layout, half: &str, channels: usize) {
        Residual::layout(to, &format!("{half}.mid.block_1"), channels, channels);
        let attn = format!("{half}.mid.attn_1");
        to.norm(&format!("{attn}.norm"), channels);
        for part in ["q", "k", "v", "proj_out"] {
            to.linear(&format!("{attn}.{part}"), channels, channels);
        }
        Residual::layout(to, &format!("{half}.mid.block_2"), channels, channels);
    }

    /// Halvings or doublings of the size.
    fn resamplings(&self) -> usize {
        self.levels.iter().filter(|level| level.resample).count()
    }
}

impl KlConfig {
    pub fn detect(store: &Store) -> Result<Self> {
        let encoder = Half::detect(store, "encoder", "down", "downsample")?;
        let decoder = Half::detect(store, "decoder", "up", "upsample")?;
        if encoder.is_none() && decoder.is_none() {
            return Err(ModelError::unsupported(
                store.file(),
                "this is not an autoencoder: decoder.conv_in.weight is missing",
            ));
        }
        if store.has("bn.running_mean") {
            let reason = "this autoencoder belongs to Flux 2, which this version does not run";
            return Err(ModelError::unsupported(store.file(), reason));
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
        })
    }

    pub fn latent_channels(&self) -> usize {
        if let Some(decoder) = &self.decoder {
            return self.post_quant.map_or(decoder.first.0, |(input, _)| input);
        }
        let out = self.encoder.as_ref().map_or(0, |half| half.out);
        self.quant.map_or(out, |(_, out)| out) / 2
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        let half = self.decoder.as_ref().or(self.encoder.as_ref());
        1 << half.map_or(0, Half::resamplings)
    }

    fn layout(&self) -> Layout {
        let mut to = Layout::default();
        if let Some(half) = &self.encoder {
            let (input, mut at) = half.first;
            to.conv("encoder.conv_in", at, input, 3);
            for (number, level) in half.levels.iter().enumerate() {
                for block in 0..level.blocks {
                    let key = format!("encoder.down.{number}.block.{block}");
                    Residual::layout(&mut to, &key, at, level.channels);
                    at = level.channels;
                }
                if level.resample {
                    to.conv(&format!("encoder.down.{number}.downsample.conv"), at, at, 3);
                }
            }
            Half::middle_layout(&mut to, "encoder", at);
            to.norm("encoder.norm_out", at);
            to.conv("encoder.conv_out", half.out, at, 3);
            if let Some((_, out)) = self.quant {
                to.linear("quant_conv", out, half.out);
            }
        }
        if let Some(half) = &self.decoder {
            let (input, mut at) = half.first;
            if let Some((latent, _)) = self.post_quant {
                to.linear("post_quant_conv", input, latent);
            }
            to.conv("decoder.conv_in", at, input, 3);
            Half::middle_layout(&mut to, "decoder", at);
            for (number, level) in half.levels.iter().enumerate().rev() {
                for block in 0..level.blocks {
                    let key = format!("decoder.up.{number}.block.{block}");
                    Residual::layout(&mut to, &key, at, level.channels);
                    at = level.channels;
                }
                if level.resample {
                    to.conv(&format!("decoder.up.{number}.upsample.conv"), at, at, 3);
                }
            }
            to.norm("decoder.norm_out", at);
            to.conv("decoder.conv_out", half.out, at, 3);
        }
        to
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(&self, store: &Store) -> Result<()> {
        self.layout().verify(store, "the autoencoder")
    }

    /// Every weight with its shape.
    pub fn weights(&self) -> Vec<(String, Vec<usize>)> {
        self.layout().items().to_vec()
    }
}

/// The norm and its activation of a feature map that nobody needs afterwards.
fn consumed(norm: &GroupNorm, x: Tensor) -> Result<Tensor> {
    Ok(norm.forward_owned(x, Act::Silu)?)
}

/// Norm, activation, convolution, twice.
struct Residual {
    norm1: Arc<GroupNorm>,
    conv1: Arc<Conv2d>,
    norm2: Arc<GroupNorm>,
    conv2: Arc<Conv2d>,
    shortcut: Option<Arc<Linear>>,
}

impl Residual {
    fn layout(to: &mut Layout, key: &str, input: usize, out: usize) {
        to.norm(&format!("{key}.norm1"), input);
        to.conv(&format!("{key}.conv1"), out, input, 3);
        to.norm(&format!("{key}.norm2"), out);
        to.conv(&format!("{key}.conv2"), out, out, 3);
        if input != out {
            to.linear(&format!("{key}.nin_shortcut"), out, input);
        }
    }

    fn new(store: &Store, key: &str, input: usize, out: usize) -> Result<Self> {
        let shortcut = format!("{key}.nin_shortcut");
        Ok(Self {
            norm1: store.group_norm(&format!("{key}.norm1"), GROUPS, EPS)?,
            conv1: store.conv(&format!("{key}.conv1"), 1, Padding::Same(1))?,
            norm2: store.group_norm(&format!("{key}.norm2"), GROUPS, EPS)?,
            conv2: store.conv(&format!("{key}.conv2"), 1, Padding::Same(1))?,
            shortcut: (input != out)
                .then(|| store.linear(&shortcut))
                .transpose()?,
        })
    }

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let (x, h) = if let Some(shortcut) = &self.shortcut {
            let skip = shortcut.forward(&x)?;
            (skip, consumed(&self.norm1, x)?)
        } else {
            let h = self.norm1.forward(&x, Act::Silu)?;
            (x, h)
        };
        let h = self.conv1.forward(&h)?;
        let h = consumed(&self.norm2, h)?;
        Ok(self.conv2.forward_with(&h, plus(&x))?)
    }
}

/// Attention of every position to every other, with one head.
struct Attention {
    norm: Arc<GroupNorm>,
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    proj_out: Arc<Linear>,
}

impl Attention {
    fn new(store: &Store, key: &str) -> Result<Self> {
        Ok(Self {
            norm: store.group_norm(&format!("{key}.norm"), GROUPS, EPS)?,
            q: store.linear(&format!("{key}.q"))?,
            k: store.linear(&format!("{key}.k"))?,
            v: store.linear(&format!("{key}.v"))?,
            proj_out: store.linear(&format!("{key}.proj_out"))?,
        })
    }

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let normed = self.norm.forward(&x, Act::None)?.reshape([b, h * w, c])?;
        let (q, k) = (self.q.forward(&normed)?, self.k.forward(&normed)?);
        let v = self.v.forward(&normed)?;
        drop(normed);
        let seen = attention(&q, &k, &v, 1, Mask::None, None)?;
        drop((q, k, v));
        let seen = seen.reshape([b, h, w, c])?;
        Ok(self.proj_out.forward_with(&seen, plus(&x))?)
    }
}

struct Middle {
    block_1: Residual,
    attn_1: Attention,
    block_2: Residual,
}

impl Middle {
    fn new(store: &Store, half: &str, channels: usize) -> Result<Self> {
        let block =
            |name: &str| Residual::new(store, &format!("{half}.mid.{name}"), channels, channels);
        Ok(Self {
            block_1: block("block_1")?,
            attn_1: Attention::new(store, &format!("{half}.mid.attn_1"))?,
            block_2: block("block_2")?,
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

/// The blocks of a level and the convolution that changes the size.
struct Stage {
    blocks: Vec<Residual>,
    resample: Option<Arc<Conv2d>>,
}

struct Coder {
    conv_in: Arc<Conv2d>,
    middle: Middle,
    /// In the order they run.
    stages: Vec<Stage>,
    norm_out: Arc<GroupNorm>,
    conv_out: Arc<Conv2d>,
}

impl Coder {
    fn encoder(store: &Store, half: &Half) -> Result<Self> {
        let mut at = half.first.1;
        let mut stages = Vec::new();
        for (number, level) in half.levels.iter().enumerate() {
            let key = format!("encoder.down.{number}");
            stages.push(Self::stage(store, &key, &mut at, *level, || {
                store.conv(&format!("{key}.downsample.conv"), 2, Padding::RightBottom)
            })?);
        }
        Self::around(store, "encoder", at, stages)
    }

    fn decoder(store: &Store, half: &Half) -> Result<Self> {
        let mut at = half.first.1;
        let inner = at;
        let mut stages = Vec::new();
        for (number, level) in half.levels.iter().enumerate().rev() {
            let key = format!("decoder.up.{number}");
            stages.push(Self::stage(store, &key, &mut at, *level, || {
                store.conv(&format!("{key}.upsample.conv"), 1, Padding::Same(1))
            })?);
        }
        Self::around(store, "decoder", inner, stages)
    }

    fn stage(
        store: &Store,
        key: &str,
        at: &mut usize,
        level: Level,
        resample: impl FnOnce() -> Result<Arc<Conv2d>>,
    ) -> Result<Stage> {
        let mut blocks = Vec::new();
        for block in 0..level.blocks {
            let key = format!("{key}.block.{block}");
            blocks.push(Residual::new(store, &key, *at, level.channels)?);
            *at = level.channels;
        }
        Ok(Stage {
            blocks,
            resample: level.resample.then(resample).transpose()?,
        })
    }

    fn around(store: &Store, half: &str, inner: usize, stages: Vec<Stage>) -> Result<Self> {
        Ok(Self {
            conv_in: store.conv(&format!("{half}.conv_in"), 1, Padding::Same(1))?,
            middle: Middle::new(store, half, inner)?,
            stages,
            norm_out: store.group_norm(&format!("{half}.norm_out"), GROUPS, EPS)?,
            conv_out: store.conv(&format!("{half}.conv_out"), 1, Padding::Same(1))?,
        })
    }

    fn finish(&self, h: Tensor) -> Result<Tensor> {
        let h = consumed(&self.norm_out, h)?;
        Ok(self.conv_out.forward(&h)?)
    }
}

/// See the [module](self).
pub struct KlVae {
    config: KlConfig,
    /// Where it computes.
    device: Device,
    encoder: Option<(Coder, Option<Arc<Linear>>)>,
    decoder: Option<(Coder, Option<Arc<Linear>>)>,
}

impl KlVae {
    /// From a store under the names of the original; [`super::names::store`] makes one from any file.
    pub fn new(store: &Arc<Store>) -> Result<Self> {
        let config = KlConfig::detect(store)?;
        config.verify(store)?;
        let encoder = match &config.encoder {
            Some(half) => {
                let quant = config
                    .quant
                    .map(|_| store.linear("quant_conv"))
                    .transpose()?;
                Some((Coder::encoder(store, half)?, quant))
            }
            None => None,
        };
        let decoder = match &config.decoder {
            Some(half) => {
                let quant = config
                    .post_quant
                    .map(|_| store.linear("post_quant_conv"))
                    .transpose()?;
                Some((Coder::decoder(store, half)?, quant))
            }
            None => None,
        };
        Ok(Self {
            config,
            device: store.device().clone(),
            encoder,
            decoder,
        })
    }

    pub fn config(&self) -> &KlConfig {
        &self.config
    }

    pub fn latent_channels(&self) -> usize {
        self.config.latent_channels()
    }

    pub fn ratio(&self) -> usize {
        self.config.ratio()
    }

    /// The mean latent (b, c, h, w) of pictures (b, 3, h, w) in -1..1.
    pub fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (coder, quant) = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE encode", "the file has a decoder only"))?;
        one_by_one("VAE encode", pixels, &self.device, |item| {
            let mut h = coder.conv_in.forward(&item)?;
            drop(item);
            for stage in &coder.stages {
                for block in &stage.blocks {
                    check()?;
                    h = block.forward(h)?;
                }
                if let Some(down) = &stage.resample {
                    h = down.forward(&h)?;
                }
            }
            check()?;
            let mut moments = coder.finish(coder.middle.forward(h, check)?)?;
            if let Some(quant) = quant {
                moments = quant.forward(&moments)?;
            }
            let channels = moments.dim(3)?;
            Ok(moments.narrow(3, 0, channels / 2)?)
        })
    }

    /// Pictures (b, 3, h, w), about -1..1, of latents (b, c, h, w).
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (coder, quant) = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE decode", "the file has an encoder only"))?;
        one_by_one("VAE decode", latent, &self.device, |mut item| {
            if let Some(quant) = quant {
                item = quant.forward(&item)?;
            }
            let mut h = coder.conv_in.forward(&item)?;
            drop(item);
            h = coder.middle.forward(h, check)?;
            for stage in &coder.stages {
                for block in &stage.blocks {
                    check()?;
                    h = block.forward(h)?;
                }
                if let Some(up) = &stage.resample {
                    check()?;
                    let [_, rows, columns, _] = h.dims4()?;
                    h = up.upsampled(&h, (2 * rows, 2 * columns), After::default())?;
                }
            }
            check()?;
            coder.finish(h)
        })
    }
}

/// Runs a network on each item of a batch (b, c, h, w), because one needs memory enough.
fn one_by_one(
    what: &'static str,
    x: &Tensor,
    device: &Device,
    mut f: impl FnMut(Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let [b, _, h, w] = *x.shape() else {
        let reason = format!("shape {:?} is no batch of pictures", x.shape());
        return Err(ModelError::invalid(what, reason));
    };
    if b == 0 || h == 0 || w == 0 {
        let reason = format!("there is nothing in shape {:?}", x.shape());
        return Err(ModelError::invalid(what, reason));
    }
    let mut out = Vec::with_capacity(b);
    for item in 0..b {
        let made = f(x.narrow(0, item, 1)?.nchw_to_nhwc()?.to(device)?)?;
        out.push(made.to(&Device::cpu())?.nhwc_to_nchw()?);
    }
    if out.len() == 1 {
        return Ok(out.remove(0));
    }
    Ok(Tensor::cat(&out.iter().collect::<Vec<_>>(), 0)?)
}
