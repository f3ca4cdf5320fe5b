//! The encoder of Whisper (Radford et al. 2022).

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Mask, activate};
use fresco_tensor::{Device, Tensor, WeightFile};

use super::{AudioFeatures, RATE, mono};
use crate::error::{ModelError, Result};
use crate::sound::{Conv1d, Mel, MelBands, reflected, spectrogram};
use crate::store::{Bias, Origin, UnitOrder, Walk, WeightStore};
use crate::transformer::{
    AttentionBias, AttentionLayers, EncoderBlock, EncoderLayers, HeadNorm, Heads, MlpLayers,
    NormPlace, QkvLayers, Rotation, Shapes,
};

const EPS: f32 = 1e-5;
/// Channels of a head in all published sizes.
const HEAD: usize = 64;
/// Samples that it hears at once: half a minute.
const SAMPLES: usize = 480_000;
const WINDOW: usize = 400;
const HOP: usize = 160;

#[derive(Clone, Debug, PartialEq)]
pub struct WhisperConfig {
    pub dim: usize,
    pub heads: usize,
    pub layers: usize,
    pub inner: usize,
    pub bands: usize,
    pub moments: usize,
}

impl WhisperConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (moments, dim) = shapes.matrix("encoder.embed_positions.weight")?;
        let Some(&[_, bands, _]) = store.shape("encoder.conv1.weight") else {
            return Err(shapes.unsupported("the audio encoder has no convolution over bands"));
        };
        Ok(Self {
            dim,
            heads: (dim / HEAD).max(1),
            layers: shapes.count("encoder.layers"),
            inner: shapes.matrix("encoder.layers.0.fc1.weight")?.0,
            bands,
            moments,
        })
    }
}

/// Where files keep the encoder.
const PREFIXES: [&str; 2] = ["model.", ""];

fn prefix(file: &Arc<dyn WeightFile>) -> Option<&'static str> {
    let positions = |p: &&str| {
        let name = format!("{p}encoder.embed_positions.weight");
        file.info(&name).is_some()
    };
    PREFIXES.into_iter().find(positions)
}

pub(super) fn is_in(file: &Arc<dyn WeightFile>) -> bool {
    prefix(file).is_some()
}

/// The weights of the encoder; those of what writes the text down are left out.
pub(super) fn store(file: &Arc<dyn WeightFile>, device: Device) -> Arc<WeightStore> {
    let prefix = prefix(file).unwrap_or_default();
    let names = file.names();
    let inside = names.iter().filter_map(|n| n.strip_prefix(prefix));
    let ours = inside.filter(|n| n.starts_with("encoder."));
    let keys: BTreeMap<String, Origin> = ours
        .map(|n| (n.to_owned(), Origin::Whole(format!("{prefix}{n}"))))
        .collect();
    WeightStore::mapped(Arc::clone(file), keys, device).with_units(&UnitOrder::PLAIN)
}

fn layer(weights: &Walk<'_>, config: &WhisperConfig) -> Result<EncoderBlock> {
    let dim = config.dim;
    let heads = Heads::new(config.heads, dim / config.heads, HeadNorm::None);
    let qkv = QkvLayers::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]);
    let layers = EncoderLayers {
        attention: AttentionLayers {
            bias: AttentionBias::NoKeys,
            ..AttentionLayers::new(qkv, "self_attn.out_proj", dim, heads)
        },
        mlp: MlpLayers::Plain(["fc1", "fc2"], Act::Gelu),
        inner: config.inner,
        norms: ["self_attn_layer_norm", "final_layer_norm"],
        place: NormPlace::Before,
        eps: EPS,
        scales: None,
    };
    EncoderBlock::new(weights, &layers)
}

pub struct Whisper {
    device: Device,
    config: WhisperConfig,
    first: Conv1d,
    second: Conv1d,
    positions: Arc<Embedding>,
    layers: Vec<EncoderBlock>,
    norm: Arc<LayerNorm>,
    bands: MelBands,
}

impl Whisper {
    pub(super) fn new(weights: &Walk<'_>, config: &WhisperConfig) -> Result<Self> {
        let weights = weights.at("encoder");
        let (dim, layers) = (config.dim, weights.at("layers"));
        let mel = Mel {
            rate: RATE,
            window: WINDOW,
            hop: HOP,
            bands: config.bands,
            low: 0.0,
            high: f64::from(RATE / 2),
        };
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            first: Conv1d::same(&weights, "conv1", [dim, config.bands, 3], 1, Bias::With)?,
            second: Conv1d::new(&weights, "conv2", [dim, dim, 3], (2, 1), (1, 1), Bias::With)?,
            positions: weights.embedding("embed_positions", config.moments, dim)?,
            layers: layers.each(config.layers, |weights| layer(weights, config))?,
            norm: weights.layer_norm("layer_norm", dim, EPS)?,
            bands: MelBands::new(mel),
        })
    }

    /// The bands (b, bands, frames) of half a minute, on a scale of about -1 to 1.
    pub fn mel(&self, sound: &Tensor) -> Result<Tensor> {
        let lines = mono(sound)?;
        let samples = lines.dim(1)?;
        let mut all = Vec::new();
        for line in lines.data().chunks_exact(samples) {
            let mut line = line[..samples.min(SAMPLES)].to_vec();
            line.resize(SAMPLES, 0.0);
            let line = reflected(&line, WINDOW / 2)?;
            let power = spectrogram(&self.bands, &line, |square| square)?;
            // The last frame is more than half silence.
            let frames = power.dim(1)?;
            all.push(power.narrow(1, 0, frames - 1)?);
        }
        let bands = Tensor::stack(&all.iter().collect::<Vec<_>>(), 0)?;
        let logs = bands.map(|v| v.max(1e-10).log10());
        let floor = logs.data().iter().copied().fold(f32::MIN, f32::max) - 8.0;
        Ok(logs.map(|v| (v.max(floor) + 4.0) / 4.0))
    }

    pub fn encode(&self, sound: &Tensor, check: &dyn Fn() -> Result<()>) -> Result<AudioFeatures> {
        let mel = self.mel(sound)?;
        check()?;
        let mut x = mel.permute(&[0, 2, 1])?.to(&self.device)?;
        for conv in [&self.first, &self.second] {
            x = activate(conv.forward(&x)?, Act::Gelu);
        }
        let moments = x.dim(1)?;
        if moments != self.config.moments {
            let reason = format!(
                "{moments} moments, but there are {} positions",
                self.config.moments
            );
            return Err(ModelError::invalid("audio encoder", reason));
        }
        let ids: Vec<u32> = (0..moments as u32).collect();
        let places = self.positions.lookup_on(&ids, &x.device())?;
        x = x.add(&places)?;
        let mut states = Vec::with_capacity(self.layers.len() + 1);
        for layer in &self.layers {
            check()?;
            states.push(x.to(&Device::cpu())?);
            x = layer.forward(&x, Rotation::NONE, Mask::None)?;
        }
        let last = self.norm.forward(&x)?.to(&Device::cpu())?;
        states.push(last.clone());
        Ok(AudioFeatures { last, states })
    }
}
