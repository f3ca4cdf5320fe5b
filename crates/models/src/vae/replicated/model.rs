//! The network.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear};
use fresco_tensor::{Device, Tensor, trim_spare_memory};

use super::blocks::{Carry, Level, Middle, Norm, Replicated, averaged};
use super::config::{ReplicatedConfig, ReplicatedHalf};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::vae::autoencoder::{Autoencoder, AutoencoderConfig, Side, VaeFacts};
use crate::vae::film::each_film;
use crate::vae::kl::Check;

/// The network in messages.
pub(super) const WHAT: &str = "the autoencoder";

/// Latent frames of a piece where norms are over all frames that they see. Others see cells one by one, and pieces are as
/// small as they can be: frames are large at the end.
const PIECE: usize = 2;
const SMALL_PIECE: usize = 1;

struct Coder {
    conv_in: Replicated,
    levels: Vec<Level>,
    middle: Middle,
    norm_out: Norm,
    conv_out: Replicated,
}

impl Coder {
    fn new(weights: &Walk<'_>, half: &ReplicatedHalf, grouped: bool, side: Side) -> Result<Self> {
        let (input, out) = half.first;
        let list = weights.at(side.pick("down", "up"));
        let levels = half.levels.iter();
        let levels = levels.map(|level| Level::new(&list.at(level.number), level, grouped, side));
        Ok(Self {
            conv_in: Replicated::new(weights, "conv_in.conv", out, input)?,
            levels: levels.collect::<Result<_>>()?,
            middle: Middle::new(&weights.at("mid"), half.middle, grouped)?,
            norm_out: Norm::new(weights, "norm_out", half.last, grouped)?,
            conv_out: Replicated::new(weights, "conv_out.conv", half.out, half.last)?,
        })
    }

    fn levels(&self, mut h: Tensor, carry: &mut Carry, check: Check<'_>) -> Result<Tensor> {
        for level in &self.levels {
            h = level.forward(h, carry, check)?;
            trim_spare_memory();
        }
        check()?;
        Ok(h)
    }

    fn finish(&self, h: &Tensor, carry: &mut Carry) -> Result<Tensor> {
        self.conv_out
            .forward(&self.norm_out.forward(h, Act::Silu)?, carry)
    }
}

/// An autoencoder of films whose convolutions see the first frame again before it.
pub struct ReplicatedVae {
    config: ReplicatedConfig,
    device: Device,
    encoder: Option<(Coder, Option<Arc<Linear>>)>,
    decoder: Option<(Coder, Option<Arc<Linear>>)>,
}

impl ReplicatedVae {
    pub fn new(store: &WeightStore, config: &ReplicatedConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, config))
    }

    pub(super) fn walk(weights: &Walk<'_>, config: &ReplicatedConfig) -> Result<Self> {
        let grouped = config.grouped;
        let encoder = config.encoder.as_ref().map(|half| -> Result<_> {
            let coder = Coder::new(&weights.at("encoder"), half, grouped, Side::Encoder)?;
            let quant = config.quant;
            let quant = quant.map(|out| weights.linear("quant_conv", out, half.out));
            Ok((coder, quant.transpose()?))
        });
        let decoder = config.decoder.as_ref().map(|half| -> Result<_> {
            let coder = Coder::new(&weights.at("decoder"), half, grouped, Side::Decoder)?;
            let (quant, first) = (config.post_quant, half.first.0);
            let quant = quant.map(|out| weights.linear("post_quant_conv", out, first));
            Ok((coder, quant.transpose()?))
        });
        Ok(Self {
            config: config.clone(),
            device: weights.device().clone(),
            encoder: encoder.transpose()?,
            decoder: decoder.transpose()?,
        })
    }

    pub fn config(&self) -> &ReplicatedConfig {
        &self.config
    }

    fn piece(&self) -> usize {
        if self.config.grouped {
            PIECE
        } else {
            SMALL_PIECE
        }
    }
}

impl Autoencoder for ReplicatedVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    /// The mean latent (b, c, t, h, w) of films (b, 3, frames, h, w) in -1..1. Frames at the end that fill no latent frame
    /// are left out.
    fn encode(&self, pixels: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (coder, quant) = self
            .encoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE encode", "the file has a decoder only"))?;
        let span = self.config.temporal_ratio();
        each_film("VAE encode", pixels, |film| {
            let frames = film.dim(0)?;
            let whole = (frames - 1) / span * span + 1;
            let mut starts = vec![(0, 1)];
            let mut at = 1;
            while at < whole {
                let len = (self.piece() * span).min(whole - at);
                starts.push((at, len));
                at += len;
            }
            let (mut carry, mut made) = (Carry::default(), Vec::new());
            for (number, &(start, len)) in starts.iter().enumerate() {
                carry.begin(number, number + 1 < starts.len());
                let piece = film.narrow(0, start, len)?.to(&self.device)?;
                let h = coder.conv_in.forward(&piece, &mut carry)?;
                made.push(coder.levels(h, &mut carry, check)?);
            }
            let h = Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?;
            drop(made);
            let h = coder.middle.forward(h, check)?;
            let mut moments = coder.finish(&h, &mut Carry::default())?;
            if !self.config.grouped {
                moments = moments.add(&averaged(&h, moments.dim(3)?)?)?;
            }
            if let Some(quant) = quant {
                moments = quant.forward(&moments)?;
            }
            let channels = moments.dim(3)?;
            Ok(moments.narrow(3, 0, channels / 2)?)
        })
    }

    /// Films (b, 3, frames, h, w), about -1..1, of latents (b, c, t, h, w).
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let (coder, quant) = self
            .decoder
            .as_ref()
            .ok_or_else(|| ModelError::invalid("VAE decode", "the file has an encoder only"))?;
        each_film("VAE decode", latent, |film| {
            let mut film = film.to(&self.device)?;
            if let Some(quant) = quant {
                film = quant.forward(&film)?;
            }
            let mut h = coder.conv_in.forward(&film, &mut Carry::default())?;
            if !self.config.grouped {
                let (wide, channels) = (h.dim(3)?, film.dim(3)?.max(1));
                h = h.add(&film.repeat_interleave(3, wide / channels)?)?;
            }
            drop(film);
            let h = coder.middle.forward(h, check)?;
            let frames = h.dim(0)?;
            let (mut carry, mut made) = (Carry::default(), Vec::new());
            for (number, start) in (0..frames).step_by(self.piece()).enumerate() {
                let len = self.piece().min(frames - start);
                carry.begin(number, start + len < frames);
                let piece = coder.levels(h.narrow(0, start, len)?, &mut carry, check)?;
                let piece = coder.finish(&piece, &mut carry)?;
                made.push(piece.to(&Device::cpu())?);
            }
            Ok(Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?)
        })
    }
}
