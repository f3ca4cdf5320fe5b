//! Changes to what flows between the blocks of a UNet.

use std::sync::Arc;

use fresco_tensor::{Axes, Crop, ResizeMethod, Result, Tensor, common_upscale};

use crate::denoise::hooks::{BlockFlow, BlockHook, BlockInfo, BlockKind, Hooks, Moment};
use crate::error;
use crate::fourier::scale_box;

/// FreeU (Si et al. 2023): strengthens the backbone and weakens the skip connections of the inner levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FreeU {
    /// Channels of the UNet's first level.
    pub model_channels: usize,
    /// Backbone and skip factor of the innermost level.
    pub inner: (f64, f64),
    /// And of the level above.
    pub outer: (f64, f64),
    /// The second version, which strengthens where the backbone is strong.
    pub adaptive: bool,
}

impl FreeU {
    /// Lets it act in a network.
    pub fn install(self, hooks: &mut Hooks) {
        hooks.on_block(BlockKind::OUTPUT, Moment::Before, Arc::new(self));
    }

    /// The backbone and the skip of one output block, changed.
    pub fn apply(&self, h: &Tensor, skip: &Tensor) -> Result<(Tensor, Tensor)> {
        let channels = h.dim(1)?;
        let (backbone, low) = if channels == self.model_channels * 4 {
            self.inner
        } else if channels == self.model_channels * 2 {
            self.outer
        } else {
            return Ok((h.clone(), skip.clone()));
        };
        let half = h.narrow(1, 0, channels / 2)?;
        let stronger = if self.adaptive {
            let mean = h.mean(&[1], Axes::Keep)?;
            let dims = [1, 2, 3];
            let (least, most) = (mean.min(&dims, Axes::Keep)?, mean.max(&dims, Axes::Keep)?);
            let part = mean.sub(&least)?.div(&most.sub(&least)?)?;
            half.mul(&part.mul_scalar((backbone - 1.0) as f32).add_scalar(1.0))?
        } else {
            half.mul_scalar(backbone as f32)
        };
        let mut out = h.clone();
        out.paste(&[0, 0, 0, 0], &stronger)?;
        let [_, _, rows, columns] = skip.dims4()?;
        let band = |len: usize| {
            let middle = len / 2;
            middle.saturating_sub(1)..(middle + 1).min(len)
        };
        let skip = scale_box(skip, band(rows), band(columns), low, 1.0)?;
        Ok((out, skip))
    }
}

/// Deep shrink: works on a smaller picture early on, so that large ones keep one composition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Downscale {
    pub block: i64,
    pub factor: f64,
    pub start_sigma: f64,
    pub end_sigma: f64,
    /// Whether the skip connection still gets the full size.
    pub after_skip: bool,
    pub down: ResizeMethod,
    pub up: ResizeMethod,
}

impl Downscale {
    /// Lets it act in a network.
    pub fn install(self, hooks: &mut Hooks) {
        let moment = if self.after_skip {
            Moment::AfterSkip
        } else {
            Moment::After
        };
        let hook = Arc::new(self);
        hooks.on_block(BlockKind::INPUT, moment, hook.clone());
        hooks.on_block(BlockKind::OUTPUT, Moment::Before, hook);
    }

    /// What goes on from an input block.
    pub fn input(&self, block: i64, sigma: f32, h: &Tensor) -> Result<Tensor> {
        let sigma = f64::from(sigma);
        if block != self.block || sigma > self.start_sigma || sigma < self.end_sigma {
            return Ok(h.clone());
        }
        let [_, _, rows, columns] = h.dims4()?;
        let shrunk = |n: usize| (n as f64 * (1.0 / self.factor)).round_ties_even() as usize;
        common_upscale(h, shrunk(columns), shrunk(rows), self.down, Crop::Disabled)
    }

    /// What goes into an output block, brought back to the size of its skip.
    pub fn output(&self, h: &Tensor, skip: &Tensor) -> Result<Tensor> {
        let [_, _, rows, columns] = skip.dims4()?;
        if h.dim(2)? == rows {
            return Ok(h.clone());
        }
        common_upscale(h, columns, rows, self.up, Crop::Disabled)
    }
}

impl BlockHook for FreeU {
    fn apply(&self, flow: BlockFlow, _at: &BlockInfo<'_>) -> error::Result<BlockFlow> {
        let Some(skip) = &flow.beside else {
            return Ok(flow);
        };
        let (h, skip) = FreeU::apply(self, &flow.h, skip)?;
        Ok(BlockFlow {
            h,
            beside: Some(skip),
        })
    }
}

impl BlockHook for Downscale {
    fn apply(&self, flow: BlockFlow, at: &BlockInfo<'_>) -> error::Result<BlockFlow> {
        let h = match (at.kind, &flow.beside) {
            (BlockKind::INPUT, _) => self.input(at.number as i64, at.sigma, &flow.h)?,
            (_, Some(skip)) => self.output(&flow.h, skip)?,
            (_, None) => flow.h,
        };
        Ok(BlockFlow {
            h,
            beside: flow.beside,
        })
    }
}
