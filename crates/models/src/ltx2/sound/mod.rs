//! The sound of a video: an autoencoder of spectrograms, and what makes waves of them.

mod autoencoder;
mod vocoder;

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

pub use autoencoder::{SpectrogramConfig, SpectrogramVae};
pub use vocoder::{Vocoder, VocoderConfig, VocoderStages};

use crate::error::{ModelError, Result};
use crate::store::{Layout, Origin, UnitOrder, Walk, WeightStore};
use crate::vae::Check;
use crate::waves::{MelRule, SoundFacts, SoundNetwork, SoundRows, SoundStore, mel_spectrogram};

/// Slices of a spectrogram for a second.
const SLICE_RATE: usize = 100;
/// Samples of a window of the spectrogram that is encoded.
const WINDOW: usize = 1024;

/// The parts of a sound model in a file of any layout, under one name each.
#[derive(Clone, Debug, PartialEq)]
pub struct SoundConfig {
    pub autoencoder: SpectrogramConfig,
    /// None if the file cannot make waves.
    pub vocoder: Option<VocoderConfig>,
}

static UNITS: UnitOrder = UnitOrder {
    parts: &["audio_vae", "vocoder", "encoder", "decoder"],
    blocks: &[],
    values: &[
        "alpha",
        "beta",
        "mean-of-means",
        "std-of-means",
        "mel_basis",
        "forward_basis",
    ],
};

/// The network in messages.
const WHAT: &str = "the audio VAE";

const VAE: &str = "audio_vae.";
const VOCODER: &str = "vocoder.";

/// The sound of such a model in a file.
pub(crate) fn find(file: &Arc<dyn WeightFile>, _: &[String]) -> Result<Option<SoundStore>> {
    let sign = "decoder.up.0.block.0.conv1.conv.weight";
    // Autoencoders of films have kernels over frames under these names.
    let over_pictures = |name: &str| file.info(name).is_some_and(|info| info.shape.len() == 4);
    if !over_pictures(sign) && !over_pictures(&format!("{VAE}{sign}")) {
        return Ok(None);
    }
    let store = sound_store(file, Device::cpu());
    let config = SoundConfig::detect(&store)?;
    Layout::of(|weights| SoundModel::walk(weights, &config))?.verify(&store, WHAT)?;
    let facts = SoundFacts {
        kind: "LTX-2",
        rate_in: config.encoded_rate() as u32,
        rate_out: config.rate() as u32,
        latent_rate: config.latent_rate(),
        channels: config.autoencoder.latent,
        rows: SoundRows::Bands(config.autoencoder.latent_bands()),
    };
    let build = move |store: &WeightStore| -> Result<Box<dyn SoundNetwork>> {
        Ok(Box::new(SoundModel::new(store, &config)?))
    };
    Ok(Some(SoundStore::new(store, facts, build)))
}

/// The weights of a sound model under `audio_vae.` and `vocoder.`, whatever names a file has.
pub fn sound_store(file: &Arc<dyn WeightFile>, device: Device) -> Arc<WeightStore> {
    let names = file.names();
    let inside = names.iter().any(|name| name.starts_with(VAE));
    let keys = names.iter().filter_map(|name| {
        let key = if name.starts_with(VAE) || name.starts_with(VOCODER) {
            native(name)
        } else if !inside && !name.contains("diffusion_model.") {
            // A file of the autoencoder alone.
            native(&format!("{VAE}{name}"))
        } else {
            return None;
        };
        Some((key, Origin::Whole(name.clone())))
    });
    WeightStore::mapped(Arc::clone(file), keys.collect(), device).with_units(&UNITS)
}

/// Our key for a name that may be one of diffusers'.
pub fn native(name: &str) -> String {
    let mut key = name.to_owned();
    if name.starts_with(VOCODER) {
        for (theirs, ours) in [
            (".conv_in.", ".conv_pre."),
            (".upsamplers.", ".ups."),
            (".resnets.", ".resblocks."),
            (".act_out.", ".act_post."),
            (".conv_out.", ".conv_post."),
        ] {
            key = key.replace(theirs, ours);
        }
        return key;
    }
    for (theirs, ours) in [
        ("latents_mean", "per_channel_statistics.mean-of-means"),
        ("latents_std", "per_channel_statistics.std-of-means"),
    ] {
        if let Some(rest) = key.strip_suffix(theirs) {
            key = format!("{rest}{ours}");
        }
    }
    key
}

impl SoundConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        Ok(Self {
            autoencoder: SpectrogramConfig::detect(store, VAE)?,
            vocoder: VocoderConfig::detect(store, VOCODER)?,
        })
    }

    /// Samples of a second that come out.
    pub fn rate(&self) -> usize {
        let vocoder = self.vocoder.as_ref();
        vocoder.map_or(self.encoded_rate(), |v| v.rate(SLICE_RATE))
    }

    /// Samples of a second that go in.
    pub fn encoded_rate(&self) -> usize {
        16_000
    }

    /// Latent frames of a second.
    pub fn latent_rate(&self) -> f64 {
        SLICE_RATE as f64 / self.autoencoder.ratio() as f64
    }
}

/// See the [module](self).
pub struct SoundModel {
    config: SoundConfig,
    autoencoder: SpectrogramVae,
    vocoder: Option<Vocoder>,
}

impl SoundModel {
    pub fn new(store: &WeightStore, config: &SoundConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, config))
    }

    fn walk(weights: &Walk<'_>, config: &SoundConfig) -> Result<Self> {
        let vocoder = config.vocoder.as_ref();
        let vocoder = vocoder.map(|v| Vocoder::new(&weights.at("vocoder"), v));
        Ok(Self {
            autoencoder: SpectrogramVae::new(&weights.at("audio_vae"), &config.autoencoder)?,
            vocoder: vocoder.transpose()?,
            config: config.clone(),
        })
    }
}

impl SoundNetwork for SoundModel {
    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let Some(vocoder) = &self.vocoder else {
            let reason = "the file has no vocoder, so it can make no sound";
            return Err(ModelError::invalid("audio VAE decode", reason));
        };
        let mel = self.autoencoder.decode(latent, check)?;
        Ok(vocoder.forward(&mel, check)?.wave)
    }

    fn encode(&self, wave: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [_, channels, samples] = wave.dims3()?;
        let wanted = self.config.autoencoder.channels;
        let wave = match channels {
            _ if samples == 0 => {
                return Err(ModelError::invalid("audio VAE encode", "there is no sound"));
            }
            n if n == wanted => wave.clone(),
            1 => wave.repeat(&[1, wanted, 1])?,
            _ => wave.narrow(1, 0, wanted.min(channels))?,
        };
        let rate = self.config.encoded_rate();
        let rule = MelRule {
            rate,
            window: WINDOW,
            hop: rate / SLICE_RATE,
            bands: self.config.autoencoder.bands(),
        };
        self.autoencoder
            .encode(&mel_spectrogram(&wave, &rule)?, check)
    }
}
