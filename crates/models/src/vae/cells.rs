//! The attention of autoencoders: one head, which all channels are.

use fresco_tensor::Tensor;
use fresco_tensor::nn::Mask;

use crate::error::Result;
use crate::store::Walk;
use crate::transformer::{Attention, AttentionLayers, HeadNorm, Heads, Looks, QkvLayers, Rotation};

/// Attention of cells to each other, behind a norm that its network has.
pub(super) struct CellAttention(Attention);

impl CellAttention {
    pub(super) fn new(
        weights: &Walk<'_>,
        qkv: QkvLayers<'_>,
        out: &str,
        channels: usize,
    ) -> Result<Self> {
        let heads = Heads::new(1, channels, HeadNorm::None);
        let layers = AttentionLayers {
            looks: Looks::Beside(channels),
            ..AttentionLayers::new(qkv, out, channels, heads)
        };
        Ok(Self(Attention::new(weights, &layers)?))
    }

    /// What cells (b, n, c) see of each other.
    pub(super) fn attend(&self, cells: Tensor, mask: Mask<'_>) -> Result<Tensor> {
        let qkv = self.0.qkv_to(&cells, &cells)?;
        drop(cells);
        qkv.attend(Rotation::NONE, mask)
    }

    /// `x` plus what is made of that.
    pub(super) fn add(&self, seen: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.0.add(&seen.reshape(x.shape().to_vec())?, x)
    }
}
