//! What lets the pictures of a batch be the frames of one film: a block over time after each block of a picture, and how much
//! of it counts.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Conv3d, GroupNorm, Value, sigmoid};

use crate::error::Result;
use crate::store::Walk;

/// The kernel of a convolution over time.
pub(super) const TIME: [usize; 3] = [3, 1, 1];
const EPS: f32 = 1e-5;
const GROUPS: usize = 32;

/// A convolution over three frames of (t, h, w, c), with nothing before the first and after the last.
pub(crate) fn over_time(conv: &Conv3d, x: &Tensor) -> Result<Tensor> {
    let [_, h, w, c] = x.dims4()?;
    let nothing = Tensor::zeros_on(&x.device(), [1, h, w, c])?;
    let all = Tensor::cat(&[&nothing, x, &nothing], 0)?;
    Ok(conv.strided(&all, 1)?)
}

/// A norm of groups of channels over all frames.
pub(crate) fn over_all(norm: &GroupNorm, x: &Tensor, act: Act) -> Result<Tensor> {
    let [t, h, w, c] = x.dims4()?;
    let made = norm.forward(&x.reshape([1, t * h, w, c])?, act)?;
    Ok(made.reshape([t, h, w, c])?)
}

pub(super) struct TimeMix {
    norm1: Arc<GroupNorm>,
    conv1: Arc<Conv3d>,
    norm2: Arc<GroupNorm>,
    conv2: Arc<Conv3d>,
    share: Arc<Value>,
}

impl TimeMix {
    pub(super) fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        let stack = weights.at("time_stack");
        Ok(Self {
            norm1: stack.group_norm("in_layers.0", channels, GROUPS, EPS)?,
            conv1: stack.conv3d("in_layers.2", channels, channels, TIME)?,
            norm2: stack.group_norm("out_layers.0", channels, GROUPS, EPS)?,
            conv2: stack.conv3d("out_layers.3", channels, channels, TIME)?,
            share: weights.value("mix_factor", &[1])?,
        })
    }

    /// Frames (t, h, w, c), mixed with what the block over time makes of them.
    pub(super) fn forward(&self, x: Tensor) -> Result<Tensor> {
        let h = over_time(&self.conv1, &over_all(&self.norm1, &x, Act::Silu)?)?;
        let h = over_time(&self.conv2, &over_all(&self.norm2, &h, Act::Silu)?)?;
        // A share of x plus h, the rest of x: all of x, and that share of h.
        let share = sigmoid(&self.share.at(&x.device())?);
        Ok(x.add(&h.mul(&share)?)?)
    }
}
