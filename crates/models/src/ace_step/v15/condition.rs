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

pub struct ConditionEncoder {
    text: Arc<Linear>,
    lyrics: Encoder,
    timbre: Encoder,
    silence: Option<Arc<Value>>,
    /// Stands for no prompt.
    null: Option<Arc<Value>>,
    config: ConditionConfig,
}

impl ConditionEncoder {
    pub fn new(weights: &Walk<'_>, config: &ConditionConfig) -> Result<Self> {
        let (inside, shape) = (weights.at("encoder"), config.shape);
        let (lyrics, timbre) = (inside.at("lyric_encoder"), inside.at("timbre_encoder"));
        let silence = config
            .silence
            .map(|frames| weights.value("silence_latent", &[1, frames, config.timbre]));
        let null = config.null.then(|| {
            let shape = [1, 1, shape.dim];
            weights.value("null_condition_emb", &shape)
        });
        Ok(Self {
            text: inside.matrix("text_projector", shape.dim, config.text)?,
            lyrics: Encoder::new(&lyrics, config.text, config.lyric_layers, shape)?,
            timbre: Encoder::new(&timbre, config.timbre, config.timbre_layers, shape)?,
            silence: silence.transpose()?,
            null: null.transpose()?,
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

    /// Lyrics first, then the voice, then the tags. `voice` is (b, frames, channels). A prompt of zeros is none.
    pub fn forward(
        &self,
        tags: &Tensor,
        lyrics: Option<&Tensor>,
        voice: Option<&Tensor>,
        device: &Device,
    ) -> Result<Tensor> {
        let b = tags.dim(0)?;
        let rows = self.text.forward(&tags.to(device)?)?;
        let voice = match voice {
            Some(voice) => voice.to(device)?,
            None => self.silence(VOICE, device)?.repeat(&[b, 1, 1])?,
        };
        // The first of its rows stands for all of them.
        let voice = self.timbre.forward(&voice)?.narrow(1, 0, 1)?;
        let rows = match lyrics {
            None => Tensor::cat(&[&voice, &rows], 1)?,
            Some(lyrics) => {
                let lyrics = self.lyrics.forward(&lyrics.to(device)?)?;
                Tensor::cat(&[&lyrics, &voice, &rows], 1)?
            }
        };
        self.with_null(rows, tags)
    }

    /// With the token that stands for no prompt in all rows of items whose prompt is zeros.
    fn with_null(&self, rows: Tensor, tags: &Tensor) -> Result<Tensor> {
        let Some(null) = &self.null else {
            return Ok(rows);
        };
        let [b, n, _] = rows.dims3()?;
        let tags = tags.to(&Device::cpu())?;
        let each = tags.len() / b.max(1);
        let empty = tags.data().chunks(each.max(1));
        let empty: Vec<bool> = empty.map(|item| item.iter().all(|v| *v == 0.0)).collect();
        if !empty.contains(&true) {
            return Ok(rows);
        }
        let null = null.at(&rows.device())?.repeat(&[1, n, 1])?;
        let items = empty.iter().enumerate().map(|(item, empty)| {
            if *empty {
                Ok(null.clone())
            } else {
                Ok(rows.narrow(0, item, 1)?)
            }
        });
        let items = items.collect::<Result<Vec<Tensor>>>()?;
        Ok(Tensor::cat(&items.iter().collect::<Vec<_>>(), 0)?)
    }
}
