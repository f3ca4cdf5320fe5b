//! From spectrograms to waves. Newer ones make a wave of few samples first, and from it what is missing above.

use std::sync::Arc;

use fresco_tensor::nn::{Value, matmul};
use fresco_tensor::{Device, Tensor};
use serde_json::Value as Json;

use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::vae::Check;
use crate::waves::{Generator, GeneratorConfig, GeneratorNames, raised, zero_padded};

const NAMES: GeneratorNames = GeneratorNames {
    first: "conv_pre",
    ups: "ups",
    up_end: "",
    blocks: "resblocks",
    acts: ["acts1", "acts2"],
    last_act: "act_post",
    last: "conv_post",
};

/// How many times as many samples the second generator makes.
const WIDENED: usize = 3;

/// What makes the frequencies above those of the first wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WidenConfig {
    pub generator: GeneratorConfig,
    /// Samples of a window and between windows, bands.
    pub window: usize,
    pub hop: usize,
    pub bands: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocoderConfig {
    pub generator: GeneratorConfig,
    pub widen: Option<WidenConfig>,
}

/// How much longer each step makes: as the header says, or as published ones have it.
fn lengths(said: &Json, taps: &[usize]) -> Vec<usize> {
    let rates = said["upsample_rates"].as_array();
    let rates = rates.map(|list| list.iter().filter_map(Json::as_u64).map(|n| n as usize));
    let rates: Option<Vec<usize>> = rates.map(Iterator::collect);
    if let Some(rates) = rates.filter(|rates| rates.len() == taps.len()) {
        return rates;
    }
    let usual = |taps: &usize| match taps {
        16 => 6,
        15 => 5,
        8 => 2,
        other => other / 2,
    };
    taps.iter().map(usual).collect()
}

impl VocoderConfig {
    /// None if there is none.
    pub fn detect(store: &WeightStore, prefix: &str) -> Result<Option<Self>> {
        let said = store.metadata("config");
        let said: Json = said
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let said = &said["vocoder"];
        let generator = |place: &str, said: &Json| {
            let place = format!("{prefix}{place}");
            GeneratorConfig::detect(store, &place, NAMES, |taps| lengths(said, taps))
        };
        if store.has(&format!("{prefix}conv_pre.weight")) {
            return Ok(Some(Self {
                generator: generator("", said)?,
                widen: None,
            }));
        }
        if !store.has(&format!("{prefix}vocoder.conv_pre.weight")) {
            return Ok(None);
        }
        let basis = format!("{prefix}mel_stft.stft_fn.forward_basis");
        let bands = format!("{prefix}mel_stft.mel_basis");
        let (Some(&[_, _, window]), Some(&[bands, _])) = (store.shape(&basis), store.shape(&bands))
        else {
            let reason = format!("{basis} or {bands} is missing or has no such shape");
            return Err(ModelError::unsupported(store.file(), reason));
        };
        let wide = generator("bwe_generator.", &said["bwe"])?;
        Ok(Some(Self {
            generator: generator("vocoder.", &said["vocoder"])?,
            widen: Some(WidenConfig {
                window,
                hop: (wide.hop() / WIDENED).max(1),
                bands,
                generator: wide,
            }),
        }))
    }

    /// Samples of a second for so many slices of one.
    pub fn rate(&self, slices: usize) -> usize {
        let first = self.generator.hop() * slices;
        first * self.widen.as_ref().map_or(1, |_| WIDENED)
    }
}

struct Widen {
    generator: Generator,
    basis: Arc<Value>,
    mel: Arc<Value>,
    config: WidenConfig,
}

/// What the parts of a vocoder make, each (b, channels, samples).
pub struct VocoderStages {
    pub wave: Tensor,
    /// The first wave, its bands (b, channels, bands, frames), what is added, and the first wave made longer.
    pub first: Tensor,
    pub bands: Option<Tensor>,
    pub added: Option<Tensor>,
    pub longer: Option<Tensor>,
}

/// Makes waves of spectrograms.
pub struct Vocoder {
    generator: Generator,
    widen: Option<Widen>,
}

impl Vocoder {
    pub fn new(weights: &Walk<'_>, config: &VocoderConfig) -> Result<Self> {
        let Some(wide) = &config.widen else {
            return Ok(Self {
                generator: Generator::new(weights, &config.generator)?,
                widen: None,
            });
        };
        let mel = weights.at("mel_stft");
        let frequencies = wide.window / 2 + 1;
        Ok(Self {
            generator: Generator::new(&weights.at("vocoder"), &config.generator)?,
            widen: Some(Widen {
                generator: Generator::new(&weights.at("bwe_generator"), &wide.generator)?,
                basis: mel.value("stft_fn.forward_basis", &[2 * frequencies, 1, wide.window])?,
                mel: mel.value("mel_basis", &[wide.bands, frequencies])?,
                config: wide.clone(),
            }),
        })
    }

    /// Waves of spectrograms (b, channels, slices, bands).
    pub fn forward(&self, mel: &Tensor, check: Check<'_>) -> Result<VocoderStages> {
        let cpu = Device::cpu();
        let turned = |x: &Tensor| -> Result<Tensor> { Ok(x.permute(&[0, 2, 1])?) };
        let made = self.generator.forward(&features(mel)?, check)?.to(&cpu)?;
        let Some(wide) = &self.widen else {
            let wave = turned(&made)?;
            return Ok(VocoderStages {
                first: wave.clone(),
                wave,
                bands: None,
                added: None,
                longer: None,
            });
        };
        let [b, samples, channels] = made.dims3()?;
        let hop = wide.config.hop;
        let whole = samples.next_multiple_of(hop);
        let padded = zero_padded(&made, 0, whole - samples)?;
        let bands = wide.bands(&turned(&padded)?.reshape([b * channels, whole])?)?;
        let [_, frames, count] = bands.dims3()?;
        let bands = bands.reshape([b, channels, frames, count])?;
        let added = wide.generator.forward(&features(&bands)?, check)?;
        let added = added.to(&cpu)?;
        let longer = raised(&padded, WIDENED)?;
        let [_, have, _] = added.dims3()?;
        let count = have.min(whole * WIDENED).min(samples * WIDENED);
        let wave = added
            .narrow(1, 0, count)?
            .add(&longer.narrow(1, 0, count)?)?;
        Ok(VocoderStages {
            wave: turned(&wave.clamp(-1.0, 1.0))?,
            first: turned(&made)?,
            bands: Some(bands.permute(&[0, 1, 3, 2])?),
            added: Some(turned(&added)?),
            longer: Some(turned(&longer)?),
        })
    }
}

impl Widen {
    /// Logarithms of the bands of waves (items, samples): (items, frames, bands), in main memory.
    fn bands(&self, waves: &Tensor) -> Result<Tensor> {
        const LEAST: f32 = 1e-5;
        let cpu = Device::cpu();
        let WidenConfig { window, hop, .. } = self.config;
        let &[items, samples] = waves.shape() else {
            return Err(ModelError::invalid("sound", "waves have no samples"));
        };
        // No window sees a later sample than its hop's last one.
        let before = window.saturating_sub(hop);
        let waves = zero_padded(&waves.reshape([items, samples, 1])?, before, 0)?;
        let length = before + samples;
        let frames = if length < window {
            0
        } else {
            (length - window) / hop + 1
        };
        let lines = waves.data().chunks_exact(length);
        let mut windows = fresco_tensor::Buffer::with_room(items * frames * window)?;
        for line in lines {
            for frame in 0..frames {
                windows.extend_from_slice(&line[frame * hop..][..window]);
            }
        }
        let windows = Tensor::from_buffer([1, items * frames, window], windows)?;
        let basis = self.basis.at(&cpu)?;
        let basis = basis.reshape([basis.dim(0)?, window])?.transpose(0, 1)?;
        let waves = matmul(&windows, &basis.unsqueeze(0)?)?;
        let half = waves.dim(2)? / 2;
        let (real, imaginary) = (waves.narrow(2, 0, half)?, waves.narrow(2, half, half)?);
        let strength = real.mul(&real)?.add(&imaginary.mul(&imaginary)?)?.sqrt();
        let mel = self.mel.at(&cpu)?.transpose(0, 1)?.unsqueeze(0)?;
        let bands = matmul(&strength, &mel)?;
        let bands = bands.map(|v| v.max(LEAST).ln());
        Ok(bands.reshape([items, frames, self.config.bands])?)
    }
}

/// (b, channels, slices, bands) as (b, slices, channels * bands).
fn features(mel: &Tensor) -> Result<Tensor> {
    let [b, channels, slices, bands] = mel.dims4()?;
    let turned = mel.permute(&[0, 2, 1, 3])?;
    Ok(turned.reshape([b, slices, channels * bands])?)
}
