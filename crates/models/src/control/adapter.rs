//! The T2I adapter (Mou et al. 2023): a small network that looks at a hint once and adds to the encoder of a UNet.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, Linear, Padding, avg_pool2d};
use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};
use crate::layout::Layout;
use crate::store::Store;
use crate::unet::{ControlFeatures, plus};

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
    fn new(store: &Store, key: &str) -> Result<(Self, usize)> {
        let side = store
            .shape(&format!("{key}.weight"))
            .map(|s| s.get(2).copied());
        let side = side.flatten().unwrap_or(1);
        Ok(if side == 1 {
            (Self::Point(store.linear(key)?), 1)
        } else {
            (
                Self::Wide(store.conv(key, 1, Padding::Same(side / 2))?),
                side,
            )
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

/// A small network that steers a UNet by a picture, computed once for a run.
pub struct T2iAdapter {
    /// Where it computes.
    device: Device,
    conv_in: Arc<Conv2d>,
    stages: Vec<Vec<Block>>,
    unshuffle: usize,
    hint_channels: usize,
    /// For SDXL, whose encoder has other places.
    xl: bool,
}

impl T2iAdapter {
    pub fn new(store: &Store) -> Result<Self> {
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
        let mut layout = Layout::default();
        layout.conv("conv_in", width, input, 3);
        let mut at = width;
        for number in 0..STAGES * PER_STAGE {
            let key = format!("body.{number}");
            let shape = |name: &str| store.shape(&format!("{key}.{name}.weight"));
            let out = shape("block1")
                .and_then(|s| s.first().copied())
                .unwrap_or(0);
            if shape("down_opt.op").is_some() {
                layout.conv(&format!("{key}.down_opt.op"), at, at, 3);
            }
            if let Some(side) = shape("in_conv").and_then(|s| s.get(2).copied()) {
                layout.conv(&format!("{key}.in_conv"), out, at, side);
            }
            layout.conv(&format!("{key}.block1"), out, out, 3);
            for name in ["block2", "skep"] {
                if let Some(side) = shape(name).and_then(|s| s.get(2).copied()) {
                    layout.conv(&format!("{key}.{name}"), out, out, side);
                } else if name == "block2" {
                    layout.conv(&format!("{key}.{name}"), out, out, 1);
                }
            }
            at = out;
        }
        layout.verify(store, "the T2I adapter")?;
        let mut stages = Vec::new();
        for stage in 0..STAGES {
            let mut blocks = Vec::new();
            for place in 0..PER_STAGE {
                blocks.push(Self::block(store, stage, place, xl)?);
            }
            stages.push(blocks);
        }
        Ok(Self {
            device: store.device().clone(),
            conv_in: store.conv("conv_in", 1, Padding::Same(1))?,
            stages,
            unshuffle,
            hint_channels,
            xl,
        })
    }

    fn block(store: &Store, stage: usize, place: usize, xl: bool) -> Result<Block> {
        let key = format!("body.{}", stage * PER_STAGE + place);
        let has = |name: &str| store.has(&format!("{key}.{name}.weight"));
        // SDXL adapters stay at one size from the second stage to the third.
        let shrinks = place == 0 && if xl { stage == 2 } else { stage > 0 };
        let down = if has("down_opt.op") {
            let conv = store.conv(&format!("{key}.down_opt.op"), 2, Padding::Same(1))?;
            Some(Down::Conv(conv))
        } else {
            shrinks.then_some(Down::Pool)
        };
        let side = store
            .shape(&format!("{key}.in_conv.weight"))
            .and_then(|s| s.get(2).copied());
        let into = match side {
            Some(side) => {
                let padding = Padding::Same(side / 2);
                Some(store.conv(&format!("{key}.in_conv"), 1, padding)?)
            }
            None => None,
        };
        let skip = if has("skep") {
            Some(Conv::new(store, &format!("{key}.skep"))?.0)
        } else {
            None
        };
        Ok(Block {
            down,
            into,
            block1: store.conv(&format!("{key}.block1"), 1, Padding::Same(1))?,
            block2: Conv::new(store, &format!("{key}.block2"))?.0,
            skip,
        })
    }

    /// Pixels of the hint along a side for one cell of the first stage.
    pub fn unshuffle(&self) -> usize {
        self.unshuffle
    }

    /// Channels of the hint; with one the colours are averaged.
    pub fn hint_channels(&self) -> usize {
        self.hint_channels
    }

    /// What to add for a hint (b, c, h, w) in 0..1 whose sizes are multiples of [`Self::unshuffle`].
    pub fn forward(&self, hint: &Tensor) -> Result<ControlFeatures> {
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
        let hint = if self.hint_channels == 1 && c > 1 {
            hint.mean(&[1], true)?
        } else {
            hint.clone()
        };
        let channels = hint.dim(1)?;
        if channels != self.hint_channels {
            let reason = format!("takes {} channels, got {channels}", self.hint_channels);
            return Err(ModelError::invalid("T2I adapter", reason));
        }
        // (b, c, h s, w s) to (b, h, w, c s s).
        let cells = hint
            .reshape([b, channels, h / side, side, w / side, side])?
            .permute(&[0, 2, 4, 1, 3, 5])?
            .reshape([b, h / side, w / side, channels * side * side])?;
        let mut x = self.conv_in.forward(&cells.to(&self.device)?)?;
        let mut stages = Vec::new();
        for blocks in &self.stages {
            for block in blocks {
                x = block.forward(x)?;
            }
            stages.push(x.nhwc_to_nchw()?);
        }
        Ok(self.placed(stages))
    }

    /// The features at the input blocks they are for: the list is used from its end.
    fn placed(&self, stages: Vec<Tensor>) -> ControlFeatures {
        let mut input = Vec::new();
        let mut middle = Vec::new();
        let last = stages.len() - 1;
        for (stage, features) in stages.into_iter().enumerate() {
            if !self.xl {
                input.extend([None, None, Some(features)]);
            } else if stage == last {
                middle.push(Some(features));
            } else {
                // After blocks 3, 5 and 8.
                let empty = if stage == 1 {
                    1
                } else if stage == 0 {
                    3
                } else {
                    2
                };
                input.extend(std::iter::repeat_n(None, empty));
                input.push(Some(features));
            }
        }
        input.reverse();
        ControlFeatures {
            input,
            middle,
            output: Vec::new(),
        }
    }
}

impl Block {
    fn forward(&self, mut x: Tensor) -> Result<Tensor> {
        match &self.down {
            Some(Down::Conv(conv)) => x = conv.forward(&x)?,
            Some(Down::Pool) => x = avg_pool2d(&x, 2)?,
            None => {}
        }
        if let Some(into) = &self.into {
            x = into.forward(&x)?;
        }
        let relu = After {
            act: Act::Relu,
            ..After::default()
        };
        let h = self.block1.forward_with(&x, relu)?;
        let skip = match &self.skip {
            Some(skip) => skip.forward(&x, After::default())?,
            None => x,
        };
        self.block2.forward(&h, plus(&skip))
    }
}
