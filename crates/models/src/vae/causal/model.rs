//! The network.

use std::sync::Arc;

use fresco_tensor::nn::{Conv3d, RmsNorm};
use fresco_tensor::{Device, Tensor};

use super::blocks::{Kernels, Level, Middle, norm, normed};
use super::config::{CausalConfig, CausalHalf};
use super::stream::Stream;
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::vae::autoencoder::{Autoencoder, AutoencoderConfig, Side, VaeFacts};
use crate::vae::kl::Check;
use crate::vae::squares::{patched, unpatched};

/// The network in messages.
pub(super) const WHAT: &str = "the autoencoder";

struct Coder {
    conv_in: Arc<Conv3d>,
    middle: Middle,
    levels: Vec<Level>,
    norm_out: Arc<RmsNorm>,
    conv_out: Arc<Conv3d>,
}

impl Coder {
    fn new(
        weights: &Walk<'_>,
        config: &CausalConfig,
        half: &CausalHalf,
        side: Side,
    ) -> Result<Self> {
        let (input, out) = half.first;
        let (kernels, list) = (kernels(config), side.pick(DOWN, UP));
        let mut levels = Vec::new();
        for (number, level) in half.levels.iter().enumerate() {
            let mut at = weights.at(list);
            if config.nested {
                at = at.at(number).at(list);
            }
            levels.push(Level::new(&at, kernels, level, side)?);
        }
        Ok(Self {
            conv_in: kernels.cube(weights, "conv1", out, input)?,
            middle: Middle::new(&weights.at("middle"), kernels, half.middle)?,
            levels,
            norm_out: norm(weights, "head.0.gamma", half.last)?,
            conv_out: kernels.cube(weights, "head.2", half.out, half.last)?,
        })
    }

    fn levels(&self, mut h: Tensor, stream: &mut Stream, check: Check<'_>) -> Result<Tensor> {
        for level in &self.levels {
            h = level.forward(h, stream, check)?;
        }
        check()?;
        Ok(h)
    }

    /// The levels and what is behind them. Where frames are large they go one by one from where their number is the last.
    fn up(
        &self,
        mut h: Tensor,
        stream: &mut Stream,
        check: Check<'_>,
        give: &mut Give<'_>,
    ) -> Result<()> {
        let moving = self.levels.iter().rposition(|level| level.settled() > 0);
        let (level, step) = match moving.map(|at| (at, self.levels[at].settled())) {
            None => (0, 0),
            Some((at, step)) if step == self.levels[at].len() => (at + 1, 0),
            Some(place) => place,
        };
        for level in &self.levels[..level] {
            h = level.forward(h, stream, check)?;
        }
        let mut rest = self.levels[level..].iter();
        let split = rest.next();
        if let Some(split) = split {
            h = split.part(h, 0..step, stream, check)?;
        }
        let mut ending = |mut h: Tensor, stream: &mut Stream| -> Result<()> {
            if let Some(split) = split {
                h = split.part(h, step..split.len(), stream, check)?;
            }
            for level in rest.clone() {
                h = level.forward(h, stream, check)?;
            }
            check()?;
            let made = self.finish(&h, stream)?;
            drop(h);
            give(made)
        };
        let frames = h.dim(0)?;
        if frames > 1 && h.shape().iter().product::<usize>() / frames > LARGE_FRAME {
            return stream.frame_by_frame(h, ending);
        }
        ending(h, stream)
    }

    fn finish(&self, h: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        stream.causal_of(&self.conv_out, h, || normed(&self.norm_out, h), None)
    }
}

/// Numbers of a frame, before its last enlargements, from which on frames are worked on one by one.
const LARGE_FRAME: usize = 1 << 20;

/// What the lists of levels are called.
const DOWN: &str = "downsamples";
const UP: &str = "upsamples";

fn kernels(config: &CausalConfig) -> Kernels {
    Kernels {
        flat: config.flat,
        moving: !config.is_still(),
    }
}

/// See the [module](super).
pub struct CausalVae {
    config: CausalConfig,
    /// Where it computes.
    device: Device,
    encoder: Option<(Coder, Arc<Conv3d>)>,
    decoder: Option<(Coder, Arc<Conv3d>)>,
}

/// Takes frames (n, h, w, c) as they are made.
type Give<'a> = dyn FnMut(Tensor) -> Result<()> + 'a;

/// A piece of a video: where it begins and how many frames it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: usize,
    len: usize,
}

/// The first frame, then `each` frames at a time; what fills no piece is left out.
fn pieces(frames: usize, each: usize) -> Vec<Piece> {
    let first = Piece { start: 0, len: 1 };
    let rest = (1..)
        .step_by(each)
        .take_while(|start| start + each <= frames);
    let rest = rest.map(|start| Piece { start, len: each });
    [first].into_iter().chain(rest).collect()
}

impl CausalVae {
    /// From a store under the names of the original; [`crate::vae::names::store`] makes one from any file.
    pub fn new(store: &WeightStore) -> Result<Self> {
        let config = CausalConfig::detect(store)?;
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    pub(super) fn walk(weights: &Walk<'_>, config: &CausalConfig) -> Result<Self> {
        let encoder = match &config.encoder {
            Some(half) => Some((
                Coder::new(&weights.at("encoder"), config, half, Side::Encoder)?,
                kernels(config).point(weights, "conv1", half.out, half.out)?,
            )),
            None => None,
        };
        let decoder = match &config.decoder {
            Some(half) => Some((
                Coder::new(&weights.at("decoder"), config, half, Side::Decoder)?,
                kernels(config).point(weights, "conv2", half.first.0, half.first.0)?,
            )),
            None => None,
        };
        Ok(Self {
            config: config.clone(),
            device: weights.device().clone(),
            encoder,
            decoder,
        })
    }

    pub fn config(&self) -> &CausalConfig {
        &self.config
    }

    /// Runs a network on each item of (b, c, t, h, w), a piece of `each` frames at a time, and joins what it makes.
    fn in_pieces(
        &self,
        what: &'static str,
        x: &Tensor,
        each: usize,
        f: impl FnMut(Tensor, &mut Stream, &mut Give<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        let mut items: Vec<Vec<Tensor>> = Vec::new();
        self.each_piece(what, x, each, f, |item, made| {
            items.resize_with(items.len().max(item + 1), Vec::new);
            items[item].push(made);
            Ok(())
        })?;
        let items = items.into_iter().map(planes);
        joined(items.collect::<Result<_>>()?, 0)
    }

    /// The same, and hands out what it makes, frames (n, h, w, c) of a piece or a part of one at a time, with the number of the
    /// item.
    fn each_piece(
        &self,
        what: &'static str,
        x: &Tensor,
        each: usize,
        mut f: impl FnMut(Tensor, &mut Stream, &mut Give<'_>) -> Result<()>,
        mut sink: impl FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        let &[b, _, t, h, w] = x.shape() else {
            let reason = format!("shape {:?} is not a batch of videos", x.shape());
            return Err(ModelError::invalid(what, reason));
        };
        if b == 0 || t == 0 || h == 0 || w == 0 {
            let reason = format!("there is nothing in shape {:?}", x.shape());
            return Err(ModelError::invalid(what, reason));
        }
        if t > 1 && self.config.is_still() {
            let reason = format!(
                "shape {:?} is a video, and it knows pictures only",
                x.shape()
            );
            return Err(ModelError::invalid(what, reason));
        }
        let pieces = pieces(t, each);
        for item in 0..b {
            let video = x.select(0, item)?;
            let mut stream = Stream::default();
            for (number, piece) in pieces.iter().enumerate() {
                stream.begin(number == 0, number + 1 < pieces.len());
                let frames = video.narrow(1, piece.start, piece.len)?;
                let frames = frames.permute(&[1, 2, 3, 0])?.to(&self.device)?;
                f(frames, &mut stream, &mut |made| {
                    sink(item, made.to(&Device::cpu())?)
                })?;
            }
        }
        Ok(())
    }
}

impl Autoencoder for CausalVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// The mean latent (b, c, t, h, w) of videos (b, 3 or 4, frames, h, w) in -1..1. Frames at the end that fill no latent
    /// frame are left out.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        if pixels.rank() == 4 {
            // A picture is a video of one frame.
            return Ok(self.encode(&pixels.unsqueeze(2)?, check)?.squeeze(2)?);
        }
        let (coder, moments) = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE encode", "the file has a decoder only"))?;
        let ratio = self.config.temporal_ratio().unwrap_or(1);
        self.in_pieces("VAE encode", pixels, ratio, |frames, stream, give| {
            let frames = patched(frames, self.config.patch)?;
            let h = stream.causal(&coder.conv_in, &frames, None)?;
            drop(frames);
            let h = coder.levels(h, stream, check)?;
            let h = coder.middle.forward(h, stream, check)?;
            let h = coder.finish(&h, stream)?;
            let all = moments.forward(&h, &[], None)?;
            let channels = all.dim(3)?;
            give(all.narrow(3, 0, channels / 2)?)
        })
    }

    /// Videos (b, 3 or 4, frames, h, w), about -1..1, of latents (b, c, t, h, w).
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        if latent.rank() == 4 {
            return Ok(self.decode(&latent.unsqueeze(2)?, check)?.squeeze(2)?);
        }
        let items = latent.shape().first().copied().unwrap_or(0);
        let mut all = Vec::with_capacity(items);
        for item in 0..items {
            let mut made = Vec::new();
            let one = latent.narrow(0, item, 1)?;
            self.decode_each(&one, check, &mut |frames| {
                made.push(frames);
                Ok(())
            })?;
            all.push(planes(made)?);
        }
        if all.is_empty() {
            let reason = format!("there is nothing in shape {:?}", latent.shape());
            return Err(ModelError::invalid("VAE decode", reason));
        }
        joined(all, 0)
    }

    /// As [`Self::decode`], but frames (n, h, w, 3 or 4) are handed out as soon as they are made, and none is kept.
    fn decode_each(
        &self,
        latent: &Tensor,
        check: Check<'_>,
        sink: &mut dyn FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        if latent.rank() == 4 {
            return self.decode_each(&latent.unsqueeze(2)?, check, sink);
        }
        let (coder, point) = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE decode", "the file has an encoder only"))?;
        let patch = self.config.patch;
        let pass = |frames: Tensor, stream: &mut Stream, give: &mut Give<'_>| {
            let h = point.forward(&frames, &[], None)?;
            drop(frames);
            let h = stream.causal(&coder.conv_in, &h, None)?;
            let h = coder.middle.forward(h, stream, check)?;
            coder.up(h, stream, check, &mut |made| give(unpatched(made, patch)?))
        };
        self.each_piece("VAE decode", latent, 1, pass, |_, made| sink(made))
    }
}

/// One video (1, c, t, h, w) of its frames (n, h, w, c).
fn planes(frames: Vec<Tensor>) -> Result<Tensor> {
    let video = joined(frames, 0)?.permute(&[3, 0, 1, 2])?;
    Ok(video.unsqueeze(0)?)
}

/// One tensor of many; a single one as it is.
pub(super) fn joined(mut parts: Vec<Tensor>, dim: usize) -> Result<Tensor> {
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), dim)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn videos_fall_into_a_frame_and_fours() {
        let lens = |frames, each| -> Vec<(usize, usize)> {
            let pieces = pieces(frames, each).into_iter();
            pieces.map(|piece| (piece.start, piece.len)).collect()
        };
        assert_eq!(lens(1, 4), [(0, 1)]);
        assert_eq!(lens(4, 4), [(0, 1)]);
        assert_eq!(lens(5, 4), [(0, 1), (1, 4)]);
        assert_eq!(lens(12, 4), [(0, 1), (1, 4), (5, 4)]);
        assert_eq!(lens(3, 1), [(0, 1), (1, 1), (2, 1)]);
    }
}
