//! Pictures as nodes have them, (b, h, w, c) in 0..1, to latents and back, whole or in tiles.

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, TileAxis, WeightFile, tiled, tiled_each, tiled_scale};

use super::autoencoder::{Autoencoder, PixelRange, Tiling, VaeFacts};
use super::config::VaeConfig;
use super::kl::Check;
use super::names;
use super::shape::ShapeVae;
use super::sound::SoundVae;
use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::taesd::Taesd;

/// An autoencoder of any kind.
pub struct Vae {
    facts: VaeFacts,
    network: Box<dyn Autoencoder>,
}

impl<N: Autoencoder> From<N> for Vae {
    fn from(network: N) -> Self {
        Self {
            facts: network.facts(),
            network: Box::new(network),
        }
    }
}

/// Pixels along a side of a tile of a video.
const VIDEO_TILE: usize = 256;

/// Sizes of tiles along width and height, and how far they reach into each other, all in units of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    pub x: usize,
    pub y: usize,
    pub overlap: usize,
    /// The same for frames, where a video is cut along its time, too.
    pub time: Option<TimeTiles>,
}

/// Frames of a tile, and how many of them are the next one's, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeTiles {
    pub frames: usize,
    pub overlap: usize,
}

impl Tiles {
    /// Of a latent.
    pub const DECODE: Self = Self {
        x: 64,
        y: 64,
        overlap: 16,
        time: None,
    };
    /// Of a picture.
    pub const ENCODE: Self = Self {
        x: 512,
        y: 512,
        overlap: 64,
        time: None,
    };
    /// Of the latent of a video, with cells of so many pixels.
    pub fn decode_video(ratio: usize) -> Self {
        let tile = VIDEO_TILE / ratio.max(1);
        Self {
            x: tile,
            y: tile,
            overlap: tile / 4,
            time: None,
        }
    }

    /// Of a video.
    pub const ENCODE_VIDEO: Self = Self {
        x: VIDEO_TILE,
        y: VIDEO_TILE,
        overlap: VIDEO_TILE / 4,
        time: None,
    };

    /// For decoding, from sizes and overlaps in pixels and in frames. Overlaps that are too large for their tiles are made
    /// smaller.
    pub fn for_decoding(
        (tile, overlap): (usize, usize),
        (frames, shared): (usize, usize),
        ratio: usize,
        span: Option<usize>,
    ) -> Self {
        let ratio = ratio.max(1);
        let overlap = if tile < overlap.saturating_mul(4) {
            tile / 4
        } else {
            overlap
        };
        let shared = if frames < shared.saturating_mul(2) {
            shared / 2
        } else {
            shared
        };
        let time = span.map(|span| {
            let frames = (frames / span).max(2);
            TimeTiles {
                frames,
                overlap: (shared / span).min(frames / 2).max(1),
            }
        });
        Self {
            x: tile / ratio,
            y: tile / ratio,
            overlap: overlap / ratio,
            time,
        }
    }

    /// With at least as many frames as can be blended.
    fn in_time(self) -> Self {
        let time = self.time.map(|time| TimeTiles {
            frames: time.frames.max(2),
            overlap: time.overlap.max(1),
        });
        Self { time, ..self }
    }

    /// Flat, tall and square tiles, so that seams of one lie inside the others.
    fn shapes(self) -> [[usize; 2]; 3] {
        [
            [self.y.saturating_mul(2), self.x / 2],
            [self.y / 2, self.x.saturating_mul(2)],
            [self.y, self.x],
        ]
    }
}

impl Vae {
    /// The autoencoder in a file, under a prefix or, if that is empty, wherever it is.
    pub fn open(file: &Arc<dyn WeightFile>, prefix: &str, device: Device) -> Result<Self> {
        let whole = WeightStore::open(Arc::clone(file), prefix, device.clone());
        if whole.has("taesd_decoder.1.weight") {
            return Ok(Taesd::combined(&whole)?.into());
        }
        let store = names::store(file, prefix, device);
        VaeConfig::detect(&store)?.build(&store)
    }

    pub fn facts(&self) -> VaeFacts {
        self.facts
    }

    /// The network, whose pixels are in its own range.
    pub fn network(&self) -> &dyn Autoencoder {
        &*self.network
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        self.facts.ratio
    }

    /// Frames for one latent frame after the first; none for pictures.
    pub fn temporal_ratio(&self) -> Option<usize> {
        self.facts.temporal_ratio
    }

    /// What it does with sound, if it is of sound.
    pub fn sound(&self, what: &'static str) -> Result<&SoundVae> {
        let none = || ModelError::invalid(what, "this VAE takes and makes no sound");
        self.network.sound().ok_or_else(none)
    }

    /// What it does with solids, if it is of solids.
    pub fn solids(&self, what: &'static str) -> Result<&ShapeVae> {
        let none = || ModelError::invalid(what, "this VAE makes no solids");
        self.network.solids().ok_or_else(none)
    }

    /// The latent of pictures (b, h, w, c) in 0..1: (b, c, h, w), or (1, c, t, h, w) of a video with these frames. Sizes that
    /// do not divide are cut around the middle, channels that the network does not look at are left out, and where it
    /// looks at opacity and there is none, pictures are opaque.
    pub fn encode(&self, images: &Tensor, check: Check<'_>) -> Result<Tensor> {
        self.network.encode(&self.planes(images)?, check)
    }

    /// The same in tiles.
    pub fn encode_tiled(&self, images: &Tensor, tiles: Tiles, check: Check<'_>) -> Result<Tensor> {
        let planes = self.planes(images)?;
        if self.facts.tiling == Tiling::ByNetwork {
            return self.network.encode(&planes, check);
        }
        let ratio = self.ratio() as f64;
        let encode = |tile: &Tensor| self.network.encode(tile, check);
        let Some(span) = self.temporal_ratio() else {
            let [flat, tall, square] = tiles.shapes();
            let shapes = [square, tall, flat];
            return in_tiles(&planes, shapes, tiles.overlap, 1.0 / ratio, encode);
        };
        let span = span as f64;
        let latents = |frames: f64| ((frames + span - 1.0) / span).floor().max(0.0);
        let frames = |latents: f64| (latents * span - (span - 1.0)).max(0.0);
        // Only whole latent frames can be cut out.
        let time = tiles.time.map(|time| {
            let tile = latents(time.frames as f64).max(2.0);
            let overlap = latents(time.overlap as f64)
                .min((tile / 2.0).floor())
                .max(1.0);
            TimeTiles {
                frames: frames(tile) as usize,
                overlap: frames(overlap) as usize,
            }
        });
        let whole = frames(latents(planes.dim(2)? as f64)) as usize;
        let planes = planes.narrow(2, 0, whole)?;
        let steps = VideoSteps {
            frames: &latents,
            time: 1.0 / span,
            space: 1.0 / ratio,
        };
        in_video_tiles(&planes, Tiles { time, ..tiles }, &steps, encode)
    }

    /// Pictures (b, h, w, c) in 0..1 of a latent (b, c, h, w); videos (b, t, h, w, c) of (b, c, t, h, w).
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        self.finished(&self.network.decode(&self.framed(latent)?, check)?)
    }

    /// As [`Self::decode`], but pictures (n, h, w, c) are handed out as soon as they are made, which may be all at once.
    pub fn decode_each(
        &self,
        latent: &Tensor,
        check: Check<'_>,
        sink: &mut dyn FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        let latent = self.framed(latent)?;
        let range = self.facts.pixels("VAE decode")?;
        let mut give = |frames| sink(pictures(frames, range));
        self.network.decode_each(&latent, check, &mut give)
    }

    /// As [`Self::decode`], in tiles.
    pub fn decode_tiled(&self, latent: &Tensor, tiles: Tiles, check: Check<'_>) -> Result<Tensor> {
        let ratio = self.ratio() as f64;
        let latent = self.framed(latent)?;
        if self.facts.tiling == Tiling::ByNetwork {
            return self.finished(&self.network.decode(&latent, check)?);
        }
        let decode = |tile: &Tensor| self.network.decode(tile, check);
        let Some(span) = self.temporal_ratio() else {
            let made = in_tiles(&latent, tiles.shapes(), tiles.overlap, ratio, decode)?;
            return self.finished(&made);
        };
        let steps = DecodeSteps::new(span, ratio);
        let made = tiled(&latent, &steps.axes(tiles.in_time()), decode)?;
        self.finished(&made)
    }

    /// The same pictures (n, h, w, c), handed out as soon as no tile adds to them, which may be all at once.
    pub fn decode_tiled_each(
        &self,
        latent: &Tensor,
        tiles: Tiles,
        check: Check<'_>,
        sink: &mut dyn FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        let span = self.temporal_ratio();
        let Some(span) = span.filter(|_| self.facts.tiling == Tiling::ByCaller) else {
            let all = self.decode_tiled(latent, tiles, check)?;
            return sink(match *all.shape() {
                [b, t, h, w, c] => all.reshape([b * t, h, w, c])?,
                _ => all,
            });
        };
        let steps = DecodeSteps::new(span, self.ratio() as f64);
        let axes = steps.axes(tiles.in_time());
        let latent = self.framed(latent)?;
        for item in 0..latent.dim(0)? {
            let item = latent.narrow(0, item, 1)?;
            let mut decode = |tile: &Tensor| self.network.decode(tile, check);
            tiled_each(&item, &axes, &mut decode, &mut |part| {
                sink(self.finished(&part)?.squeeze(0)?)
            })?;
        }
        Ok(())
    }

    /// The latent with the dimensions that the network takes: a picture is a video of one frame.
    fn framed(&self, latent: &Tensor) -> Result<Tensor> {
        self.facts.pixels("VAE decode")?;
        let channels = self.facts.latent_channels;
        let video = self.temporal_ratio().is_some();
        let latent = match (video, latent.rank()) {
            (true, 4) => latent.unsqueeze(2)?,
            _ => latent.clone(),
        };
        let rank = if video { 5 } else { 4 };
        if latent.rank() != rank || latent.shape()[1] != channels {
            return Err(ModelError::invalid(
                "VAE decode",
                format!(
                    "this VAE takes latents of {channels} channels, got shape {:?}",
                    latent.shape()
                ),
            ));
        }
        Ok(latent)
    }

    /// What comes out, (b, c, h, w) or (b, c, t, h, w), as pictures (b, h, w, c) or videos (b, t, h, w, c) in 0..1.
    fn finished(&self, planes: &Tensor) -> Result<Tensor> {
        let range = self.facts.pixels("VAE decode")?;
        let images = match planes.rank() {
            5 => planes.permute(&[0, 2, 3, 4, 1])?,
            _ => planes.nchw_to_nhwc()?,
        };
        Ok(pictures(images, range))
    }

    /// (b, h, w, c) in 0..1 to (b, c, h, w) in -1..1, or as they are for those that take them so, cut to whole cells; of videos (1, c, b, h, w).
    fn planes(&self, images: &Tensor) -> Result<Tensor> {
        let range = self.facts.pixels("VAE encode")?;
        let [_, h, w, c] = *images.shape() else {
            let reason = format!("shape {:?} is not a batch of pictures", images.shape());
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
        let mut images = cut(cut(images.clone(), 1, h)?, 2, w)?;
        let wanted = self.facts.picture_channels;
        if c > wanted {
            images = images.narrow(3, 0, wanted)?;
        } else if c < wanted {
            let mut shape = images.shape().to_vec();
            shape[3] = wanted - c;
            images = Tensor::cat(&[&images, &Tensor::ones(shape)?], 3)?;
        }
        let mut planes = if self.temporal_ratio().is_some() {
            images.permute(&[3, 0, 1, 2])?.unsqueeze(0)?
        } else {
            images.nhwc_to_nchw()?
        };
        if range == PixelRange::Signed {
            planes.map_inplace(|v| v * 2.0 - 1.0);
        }
        Ok(planes)
    }
}

/// What becomes of sizes and places of a video.
struct VideoSteps<'a> {
    /// The number of frames for a number of frames.
    frames: &'a dyn Fn(f64) -> f64,
    /// By what the place of a frame and that of a pixel are multiplied.
    time: f64,
    space: f64,
}

/// One pass with tiles of (b, c, t, h, w).
fn in_video_tiles(
    x: &Tensor,
    tiles: Tiles,
    steps: &VideoSteps<'_>,
    f: impl FnMut(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let later = |place: f64| place * steps.time;
    let space = |place: f64| place * steps.space;
    let axes = video_axes(tiles, steps.frames, &later, &space);
    tiled(x, &axes, f)
}

/// Time, width and height, in the reference's order.
fn video_axes<'a>(
    tiles: Tiles,
    frames: &'a dyn Fn(f64) -> f64,
    later: &'a dyn Fn(f64) -> f64,
    space: &'a dyn Fn(f64) -> f64,
) -> [TileAxis<'a>; 3] {
    let time = tiles.time.unwrap_or(TimeTiles {
        frames: ALL_FRAMES,
        overlap: 1,
    });
    let plane = |tile: usize| TileAxis {
        tile,
        overlap: tiles.overlap,
        size: space,
        position: space,
    };
    [
        TileAxis {
            tile: time.frames,
            overlap: time.overlap,
            size: frames,
            position: later,
        },
        plane(tiles.x),
        plane(tiles.y),
    ]
}

/// What becomes of the sizes and places of a latent.
struct DecodeSteps {
    frames: Box<dyn Fn(f64) -> f64>,
    time: Box<dyn Fn(f64) -> f64>,
    space: Box<dyn Fn(f64) -> f64>,
}

impl DecodeSteps {
    fn new(span: usize, ratio: f64) -> Self {
        let span = span as f64;
        Self {
            frames: Box::new(move |latents| (latents * span - (span - 1.0)).max(0.0)),
            time: Box::new(move |place| place * span),
            space: Box::new(move |place| place * ratio),
        }
    }

    fn axes(&self, tiles: Tiles) -> [TileAxis<'_>; 3] {
        video_axes(tiles, &*self.frames, &*self.time, &*self.space)
    }
}

/// More frames than any video has.
const ALL_FRAMES: usize = 9999;

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

/// Pictures in 0..1 of what a network makes.
fn pictures(mut images: Tensor, range: PixelRange) -> Tensor {
    if range == PixelRange::Signed {
        images.map_inplace(|v| f32::midpoint(v, 1.0).clamp(0.0, 1.0));
    }
    images
}
