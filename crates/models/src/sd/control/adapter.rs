//! The T2I adapter (Mou et al. 2023): a small network that looks at a hint once and adds to the encoder of a UNet.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, Linear, avg_pool2d};
use fresco_tensor::{Axes, Device, Tensor};

use crate::denoise::hooks::{BlockKind, ControlFeatures};
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};

/// Where a stage begins with another size.
enum Down {
    Conv(Arc<Conv2d>),
    Pool,
}

struct Block {
    down: Option<Down>,
    /// To the stage's channels.
    into: Option<Arc<Conv2d>>,
    block1: Arc<Conv2d>,
    block2: Conv,
    skip: Option<Conv>,
}

/// A convolution of size 1 or 3.
enum Conv {
    Wide(Arc<Conv2d>),
    Point(Arc<Linear>),
}

impl Conv {
    fn new(weights: &Walk<'_>, name: &str, channels: usize, side: usize) -> Result<Self> {
        Ok(if side == 1 {
            Self::Point(weights.linear(name, channels, channels)?)
        } else {
            Self::Wide(weights.conv(name, channels, channels, side, 1)?)
        })
    }

    fn forward(&self, x: &Tensor, after: After<'_>) -> Result<Tensor> {
        Ok(match self {
            Self::Wide(conv) => conv.forward_with(x, after)?,
            Self::Point(linear) => linear.forward_with(x, after)?,
        })
    }
}

/// Residual blocks per stage in every published adapter.
const PER_STAGE: usize = 2;
/// Stages of the UNet that get something.
const STAGES: usize = 4;

/// What the keys of one block say: the sides of its convolutions, where it has them.
struct BlockConfig {
    out: usize,
    down: bool,
    /// Whether it begins at half the size.
    shrinks: bool,
    into: Option<usize>,
    block2: usize,
    skip: Option<usize>,
}

/// The shape of an adapter.
struct AdapterConfig {
    /// Channels of the first convolution, in and out.
    first: (usize, usize),
    blocks: Vec<BlockConfig>,
    unshuffle: usize,
    hint_channels: usize,
    /// For SDXL, whose encoder has other places.
    xl: bool,
}

impl AdapterConfig {
    fn detect(store: &WeightStore) -> Result<Self> {
        let first = store.shape("conv_in.weight").unwrap_or_default();
        let &[width, input, _, _] = first else {
            return Err(ModelError::Shape {
                file: store.file().to_owned(),
                key: "conv_in.weight".to_owned(),
                expected: "a convolution".to_owned(),
                found: first.to_vec(),
            });
        };
        let xl = matches!(input, 256 | 768);
        let unshuffle = if xl { 16 } else { 8 };
        let hint_channels = input / (unshuffle * unshuffle);
        if !matches!(hint_channels, 1 | 3) {
            let reason =
                format!("an adapter whose first layer takes {input} channels is not known");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let blocks = (0..STAGES * PER_STAGE).map(|number| {
            let shape = |name: &str| store.shape(&format!("body.{number}.{name}.weight"));
            let side = |name: &str| shape(name).and_then(|s| s.get(2).copied());
            let out = shape("block1").and_then(|s| s.first().copied());
            let (stage, place) = (number / PER_STAGE, number % PER_STAGE);
            BlockConfig {
                out: out.unwrap_or(0),
                down: shape("down_opt.op").is_some(),
                // SDXL adapters stay at one size from the second stage to the third.
                shrinks: place == 0 && if xl { stage == 2 } else { stage > 0 },
                into: side("in_conv"),
                block2: side("block2").unwrap_or(1),
                skip: side("skep"),
            }
        });
        Ok(Self {
            first: (input, width),
            blocks: blocks.collect(),
            unshuffle,
            hint_channels,
            xl,
        })
    }
}

/// A small network that steers a UNet by a picture, computed once for a run.
pub struct T2iAdapter {
    /// Where it computes.
    device: Device,
    conv_in: Arc<Conv2d>,
    blocks: Vec<Block>,
    hint: Hint,
    /// For SDXL, whose encoder has other places.
    xl: bool,
}

impl T2iAdapter {
    pub fn new(store: &WeightStore) -> Result<Self> {
        let config = AdapterConfig::detect(store)?;
        store.build("the T2I adapter", |weights| Self::walk(weights, &config))
    }

    fn walk(weights: &Walk<'_>, config: &AdapterConfig) -> Result<Self> {
        let (input, mut at) = config.first;
        let conv_in = weights.conv("conv_in", at, input, 3, 1)?;
        let mut blocks = Vec::new();
        for (number, block) in config.blocks.iter().enumerate() {
            let weights = weights.at("body").at(number);
            blocks.push(Block::new(&weights, block, at)?);
            at = block.out;
        }
        Ok(Self {
            device: weights.device().clone(),
            conv_in,
            blocks,
            hint: Hint {
                channels: config.hint_channels,
                unshuffle: config.unshuffle,
            },
            xl: config.xl,
        })
    }

    /// Pixels of the hint along a side for one cell of the first stage.
    pub fn unshuffle(&self) -> usize {
        self.hint.unshuffle
    }

    /// Channels of the hint; with one the colours are averaged.
    pub fn hint_channels(&self) -> usize {
        self.hint.channels
    }

    /// What to add for a hint (b, c, h, w) in 0..1 whose sizes are multiples of [`Self::unshuffle`].
    pub fn forward(&self, hint: &Tensor) -> Result<ControlFeatures> {
        let cells = self.hint.cells(hint)?;
        let mut x = self.conv_in.forward(&cells.to(&self.device)?)?;
        let mut stages = Vec::new();
        for blocks in self.blocks.chunks(PER_STAGE) {
            for block in blocks {
                x = block.forward(x)?;
            }
            stages.push(x.nhwc_to_nchw()?);
        }
        Ok(placed(stages, self.xl))
    }
}

/// How an adapter looks at a hint.
#[derive(Clone, Copy)]
pub(super) struct Hint {
    /// With one the colours are averaged.
    pub(super) channels: usize,
    /// Pixels along a side that become one cell.
    pub(super) unshuffle: usize,
}

impl Hint {
    /// A hint (b, c, h s, w s) as (b, h, w, c s s).
    pub(super) fn cells(&self, hint: &Tensor) -> Result<Tensor> {
        let side = self.unshuffle;
        let refuse = || {
            let reason = format!(
                "a hint of shape {:?} is not in cells of {side}",
                hint.shape()
            );
            Err(ModelError::invalid("T2I adapter", reason))
        };
        let [b, c, h, w] = *hint.shape() else {
            return refuse();
        };
        if hint.is_empty() || h % side != 0 || w % side != 0 {
            return refuse();
        }
        let hint = if self.channels == 1 && c > 1 {
            hint.mean(&[1], Axes::Keep)?
        } else {
            hint.clone()
        };
        let channels = hint.dim(1)?;
        if channels != self.channels {
            let reason = format!("takes {} channels, got {channels}", self.channels);
            return Err(ModelError::invalid("T2I adapter", reason));
        }
        Ok(hint
            .reshape([b, channels, h / side, side, w / side, side])?
            .permute(&[0, 2, 4, 1, 3, 5])?
            .reshape([b, h / side, w / side, channels * side * side])?)
    }
}

/// The features at the input blocks they are for: the list is used from its end. `xl`: for SDXL.
pub(super) fn placed(stages: Vec<Tensor>, xl: bool) -> ControlFeatures {
    let mut input = Vec::new();
    let mut middle = Vec::new();
    let last = stages.len().saturating_sub(1);
    for (stage, features) in stages.into_iter().enumerate() {
        if !xl {
            input.extend([None, None, Some(features)]);
        } else if stage == last {
            // The list has a place for a tenth block, which only other encoders have.
            input.push(None);
            middle.push(Some(features));
        } else {
            // After blocks 3, 5 and 8.
            let empty = match stage {
                0 => 3,
                1 => 1,
                _ => 2,
            };
            input.extend(std::iter::repeat_n(None, empty));
            input.push(Some(features));
        }
    }
    input.reverse();
    ControlFeatures::default()
        .with(BlockKind::INPUT, input)
        .with(BlockKind::MIDDLE, middle)
}

impl Block {
    /// `input` channels go in.
    fn new(weights: &Walk<'_>, config: &BlockConfig, input: usize) -> Result<Self> {
        let out = config.out;
        let down = if config.down {
            Some(Down::Conv(weights.conv(
                "down_opt.op",
                input,
                input,
                3,
                2,
            )?))
        } else {
            config.shrinks.then_some(Down::Pool)
        };
        let into = config.into;
        let into = into.map(|side| weights.conv("in_conv", out, input, side, 1));
        let skip = config.skip;
        let skip = skip.map(|side| Conv::new(weights, "skep", out, side));
        Ok(Self {
            down,
            into: into.transpose()?,
            block1: weights.conv("block1", out, out, 3, 1)?,
            block2: Conv::new(weights, "block2", out, config.block2)?,
            skip: skip.transpose()?,
        })
    }

    fn forward(&self, mut x: Tensor) -> Result<Tensor> {
        match &self.down {
            Some(Down::Conv(conv)) => x = conv.forward(&x)?,
            Some(Down::Pool) => x = avg_pool2d(&x, 2)?,
            None => {}
        }
        if let Some(into) = &self.into {
            x = into.forward(&x)?;
        }
        let h = self.block1.forward_with(&x, then(Act::Relu))?;
        let skip = match &self.skip {
            Some(skip) => skip.forward(&x, After::default())?,
            None => x,
        };
        self.block2.forward(&h, plus(&skip))
    }
}
