//! The network: pieces one after another, in tiles where pictures are large.

use std::sync::Arc;

use fresco_tensor::nn::Value;
use fresco_tensor::{Device, Tensor};

use super::config::{PieceConfig, SPAN};
use super::decoder::Decoder;
use super::encoder::Encoder;
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::vae::autoencoder::{Autoencoder, AutoencoderConfig, Side, VaeFacts};
use crate::vae::kl::Check;

/// The network in messages.
pub(super) const WHAT: &str = "the autoencoder";

/// Means and deviations of colours in photographs, which it was trained on.
const COLOURS: [(f32, f32); 3] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];

/// Pixels along a side of a tile, and how many of them are the next one's, too, at least.
const TILE: usize = 256;
const OVERLAP: usize = 64;

/// An autoencoder of videos that works on one piece after another.
pub struct PieceVae {
    config: PieceConfig,
    device: Device,
    encoder: Option<Encoder>,
    decoder: Decoder,
    measured: Option<[Arc<Value>; 2]>,
}

impl PieceVae {
    pub fn new(store: &WeightStore) -> Result<Self> {
        Self::with(store, &PieceConfig::detect(store)?)
    }

    pub fn with(store: &WeightStore, config: &PieceConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, config))
    }

    pub(super) fn walk(weights: &Walk<'_>, config: &PieceConfig) -> Result<Self> {
        let encoder = || Encoder::new(weights, config);
        let measured = || -> Result<[Arc<Value>; 2]> {
            Ok([
                weights.value("latents_mean", &[config.latent])?,
                weights.value("latents_std", &[config.latent])?,
            ])
        };
        Ok(Self {
            device: weights.device(),
            encoder: config.encoder.then(encoder).transpose()?,
            decoder: Decoder::new(weights, config)?,
            measured: config.measured.then(measured).transpose()?,
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &PieceConfig {
        &self.config
    }

    /// The same of colours as the network has them.
    pub fn encode_plain(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let Some(encoder) = &self.encoder else {
            let reason = "the file has a decoder only";
            return Err(ModelError::invalid("VAE encode", reason));
        };
        let piece = self.config.piece;
        each(pixels, "VAE encode", |video| {
            let frames = video.dim(0)?;
            let mut parts = Vec::new();
            for start in (0..frames).step_by(piece) {
                let part = video.narrow(0, start, piece.min(frames - start))?;
                parts.push(encoder.forward(&part.to(&self.device)?, check)?);
            }
            Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?)
        })
    }

    /// The same of latents, and with colours, as the network has them: one piece after another, each faded into the next.
    pub fn decode_plain(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let piece = self.config.piece_latents();
        let (shared, lead) = (piece - self.config.dropped, SPAN - 1);
        each(latent, "VAE decode", |video| {
            let latents = video.dim(0)?;
            let mut done: Vec<Tensor> = Vec::new();
            let mut fading: Option<Tensor> = None;
            for start in (0..latents).step_by(piece) {
                if start > 0 && latents - start <= shared {
                    // The piece before has made these already.
                    break;
                }
                let count = (piece + shared).min(latents - start);
                let part = video.narrow(0, start, count)?.to(&self.device)?;
                let made = self.decoder.forward(&part, check)?.to(&Device::cpu())?;
                let whole = made.dim(0)?;
                let own = (piece * SPAN).min(whole);
                let mut frames = made.narrow(0, lead, own - lead)?;
                if let Some(before) = fading.take() {
                    frames = faded(&before, &frames)?;
                }
                done.push(frames);
                if whole > own + lead {
                    fading = Some(made.narrow(0, own + lead, whole - own - lead)?);
                }
            }
            done.extend(fading);
            Ok(Tensor::cat(&done.iter().collect::<Vec<_>>(), 0)?)
        })
    }

    /// One piece as the decoder makes it, with the frames that are left out elsewhere.
    pub fn decode_piece(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        each(latent, "VAE decode", |video| {
            self.decoder.forward(&video.to(&self.device)?, check)
        })
    }

    fn measure(&self, latent: &Tensor, side: Side) -> Result<Tensor> {
        let Some(both) = &self.measured else {
            return Ok(latent.clone());
        };
        let line = |value: &Value| -> Result<Tensor> {
            let value = value.at(&Device::cpu())?;
            Ok(value.reshape([1, value.len(), 1, 1, 1])?)
        };
        let (means, deviations) = (line(&both[0])?, line(&both[1])?);
        Ok(match side {
            Side::Encoder => latent.sub(&means)?.div(&deviations)?,
            Side::Decoder => latent.mul(&deviations)?.add(&means)?,
        })
    }
}

impl Autoencoder for PieceVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// The mean latent (b, c, t, h, w) of videos (b, 3, frames, h, w) in -1..1.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let coloured = colours(pixels, |v, (mean, dev)| {
            (f32::midpoint(v, 1.0) - mean) / dev
        })?;
        let (ratio, tile) = (self.config.patch, TILE);
        let latent = in_tiles(&coloured, (tile, OVERLAP), (1, ratio), |part| {
            self.encode_plain(part, check)
        })?;
        self.measure(&latent, Side::Encoder)
    }

    /// Videos (b, 3, frames, h, w), about -1..1, of latents.
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let latent = self.measure(latent, Side::Decoder)?;
        let ratio = self.config.patch;
        let (tile, overlap) = ((TILE / ratio).max(2), (OVERLAP / ratio).max(1));
        let made = in_tiles(&latent, (tile, overlap), (ratio, 1), |part| {
            self.decode_plain(part, check)
        })?;
        colours(&made, |v, (mean, dev)| {
            (v * dev + mean).clamp(0.0, 1.0) * 2.0 - 1.0
        })
    }
}

/// Every value by the mean and deviation of its colour, of (b, 3, t, h, w).
fn colours(x: &Tensor, f: impl Fn(f32, (f32, f32)) -> f32) -> Result<Tensor> {
    let &[_, 3, t, h, w] = x.shape() else {
        let reason = format!("shape {:?} is not a video in colours", x.shape());
        return Err(ModelError::invalid("VAE", reason));
    };
    let plane = (t * h * w).max(1);
    Ok(x.map_indexed(|i, v| f(v, COLOURS[i / plane % 3])))
}

/// The first frames of `after` come in as those of `before` go.
fn faded(before: &Tensor, after: &Tensor) -> Result<Tensor> {
    let count = before.dim(0)?.min(after.dim(0)?);
    let mut frames = Vec::new();
    for at in 0..count {
        let share = at as f32 / count as f32;
        let (old, new) = (before.narrow(0, at, 1)?, after.narrow(0, at, 1)?);
        frames.push(old.lerp(&new, share)?);
    }
    let rest = after.narrow(0, count, after.dim(0)? - count)?;
    frames.push(rest);
    let frames: Vec<&Tensor> = frames.iter().filter(|t| !t.is_empty()).collect();
    Ok(Tensor::cat(&frames, 0)?)
}

/// Runs a network on each item of (b, c, t, h, w), as frames (t, h, w, c), and joins what it makes.
fn each(x: &Tensor, what: &'static str, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if x.rank() != 5 || x.is_empty() {
        let reason = format!("shape {:?} is not a batch of videos", x.shape());
        return Err(ModelError::invalid(what, reason));
    }
    let mut made = Vec::new();
    for item in 0..x.dim(0)? {
        let video = x.select(0, item)?.permute(&[1, 2, 3, 0])?;
        let out = f(&video)?.to(&Device::cpu())?;
        made.push(out.permute(&[3, 0, 1, 2])?.unsqueeze(0)?);
    }
    Ok(Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?)
}

/// Where tiles along a side begin: as few as reach far enough into each other, evenly apart.
fn starts(length: usize, tile: usize, overlap: usize, step: usize) -> Vec<usize> {
    if length <= tile {
        return vec![0];
    }
    let count = (length - overlap).div_ceil((tile - overlap).max(1)).max(2);
    let last = length - tile;
    let start = |n: usize| (last * n / (count - 1)).div_euclid(step) * step;
    let mut starts: Vec<usize> = (0..count - 1).map(start).collect();
    starts.push(last);
    starts
}

/// How much a place of a tile counts where tiles meet: it rises from the edge inwards.
fn ramp(at: usize, size: usize, (before, after): (usize, usize)) -> f32 {
    let rise = |n: usize, over: usize| {
        if n < over {
            (n + 1) as f32 / (over + 1) as f32
        } else {
            1.0
        }
    };
    rise(at, before).min(rise(size - 1 - at, after))
}

/// Runs `f` on tiles of (b, c, t, h, w); results are `grow` times as large and `shrink` times as small along rows and columns.
fn in_tiles(
    x: &Tensor,
    (tile, overlap): (usize, usize),
    (grow, shrink): (usize, usize),
    f: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let &[_, _, _, h, w] = x.shape() else {
        return f(x);
    };
    if h <= tile && w <= tile {
        return f(x);
    }
    let (rows, columns) = (
        starts(h, tile, overlap, shrink),
        starts(w, tile, overlap, shrink),
    );
    let scaled = |n: usize| n * grow / shrink;
    let mut sum: Option<(Tensor, Tensor)> = None;
    for (i, row) in rows.iter().enumerate() {
        for (j, column) in columns.iter().enumerate() {
            let (th, tw) = (tile.min(h), tile.min(w));
            let part = x.narrow(3, *row, th)?.narrow(4, *column, tw)?;
            let made = f(&part)?;
            let &[b, c, t, oh, ow] = made.shape() else {
                return Err(ModelError::invalid("VAE", "a tile has no pictures"));
            };
            let over = |list: &[usize], n: usize, len: usize| {
                let before = if n > 0 {
                    list[n - 1] + len - list[n]
                } else {
                    0
                };
                let after = list.get(n + 1).map_or(0, |next| list[n] + len - next);
                (scaled(before), scaled(after))
            };
            let (vertical, across) = (over(&rows, i, th), over(&columns, j, tw));
            let weight = Tensor::from_fn([1, 1, 1, oh, ow], |at| {
                ramp(at / ow, oh, vertical) * ramp(at % ow, ow, across)
            })?;
            if sum.is_none() {
                sum = Some((
                    Tensor::zeros([b, c, t, scaled(h), scaled(w)])?,
                    Tensor::zeros([1, 1, 1, scaled(h), scaled(w)])?,
                ));
            }
            let Some((total, weights)) = &mut sum else {
                continue;
            };
            let place = [0, 0, 0, scaled(*row), scaled(*column)];
            let add = |to: &mut Tensor, more: &Tensor| -> Result<()> {
                let old = to.narrow(3, place[3], oh)?.narrow(4, place[4], ow)?;
                to.paste(&place, &old.add(more)?)?;
                Ok(())
            };
            add(total, &made.mul(&weight)?)?;
            add(weights, &weight)?;
        }
    }
    let (total, weights) = sum.ok_or_else(|| ModelError::invalid("VAE", "there are no tiles"))?;
    Ok(total.div(&weights)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_everything_and_constants_stay() {
        assert_eq!(starts(16, 16, 4, 1), [0]);
        assert_eq!(starts(40, 16, 4, 1), [0, 12, 24]);
        let x = Tensor::full([1, 2, 1, 20, 9], 3.0).unwrap();
        let made = in_tiles(&x, (8, 2), (2, 1), |part| {
            Ok(part.repeat_interleave(3, 2)?.repeat_interleave(4, 2)?)
        });
        let made = made.unwrap();
        assert_eq!(made.shape(), [1, 2, 1, 40, 18]);
        assert!(made.data().iter().all(|v| (v - 3.0).abs() < 1e-5));
    }
}
