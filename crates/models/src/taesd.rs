//! TAESD: a tiny autoencoder that stands in for the large one in previews and, where asked, in its place.
//!
//! Layers are numbered as in a sequence; what has no weights (activations, enlargements) has a number too.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, Linear, Padding, activate};
use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};
use crate::layout::Layout;
use crate::store::Store;
use crate::unet::plus;
use crate::vae::Check;

/// The published ones: name, scale and shift of the latents they were made for.
pub const KINDS: [(&str, f32, f32); 4] = [
    ("taesd", 0.18215, 0.0),
    ("taesdxl", 0.13025, 0.0),
    ("taesd3", 1.5305, 0.0609),
    ("taef1", 0.3611, 0.1159),
];

/// Three convolutions around a shortcut.
struct Block {
    convs: [Arc<Conv2d>; 3],
    skip: Option<Arc<Linear>>,
}

impl Block {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let relu = After {
            act: Act::Relu,
            ..After::default()
        };
        let [first, second, third] = &self.convs;
        let h = second.forward_with(&first.forward_with(&x, relu)?, relu)?;
        let x = match &self.skip {
            Some(skip) => skip.forward(&x)?,
            None => x,
        };
        Ok(activate(third.forward_with(&h, plus(&x))?, Act::Relu))
    }
}

enum Step {
    Conv(Arc<Conv2d>, Act),
    Enlarged(Arc<Conv2d>),
    Block(Block),
}

/// One of the two sequences.
struct Sequence {
    steps: Vec<Step>,
    /// Channels in and out.
    ends: (usize, usize),
    /// Times the size is halved or doubled.
    resamplings: usize,
    /// The most numbers that a layer of a decoder makes of one latent cell.
    widest: usize,
    device: Device,
}

const MOST: usize = 200;
/// A picture 64 times as wide as its latent; the published ones make eight of it.
const MOST_RESAMPLINGS: usize = 6;
/// Four times what the published ones make of a latent cell. A preview is made in passing, in memory nobody planned for.
const PREVIEW_WIDEST: usize = 1 << 14;

impl Sequence {
    /// The sequence whose keys start with the prefix; none if there are none.
    fn new(store: &Store, prefix: &str, decoder: bool) -> Result<Option<Self>> {
        let numbers = store
            .keys()
            .into_iter()
            .filter_map(|key| key.strip_prefix(prefix)?.split('.').next()?.parse().ok());
        let Some(last) = numbers.filter(|&n: &usize| n < MOST).max() else {
            return Ok(None);
        };
        let mut layout = Layout::default();
        let (mut ends, mut resamplings, mut widest) = (None, 0, 0);
        let mut at = 0;
        // First what is there, so that what is missing is found before anything is built.
        let mut found: Vec<(String, bool, bool)> = Vec::new();
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
            if ends.is_none() {
                (ends, at) = (Some(input), input);
            }
            let resample = !block && !store.has(&format!("{key}.bias"));
            resamplings += usize::from(resample);
            if resamplings > MOST_RESAMPLINGS {
                let reason = format!("it changes the size more than {MOST_RESAMPLINGS} times");
                return Err(ModelError::unsupported(store.file(), reason));
            }
            widest = widest.max(out.saturating_mul(1 << (2 * resamplings)));
            if block {
                for conv in [0, 2, 4] {
                    let from = if conv == 0 { at } else { out };
                    layout.conv(&format!("{key}.conv.{conv}"), out, from, 3);
                }
                let skip = format!("{key}.skip");
                if at != out || store.has(&format!("{skip}.weight")) {
                    layout.matrix(&skip, out, at);
                }
            } else if resample {
                layout.tensor(weight, [out, at, 3, 3]);
            } else {
                layout.conv(&key, out, at, 3);
            }
            found.push((key, block, resample));
            at = out;
        }
        let Some(input) = ends else {
            return Ok(None);
        };
        layout.verify(store, "the small autoencoder")?;
        let mut steps = Vec::new();
        for (place, (key, block, resample)) in found.into_iter().enumerate() {
            let same = Padding::Same(1);
            steps.push(if block {
                let conv = |n: usize| store.conv(&format!("{key}.conv.{n}"), 1, same);
                let skip = format!("{key}.skip");
                Step::Block(Block {
                    convs: [conv(0)?, conv(2)?, conv(4)?],
                    skip: if store.has(&format!("{skip}.weight")) {
                        Some(store.linear(&skip)?)
                    } else {
                        None
                    },
                })
            } else if resample && decoder {
                Step::Enlarged(store.conv(&key, 1, same)?)
            } else {
                let stride = if resample { 2 } else { 1 };
                let act = if decoder && place == 0 {
                    Act::Relu
                } else {
                    Act::None
                };
                Step::Conv(store.conv(&key, stride, same)?, act)
            });
        }
        Ok(Some(Self {
            steps,
            ends: (input, at),
            resamplings,
            widest,
            device: store.device().clone(),
        }))
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
                Step::Conv(conv, act) => {
                    let after = After {
                        act: *act,
                        ..After::default()
                    };
                    conv.forward_with(&h, after)?
                }
                Step::Enlarged(conv) => {
                    let [_, rows, columns, _] = h.dims4()?;
                    conv.upsampled(&h, (2 * rows, 2 * columns), After::default())?
                }
                Step::Block(block) => block.forward(h)?,
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
        encoder: Option<&Store>,
        decoder: Option<&Store>,
        scale: f32,
        shift: f32,
    ) -> Result<Self> {
        let part = |store: Option<&Store>, decoder| match store {
            Some(store) => {
                let net = Sequence::new(store, "", decoder)?;
                let reason = "this is not a TAESD file";
                Ok(Some(net.ok_or_else(|| {
                    ModelError::unsupported(store.file(), reason)
                })?))
            }
            None => Ok::<_, ModelError>(None),
        };
        Ok(Self {
            encoder: part(encoder, false)?,
            decoder: part(decoder, true)?,
            scale,
            shift,
        })
    }

    /// For previews: the decoder only, on latents as the sampler has them. Its layers may be numbered at the top of the
    /// file, or below `decoder`.
    pub fn previewer(store: &Store) -> Result<Self> {
        const BELOW: &str = "decoder.";
        let below = store.keys().iter().any(|key| key.starts_with(BELOW));
        let prefix = if below { BELOW } else { "" };
        let refuse = |reason: &str| ModelError::unsupported(store.file(), reason);
        let decoder = Sequence::new(store, prefix, true)?;
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
    pub fn combined(store: &Store) -> Result<Self> {
        let scalar = |key: &str, default: f32| {
            if store.has(key) {
                store.tensor(key)?.item().map_err(ModelError::from)
            } else {
                Ok(default)
            }
        };
        Ok(Self {
            encoder: Sequence::new(store, "taesd_encoder.", false)?,
            decoder: Sequence::new(store, "taesd_decoder.", true)?,
            scale: scalar("vae_scale", 1.0)?,
            shift: scalar("vae_shift", 0.0)?,
        })
    }

    pub fn latent_channels(&self) -> usize {
        match (&self.decoder, &self.encoder) {
            (Some(decoder), _) => decoder.ends.0,
            (None, Some(encoder)) => encoder.ends.1,
            (None, None) => 0,
        }
    }

    /// Channels of the pictures that the decoder makes; none without one.
    pub fn picture_channels(&self) -> Option<usize> {
        self.decoder.as_ref().map(|decoder| decoder.ends.1)
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        let net = self.decoder.as_ref().or(self.encoder.as_ref());
        1 << net.map_or(0, |net| net.resamplings)
    }

    /// The latent of pictures (b, 3, h, w) in -1..1.
    pub fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let net = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("TAESD", "there is no encoder"))?;
        let latent = net.forward(&pixels.map(|v| v * 0.5 + 0.5), check)?;
        Ok(latent.map(|v| v / self.scale + self.shift))
    }

    /// Pictures (b, 3, h, w), about -1..1, of latents.
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let net = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("TAESD", "there is no decoder"))?;
        let bounded = latent.map(|v| (((v - self.shift) * self.scale) / 3.0).tanh() * 3.0);
        let mut out = net.forward(&bounded, check)?;
        out.map_inplace(|v| (v - 0.5) * 2.0);
        Ok(out)
    }
}
