//! From tags, lyrics and a voice to the tokens that the network looks at.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, Value};
use fresco_tensor::{Device, Tensor};

use super::config::ConditionConfig;
use super::layers::Encoder;
use crate::error::Result;
use crate::store::Walk;

/// Frames that tell a voice: half a minute.
const VOICE: usize = 750;

pub(super) struct ConditionEncoder {
    text: Arc<Linear>,
    lyrics: Encoder,
    timbre: Encoder,
    silence: Option<Arc<Value>>,
    config: ConditionConfig,
}

impl ConditionEncoder {
    pub(super) fn new(weights: &Walk<'_>, config: &ConditionConfig) -> Result<Self> {
        let (inside, shape) = (weights.at("encoder"), config.shape);
        let (lyrics, timbre) = (inside.at("lyric_encoder"), inside.at("timbre_encoder"));
        let silence = config
            .silence
            .map(|frames| weights.value("silence_latent", &[1, frames, config.timbre]));
        Ok(Self {
            text: inside.matrix("text_projector", shape.dim, config.text)?,
            lyrics: Encoder::new(&lyrics, config.text, config.lyric_layers, shape)?,
            timbre: Encoder::new(&timbre, config.timbre, config.timbre_layers, shape)?,
            silence: silence.transpose()?,
            config: config.clone(),
        })
    }

    /// So many frames of silence, (1, frames, channels): that of the file, again and again; zeros where it has none.
    pub(super) fn silence(&self, frames: usize, device: &Device) -> Result<Tensor> {
        let Some(silence) = &self.silence else {
            return Ok(Tensor::zeros_on(device, [1, frames, self.config.timbre])?);
        };
        let silence = silence.at(device)?;
        let have = silence.dim(1)?.max(1);
        let silence = silence.repeat(&[1, frames.div_ceil(have).max(1), 1])?;
        Ok(silence.narrow(1, 0, frames)?)
    }

    /// Lyrics first, then the voice, then the tags. `voice` is (b, frames, channels).
    pub(super) fn forward(
        &self,
        tags: &Tensor,
        lyrics: Option<&Tensor>,
        voice: Option<&Tensor>,
        device: &Device,
    ) -> Result<Tensor> {
        let b = tags.dim(0)?;
        let tags = self.text.forward(&tags.to(device)?)?;
        let voice = match voice {
            Some(voice) => voice.to(device)?,
            None => self.silence(VOICE, device)?.repeat(&[b, 1, 1])?,
        };
        // The first of its rows stands for all of them.
        let voice = self.timbre.forward(&voice)?.narrow(1, 0, 1)?;
        let Some(lyrics) = lyrics else {
            return Ok(Tensor::cat(&[&voice, &tags], 1)?);
        };
        let lyrics = self.lyrics.forward(&lyrics.to(device)?)?;
        Ok(Tensor::cat(&[&lyrics, &voice, &tags], 1)?)
    }
}
