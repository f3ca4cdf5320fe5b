//! The network.

use std::sync::Arc;

use fresco_tensor::nn::{Conv3d, RmsNorm};
use fresco_tensor::{Device, Tensor, trim_spare_memory};

use super::blocks::{Middle, Step, cube, norm, normed, point};
use super::config::{CausalConfig, CausalHalf};
use super::stream::Stream;
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::vae::kl::Check;

/// The network in messages.
pub(super) const WHAT: &str = "the autoencoder";

struct Coder {
    conv_in: Arc<Conv3d>,
    middle: Middle,
    steps: Vec<Step>,
    norm_out: Arc<RmsNorm>,
    conv_out: Arc<Conv3d>,
}

impl Coder {
    fn new(weights: &Walk<'_>, half: &CausalHalf, steps: Vec<Step>) -> Result<Self> {
        let (input, out) = half.first;
        Ok(Self {
            conv_in: cube(weights, "conv1", out, input)?,
            middle: Middle::new(&weights.at("middle"), half.middle)?,
            steps,
            norm_out: norm(weights, "head.0.gamma", half.last)?,
            conv_out: cube(weights, "head.2", half.out, half.last)?,
        })
    }

    fn encoder(weights: &Walk<'_>, half: &CausalHalf) -> Result<Self> {
        let mut steps = Vec::new();
        for (number, step) in half.steps.iter().enumerate() {
            steps.push(Step::down(&weights.at("downsamples").at(number), *step)?);
        }
        Self::new(weights, half, steps)
    }

    fn decoder(weights: &Walk<'_>, half: &CausalHalf) -> Result<Self> {
        let mut steps = Vec::new();
        for (number, step) in half.steps.iter().enumerate() {
            steps.push(Step::up(&weights.at("upsamples").at(number), *step)?);
        }
        Self::new(weights, half, steps)
    }

    fn steps(&self, mut h: Tensor, stream: &mut Stream, check: Check<'_>) -> Result<Tensor> {
        for step in &self.steps {
            check()?;
            h = step.forward(h, stream)?;
            trim_spare_memory();
        }
        check()?;
        Ok(h)
    }

    fn finish(&self, h: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        stream.causal(&self.conv_out, &normed(&self.norm_out, h)?, None)
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
                Coder::encoder(&weights.at("encoder"), half)?,
                point(weights, "conv1", half.out, half.out)?,
            )),
            None => None,
        };
        let decoder = match &config.decoder {
            Some(half) => Some((
                Coder::decoder(&weights.at("decoder"), half)?,
                point(weights, "conv2", half.first.0, half.first.0)?,
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

    /// The mean latent (b, c, t, h, w) of videos (b, 3 or 4, frames, h, w) in -1..1. Frames at the end that fill no latent
    /// frame are left out.
    pub fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (coder, moments) = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE encode", "the file has a decoder only"))?;
        let ratio = self.config.temporal_ratio();
        self.in_pieces("VAE encode", pixels, ratio, |frames, stream| {
            let h = stream.causal(&coder.conv_in, &frames, None)?;
            drop(frames);
            let h = coder.steps(h, stream, check)?;
            let h = coder.middle.forward(h, stream, check)?;
            let h = coder.finish(&h, stream)?;
            let all = moments.forward(&h, None, None)?;
            let channels = all.dim(3)?;
            Ok(all.narrow(3, 0, channels / 2)?)
        })
    }

    /// Videos (b, 3 or 4, frames, h, w), about -1..1, of latents (b, c, t, h, w).
    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (coder, point) = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE decode", "the file has an encoder only"))?;
        self.in_pieces("VAE decode", latent, 1, |frames, stream| {
            let h = point.forward(&frames, None, None)?;
            drop(frames);
            let h = stream.causal(&coder.conv_in, &h, None)?;
            let h = coder.middle.forward(h, stream, check)?;
            let h = coder.steps(h, stream, check)?;
            coder.finish(&h, stream)
        })
    }

    /// Runs a network on each item of (b, c, t, h, w), a piece of `each` frames at a time, and joins what it makes.
    fn in_pieces(
        &self,
        what: &'static str,
        x: &Tensor,
        each: usize,
        mut f: impl FnMut(Tensor, &mut Stream) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let &[b, _, t, h, w] = x.shape() else {
            let reason = format!("shape {:?} is no batch of videos", x.shape());
            return Err(ModelError::invalid(what, reason));
        };
        if b == 0 || t == 0 || h == 0 || w == 0 {
            let reason = format!("there is nothing in shape {:?}", x.shape());
            return Err(ModelError::invalid(what, reason));
        }
        let pieces = pieces(t, each);
        let mut items = Vec::with_capacity(b);
        for item in 0..b {
            let video = x.select(0, item)?;
            let mut stream = Stream::default();
            let mut made = Vec::with_capacity(pieces.len());
            for (number, piece) in pieces.iter().enumerate() {
                stream.begin(number == 0, number + 1 < pieces.len());
                let frames = video.narrow(1, piece.start, piece.len)?;
                let frames = frames.permute(&[1, 2, 3, 0])?.to(&self.device)?;
                let out = f(frames, &mut stream)?.to(&Device::cpu())?;
                made.push(out.permute(&[3, 0, 1, 2])?);
            }
            items.push(joined(made, 1)?);
        }
        let items = items.into_iter().map(|item| item.unsqueeze(0));
        joined(items.collect::<fresco_tensor::Result<_>>()?, 0)
    }
}

/// One tensor of many; a single one as it is.
fn joined(mut parts: Vec<Tensor>, dim: usize) -> Result<Tensor> {
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
