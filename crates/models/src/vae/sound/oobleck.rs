//! The autoencoder of waveforms by Evans et al. (2024): convolutions over samples, with a periodic activation.

use fresco_tensor::{Device, Generator, Tensor};

use super::super::kl::Check;
use crate::error::{ModelError, Result};
use crate::sound::{Conv1d, Grow1d, Snake};
use crate::store::{Bias, Walk, WeightStore};
use crate::transformer::Shapes;

/// How far apart the entries are that the three units of a stage look at.
const GAPS: [usize; 3] = [1, 3, 9];
const LONG: usize = 7;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OobleckConfig {
    /// Channels of a sound, and of a latent.
    pub sound: usize,
    pub latent: usize,
    /// Channels before the first stage and after each.
    pub channels: Vec<usize>,
    pub strides: Vec<usize>,
}

/// Samples of a latent frame of those that were trained with 48,000 samples a second; all others have 44,100.
const FINE: usize = 1920;

impl OobleckConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let kernel = |key: String| match store.shape(&key) {
            Some(&[out, input, length]) => Ok([out, input, length]),
            other => Err(shapes.unsupported(format!("{key} has shape {other:?}"))),
        };
        let [first, sound, _] = kernel("encoder.layers.0.weight".to_owned())?;
        let stage = |i: usize| format!("encoder.layers.{i}.layers.4.weight");
        let count = (1..64).take_while(|i| store.has(&stage(*i))).count();
        let (mut channels, mut strides) = (vec![first], Vec::new());
        for number in 1..=count {
            let [out, _, length] = kernel(stage(number))?;
            channels.push(out);
            strides.push(length / 2);
        }
        let [_, latent, _] = kernel("decoder.layers.0.weight".to_owned())?;
        if strides.is_empty() || strides.contains(&0) {
            return Err(shapes.unsupported("the autoencoder of sound has no stages"));
        }
        Ok(Self {
            sound,
            latent,
            channels,
            strides,
        })
    }

    pub fn ratio(&self) -> usize {
        self.strides.iter().product()
    }

    pub fn rate(&self) -> u32 {
        if self.ratio() == FINE { 48_000 } else { 44_100 }
    }
}

/// Two convolutions beside what they are added to.
struct Unit {
    first_snake: Snake,
    first: Conv1d,
    second_snake: Snake,
    second: Conv1d,
}

impl Unit {
    fn new(weights: &Walk<'_>, channels: usize, gap: usize) -> Result<Self> {
        let weights = weights.at("layers");
        let long = [channels, channels, LONG];
        Ok(Self {
            first_snake: Snake::new(&weights, "0", channels)?,
            first: Conv1d::same(&weights, "1", long, gap, Bias::With)?,
            second_snake: Snake::new(&weights, "2", channels)?,
            second: Conv1d::same(&weights, "3", [channels, channels, 1], 1, Bias::With)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.first.forward(&self.first_snake.forward(x)?)?;
        let inner = self.second.forward(&self.second_snake.forward(&inner)?)?;
        Ok(x.add(&inner)?)
    }
}

fn units(weights: &Walk<'_>, first: usize, channels: usize) -> Result<Vec<Unit>> {
    let numbered = GAPS.iter().enumerate();
    numbered
        .map(|(i, gap)| Unit::new(&weights.at("layers").at(first + i), channels, *gap))
        .collect()
}

struct Down {
    units: Vec<Unit>,
    snake: Snake,
    conv: Conv1d,
}

struct Up {
    snake: Snake,
    grow: Grow1d,
    units: Vec<Unit>,
}

pub struct Oobleck {
    device: Device,
    first: Conv1d,
    downs: Vec<Down>,
    down_snake: Snake,
    to_latent: Conv1d,
    from_latent: Conv1d,
    ups: Vec<Up>,
    up_snake: Snake,
    last: Conv1d,
    ratio: usize,
}

impl Oobleck {
    pub(super) fn new(weights: &Walk<'_>, config: &OobleckConfig) -> Result<Self> {
        let (encoder, decoder) = (weights.at("encoder.layers"), weights.at("decoder.layers"));
        let (channels, count) = (&config.channels, config.strides.len());
        let top = channels[count];
        let mut downs = Vec::new();
        let mut ups = Vec::new();
        for (i, &stride) in config.strides.iter().enumerate() {
            let at = encoder.at(i + 1);
            let half = stride.div_ceil(2);
            let (input, out) = (channels[i], channels[i + 1]);
            downs.push(Down {
                units: units(&at, 0, input)?,
                snake: Snake::new(&at.at("layers"), "3", input)?,
                conv: Conv1d::new(
                    &at.at("layers"),
                    "4",
                    [out, input, 2 * stride],
                    (stride, 1),
                    (half, half),
                    Bias::With,
                )?,
            });
            // The decoder goes the same way back.
            let at = decoder.at(count - i);
            let shape = [out, input, 2 * stride];
            ups.push(Up {
                snake: Snake::new(&at.at("layers"), "0", out)?,
                grow: Grow1d::new(
                    &at.at("layers"),
                    "1",
                    shape,
                    stride,
                    (half, half),
                    Bias::With,
                )?,
                units: units(&at, 2, input)?,
            });
        }
        ups.reverse();
        let (snake, conv) = ((count + 1).to_string(), (count + 2).to_string());
        let long = |out: usize, input: usize| [out, input, LONG];
        Ok(Self {
            device: weights.device(),
            first: Conv1d::same(
                &encoder,
                "0",
                long(channels[0], config.sound),
                1,
                Bias::With,
            )?,
            downs,
            down_snake: Snake::new(&encoder, &snake, top)?,
            to_latent: Conv1d::same(&encoder, &conv, [2 * config.latent, top, 3], 1, Bias::With)?,
            from_latent: Conv1d::same(&decoder, "0", long(top, config.latent), 1, Bias::With)?,
            ups,
            up_snake: Snake::new(&decoder, &snake, channels[0])?,
            last: Conv1d::same(
                &decoder,
                &conv,
                long(config.sound, channels[0]),
                1,
                Bias::Without,
            )?,
            ratio: config.ratio(),
        })
    }

    /// Means and spreads of a latent, (b, 2c, frames).
    pub fn moments(&self, sound: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [b, channels, samples] = sound.dims3()?;
        let whole = samples.div_ceil(self.ratio) * self.ratio;
        let silence = Tensor::zeros([b, channels, whole - samples])?;
        let sound = Tensor::cat(&[sound, &silence], 2)?;
        let x = sound.permute(&[0, 2, 1])?.to(&self.device)?;
        let mut x = self.first.forward(&x)?;
        for down in &self.downs {
            for unit in &down.units {
                check()?;
                x = unit.forward(&x)?;
            }
            x = down.conv.forward(&down.snake.forward(&x)?)?;
        }
        let x = self.to_latent.forward(&self.down_snake.forward(&x)?)?;
        Ok(x.to(&Device::cpu())?.permute(&[0, 2, 1])?)
    }

    /// A latent (b, c, frames), with noise as wide as the network is unsure; the same every time.
    pub fn encode(&self, sound: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let moments = self.moments(sound, check)?;
        let half = moments.dim(1)? / 2;
        let mean = moments.narrow(1, 0, half)?;
        let spread = moments.narrow(1, half, half)?;
        // softplus, which is the value itself where it is large
        let spread = spread.map(|v| {
            let soft = if v > 20.0 { v } else { v.exp().ln_1p() };
            soft + 1e-4
        });
        let noise = Generator::new(0).randn(mean.shape())?;
        Ok(mean.add(&noise.mul(&spread)?)?)
    }

    pub fn decode(&self, latent: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let [_, _, frames] = latent.dims3()?;
        if frames == 0 {
            return Err(ModelError::invalid("VAE decode", "a latent without frames"));
        }
        let x = latent.permute(&[0, 2, 1])?.to(&self.device)?;
        let mut x = self.from_latent.forward(&x)?;
        for up in &self.ups {
            check()?;
            x = up.grow.forward(&up.snake.forward(&x)?)?;
            for unit in &up.units {
                check()?;
                x = unit.forward(&x)?;
            }
        }
        let x = self.last.forward(&self.up_snake.forward(&x)?)?;
        Ok(x.to(&Device::cpu())?.permute(&[0, 2, 1])?)
    }
}
