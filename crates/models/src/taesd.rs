//! TAESD: a tiny autoencoder that stands in for the large one in previews and, where asked, in its place. The one of Flux.2
//! has norms over the whole picture in its innermost blocks, and its latents are packed.
//!
//! Layers are numbered as in a sequence; what has no weights (activations, enlargements) has a number too.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, GroupNorm, Linear, Padding, activate};
use fresco_tensor::{Device, Tensor};

use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Kernel, Walk, WeightStore};
use crate::vae::Check;
use crate::vae::{Autoencoder, Side, VaeFacts};

/// The published ones: name, scale and shift of the latents they were made for.
pub const KINDS: [(&str, f32, f32); 5] = [
    ("taesd", 0.18215, 0.0),
    ("taesdxl", 0.13025, 0.0),
    ("taesd3", 1.5305, 0.0609),
    ("taef1", 0.3611, 0.1159),
    ("taef2", 1.0, 0.0),
];

/// Cells along a side that the sampler has as channels of one, where a network has pools.
const PACKED: usize = 2;
const POOL_GROUPS: usize = 4;
/// The epsilon of torch.
const POOL_EPS: f32 = 1e-5;

/// What is added to the input of a block: a norm over the whole picture between two products.
struct Pool {
    wide: Arc<Linear>,
    norm: Arc<GroupNorm>,
    narrow: Arc<Linear>,
}

impl Pool {
    fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        let wide = POOL_GROUPS * channels;
        Ok(Self {
            wide: weights.matrix("0", wide, channels)?,
            norm: weights.group_norm("1", wide, POOL_GROUPS, POOL_EPS)?,
            narrow: weights.matrix("3", channels, wide)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.norm.forward(&self.wide.forward(x)?, Act::Relu)?;
        Ok(self.narrow.forward_with(&h, plus(x))?)
    }
}

/// Three convolutions around a shortcut.
struct Block {
    pool: Option<Pool>,
    convs: [Arc<Conv2d>; 3],
    skip: Option<Arc<Linear>>,
}

impl Block {
    fn new(
        weights: &Walk<'_>,
        (input, out): (usize, usize),
        BlockParts { skip, pool }: BlockParts,
    ) -> Result<Self> {
        Ok(Self {
            pool: pool
                .then(|| Pool::new(&weights.at("pool"), input))
                .transpose()?,
            convs: [
                weights.conv("conv.0", out, input, 3, 1)?,
                weights.conv("conv.2", out, out, 3, 1)?,
                weights.conv("conv.4", out, out, 3, 1)?,
            ],
            skip: skip
                .then(|| weights.matrix("skip", out, input))
                .transpose()?,
        })
    }

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = match &self.pool {
            Some(pool) => pool.forward(&x)?,
            None => x,
        };
        let relu = then(Act::Relu);
        let [first, second, third] = &self.convs;
        let h = second.forward_with(&first.forward_with(&x, relu)?, relu)?;
        let x = match &self.skip {
            Some(skip) => skip.forward(&x)?,
            None => x,
        };
        Ok(activate(third.forward_with(&h, plus(&x))?, Act::Relu))
    }
}

enum SequenceLayer {
    Conv(Arc<Conv2d>, Act),
    Enlarged(Arc<Conv2d>),
    Block(Block),
}

/// One of the two sequences.
struct Sequence {
    steps: Vec<SequenceLayer>,
    /// Channels in and out.
    ends: (usize, usize),
    /// Times the size is halved or doubled.
    resamplings: usize,
    pooled: bool,
    /// The most numbers that a layer of a decoder makes of one latent cell.
    widest: usize,
    device: Device,
}

const MOST: usize = 200;
/// A picture 64 times as wide as its latent; the published ones make eight of it.
const MOST_RESAMPLINGS: usize = 6;
/// Four times what the published ones make of a latent cell. A preview is made in passing, in memory nobody planned for.
const PREVIEW_WIDEST: usize = 1 << 14;

/// What one place of a sequence holds, by its keys.
struct SequencePlace {
    number: usize,
    kind: SequencePlaceKind,
    out: usize,
}

enum SequencePlaceKind {
    Conv,
    /// Halves or doubles the size.
    Resample,
    Block(BlockParts),
}

/// What a block has beside its convolutions.
#[derive(Clone, Copy)]
struct BlockParts {
    /// A matrix in its shortcut.
    skip: bool,
    pool: bool,
}

/// The shape of a sequence.
struct SequenceConfig {
    input: usize,
    places: Vec<SequencePlace>,
    resamplings: usize,
    widest: usize,
    side: Side,
}

impl SequenceConfig {
    /// The sequence whose keys start with the prefix; none if there are none.
    fn detect(store: &WeightStore, prefix: &str, side: Side) -> Result<Option<Self>> {
        let numbers = store
            .keys()
            .into_iter()
            .filter_map(|key| key.strip_prefix(prefix)?.split('.').next()?.parse().ok());
        let Some(last) = numbers.filter(|&n: &usize| n < MOST).max() else {
            return Ok(None);
        };
        let (mut first, mut resamplings, mut widest) = (None, 0, 0);
        let mut at = 0;
        let mut places = Vec::new();
        for number in 0..=last {
            let key = format!("{prefix}{number}");
            let block = store.has(&format!("{key}.conv.0.weight"));
            let weight = if block {
                format!("{key}.conv.0.weight")
            } else {
                format!("{key}.weight")
            };
            let Some(shape) = store.shape(&weight) else {
                continue;
            };
            let &[out, input, ..] = shape else {
                return Err(ModelError::Shape {
                    file: store.file().to_owned(),
                    key: weight,
                    expected: "a convolution".to_owned(),
                    found: shape.to_vec(),
                });
            };
            if first.is_none() {
                (first, at) = (Some(input), input);
            }
            let resample = !block && !store.has(&format!("{key}.bias"));
            resamplings += usize::from(resample);
            if resamplings > MOST_RESAMPLINGS {
                let reason = format!("it changes the size more than {MOST_RESAMPLINGS} times");
                return Err(ModelError::unsupported(store.file(), reason));
            }
            widest = widest.max(out.saturating_mul(1 << (2 * resamplings)));
            let kind = if block {
                SequencePlaceKind::Block(BlockParts {
                    skip: at != out || store.has(&format!("{key}.skip.weight")),
                    pool: store.has(&format!("{key}.pool.0.weight")),
                })
            } else if resample {
                SequencePlaceKind::Resample
            } else {
                SequencePlaceKind::Conv
            };
            places.push(SequencePlace { number, kind, out });
            at = out;
        }
        Ok(first.map(|input| Self {
            input,
            places,
            resamplings,
            widest,
            side,
        }))
    }
}

impl Sequence {
    /// The sequence whose keys start with the prefix; none if there are none.
    fn new(store: &WeightStore, prefix: &str, side: Side) -> Result<Option<Self>> {
        let Some(config) = SequenceConfig::detect(store, prefix, side)? else {
            return Ok(None);
        };
        let build = |weights: &Walk<'_>| match prefix.strip_suffix('.') {
            Some(place) => Self::walk(&weights.at(place), &config),
            None => Self::walk(weights, &config),
        };
        store.build("the small autoencoder", build).map(Some)
    }

    fn walk(weights: &Walk<'_>, config: &SequenceConfig) -> Result<Self> {
        let mut at = config.input;
        let mut steps = Vec::new();
        for (index, place) in config.places.iter().enumerate() {
            let (out, name) = (place.out, place.number.to_string());
            steps.push(match place.kind {
                SequencePlaceKind::Block(parts) => {
                    SequenceLayer::Block(Block::new(&weights.at(&name), (at, out), parts)?)
                }
                SequencePlaceKind::Resample => {
                    let kernel = Kernel {
                        out,
                        input: at,
                        side: 3,
                        bias: false,
                    };
                    let stride = config.side.pick(2, 1);
                    let conv = weights.conv_with(&name, kernel, stride, Padding::Same(1))?;
                    match config.side {
                        Side::Encoder => SequenceLayer::Conv(conv, Act::None),
                        Side::Decoder => SequenceLayer::Enlarged(conv),
                    }
                }
                SequencePlaceKind::Conv => {
                    let first = config.side == Side::Decoder && index == 0;
                    let act = if first { Act::Relu } else { Act::None };
                    SequenceLayer::Conv(weights.conv(&name, out, at, 3, 1)?, act)
                }
            });
            at = out;
        }
        Ok(Self {
            steps,
            ends: (config.input, at),
            resamplings: config.resamplings,
            pooled: config.places.iter().any(|place| {
                matches!(
                    place.kind,
                    SequencePlaceKind::Block(BlockParts { pool: true, .. })
                )
            }),
            widest: config.widest,
            device: weights.device().clone(),
        })
    }

    fn forward(&self, x: &Tensor, check: Check<'_>) -> Result<Tensor> {
        if x.rank() != 4 || x.is_empty() || x.shape()[1] != self.ends.0 {
            let reason = format!(
                "takes pictures of {} channels, got shape {:?}",
                self.ends.0,
                x.shape()
            );
            return Err(ModelError::invalid("TAESD", reason));
        }
        let mut h = x.nchw_to_nhwc()?.to(&self.device)?;
        for step in &self.steps {
            check()?;
            h = match step {
                SequenceLayer::Conv(conv, act) => conv.forward_with(&h, then(*act))?,
                SequenceLayer::Enlarged(conv) => {
                    let [_, rows, columns, _] = h.dims4()?;
                    conv.upsampled(&h, (2 * rows, 2 * columns), After::default())?
                }
                SequenceLayer::Block(block) => block.forward(h)?,
            };
        }
        Ok(h.to(&Device::cpu())?.nhwc_to_nchw()?)
    }
}

/// See the [module](self).
pub struct Taesd {
    encoder: Option<Sequence>,
    decoder: Option<Sequence>,
    scale: f32,
    shift: f32,
}

impl Taesd {
    /// From the two files that are published; either may be absent. Latents are scaled as [`KINDS`] says; a preview has
    /// scale 1 and shift 0.
    pub fn new(
        encoder: Option<&WeightStore>,
        decoder: Option<&WeightStore>,
        scale: f32,
        shift: f32,
    ) -> Result<Self> {
        let part = |store: Option<&WeightStore>, side| match store {
            Some(store) => {
                let net = Sequence::new(store, "", side)?;
                let reason = "this is not a TAESD file";
                Ok(Some(net.ok_or_else(|| {
                    ModelError::unsupported(store.file(), reason)
                })?))
            }
            None => Ok::<_, ModelError>(None),
        };
        Ok(Self {
            encoder: part(encoder, Side::Encoder)?,
            decoder: part(decoder, Side::Decoder)?,
            scale,
            shift,
        })
    }

    /// For previews: the decoder only, on latents as the sampler has them. Its layers may be numbered at the top of the
    /// file, or below `decoder`.
    pub fn previewer(store: &WeightStore) -> Result<Self> {
        const BELOW: &str = "decoder.";
        let below = store.keys().iter().any(|key| key.starts_with(BELOW));
        let prefix = if below { BELOW } else { "" };
        let refuse = |reason: &str| ModelError::unsupported(store.file(), reason);
        let decoder = Sequence::new(store, prefix, Side::Decoder)?;
        let decoder = decoder.ok_or_else(|| refuse("this is not a TAESD file"))?;
        if decoder.widest > PREVIEW_WIDEST {
            return Err(refuse("it is too wide for previews"));
        }
        Ok(Self {
            encoder: None,
            decoder: Some(decoder),
            scale: 1.0,
            shift: 0.0,
        })
    }

    /// From both parts in one store, with the scale and the shift.
    pub fn combined(store: &WeightStore) -> Result<Self> {
        let scalar = |key: &str, default: f32| {
            if store.has(key) {
                store.tensor(key)?.item().map_err(ModelError::from)
            } else {
                Ok(default)
            }
        };
        Ok(Self {
            encoder: Sequence::new(store, "taesd_encoder.", Side::Encoder)?,
            decoder: Sequence::new(store, "taesd_decoder.", Side::Decoder)?,
            scale: scalar("vae_scale", 1.0)?,
            shift: scalar("vae_shift", 0.0)?,
        })
    }

    pub fn latent_channels(&self) -> usize {
        let own = match (&self.decoder, &self.encoder) {
            (Some(decoder), _) => decoder.ends.0,
            (None, Some(encoder)) => encoder.ends.1,
            (None, None) => 0,
        };
        own * self.packed() * self.packed()
    }

    /// Cells of the network along a side of one of the sampler's.
    fn packed(&self) -> usize {
        let net = self.decoder.as_ref().or(self.encoder.as_ref());
        if net.is_some_and(|net| net.pooled) {
            PACKED
        } else {
            1
        }
    }

    /// Channels of the pictures that the decoder makes; none without one.
    pub fn picture_channels(&self) -> Option<usize> {
        self.decoder.as_ref().map(|decoder| decoder.ends.1)
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        let net = self.decoder.as_ref().or(self.encoder.as_ref());
        self.packed() << net.map_or(0, |net| net.resamplings)
    }
}

impl Autoencoder for Taesd {
    fn facts(&self) -> VaeFacts {
        VaeFacts::pictures(self.latent_channels(), self.ratio())
    }

    /// The latent of pictures (b, 3, h, w) in -1..1.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let net = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("TAESD", "there is no encoder"))?;
        let latent = net.forward(&pixels.map(|v| v * 0.5 + 0.5), check)?;
        let latent = pack(latent, self.packed())?;
        Ok(latent.map(|v| v / self.scale + self.shift))
    }

    /// Pictures (b, 3, h, w), about -1..1, of latents.
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let net = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("TAESD", "there is no decoder"))?;
        let bounded = latent.map(|v| (((v - self.shift) * self.scale) / 3.0).tanh() * 3.0);
        let mut out = net.forward(&unpack(bounded, self.packed())?, check)?;
        out.map_inplace(|v| (v - 0.5) * 2.0);
        Ok(out)
    }
}

/// Squares of cells as channels: (b, c, n h, n w) to (b, c n n, h, w).
fn pack(latent: Tensor, n: usize) -> Result<Tensor> {
    if n == 1 {
        return Ok(latent);
    }
    let [b, c, h, w] = latent.dims4()?;
    if h % n != 0 || w % n != 0 {
        let reason = format!("takes latents of whole squares of {n}, got {h} x {w}");
        return Err(ModelError::invalid("TAESD", reason));
    }
    let cells = latent.reshape([b, c, h / n, n, w / n, n])?;
    let cells = cells.permute(&[0, 1, 3, 5, 2, 4])?;
    Ok(cells.reshape([b, c * n * n, h / n, w / n])?)
}

/// The other way.
fn unpack(latent: Tensor, n: usize) -> Result<Tensor> {
    if n == 1 {
        return Ok(latent);
    }
    let [b, packed, h, w] = latent.dims4()?;
    let channels = packed / (n * n);
    if channels * n * n != packed {
        let reason = format!("takes latents of packed cells, got {packed} channels");
        return Err(ModelError::invalid("TAESD", reason));
    }
    let cells = latent.reshape([b, channels, n, n, h, w])?;
    let cells = cells.permute(&[0, 1, 4, 2, 5, 3])?;
    Ok(cells.reshape([b, channels, n * h, n * w])?)
}
