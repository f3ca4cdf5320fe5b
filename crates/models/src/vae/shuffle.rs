//! Sizes that change by putting cells onto channels and back, with what went in added: channels averaged, or repeated.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::Conv2d;

use super::kl::Level;
use crate::error::Result;
use crate::store::Walk;

/// Cells along a side that become channels.
const SIDE: usize = 2;
const CELLS: usize = SIDE * SIDE;

pub(super) struct Shuffle {
    conv: Arc<Conv2d>,
    /// Channels afterwards.
    out: usize,
}

impl Shuffle {
    /// To half the size; `at` are the channels before, and afterwards those that come out.
    pub(super) fn down(weights: &Walk<'_>, at: &mut usize, level: &Level) -> Result<Self> {
        let conv = weights.conv("downsample.conv", level.resampled, *at, 3, 1)?;
        let out = level.resampled * CELLS;
        if out == 0 || !(*at * CELLS).is_multiple_of(out) {
            let reason = format!("{at} channels cannot become {out} at half the size");
            return Err(weights.unsupported(reason));
        }
        *at = out;
        Ok(Self { conv, out })
    }

    /// To twice the size.
    pub(super) fn up(weights: &Walk<'_>, at: &mut usize, level: &Level) -> Result<Self> {
        let conv = weights.conv("upsample.conv", level.resampled, *at, 3, 1)?;
        let out = level.resampled / CELLS;
        if out == 0 || !level.resampled.is_multiple_of(*at) {
            let reason = format!("{at} channels cannot become {out} at twice the size");
            return Err(weights.unsupported(reason));
        }
        *at = out;
        Ok(Self { conv, out })
    }

    pub(super) fn downsampled(&self, x: &Tensor) -> Result<Tensor> {
        let made = onto_channels(&self.conv.forward(x)?)?;
        Ok(made.add(&mean_of_groups(&onto_channels(x)?, self.out)?)?)
    }

    pub(super) fn upsampled(&self, x: &Tensor) -> Result<Tensor> {
        let made = off_channels(&self.conv.forward(x)?)?;
        let beside = off_channels(&repeated(x, self.out * CELLS)?)?;
        Ok(made.add(&beside)?)
    }
}

/// (b, h, w, c) with the cells of each square one after the other: (b, h / 2, w / 2, 4 c).
fn onto_channels(x: &Tensor) -> Result<Tensor> {
    let [b, h, w, c] = x.dims4()?;
    let cells = x.reshape([b, h / SIDE, SIDE, w / SIDE, SIDE, c])?;
    let cells = cells.permute(&[0, 1, 3, 2, 4, 5])?;
    Ok(cells.reshape([b, h / SIDE, w / SIDE, CELLS * c])?)
}

fn off_channels(x: &Tensor) -> Result<Tensor> {
    let [b, h, w, channels] = x.dims4()?;
    let c = channels / CELLS;
    let cells = x.reshape([b, h, w, SIDE, SIDE, c])?;
    let cells = cells.permute(&[0, 1, 3, 2, 4, 5])?;
    Ok(cells.reshape([b, h * SIDE, w * SIDE, c])?)
}

/// As many channels as wanted, each the mean of some that are next to each other.
pub(super) fn mean_of_groups(x: &Tensor, wanted: usize) -> Result<Tensor> {
    let [b, h, w, c] = x.dims4()?;
    let each = c / wanted.max(1);
    if each <= 1 {
        return Ok(x.clone());
    }
    let groups = x.reshape([b, h, w, wanted, each])?;
    let mut sum = groups.select(4, 0)?;
    for number in 1..each {
        sum = sum.add(&groups.select(4, number)?)?;
    }
    Ok(sum.mul_scalar(1.0 / each as f32))
}

/// As many channels as wanted, each of those there are as often as needed.
pub(super) fn repeated(x: &Tensor, wanted: usize) -> Result<Tensor> {
    let c = x.dim(3)?.max(1);
    Ok(x.repeat_interleave(3, wanted / c)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_go_onto_channels_and_back() {
        let x = Tensor::from_fn([1, 2, 4, 2], |i| i as f32).unwrap();
        let on = onto_channels(&x).unwrap();
        assert_eq!(on.shape(), [1, 1, 2, 8]);
        assert_eq!(on.data()[..8], [0.0, 1.0, 2.0, 3.0, 8.0, 9.0, 10.0, 11.0]);
        assert_eq!(off_channels(&on).unwrap(), x);
        let means = mean_of_groups(&on, 2).unwrap();
        assert_eq!(means.data()[..2], [1.5, 9.5]);
        let twice = repeated(&means, 4).unwrap();
        assert_eq!(twice.data()[..4], [1.5, 1.5, 9.5, 9.5]);
    }
}
