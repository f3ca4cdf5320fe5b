//! The network with which the smaller Gemma 4 hear: two convolutions over a spectrogram, layers that look at the last half
//! second (a conformer, Gulati et al. 2020), one row of the text network for each 40 ms.

use std::sync::Arc;

use fresco_tensor::nn::{Conv2d, LayerNorm, Linear, Padding, RmsNorm, Value, relu, sigmoid, silu};
use fresco_tensor::{Device, Tensor};

use super::clipped::ClippedLinear;
use super::layout::SOUNDS;
use super::spectrum;
use crate::error::{ModelError, Result};
use crate::store::{Kernel, Walk, WeightStore};

const EPS: f32 = 1e-6;
/// More layers than any of these has.
const MAX_LAYERS: usize = 256;
/// Rows that a row looks at, itself among them.
const SEEN: usize = 12;
/// Scores never reach this.
const MOST_SCORE: f32 = 50.0;

/// Sizes of such a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarsConfig {
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Channels of a head.
    pub head: usize,
    /// Bands of a spectrogram.
    pub bands: usize,
    /// Channels of the two convolutions over it.
    pub channels: [usize; 2],
    /// Rows that a convolution takes together.
    pub taps: usize,
    /// Numbers of a row at the end, and of one of the text network.
    pub out: usize,
    pub text: usize,
    /// Whether matrices hold down what goes in and what comes out.
    pub clipped: bool,
}

fn key(layer: usize, name: &str) -> String {
    format!("audio_tower.layers.{layer}.{name}")
}

impl EarsConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shape = |key: &str| {
            store.shape(key).ok_or_else(|| ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            })
        };
        let first = |name: &str| shape(&key(0, name));
        let start = |name: &str| {
            shape(&format!(
                "audio_tower.subsample_conv_projection.{name}.weight"
            ))
        };
        let (
            &[narrow, 1, _, _],
            &[wide, _, _, _],
            &[hidden, values],
            &[inner, _],
            &[head],
            &[_, 1, taps],
            &[text, out],
        ) = (
            shape(SOUNDS)?,
            start("layer1.conv")?,
            start("input_proj_linear")?,
            first("feed_forward1.ffw_layer_1.linear.weight")?,
            first("self_attn.per_dim_scale")?,
            first("lconv1d.depthwise_conv1d.weight")?,
            shape("embed_audio.embedding_projection.weight")?,
        )
        else {
            let reason = "the weights of its network for sound have shapes that are not known";
            return Err(ModelError::unsupported(store.file(), reason));
        };
        let heads = hidden.checked_div(head).unwrap_or(0);
        let quarter = values.checked_div(wide).unwrap_or(0);
        let whole = heads > 0 && heads * head == hidden && taps > 0 && hidden > 2;
        if !whole || quarter * wide != values || quarter == 0 || quarter > spectrum::MOST_BANDS / 4
        {
            let reason = format!(
                "its network for sound has {values} numbers of {wide} channels and heads of {head} in {hidden} channels, \
                 which do not fit"
            );
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let layers = |i: &usize| store.has(&key(*i, "norm_out.weight"));
        Ok(Self {
            hidden,
            inner,
            layers: (0..MAX_LAYERS).take_while(layers).count(),
            heads,
            head,
            bands: 4 * quarter,
            channels: [narrow, wide],
            taps,
            out,
            text,
            clipped: store.has(&key(0, "self_attn.q_proj.input_max")),
        })
    }
}

/// A convolution that leaves half of the frames and half of the bands.
struct Halving {
    conv: Arc<Conv2d>,
    norm: LayerNorm,
    weight: Arc<Value>,
}

impl Halving {
    fn new(weights: &Walk<'_>, out: usize, input: usize) -> Result<Self> {
        let kernel = Kernel {
            out,
            input,
            side: 3,
            bias: false,
        };
        Ok(Self {
            conv: weights.conv_with("conv", kernel, 2, Padding::Same(1))?,
            norm: LayerNorm::new(None, None, EPS)?,
            weight: weights.value("norm.weight", &[out])?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(&self.conv.forward(x)?)?;
        Ok(relu(&x.mul(&self.weight.at(&x.device())?)?))
    }
}

struct FeedForward {
    pre_layer_norm: Arc<RmsNorm>,
    ffw_layer_1: ClippedLinear,
    ffw_layer_2: ClippedLinear,
    post_layer_norm: Arc<RmsNorm>,
}

impl FeedForward {
    fn new(weights: &Walk<'_>, config: &EarsConfig) -> Result<Self> {
        let (hidden, inner) = (config.hidden, config.inner);
        let matrix = |name: &str, out: usize, input: usize| {
            ClippedLinear::new(&weights.at(name), out, input, config.clipped)
        };
        Ok(Self {
            pre_layer_norm: weights.rms_norm("pre_layer_norm.weight", hidden, EPS)?,
            ffw_layer_1: matrix("ffw_layer_1", inner, hidden)?,
            ffw_layer_2: matrix("ffw_layer_2", hidden, inner)?,
            post_layer_norm: weights.rms_norm("post_layer_norm.weight", hidden, EPS)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.ffw_layer_1.forward(&self.pre_layer_norm.forward(x)?)?;
        let h = self.ffw_layer_2.forward(&silu(&h))?;
        Ok(x.add(&self.post_layer_norm.forward(&h)?.mul_scalar(0.5))?)
    }
}

struct Attention {
    q_proj: ClippedLinear,
    k_proj: ClippedLinear,
    v_proj: ClippedLinear,
    post: ClippedLinear,
    relative_k_proj: Arc<Linear>,
    per_dim_scale: Arc<Value>,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &EarsConfig) -> Result<Self> {
        let hidden = config.hidden;
        let matrix =
            |name: &str| ClippedLinear::new(&weights.at(name), hidden, hidden, config.clipped);
        Ok(Self {
            q_proj: matrix("q_proj")?,
            k_proj: matrix("k_proj")?,
            v_proj: matrix("v_proj")?,
            post: matrix("post")?,
            relative_k_proj: weights.matrix("relative_k_proj", hidden, hidden)?,
            per_dim_scale: weights.value("per_dim_scale", &[config.head])?,
        })
    }

    /// Rows look at few others, so their sums are taken in main memory.
    fn forward(&self, x: &Tensor, places: &Tensor, config: &EarsConfig) -> Result<Tensor> {
        let [_, n, width] = x.dims3()?;
        let cpu = Device::cpu();
        let q = self.q_proj.forward(x)?.to(&cpu)?;
        let k = self.k_proj.forward(x)?.to(&cpu)?;
        let v = self.v_proj.forward(x)?.to(&cpu)?;
        let near = self.relative_k_proj.forward(places)?.to(&cpu)?;
        let scale = self.per_dim_scale.at(&x.device())?.to(&cpu)?;
        let usual = 1.0 / ((config.head as f32).sqrt() * std::f32::consts::LN_2);
        let scale: Vec<f32> = scale
            .data()
            .iter()
            .map(|v| usual * (1.0 + v.exp()).ln())
            .collect();
        let key_scale = (1.0 + std::f32::consts::E).ln() / std::f32::consts::LN_2;
        let mut out = Tensor::zeros([1, n, width])?;
        let rows = out.data_mut().chunks_exact_mut(width);
        for (at, row) in rows.enumerate() {
            for (head, found) in row.chunks_exact_mut(config.head).enumerate() {
                let part = |x: &Tensor, row: usize| {
                    let start = row * width + head * config.head;
                    start..(start + config.head).min(x.len())
                };
                let query: Vec<f32> = q.data()[part(&q, at)]
                    .iter()
                    .zip(&scale)
                    .map(|(v, scale)| v * scale)
                    .collect();
                let first = (at + 1).saturating_sub(SEEN);
                let scores = (first..=at).map(|key| {
                    let own = dot(&query, &k.data()[part(&k, key)]) * key_scale;
                    // The first place is the furthest.
                    let place = dot(&query, &near.data()[part(&near, SEEN - (at - key))]);
                    ((own + place) / MOST_SCORE).tanh() * MOST_SCORE
                });
                let scores: Vec<f32> = scores.collect();
                let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let shares: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f32 = shares.iter().sum();
                for (key, share) in (first..=at).zip(&shares) {
                    for (to, from) in found.iter_mut().zip(&v.data()[part(&v, key)]) {
                        *to += share / sum * from;
                    }
                }
            }
        }
        self.post.forward(&out.to(&x.device())?)
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A convolution over the rows before, channel by channel, between two matrices.
struct LightConv {
    pre_layer_norm: Arc<RmsNorm>,
    linear_start: ClippedLinear,
    depthwise_conv1d: Arc<Value>,
    conv_norm: Arc<RmsNorm>,
    linear_end: ClippedLinear,
}

impl LightConv {
    fn new(weights: &Walk<'_>, config: &EarsConfig) -> Result<Self> {
        let hidden = config.hidden;
        let matrix = |name: &str, out: usize| {
            ClippedLinear::new(&weights.at(name), out, hidden, config.clipped)
        };
        Ok(Self {
            pre_layer_norm: weights.rms_norm("pre_layer_norm.weight", hidden, EPS)?,
            linear_start: matrix("linear_start", 2 * hidden)?,
            depthwise_conv1d: weights
                .value("depthwise_conv1d.weight", &[hidden, 1, config.taps])?,
            conv_norm: weights.rms_norm("conv_norm.weight", hidden, EPS)?,
            linear_end: matrix("linear_end", hidden)?,
        })
    }

    fn forward(&self, x: &Tensor, config: &EarsConfig) -> Result<Tensor> {
        let [_, n, hidden] = x.dims3()?;
        let h = self
            .linear_start
            .forward(&self.pre_layer_norm.forward(x)?)?;
        let gate = sigmoid(&h.narrow(2, hidden, hidden)?);
        let h = h.narrow(2, 0, hidden)?.mul(&gate)?;
        let before = Tensor::zeros([1, config.taps - 1, hidden])?.to(&x.device())?;
        let h = Tensor::cat(&[&before, &h], 1)?;
        let taps = self.depthwise_conv1d.at(&x.device())?;
        let taps = taps.reshape([hidden, config.taps])?.transpose(0, 1)?;
        let mut sum = h.narrow(1, 0, n)?.mul(&taps.narrow(0, 0, 1)?)?;
        for tap in 1..config.taps {
            sum = sum.add(&h.narrow(1, tap, n)?.mul(&taps.narrow(0, tap, 1)?)?)?;
        }
        let h = silu(&self.conv_norm.forward(&sum)?);
        Ok(x.add(&self.linear_end.forward(&h)?)?)
    }
}

struct EarLayer {
    feed_forward1: FeedForward,
    norm_pre_attn: Arc<RmsNorm>,
    self_attn: Attention,
    norm_post_attn: Arc<RmsNorm>,
    lconv1d: LightConv,
    feed_forward2: FeedForward,
    norm_out: Arc<RmsNorm>,
}

impl EarLayer {
    fn new(weights: &Walk<'_>, config: &EarsConfig) -> Result<Self> {
        let norm = |name: &str| weights.rms_norm(&format!("{name}.weight"), config.hidden, EPS);
        Ok(Self {
            feed_forward1: FeedForward::new(&weights.at("feed_forward1"), config)?,
            norm_pre_attn: norm("norm_pre_attn")?,
            self_attn: Attention::new(&weights.at("self_attn"), config)?,
            norm_post_attn: norm("norm_post_attn")?,
            lconv1d: LightConv::new(&weights.at("lconv1d"), config)?,
            feed_forward2: FeedForward::new(&weights.at("feed_forward2"), config)?,
            norm_out: norm("norm_out")?,
        })
    }

    /// `(1, n, c)` to the same.
    fn forward(&self, x: &Tensor, places: &Tensor, config: &EarsConfig) -> Result<Tensor> {
        let x = self.feed_forward1.forward(x)?;
        let h = self.norm_pre_attn.forward(&x)?;
        let h = self.self_attn.forward(&h, places, config)?;
        let x = x.add(&self.norm_post_attn.forward(&h)?)?;
        let x = self.lconv1d.forward(&x, config)?;
        let x = self.feed_forward2.forward(&x)?;
        Ok(self.norm_out.forward(&x)?)
    }
}

/// See the module.
pub struct Ears {
    config: EarsConfig,
    device: Device,
    halving: [Halving; 2],
    input_proj: Arc<Linear>,
    layers: Vec<EarLayer>,
    output_proj: Arc<Linear>,
    norm: RmsNorm,
    projection: Arc<Linear>,
}

/// The network in a file that brings one.
pub(super) fn find(store: &WeightStore) -> Result<Option<Ears>> {
    if !store.has(SOUNDS) {
        return Ok(None);
    }
    Ears::new(store, &EarsConfig::detect(store)?).map(Some)
}

impl Ears {
    pub fn new(store: &WeightStore, config: &EarsConfig) -> Result<Self> {
        store.build("the network for sound", |weights| {
            let own = weights.at("audio_tower");
            let start = own.at("subsample_conv_projection");
            let [narrow, wide] = config.channels;
            let layers = own.at("layers");
            let layers = (0..config.layers).map(|i| EarLayer::new(&layers.at(i), config));
            let values = config.bands / 4 * wide;
            Ok(Self {
                halving: [
                    Halving::new(&start.at("layer0"), narrow, 1)?,
                    Halving::new(&start.at("layer1"), wide, narrow)?,
                ],
                input_proj: start.matrix("input_proj_linear", config.hidden, values)?,
                layers: layers.collect::<Result<_>>()?,
                output_proj: own.linear("output_proj", config.out, config.hidden)?,
                norm: RmsNorm::new(None, EPS)?,
                projection: weights.at("embed_audio").matrix(
                    "embedding_projection",
                    config.text,
                    config.out,
                )?,
                device: weights.device(),
                config: config.clone(),
            })
        })
    }

    /// Rows of the text network `(n, c)` for the bands of a sound, `(frames, bands)`.
    pub fn hear_bands(&self, bands: &Tensor) -> Result<Tensor> {
        let &[frames, count] = bands.shape() else {
            return Err(ModelError::invalid("sound", "a spectrogram is a matrix"));
        };
        let x = bands.reshape([1, frames, count, 1])?.to(&self.device)?;
        let x = self.halving[1].forward(&self.halving[0].forward(&x)?)?;
        let [_, n, quarter, channels] = x.dims4()?;
        let mut x = self
            .input_proj
            .forward(&x.reshape([1, n, quarter * channels])?)?;
        let places = self.places()?.to(&self.device)?;
        for layer in &self.layers {
            x = layer.forward(&x, &places, &self.config)?;
        }
        let x = self.norm.forward(&self.output_proj.forward(&x)?)?;
        let rows = self.projection.forward(&x)?;
        Ok(rows.reshape([n, self.config.text])?)
    }

    /// Waves for each distance between rows, the furthest first: (distances, hidden).
    fn places(&self) -> Result<Tensor> {
        let half = self.config.hidden / 2;
        let step = 1e4_f32.ln() / (half.max(2) - 1) as f32;
        let width = 2 * half;
        Ok(Tensor::from_fn([SEEN + 1, width], |at| {
            let (row, column) = (at / width, at % width);
            let angle = (SEEN - row) as f32 * (-step * (column % half) as f32).exp();
            if column < half {
                angle.sin()
            } else {
                angle.cos()
            }
        })?)
    }

    /// Rows of the text network `(n, c)` for a sound `(b, channels, samples)` of [`spectrum::RATE`] samples a second.
    pub(super) fn hear(&self, sound: &Tensor) -> Result<Tensor> {
        let bands = spectrum::bands(sound, self.config.bands)?;
        let heard = self.hear_bands(&bands)?;
        // Rows of sound are not scaled as those of words are, which the text network does to all.
        Ok(heard.mul_scalar((self.config.text as f32).sqrt().recip()))
    }
}
