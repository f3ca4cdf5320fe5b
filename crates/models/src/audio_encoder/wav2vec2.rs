//! wav2vec 2.0 (Baevski et al. 2020): convolutions over samples, then a transformer.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Act, GroupNorm, LayerNorm, Linear, Mask, activate, gelu};
use fresco_tensor::{Axes, Device, Tensor, WeightFile};

use super::{AudioFeatures, mono};
use crate::error::{ModelError, Result};
use crate::sound::{Conv1d, unnormed};
use crate::store::{Bias, Origin, UnitOrder, Walk, WeightStore};
use crate::transformer::{
    AttentionLayers, EncoderBlock, EncoderLayers, HeadNorm, Heads, MlpLayers, NormPlace, QkvLayers,
    Rotation, Shapes,
};

const EPS: f32 = 1e-5;
/// Channels of a head in all published sizes.
const HEAD: usize = 64;
/// The first convolution goes by five samples, the others by two entries.
const STRIDES: [usize; 2] = [5, 2];

#[derive(Clone, Debug, PartialEq)]
pub struct Wav2Vec2Config {
    pub dim: usize,
    pub heads: usize,
    pub layers: usize,
    pub inner: usize,
    /// Channels and kernel length of each convolution.
    pub convs: Vec<[usize; 2]>,
    pub conv_bias: Bias,
    /// Norms after all convolutions, before attention, and of the samples: that of the larger ones.
    pub large: bool,
    /// Kernel length and groups of the convolution that tells positions.
    pub position: [usize; 2],
}

const POSITION: &str = "encoder.pos_conv_embed.conv";

impl Wav2Vec2Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let list = "feature_extractor.conv_layers";
        let conv = |i: usize| match store.shape(&format!("{list}.{i}.conv.weight")) {
            Some(&[out, _, length]) if out > 0 && length > 0 => Ok([out, length]),
            other => Err(shapes.unsupported(format!("convolution {i} has shape {other:?}"))),
        };
        let convs: Vec<[usize; 2]> = (0..shapes.count(list)).map(conv).collect::<Result<_>>()?;
        let dim = shapes.vector("encoder.layer_norm.bias")?;
        let groups = shapes.count(&format!("{POSITION}.groups"));
        let first = store.shape(&format!("{POSITION}.groups.0.weight"));
        let (Some(&[_, _, length]), false) = (first, convs.is_empty()) else {
            return Err(shapes.unsupported("the audio encoder has no convolutions"));
        };
        if !dim.is_multiple_of(groups.max(1)) {
            return Err(shapes.unsupported(format!("{dim} channels are not {groups} equal groups")));
        }
        Ok(Self {
            dim,
            heads: (dim / HEAD).max(1),
            layers: shapes.count("encoder.layers"),
            inner: shapes
                .matrix("encoder.layers.0.feed_forward.intermediate_dense.weight")?
                .0,
            conv_bias: Bias::of(store.has(&format!("{list}.0.conv.bias"))),
            large: store.has(&format!("{list}.1.layer_norm.weight")),
            convs,
            position: [length, groups],
        })
    }
}

/// The weights under their own names, without the prefix that models for speech have; the convolution of positions in the
/// groups that it has.
pub(super) fn store(file: &Arc<dyn WeightFile>, device: Device) -> Arc<WeightStore> {
    let names = file.names();
    let prefix = if names.iter().any(|n| n.starts_with("wav2vec2.")) {
        "wav2vec2."
    } else {
        ""
    };
    let inside = names.iter().filter_map(|n| n.strip_prefix(prefix));
    let mut keys = unnormed(inside, prefix, |_| false);
    if let Some(weight) = keys.remove(&format!("{POSITION}.weight")) {
        split_groups(&mut keys, file, weight);
    }
    WeightStore::mapped(Arc::clone(file), keys, device).with_units(&UnitOrder::PLAIN)
}

fn split_groups(keys: &mut BTreeMap<String, Origin>, file: &Arc<dyn WeightFile>, weight: Origin) {
    let direction = weight.names().first().and_then(|name| file.info(name));
    let bias = keys.remove(&format!("{POSITION}.bias"));
    let Some(&[out, each, _]) = direction.as_ref().map(|info| info.shape.as_slice()) else {
        return;
    };
    if each == 0 || !out.is_multiple_of(each) {
        return;
    }
    for group in 0..out / each {
        let part = |from: &Origin| Origin::Part {
            from: Box::new(from.clone()),
            start: group * each,
            count: each,
        };
        let name = format!("{POSITION}.groups.{group}");
        keys.insert(format!("{name}.weight"), part(&weight));
        if let Some(bias) = &bias {
            keys.insert(format!("{name}.bias"), part(bias));
        }
    }
}

/// What follows a convolution over samples.
enum ConvNorm {
    None,
    /// Each channel over all time.
    Channels(Arc<GroupNorm>),
    Rows(Arc<LayerNorm>),
}

fn layer(weights: &Walk<'_>, config: &Wav2Vec2Config) -> Result<EncoderBlock> {
    let dim = config.dim;
    let heads = Heads::new(config.heads, dim / config.heads, HeadNorm::None);
    let qkv = QkvLayers::Apart(["attention.q_proj", "attention.k_proj", "attention.v_proj"]);
    let mlp = [
        "feed_forward.intermediate_dense",
        "feed_forward.output_dense",
    ];
    let layers = EncoderLayers {
        attention: AttentionLayers::new(qkv, "attention.out_proj", dim, heads),
        mlp: MlpLayers::Plain(mlp, Act::Gelu),
        inner: config.inner,
        norms: ["layer_norm", "final_layer_norm"],
        place: if config.large {
            NormPlace::Before
        } else {
            NormPlace::Behind
        },
        eps: EPS,
        scales: None,
    };
    EncoderBlock::new(weights, &layers)
}

pub struct Wav2Vec2 {
    device: Device,
    config: Wav2Vec2Config,
    convs: Vec<(Conv1d, ConvNorm)>,
    features: Arc<LayerNorm>,
    projection: Arc<Linear>,
    positions: Vec<Conv1d>,
    norm: Arc<LayerNorm>,
    layers: Vec<EncoderBlock>,
}

impl Wav2Vec2 {
    pub(super) fn new(weights: &Walk<'_>, config: &Wav2Vec2Config) -> Result<Self> {
        let mut channels = 1;
        let mut convs = Vec::new();
        for (number, &[out, length]) in config.convs.iter().enumerate() {
            let at = weights.at("feature_extractor.conv_layers").at(number);
            let stride = STRIDES[number.min(1)];
            let shape = [out, channels, length];
            let conv = Conv1d::new(&at, "conv", shape, (stride, 1), (0, 0), config.conv_bias)?;
            let norm = match (config.large, number) {
                (true, _) => ConvNorm::Rows(at.layer_norm("layer_norm", out, EPS)?),
                (false, 0) => ConvNorm::Channels(at.group_norm("layer_norm", out, out, EPS)?),
                (false, _) => ConvNorm::None,
            };
            convs.push((conv, norm));
            channels = out;
        }
        let [length, groups] = config.position;
        let each = config.dim / groups.max(1);
        let at = weights.at(POSITION).at("groups");
        let around = (length / 2, length / 2);
        let position = |group: usize| {
            let (name, shape) = (group.to_string(), [each, each, length]);
            Conv1d::new(&at, &name, shape, (1, 1), around, Bias::With)
        };
        let layers = weights.at("encoder.layers");
        let projection = weights.at("feature_projection");
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            convs,
            features: projection.layer_norm("layer_norm", channels, EPS)?,
            projection: projection.linear("projection", config.dim, channels)?,
            positions: (0..groups).map(position).collect::<Result<_>>()?,
            norm: weights.layer_norm("encoder.layer_norm", config.dim, EPS)?,
            layers: layers.each(config.layers, |weights| layer(weights, config))?,
        })
    }

    /// Samples that the convolutions need for one moment.
    fn least(&self) -> usize {
        let lengths = self.config.convs.iter().enumerate().rev();
        lengths.fold(1, |count, (number, &[_, length])| {
            (count - 1) * STRIDES[number.min(1)] + length
        })
    }

    pub fn encode(&self, sound: &Tensor, check: &dyn Fn() -> Result<()>) -> Result<AudioFeatures> {
        let mut line = mono(sound)?;
        let [b, samples] = *line.shape() else {
            return Err(ModelError::invalid("sound", "not one line for each item"));
        };
        if samples < self.least() {
            let reason = format!(
                "{samples} samples are too few, at least {} are needed",
                self.least()
            );
            return Err(ModelError::invalid("sound", reason));
        }
        if self.config.large {
            let (mean, var) = (
                line.mean(&[], Axes::Drop)?.item()?,
                line.var(&[], Axes::Drop)?.item()?,
            );
            line = line.add_scalar(-mean).div_scalar((var + 1e-7).sqrt());
        }
        let mut x = line.reshape([b, samples, 1])?.to(&self.device)?;
        for (conv, norm) in &self.convs {
            check()?;
            x = conv.forward(&x)?;
            x = match norm {
                ConvNorm::None => gelu(&x),
                ConvNorm::Rows(norm) => activate(norm.forward(&x)?, Act::Gelu),
                ConvNorm::Channels(norm) => {
                    let [b, n, c] = x.dims3()?;
                    let picture = x.reshape([b, n, 1, c])?;
                    norm.forward(&picture, Act::Gelu)?.reshape([b, n, c])?
                }
            };
        }
        let x = self.projection.forward(&self.features.forward(&x)?)?;
        let mut x = x.add(&activate(self.position(&x)?, Act::Gelu))?;
        if !self.config.large {
            x = self.norm.forward(&x)?;
        }
        let mut states = Vec::with_capacity(self.layers.len() + 1);
        for layer in &self.layers {
            check()?;
            states.push(x.to(&Device::cpu())?);
            x = layer.forward(&x, Rotation::NONE, Mask::None)?;
        }
        if self.config.large {
            x = self.norm.forward(&x)?;
        }
        let last = x.to(&Device::cpu())?;
        states.push(last.clone());
        Ok(AudioFeatures { last, states })
    }

    /// What the place of each moment adds.
    fn position(&self, x: &Tensor) -> Result<Tensor> {
        let [_, n, c] = x.dims3()?;
        let each = c / self.positions.len().max(1);
        let parts = self.positions.iter().enumerate().map(|(group, conv)| {
            // A kernel of even length gives one moment too many.
            let part = conv.forward(&x.narrow(2, group * each, each)?)?;
            Ok(part.narrow(1, 0, n)?)
        });
        let parts: Vec<Tensor> = parts.collect::<Result<_>>()?;
        Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 2)?)
    }
}
