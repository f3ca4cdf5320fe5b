//! Generators: from frames of features to waves, step by step longer.

use fresco_tensor::nn::{negative_slopes, tanh};
use fresco_tensor::{Device, Tensor};

use super::conv::{Line, LineConv, LineSizes, LineUp};
use super::filter::Smoothed;
use super::snake::{Snake, SnakeKind};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};

/// More steps, and more layers in one, than any of these has.
const MOST: usize = 64;

/// How the parts of a generator are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratorNames {
    pub first: &'static str,
    /// What makes it longer, by number, and what stands behind the number.
    pub ups: &'static str,
    pub up_end: &'static str,
    pub blocks: &'static str,
    /// The activations of a block before its first and its second convolutions, or all in one list.
    pub acts: [&'static str; 2],
    pub last_act: &'static str,
    pub last: &'static str,
}

impl GeneratorNames {
    /// Of the original.
    pub const BIGVGAN: Self = Self {
        first: "conv_pre",
        ups: "ups",
        up_end: ".0",
        blocks: "resblocks",
        acts: ["activations", "activations"],
        last_act: "activation_post",
        last: "conv_post",
    };
}

/// What a generator is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratorConfig {
    pub names: GeneratorNames,
    pub input: usize,
    /// Channels after the first layer; half of it after each step.
    pub width: usize,
    pub out: usize,
    /// Of each step: how much longer it makes, and its taps.
    pub steps: Vec<(usize, usize)>,
    /// Taps of the blocks of a step, each with how far apart its samples are.
    pub blocks: Vec<(usize, Vec<usize>)>,
    /// Swings without new frequencies, or plain slopes for what is negative and a tangent at the end.
    pub snake: bool,
    pub last_bias: bool,
    pub normed: bool,
}

impl GeneratorConfig {
    /// From keys and shapes. How much longer a step makes does not follow from them: `steps` says it, from the taps of all
    /// of them.
    pub fn detect(
        store: &WeightStore,
        prefix: &str,
        names: GeneratorNames,
        steps: impl Fn(&[usize]) -> Vec<usize>,
    ) -> Result<Self> {
        let shape = |name: &str| -> Result<[usize; 3]> {
            let plain = format!("{prefix}{name}.weight");
            let normed = format!("{prefix}{name}.weight_v");
            let found = store.shape(&plain).or_else(|| store.shape(&normed));
            match found {
                Some(&[a, b, c]) if a > 0 && b > 0 && c > 0 => Ok([a, b, c]),
                Some(found) => Err(ModelError::Shape {
                    file: store.file().to_owned(),
                    key: plain,
                    expected: "a convolution along time".to_owned(),
                    found: found.to_vec(),
                }),
                None => Err(ModelError::Missing {
                    file: store.file().to_owned(),
                    key: plain,
                }),
            }
        };
        let there = |name: &str| {
            store.has(&format!("{prefix}{name}.weight"))
                || store.has(&format!("{prefix}{name}.weight_v"))
        };
        let [width, input, _] = shape(names.first)?;
        let up = |number: usize| format!("{}.{number}{}", names.ups, names.up_end);
        let count = (0..MOST).take_while(|n| there(&up(*n))).count();
        let taps = (0..count).map(|n| Ok(shape(&up(n))?[2]));
        let taps: Vec<usize> = taps.collect::<Result<_>>()?;
        let layer =
            |block: usize, number: usize| format!("{}.{block}.convs1.{number}", names.blocks);
        let blocks = (0..MOST * MOST)
            .take_while(|n| there(&layer(*n, 0)))
            .count();
        if count == 0 || blocks == 0 || !blocks.is_multiple_of(count) || width >> count == 0 {
            let reason = format!("{blocks} blocks for {count} steps of {width} channels");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let each = (0..blocks / count).map(|block| {
            let layers = (0..MOST).take_while(|n| there(&layer(block, *n))).count();
            // 1, 3, 5 in all published ones.
            let apart = (0..layers).map(|n| 2 * n + 1).collect();
            Ok((shape(&layer(block, 0))?[2], apart))
        });
        let lengths = steps(&taps);
        if lengths.len() != count || lengths.contains(&0) {
            let reason = format!("steps with {taps:?} taps are not known");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let first_act = format!("{prefix}{}.0.{}.0.act.alpha", names.blocks, names.acts[0]);
        Ok(Self {
            input,
            width,
            out: shape(names.last)?[0],
            steps: lengths.into_iter().zip(taps).collect(),
            blocks: each.collect::<Result<_>>()?,
            snake: store.has(&first_act),
            last_bias: store.has(&format!("{prefix}{}.bias", names.last)),
            normed: store.has(&format!("{prefix}{}.weight_v", names.first)),
            names,
        })
    }

    /// Samples for one frame.
    pub fn hop(&self) -> usize {
        self.steps.iter().map(|(length, _)| length).product()
    }
}

/// Two convolutions for each distance, around shortcuts.
struct Block {
    layers: Vec<[LineConv; 2]>,
    /// Before each.
    acts: Option<Vec<[Snake; 2]>>,
}

impl Block {
    fn new(
        weights: &Walk<'_>,
        config: &GeneratorConfig,
        channels: usize,
        (taps, apart): &(usize, Vec<usize>),
    ) -> Result<Self> {
        let sizes = LineSizes {
            out: channels,
            input: channels,
            taps: *taps,
            bias: true,
            normed: config.normed,
        };
        let layer = |(number, dilation): (usize, &usize)| -> Result<[LineConv; 2]> {
            let name = |part: &str| format!("{part}.{number}");
            Ok([
                LineConv::new(
                    weights,
                    &name("convs1"),
                    sizes,
                    Line::same(*taps, *dilation),
                )?,
                LineConv::new(weights, &name("convs2"), sizes, Line::same(*taps, 1))?,
            ])
        };
        let [first, second] = config.names.acts;
        let one_list = first == second;
        let act = |list: &str, number: usize| {
            let name = format!("{list}.{number}.act");
            Snake::new(weights, &name, channels, SnakeKind::Beta)
        };
        let acts = |number: usize| -> Result<[Snake; 2]> {
            Ok(if one_list {
                [act(first, 2 * number)?, act(first, 2 * number + 1)?]
            } else {
                [act(first, number)?, act(second, number)?]
            })
        };
        let swings = || (0..apart.len()).map(acts).collect::<Result<Vec<_>>>();
        Ok(Self {
            layers: apart.iter().enumerate().map(layer).collect::<Result<_>>()?,
            acts: config.snake.then(swings).transpose()?,
        })
    }

    fn forward(&self, x: &Tensor, filter: &Smoothed) -> Result<Tensor> {
        let mut x = x.clone();
        for (number, layers) in self.layers.iter().enumerate() {
            let mut h = x.clone();
            for (at, layer) in layers.iter().enumerate() {
                h = match &self.acts {
                    Some(acts) => acts[number][at].smoothed(&h, filter)?,
                    None => sloped(h, SLOPE)?,
                };
                h = layer.forward(&h)?;
            }
            x = x.add(&h)?;
        }
        Ok(x)
    }
}

/// What is left of negative values, inside and at the end.
const SLOPE: f32 = 0.1;
const LAST_SLOPE: f32 = 0.01;

fn sloped(x: Tensor, slope: f32) -> Result<Tensor> {
    let slope = Tensor::from_slice(&[slope]).to(&x.device())?;
    Ok(negative_slopes(x, &slope)?)
}

struct Step {
    up: LineUp,
    blocks: Vec<Block>,
}

/// Makes waves of frames of features.
pub struct Generator {
    device: Device,
    first: LineConv,
    steps: Vec<Step>,
    last_act: Option<Snake>,
    last: LineConv,
    filter: Smoothed,
}

const FIRST_TAPS: usize = 7;

impl Generator {
    pub fn new(weights: &Walk<'_>, config: &GeneratorConfig) -> Result<Self> {
        let names = config.names;
        let sizes = |out: usize, input: usize, taps: usize| LineSizes {
            out,
            input,
            taps,
            bias: true,
            normed: config.normed,
        };
        let line = Line::same(FIRST_TAPS, 1);
        let first = sizes(config.width, config.input, FIRST_TAPS);
        let mut steps = Vec::with_capacity(config.steps.len());
        let mut channels = config.width;
        for (number, &(length, taps)) in config.steps.iter().enumerate() {
            let name = format!("{}.{number}{}", names.ups, names.up_end);
            let half = channels / 2;
            let cut = taps.saturating_sub(length) / 2;
            let up = LineUp::new(weights, &name, sizes(half, channels, taps), (length, cut))?;
            let count = config.blocks.len();
            let blocks = config.blocks.iter().enumerate().map(|(at, block)| {
                let place = weights.at(names.blocks).at(number * count + at);
                Block::new(&place, config, half, block)
            });
            steps.push(Step {
                up,
                blocks: blocks.collect::<Result<_>>()?,
            });
            channels = half;
        }
        let last_act = || {
            let name = format!("{}.act", names.last_act);
            Snake::new(weights, &name, channels, SnakeKind::Beta)
        };
        let last = LineSizes {
            bias: config.last_bias,
            ..sizes(config.out, channels, FIRST_TAPS)
        };
        Ok(Self {
            device: weights.device(),
            first: LineConv::new(weights, names.first, first, line)?,
            steps,
            last_act: config.snake.then(last_act).transpose()?,
            last: LineConv::new(weights, names.last, last, line)?,
            filter: Smoothed::default(),
        })
    }

    /// Features (b, frames, c) as waves (b, samples, channels), on the device. `check` is asked between steps.
    pub fn forward(&self, x: &Tensor, check: crate::vae::Check<'_>) -> Result<Tensor> {
        let mut x = self.first.forward(&x.to(&self.device)?)?;
        for step in &self.steps {
            check()?;
            if self.last_act.is_none() {
                x = sloped(x, SLOPE)?;
            }
            x = step.up.forward(&x)?;
            let mut sum: Option<Tensor> = None;
            for block in &step.blocks {
                check()?;
                let made = block.forward(&x, &self.filter)?;
                sum = Some(match sum {
                    Some(sum) => sum.add(&made)?,
                    None => made,
                });
            }
            if let Some(sum) = sum {
                x = sum.div_scalar(step.blocks.len() as f32);
            }
        }
        match &self.last_act {
            Some(act) => {
                let x = act.smoothed(&x, &self.filter)?;
                self.last.forward(&x)
            }
            None => Ok(tanh(&self.last.forward(&sloped(x, LAST_SLOPE)?)?)),
        }
    }
}
