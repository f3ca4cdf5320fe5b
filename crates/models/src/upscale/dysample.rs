//! DySample (Liu et al. 2023): an enlarged picture whose pixels are taken from places that the network chooses.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, sigmoid};
use fresco_tensor::{Buffer, Device, Tensor};

use crate::error::Result;
use crate::store::Walk;

#[derive(Clone, Copy, Debug)]
pub(super) struct DySampleConfig {
    input: usize,
    out: usize,
    scale: usize,
    groups: usize,
}

impl DySampleConfig {
    pub(super) fn new(input: usize, out: usize, scale: usize) -> Self {
        Self {
            input,
            out,
            scale,
            groups: if scale.is_multiple_of(2) { 4 } else { out },
        }
    }
}

pub(super) struct DySample {
    config: DySampleConfig,
    offset: Arc<Linear>,
    scope: Arc<Linear>,
    end: Option<Arc<Linear>>,
}

impl DySample {
    pub(super) fn new(weights: &Walk<'_>, config: DySampleConfig) -> Result<Self> {
        let DySampleConfig {
            input,
            out,
            scale,
            groups,
        } = config;
        let places = 2 * groups * scale * scale;
        Ok(Self {
            config,
            offset: weights.linear("offset", places, input)?,
            scope: weights.matrix("scope", places, input)?,
            end: (scale != 1)
                .then(|| weights.linear("end_conv", out, input))
                .transpose()?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let reach = sigmoid(&self.scope.forward(x)?).mul_scalar(0.5);
        let moved = self.offset.forward(x)?.mul(&reach)?.to(&Device::cpu())?;
        let taken = self
            .taken(&x.to(&Device::cpu())?, &moved)?
            .to(&x.device())?;
        Ok(match &self.end {
            Some(end) => end.forward(&taken)?,
            None => taken,
        })
    }

    /// The picture (b, h, w, c) at the places that `moved` (b, h, w, 2 groups s s) says, in main memory.
    fn taken(&self, x: &Tensor, moved: &Tensor) -> Result<Tensor> {
        let DySampleConfig { scale, groups, .. } = self.config;
        let [b, h, w, c] = x.dims4()?;
        let (each, cells) = (c / groups, scale * scale);
        let (values, moved) = (x.data(), moved.data());
        // Where the pixels of a cell are before they are moved.
        let start = |i: usize| (i as f32 - (scale as f32 - 1.0) / 2.0) / scale as f32;
        let mut out = Buffer::filled(b * h * scale * w * scale * c, 0.0)?;
        for (pixel, to) in out.chunks_exact_mut(c).enumerate() {
            let column = pixel % (w * scale);
            let row = pixel / (w * scale) % (h * scale);
            let item = pixel / (w * scale * h * scale);
            let (x0, y0) = (column / scale, row / scale);
            let (i, j) = (row % scale, column % scale);
            let from = &moved[((item * h + y0) * w + x0) * 2 * groups * cells..];
            for group in 0..groups {
                let place = group * cells + i * scale + j;
                let at_x = x0 as f32 + start(j) + from[place];
                let at_y = y0 as f32 + start(i) + from[groups * cells + place];
                let (left, right, across) = between(at_x, w);
                let (top, bottom, down) = between(at_y, h);
                let read = |y: usize, x: usize| {
                    &values[((item * h + y) * w + x) * c + group * each..][..each]
                };
                let corners = [
                    read(top, left),
                    read(top, right),
                    read(bottom, left),
                    read(bottom, right),
                ];
                for (k, to) in to[group * each..][..each].iter_mut().enumerate() {
                    let above = corners[0][k] * (1.0 - across) + corners[1][k] * across;
                    let below = corners[2][k] * (1.0 - across) + corners[3][k] * across;
                    *to = above * (1.0 - down) + below * down;
                }
            }
        }
        Ok(Tensor::from_buffer([b, h * scale, w * scale, c], out)?)
    }
}

/// The pixels before and after a place on a line of so many, and how far from the first it is. Beyond the ends are the
/// ends.
fn between(at: f32, count: usize) -> (usize, usize, f32) {
    let last = count - 1;
    // Not a number is the first.
    let at = at.clamp(0.0, last as f32).max(0.0);
    let first = (at.floor() as usize).min(last);
    (first, (first + 1).min(last), at - first as f32)
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn places_are_between_pixels_and_never_outside() {
        assert_eq!(between(1.25, 4), (1, 2, 0.25));
        assert_eq!(between(-3.0, 4), (0, 1, 0.0));
        assert_eq!(between(9.0, 4), (3, 3, 0.0));
        assert_eq!(between(f32::NAN, 4).0, 0);
    }
}
