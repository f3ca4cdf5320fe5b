//! The light T2I adapter (Mou et al. 2023): stages of narrow residual blocks between two 1x1 convolutions.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, Linear, avg_pool2d};
use fresco_tensor::{Device, Tensor};

use super::adapter::{Hint, placed};
use crate::denoise::hooks::ControlFeatures;
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};

/// Pixels of the hint along a side for one cell of the first stage.
const UNSHUFFLE: usize = 8;
const MOST: usize = 100;

struct Stage {
    into: Arc<Linear>,
    blocks: Vec<(Arc<Conv2d>, Arc<Conv2d>)>,
    out: Arc<Linear>,
}

/// Channels that go into a stage, those inside and those that come out, and how many blocks it has.
struct StageConfig {
    input: usize,
    inner: usize,
    out: usize,
    blocks: usize,
}

/// A small network that steers a UNet by a picture, computed once for a run.
pub struct LightAdapter {
    device: Device,
    stages: Vec<Stage>,
    hint: Hint,
}

impl LightAdapter {
    pub fn new(store: &WeightStore) -> Result<Self> {
        let stages: Vec<StageConfig> = (0..MOST)
            .map_while(|number| {
                let at = format!("body.{number}");
                let rows = store.shape(&format!("{at}.in_conv.weight"))?;
                let has = |i: &usize| store.has(&format!("{at}.body.{i}.block1.weight"));
                Some(StageConfig {
                    input: rows.get(1).copied().unwrap_or(0),
                    inner: rows.first().copied().unwrap_or(0),
                    out: *store.shape(&format!("{at}.out_conv.weight"))?.first()?,
                    blocks: (0..MOST).take_while(has).count(),
                })
            })
            .collect();
        let channels = stages.first().map_or(0, |stage| stage.input);
        let hint = Hint {
            channels: channels / (UNSHUFFLE * UNSHUFFLE),
            unshuffle: UNSHUFFLE,
        };
        if !matches!(hint.channels, 1 | 3) {
            let reason =
                format!("an adapter whose first layer takes {channels} channels is not known");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        store.build("the T2I adapter", |weights| {
            let stages = stages.iter().enumerate();
            let stages = stages.map(|(n, stage)| Stage::new(&weights.at("body").at(n), stage));
            Ok(Self {
                device: weights.device().clone(),
                stages: stages.collect::<Result<_>>()?,
                hint,
            })
        })
    }

    pub(super) fn hint(&self) -> Hint {
        self.hint
    }

    /// What to add for a hint (b, c, h, w) in 0..1 whose sizes are multiples of 8.
    pub fn forward(&self, hint: &Tensor) -> Result<ControlFeatures> {
        let mut x = self.hint.cells(hint)?.to(&self.device)?;
        let mut stages = Vec::new();
        for (number, stage) in self.stages.iter().enumerate() {
            if number > 0 {
                x = avg_pool2d(&x, 2)?;
            }
            x = stage.forward(&x)?;
            stages.push(x.nhwc_to_nchw()?);
        }
        Ok(placed(stages, false))
    }
}

impl Stage {
    fn new(weights: &Walk<'_>, config: &StageConfig) -> Result<Self> {
        let inner = config.inner;
        let block = |number: usize| {
            let weights = weights.at("body").at(number);
            let conv = |name: &str| weights.conv(name, inner, inner, 3, 1);
            Ok((conv("block1")?, conv("block2")?))
        };
        Ok(Self {
            into: weights.linear("in_conv", inner, config.input)?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            out: weights.linear("out_conv", config.out, inner)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.into.forward(x)?;
        for (first, second) in &self.blocks {
            let h = first.forward_with(&x, then(Act::Relu))?;
            x = second.forward_with(&h, plus(&x))?;
        }
        Ok(self.out.forward(&x)?)
    }
}
