//! The head of Chroma Radiance: from the vector of a square of pixels to the pixels, by a small network whose weights each
//! vector chooses.

use std::f64::consts::PI;
use std::sync::Arc;

use fresco_tensor::nn::{Conv2d, Linear, RmsNorm, swiglu};
use fresco_tensor::{Axes, Device, Tensor};

use super::blocks::EPS;
use super::config::{FluxConfig, PixelConfig};
use crate::error::Result;
use crate::store::Walk;

/// Waves along a side of a square.
const WAVES: usize = 8;
/// Squares that are worked on at once: their weights are large.
const AT_ONCE: usize = 64;
/// Keeps the length of a direction away from zero.
const LENGTH_EPS: f32 = 1e-12;

struct Block {
    weights: Arc<Linear>,
    norm: Arc<RmsNorm>,
}

enum Last {
    Conv(Arc<Conv2d>),
    Linear(Arc<Linear>),
}

/// See the [module](self).
pub(super) struct PixelHead {
    device: Device,
    side: usize,
    channels: usize,
    width: usize,
    inner: usize,
    embed: Arc<Linear>,
    blocks: Vec<Block>,
    norm: Arc<RmsNorm>,
    last: Last,
}

impl PixelHead {
    pub(super) fn new(
        weights: &Walk<'_>,
        config: &FluxConfig,
        pixels: &PixelConfig,
    ) -> Result<Self> {
        let (width, inner) = (pixels.width, pixels.width * pixels.ratio);
        let channels = config.in_channels;
        let block = |n: usize| -> Result<Block> {
            let weights = weights.at("nerf_blocks").at(n);
            Ok(Block {
                weights: weights.linear("param_generator", 3 * width * inner, config.hidden)?,
                norm: weights.rms_norm("norm.scale", width, EPS)?,
            })
        };
        let (end, last) = if pixels.conv {
            let end = weights.at("nerf_final_layer_conv");
            let conv = end.conv("conv", channels, width, 3, 1)?;
            (end, Last::Conv(conv))
        } else {
            let end = weights.at("nerf_final_layer");
            let linear = end.linear("linear", channels, width)?;
            (end, Last::Linear(linear))
        };
        Ok(Self {
            device: weights.device().clone(),
            side: config.patch,
            channels,
            width,
            inner,
            embed: weights.linear(
                "nerf_image_embedder.embedder.0",
                width,
                channels + WAVES * WAVES,
            )?,
            blocks: (0..pixels.blocks).map(block).collect::<Result<_>>()?,
            norm: end.rms_norm("norm.scale", width, EPS)?,
            last,
        })
    }

    /// Where a pixel is in its square: products of cosines along both sides, (pixels, waves).
    fn places(&self) -> Result<Tensor> {
        let at = |i: usize| i as f64 / (self.side - 1).max(1) as f64;
        let mut values = Vec::with_capacity(self.side * self.side * WAVES * WAVES);
        for row in 0..self.side {
            for column in 0..self.side {
                for a in 0..WAVES {
                    for b in 0..WAVES {
                        let across = (PI * at(column) * a as f64).cos();
                        let down = (PI * at(row) * b as f64).cos();
                        values.push((across * down / (1 + a * b) as f64) as f32);
                    }
                }
            }
        }
        Ok(Tensor::from_vec(
            [self.side * self.side, WAVES * WAVES],
            values,
        )?)
    }

    /// Pixels (b, c, h, w) from those that went in and the vectors of their squares (b, n, hidden).
    pub(super) fn forward(
        &self,
        x: &Tensor,
        vectors: &Tensor,
        (rows, columns): (usize, usize),
    ) -> Result<Tensor> {
        let [b, c, _, _] = x.dims4()?;
        let (side, squares) = (self.side, b * rows * columns);
        let pixels = x.reshape([b, c, rows, side, columns, side])?;
        let pixels = pixels.permute(&[0, 2, 4, 3, 5, 1])?;
        let pixels = pixels.reshape([squares, side * side, c])?;
        let vectors = vectors.reshape([squares, vectors.dim(2)?])?;
        let places = self.places()?;
        let mut done = Vec::new();
        let mut start = 0;
        while start < squares {
            let count = AT_ONCE.min(squares - start);
            let pixels = pixels.narrow(0, start, count)?;
            let vectors = vectors.narrow(0, start, count)?;
            done.push(self.some(&pixels, &vectors, &places)?);
            start += count;
        }
        let all = Tensor::cat(&done.iter().collect::<Vec<_>>(), 0)?;
        drop(done);
        let width = self.width;
        let all = all.reshape([b, rows, columns, side, side, width])?;
        let all = all.permute(&[0, 1, 3, 2, 4, 5])?;
        let all = all.reshape([b, rows * side, columns * side, width])?;
        let all = self.norm.forward(&all.to(&self.device)?)?;
        let out = match &self.last {
            Last::Conv(conv) => conv.forward(&all)?,
            Last::Linear(linear) => linear.forward(&all)?,
        };
        Ok(out.to(&Device::cpu())?.nhwc_to_nchw()?)
    }

    /// Of some squares: (n, pixels, width) in main memory.
    fn some(&self, pixels: &Tensor, vectors: &Tensor, places: &Tensor) -> Result<Tensor> {
        let [n, count, _] = pixels.dims3()?;
        let waves = places.reshape([1, count, WAVES * WAVES])?;
        let waves = waves.expand(&[n, count, WAVES * WAVES])?;
        let input = Tensor::cat(&[pixels, &waves], 2)?.to(&self.device)?;
        debug_assert_eq!(input.dim(2)?, self.channels + WAVES * WAVES);
        let mut x = self.embed.forward(&input)?;
        for block in &self.blocks {
            let all = block.weights.forward(vectors)?;
            let size = self.width * self.inner;
            let part = |at: usize, shape: [usize; 2]| -> Result<Tensor> {
                let part = all.narrow(1, at * size, size)?;
                direction(&part.reshape([n, shape[0], shape[1]])?)
            };
            let gate = part(0, [self.width, self.inner])?;
            let value = part(1, [self.width, self.inner])?;
            let out = part(2, [self.inner, self.width])?;
            let inner = block.norm.forward(&x)?;
            let inner = swiglu(
                &fresco_tensor::nn::matmul(&inner, &gate)?,
                &fresco_tensor::nn::matmul(&inner, &value)?,
            )?;
            x = x.add(&fresco_tensor::nn::matmul(&inner, &out)?)?;
        }
        Ok(x.to(&Device::cpu())?)
    }
}

/// Columns of (n, rows, columns) at length one.
fn direction(x: &Tensor) -> Result<Tensor> {
    let length = x.norm(&[1], Axes::Keep)?;
    let least = Tensor::full([1], LENGTH_EPS)?.to(&x.device())?;
    Ok(x.div(&length.maximum(&least)?)?)
}
