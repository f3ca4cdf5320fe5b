//! The autoencoder of sound: convolutions that become fewer and fewer samples, attention to what came before, and a generator
//! that makes waves again. Each ear is an item of its own.

use std::sync::Arc;

use fresco_tensor::nn::{LayerNorm, Linear, Mask, Value, attention, gelu_tanh};
use fresco_tensor::{Axes, Device, Tensor, WeightFile};

use crate::error::{ModelError, Result};
use crate::store::{Layout, UnitOrder, Walk, WeightStore};
use crate::transformer::Shapes;
use crate::vae::Check;
use crate::waves::{
    Generator, GeneratorConfig, GeneratorNames, Line, LineConv, LineSizes, Snake, SnakeKind,
    SoundFacts, SoundNetwork, SoundRows, SoundStore, zero_padded,
};

const EPS: f32 = 1e-5;
const WHAT: &str = "the audio VAE";
/// Distances of samples in the residual layers of a step.
const APART: [usize; 3] = [1, 3, 9];
const RATE: u32 = 32_000;
/// More steps than any of these has.
const MOST: usize = 32;
/// Heads of published ones; weights do not say.
const HEADS: usize = 8;

/// What it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoundConfig {
    /// Channels before the first step; each step doubles them.
    pub width: usize,
    /// By what each step divides the samples.
    pub steps: Vec<usize>,
    pub inner: usize,
    pub latent: usize,
    pub heads: usize,
    pub ffn: usize,
    pub generator: GeneratorConfig,
    /// Whether files have length and direction of kernels apart.
    pub normed: bool,
    pub measured: bool,
}

impl SoundConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let normed = store.has("encoder.block.0.weight_v");
        let end = if normed { "weight_v" } else { "weight" };
        let shape = |key: &str| -> Result<[usize; 3]> {
            let key = format!("{key}.{end}");
            match store.shape(&key) {
                Some(&[a, b, c]) if a > 0 && b > 0 && c > 0 => Ok([a, b, c]),
                Some(found) => Err(ModelError::Shape {
                    file: store.file().to_owned(),
                    key,
                    expected: "a convolution along time".to_owned(),
                    found: found.to_vec(),
                }),
                None => Err(ModelError::Missing {
                    file: store.file().to_owned(),
                    key,
                }),
            }
        };
        let step = |n: usize| format!("encoder.block.{n}.block.4");
        let count = (1..MOST)
            .take_while(|n| store.has(&format!("{}.{end}", step(*n))))
            .count();
        // Kernels are twice as long as their steps.
        let steps = (1..=count).map(|n| Ok(shape(&step(n))?[2] / 2));
        let steps: Vec<usize> = steps.collect::<Result<_>>()?;
        let (latent, inner) = shapes.matrix("pre_block.proj.weight")?;
        let names = GeneratorNames::BIGVGAN;
        let generator = GeneratorConfig::detect(store, "decoder.", names, |taps| {
            let usual = |taps: &usize| match taps {
                9 => 5,
                other => other / 2,
            };
            taps.iter().map(usual).collect()
        })?;
        if steps.contains(&0) || !inner.is_multiple_of(HEADS) {
            return Err(shapes.unsupported(format!("steps of {steps:?} are not known")));
        }
        Ok(Self {
            width: shape("encoder.block.0")?[0],
            steps,
            inner,
            latent,
            heads: HEADS,
            ffn: shapes.matrix("pre_block.mlp.w0.weight")?.0,
            generator,
            normed,
            measured: store.has("latents_mean") && store.has("latents_std"),
        })
    }

    /// Samples of a latent frame.
    pub fn hop(&self) -> usize {
        self.steps.iter().product()
    }
}

struct Residual {
    acts: [Snake; 2],
    convs: [LineConv; 2],
}

impl Residual {
    fn new(weights: &Walk<'_>, channels: usize, apart: usize, normed: bool) -> Result<Self> {
        let sizes = |taps: usize| LineSizes {
            out: channels,
            input: channels,
            taps,
            bias: true,
            normed,
        };
        let weights = weights.at("block");
        let act = |name: &str| Snake::new(&weights, name, channels, SnakeKind::Alpha);
        Ok(Self {
            acts: [act("0")?, act("2")?],
            convs: [
                LineConv::new(&weights, "1", sizes(7), Line::same(7, apart))?,
                LineConv::new(&weights, "3", sizes(1), Line::same(1, 1))?,
            ],
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut h = x.clone();
        for (act, conv) in self.acts.iter().zip(&self.convs) {
            h = conv.forward(&act.forward(h)?)?;
        }
        Ok(x.add(&h)?)
    }
}

struct Step {
    layers: Vec<Residual>,
    act: Snake,
    down: LineConv,
}

struct Encoder {
    first: LineConv,
    steps: Vec<Step>,
    act: Snake,
    last: LineConv,
}

impl Encoder {
    fn new(weights: &Walk<'_>, config: &SoundConfig) -> Result<Self> {
        let normed = config.normed;
        let sizes = |out: usize, input: usize, taps: usize| LineSizes {
            out,
            input,
            taps,
            bias: true,
            normed,
        };
        let list = weights.at("block");
        let first = LineConv::new(&list, "0", sizes(config.width, 1, 7), Line::same(7, 1))?;
        let mut channels = config.width;
        let mut steps = Vec::new();
        for (number, &step) in config.steps.iter().enumerate() {
            let place = list.at(number + 1).at("block");
            let layers = APART.iter().enumerate();
            let layers =
                layers.map(|(n, apart)| Residual::new(&place.at(n), channels, *apart, normed));
            let pad = step.div_ceil(2);
            let line = Line {
                stride: step,
                dilation: 1,
                zeros: (pad, pad),
            };
            steps.push(Step {
                layers: layers.collect::<Result<_>>()?,
                act: Snake::new(&place, "3", channels, SnakeKind::Alpha)?,
                down: LineConv::new(&place, "4", sizes(2 * channels, channels, 2 * step), line)?,
            });
            channels *= 2;
        }
        let at = config.steps.len() + 1;
        let last = sizes(config.inner, channels, 3);
        Ok(Self {
            first,
            steps,
            act: Snake::new(&list, &at.to_string(), channels, SnakeKind::Alpha)?,
            last: LineConv::new(&list, &(at + 1).to_string(), last, Line::same(3, 1))?,
        })
    }

    fn forward(&self, x: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut x = self.first.forward(x)?;
        for step in &self.steps {
            for layer in &step.layers {
                check()?;
                x = layer.forward(&x)?;
            }
            x = step.down.forward(&step.act.forward(x)?)?;
        }
        self.last.forward(&self.act.forward(x)?)
    }
}

/// Attention to what came before, whose heads are averaged, and two layers.
struct Narrowing {
    norms: [Arc<LayerNorm>; 3],
    qkv: Arc<Linear>,
    biases: [Arc<Value>; 2],
    seen: Arc<Linear>,
    proj: Arc<Linear>,
    inner_norm: Arc<LayerNorm>,
    mlp: [Arc<Linear>; 3],
    heads: usize,
}

impl Narrowing {
    fn new(weights: &Walk<'_>, config: &SoundConfig) -> Result<Self> {
        let (inner, latent, ffn) = (config.inner, config.latent, config.ffn);
        let (attn, mlp) = (weights.at("attn"), weights.at("mlp"));
        Ok(Self {
            norms: [
                weights.layer_norm("norm1", inner, EPS)?,
                weights.layer_norm("norm2", latent, EPS)?,
                weights.layer_norm("norm3", inner, EPS)?,
            ],
            qkv: attn.matrix("qkv", 3 * inner, inner)?,
            biases: [
                attn.value("q_bias", &[inner])?,
                attn.value("v_bias", &[inner])?,
            ],
            seen: attn.linear("proj", latent, latent)?,
            proj: weights.linear("proj", latent, inner)?,
            inner_norm: mlp.layer_norm("norm", latent, EPS)?,
            mlp: [
                mlp.linear("w0", ffn, latent)?,
                mlp.linear("w1", ffn, latent)?,
                mlp.linear("w2", latent, ffn)?,
            ],
            heads: config.heads,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let device = x.device();
        let [b, n, inner] = x.dims3()?;
        let qkv = self.qkv.forward(&self.norms[0].forward(x)?)?;
        let part = |at: usize| qkv.narrow(2, at * inner, inner);
        let q = part(0)?.add(&self.biases[0].at(&device)?)?;
        let v = part(2)?.add(&self.biases[1].at(&device)?)?;
        let seen = attention(&q, &part(1)?, &v, self.heads, Mask::Causal, None)?;
        let head = inner / self.heads;
        let seen = seen
            .reshape([b, n, self.heads, head])?
            .mean(&[2], Axes::Drop)?;
        // Neighbouring channels are averaged until there are as few as the latent has.
        let latent = self.seen.in_features();
        let seen = seen
            .reshape([b, n, latent, head / latent.max(1)])?
            .mean(&[3], Axes::Drop)?;
        let near = self.proj.forward(&self.norms[2].forward(x)?)?;
        let x = near.add(&self.seen.forward(&seen)?)?;
        let input = self.inner_norm.forward(&self.norms[1].forward(&x)?)?;
        let gate = gelu_tanh(&self.mlp[0].forward(&input)?);
        let inner = gate.mul(&self.mlp[1].forward(&input)?)?;
        Ok(x.add(&self.mlp[2].forward(&inner)?)?)
    }
}

/// See the [module](self).
pub struct SoundVae {
    config: SoundConfig,
    device: Device,
    encoder: Encoder,
    narrowing: Narrowing,
    mean: Arc<Linear>,
    wide: Arc<Linear>,
    generator: Generator,
    measured: Option<[Arc<Value>; 2]>,
}

impl SoundVae {
    pub fn with(store: &WeightStore, config: &SoundConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::new(weights, config))
    }

    pub fn new(weights: &Walk<'_>, config: &SoundConfig) -> Result<Self> {
        let (inner, latent) = (config.generator.input, config.latent);
        let measured = || -> Result<[Arc<Value>; 2]> {
            Ok([
                weights.value("latents_mean", &[latent])?,
                weights.value("latents_std", &[latent])?,
            ])
        };
        Ok(Self {
            device: weights.device(),
            encoder: Encoder::new(&weights.at("encoder"), config)?,
            narrowing: Narrowing::new(&weights.at("pre_block"), config)?,
            mean: weights.linear("mean_proj", latent, latent)?,
            wide: weights.linear("dec_in_proj", inner, latent)?,
            generator: Generator::new(&weights.at("decoder"), &config.generator)?,
            measured: config.measured.then(measured).transpose()?,
            config: config.clone(),
        })
    }

    /// The mean latent (b, c, frames) of waves (b, 1, samples).
    pub fn encode_plain(&self, wave: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [b, _, samples] = wave.dims3()?;
        let whole = samples.next_multiple_of(self.config.hop());
        let x = wave.reshape([b, samples, 1])?.to(&self.device)?;
        let x = zero_padded(&x, 0, whole - samples)?;
        let x = self.encoder.forward(&x, check)?;
        let mean = self.mean.forward(&self.narrowing.forward(&x)?)?;
        Ok(mean.to(&Device::cpu())?.permute(&[0, 2, 1])?)
    }

    /// Waves (b, 1, samples) of latents, before anything is cut off.
    pub fn decode_plain(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let x = latent.permute(&[0, 2, 1])?.to(&self.device)?;
        let made = self.generator.forward(&self.wide.forward(&x)?, check)?;
        Ok(made.to(&Device::cpu())?.permute(&[0, 2, 1])?)
    }

    fn measures(&self) -> Result<Option<[Tensor; 2]>> {
        let Some(both) = &self.measured else {
            return Ok(None);
        };
        let one = |value: &Value| -> Result<Tensor> {
            let value = value.at(&Device::cpu())?;
            Ok(value.reshape([1, value.len(), 1, 1])?)
        };
        Ok(Some([one(&both[0])?, one(&both[1])?]))
    }
}

/// Ears of a sound.
const EARS: usize = 2;

impl SoundNetwork for SoundVae {
    fn encode(&self, wave: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [b, channels, samples] = wave.dims3()?;
        let wave = match channels {
            _ if samples == 0 => {
                return Err(ModelError::invalid("audio VAE encode", "there is no sound"));
            }
            1 => wave.repeat(&[1, EARS, 1])?,
            _ => wave.narrow(1, 0, EARS)?,
        };
        let mean = self.encode_plain(&wave.reshape([b * EARS, 1, samples])?, check)?;
        let [_, c, frames] = mean.dims3()?;
        let latent = mean.reshape([b, EARS, c, frames])?.permute(&[0, 2, 1, 3])?;
        Ok(match self.measures()? {
            Some([means, deviations]) => latent.sub(&means)?.div(&deviations)?,
            None => latent,
        })
    }

    fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [b, c, ears, frames] = latent.dims4()?;
        if c != self.config.latent || latent.is_empty() {
            let reason = format!(
                "this one takes latents of {} channels, got shape {:?}",
                self.config.latent,
                latent.shape()
            );
            return Err(ModelError::invalid("audio VAE decode", reason));
        }
        let latent = match self.measures()? {
            Some([means, deviations]) => latent.mul(&deviations)?.add(&means)?,
            None => latent.clone(),
        };
        let each = latent
            .permute(&[0, 2, 1, 3])?
            .reshape([b * ears, c, frames])?;
        let wave = self.decode_plain(&each, check)?.clamp(-1.0, 1.0);
        let samples = wave.dim(2)?;
        Ok(wave.reshape([b, ears, samples])?)
    }
}

static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "encoder",
        "pre_block",
        "mean_proj",
        "dec_in_proj",
        "decoder",
    ],
    blocks: &[],
    values: &[
        "alpha",
        "beta",
        "q_bias",
        "v_bias",
        "weight_g",
        "weight_v",
        "latents_mean",
        "latents_std",
    ],
};

/// The sound of such a model in a file.
pub(crate) fn find(file: &Arc<dyn WeightFile>, names: &[String]) -> Result<Option<SoundStore>> {
    if !names.iter().any(|name| name == "pre_block.attn.q_bias") {
        return Ok(None);
    }
    let store = WeightStore::open(Arc::clone(file), "", Device::cpu()).with_units(&UNITS);
    let config = SoundConfig::detect(&store)?;
    Layout::of(|weights| SoundVae::new(weights, &config))?.verify(&store, WHAT)?;
    let facts = SoundFacts {
        kind: "MiniMax H3",
        rate_in: RATE,
        rate_out: RATE,
        latent_rate: f64::from(RATE) / config.hop() as f64,
        channels: config.latent,
        rows: SoundRows::Ears(EARS),
    };
    let build = move |store: &WeightStore| -> Result<Box<dyn SoundNetwork>> {
        Ok(Box::new(SoundVae::with(store, &config)?))
    };
    Ok(Some(SoundStore::new(store, facts, build)))
}
