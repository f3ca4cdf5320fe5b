//! Pictures as nodes have them, (b, h, w, c) in 0..1, to latents and back, whole or in tiles.

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile, tiled_scale};

use super::kl::{Check, KlVae};
use super::names;
use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::taesd::Taesd;

/// An autoencoder of any kind.
pub enum Vae {
    Kl(Box<KlVae>),
    /// The small approximation, used in its place.
    Taesd(Taesd),
}

impl From<KlVae> for Vae {
    fn from(net: KlVae) -> Self {
        Self::Kl(Box::new(net))
    }
}

/// Sizes of tiles along width and height, and how far they reach into each other, all in units of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    pub x: usize,
    pub y: usize,
    pub overlap: usize,
}

impl Tiles {
    /// Of a latent.
    pub const DECODE: Self = Self {
        x: 64,
        y: 64,
        overlap: 16,
    };
    /// Of a picture.
    pub const ENCODE: Self = Self {
        x: 512,
        y: 512,
        overlap: 64,
    };

    /// Flat, tall and square tiles, so that seams of one lie inside the others.
    fn shapes(self) -> [[usize; 2]; 3] {
        [
            [self.y * 2, self.x / 2],
            [self.y / 2, self.x * 2],
            [self.y, self.x],
        ]
    }
}

impl Vae {
    /// The autoencoder in a file, under a prefix or, if that is empty, wherever it is.
    pub fn open(file: &Arc<dyn WeightFile>, prefix: &str, device: Device) -> Result<Self> {
        let whole = WeightStore::open(Arc::clone(file), prefix, device.clone());
        if whole.has("taesd_decoder.1.weight") {
            return Ok(Self::Taesd(Taesd::combined(&whole)?));
        }
        let net = KlVae::new(&names::store(file, prefix, device))?;
        Ok(Self::Kl(Box::new(net)))
    }

    pub fn latent_channels(&self) -> usize {
        match self {
            Self::Kl(net) => net.latent_channels(),
            Self::Taesd(net) => net.latent_channels(),
        }
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        match self {
            Self::Kl(net) => net.ratio(),
            Self::Taesd(net) => net.ratio(),
        }
    }

    /// The latent (b, c, h, w) of pictures (b, h, w, c) in 0..1. Sizes that do not divide are cut around the middle, and
    /// channels beyond the third are left out.
    pub fn encode(&self, images: &Tensor, check: Check<'_>) -> Result<Tensor> {
        self.encode_planes(&self.planes(images)?, check)
    }

    /// The same in tiles.
    pub fn encode_tiled(&self, images: &Tensor, tiles: Tiles, check: Check<'_>) -> Result<Tensor> {
        let planes = self.planes(images)?;
        let scale = 1.0 / self.ratio() as f64;
        let [flat, tall, square] = tiles.shapes();
        let shapes = [square, tall, flat];
        in_tiles(&planes, shapes, tiles.overlap, scale, |tile| {
            self.encode_planes(tile, check)
        })
    }

    /// Pictures (b, h, w, 3) in 0..1 of a latent (b, c, h, w).
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        finished(self.decode_planes(latent, check)?)
    }

    /// The same in tiles.
    pub fn decode_tiled(&self, latent: &Tensor, tiles: Tiles, check: Check<'_>) -> Result<Tensor> {
        let scale = self.ratio() as f64;
        let out = in_tiles(latent, tiles.shapes(), tiles.overlap, scale, |tile| {
            self.decode_planes(tile, check)
        })?;
        finished(out)
    }

    fn encode_planes(&self, planes: &Tensor, check: Check<'_>) -> Result<Tensor> {
        match self {
            Self::Kl(net) => net.encode(planes, check),
            Self::Taesd(net) => net.encode(planes, check),
        }
    }

    fn decode_planes(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let channels = self.latent_channels();
        if latent.rank() != 4 || latent.shape()[1] != channels {
            return Err(ModelError::invalid(
                "VAE decode",
                format!(
                    "this VAE takes latents of {channels} channels, got shape {:?}",
                    latent.shape()
                ),
            ));
        }
        match self {
            Self::Kl(net) => net.decode(latent, check),
            Self::Taesd(net) => net.decode(latent, check),
        }
    }

    /// (b, h, w, c) in 0..1 to (b, 3, h, w) in -1..1, cut to whole cells.
    fn planes(&self, images: &Tensor) -> Result<Tensor> {
        let [_, h, w, c] = *images.shape() else {
            let reason = format!("shape {:?} is no batch of pictures", images.shape());
            return Err(ModelError::invalid("VAE encode", reason));
        };
        let ratio = self.ratio();
        if h < ratio || w < ratio || c < 3 {
            let reason = format!(
                "a picture of {w}x{h} with {c} channels; {ratio}x{ratio} with 3 is the smallest"
            );
            return Err(ModelError::invalid("VAE encode", reason));
        }
        let cut = |x: Tensor, dim: usize, size: usize| {
            let rest = size % ratio;
            if rest == 0 {
                return Ok(x);
            }
            x.narrow(dim, rest / 2, size - rest)
        };
        let images = cut(cut(images.clone(), 1, h)?, 2, w)?;
        let images = if c > 3 {
            images.narrow(3, 0, 3)?
        } else {
            images
        };
        let mut planes = images.nhwc_to_nchw()?;
        planes.map_inplace(|v| v * 2.0 - 1.0);
        Ok(planes)
    }
}

/// The mean of three passes with tiles of other shapes.
fn in_tiles(
    x: &Tensor,
    shapes: [[usize; 2]; 3],
    overlap: usize,
    scale: f64,
    mut f: impl FnMut(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    for tile in shapes {
        let part = tiled_scale(x, tile, overlap, scale, &mut f)?;
        sum = Some(match sum {
            None => part,
            Some(sum) => sum.add(&part)?,
        });
    }
    let sum = sum.ok_or_else(|| ModelError::invalid("tiles", "no passes"))?;
    Ok(sum.div_scalar(3.0))
}

/// (b, 3, h, w) around -1..1 to (b, h, w, 3) in 0..1.
fn finished(planes: Tensor) -> Result<Tensor> {
    let mut images = planes.nchw_to_nhwc()?;
    images.map_inplace(|v| f32::midpoint(v, 1.0).clamp(0.0, 1.0));
    Ok(images)
}
