//! From spectrograms to waves: a network over bands (Liu et al. 2022) and one that makes samples of them (Kong et al. 2020).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, LayerNorm, Linear, Value, add_gated, silu, tanh};

use super::super::kl::Check;
use super::mel::VocoderConfig;
use crate::epilogue::then;
use crate::error::Result;
use crate::sound::{Conv1d, Depthwise1d, Edge, Grow1d};
use crate::store::{Bias, Walk};

const EPS: f32 = 1e-6;
/// How far apart the entries are that the convolutions of a block look at.
const GAPS: [usize; 3] = [1, 3, 5];

struct Stage {
    /// None before the first, whose place is taken by the convolution over bands.
    change: Option<(Arc<LayerNorm>, Arc<Linear>)>,
    blocks: Vec<NextBlock>,
}

struct NextBlock {
    depth: Depthwise1d,
    norm: Arc<LayerNorm>,
    wide: Arc<Linear>,
    narrow: Arc<Linear>,
    gamma: Arc<Value>,
}

impl NextBlock {
    fn new(weights: &Walk<'_>, channels: usize, [length, inner]: [usize; 2]) -> Result<Self> {
        Ok(Self {
            depth: Depthwise1d::new(weights, "dwconv", channels, length, Bias::With)?,
            norm: weights.layer_norm("norm", channels, EPS)?,
            wide: weights.linear("pwconv1", inner, channels)?,
            narrow: weights.linear("pwconv2", channels, inner)?,
            gamma: weights.value("gamma", &[channels])?,
        })
    }

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let inner = self.norm.forward(&self.depth.forward(&x)?)?;
        let inner = self.wide.forward_with(&inner, then(Act::Gelu))?;
        let gamma = self.gamma.at(&x.device())?;
        Ok(add_gated(x, &gamma, &self.narrow.forward(&inner)?)?)
    }
}

/// Pairs of convolutions beside what they are added to.
struct ResBlock(Vec<[Conv1d; 2]>);

impl ResBlock {
    fn new(weights: &Walk<'_>, channels: usize, length: usize) -> Result<Self> {
        let shape = [channels, channels, length];
        let (first, second) = (weights.at("convs1"), weights.at("convs2"));
        let pairs = GAPS.iter().enumerate().map(|(i, gap)| {
            let name = i.to_string();
            Ok([
                Conv1d::same(&first, &name, shape, *gap, Bias::With)?,
                Conv1d::same(&second, &name, shape, 1, Bias::With)?,
            ])
        });
        Ok(Self(pairs.collect::<Result<_>>()?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for [first, second] in &self.0 {
            let inner = first.forward(&silu(&x))?;
            x = x.add(&second.forward(&silu(&inner))?)?;
        }
        Ok(x)
    }
}

pub(super) struct Vocoder {
    bands: Conv1d,
    bands_norm: Arc<LayerNorm>,
    stages: Vec<Stage>,
    norm: Arc<LayerNorm>,
    first: Conv1d,
    ups: Vec<(Grow1d, Vec<ResBlock>)>,
    last: Conv1d,
}

impl Vocoder {
    pub(super) fn new(weights: &Walk<'_>, config: &VocoderConfig) -> Result<Self> {
        let (backbone, head) = (weights.at("backbone"), weights.at("head"));
        let changes = backbone.at("channel_layers");
        let first = changes.at(0);
        let dims = &config.dims;
        let mut stages = Vec::new();
        for (number, &channels) in dims.iter().enumerate() {
            let at = changes.at(number);
            let change = match number.checked_sub(1) {
                None => None,
                Some(before) => Some((
                    at.layer_norm("0", dims[before], EPS)?,
                    at.linear("1", channels, dims[before])?,
                )),
            };
            let list = backbone.at("stages").at(number);
            let inner = [config.depth_length, config.expand * channels];
            let blocks = (0..config.depths[number])
                .map(|i| NextBlock::new(&list.at(i), channels, inner))
                .collect::<Result<_>>()?;
            stages.push(Stage { change, blocks });
        }
        let width = dims.last().copied().unwrap_or(0);
        let shape = [dims[0], config.bands, config.band_length];
        let mut channels = config.initial;
        let mut ups = Vec::new();
        for (number, &length) in config.ups.iter().enumerate() {
            let (stride, out) = (length / 2, channels / 2);
            let cut = stride / 2;
            let shape = [channels, out, length];
            let grow = Grow1d::new(
                &head.at("ups"),
                &number.to_string(),
                shape,
                stride,
                (cut, stride - cut),
                Bias::With,
            )?;
            let blocks = config.lengths.iter().enumerate().map(|(i, length)| {
                let at = head.at("resblocks").at(number * config.lengths.len() + i);
                ResBlock::new(&at, out, *length)
            });
            ups.push((grow, blocks.collect::<Result<_>>()?));
            channels = out;
        }
        let ends = config.end_length;
        let bands = Conv1d::same(&first, "0", shape, 1, Bias::With)?;
        Ok(Self {
            bands: bands.with_edge(Edge::Repeated),
            bands_norm: first.layer_norm("1", dims[0], EPS)?,
            stages,
            norm: backbone.layer_norm("norm", width, EPS)?,
            first: Conv1d::same(
                &head,
                "conv_pre",
                [config.initial, width, ends],
                1,
                Bias::With,
            )?,
            ups,
            last: Conv1d::same(&head, "conv_post", [1, channels, ends], 1, Bias::With)?,
        })
    }

    /// What is made of bands (b, frames, bands): (b, frames, width).
    pub(super) fn features(&self, bands: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut x = self.bands_norm.forward(&self.bands.forward(bands)?)?;
        for stage in &self.stages {
            if let Some((norm, change)) = &stage.change {
                x = change.forward(&norm.forward(&x)?)?;
            }
            for block in &stage.blocks {
                check()?;
                x = block.forward(x)?;
            }
        }
        Ok(self.norm.forward(&x)?)
    }

    /// Samples (b, samples, 1) of bands (b, frames, bands).
    pub(super) fn forward(&self, bands: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut x = self.first.forward(&self.features(bands, check)?)?;
        for (grow, blocks) in &self.ups {
            x = grow.forward(&silu(&x))?;
            let mut sum: Option<Tensor> = None;
            for block in blocks {
                check()?;
                let part = block.forward(&x)?;
                sum = Some(match sum {
                    None => part,
                    Some(sum) => sum.add(&part)?,
                });
            }
            if let Some(sum) = sum {
                x = sum.div_scalar(blocks.len() as f32);
            }
        }
        Ok(tanh(&self.last.forward(&silu(&x))?))
    }
}
