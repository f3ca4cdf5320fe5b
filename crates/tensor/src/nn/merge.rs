//! Weights that are changed by low-rank matrices on the GPU that computes with them: neither the weight nor the changed one
//! comes to main memory.

use super::contents::Contents;
use super::layer_weights::LayerWeights;
use super::linear::Linear;
use super::slot::{SlotGroup, WeightSlot};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::stored::Stored;

/// Two matrices whose product a weight grows by, times a number.
#[derive(Clone, Debug)]
pub struct Growth {
    /// (out, rank); dimensions behind the first count as one.
    pub up: Stored,
    /// (rank, in), the same.
    pub down: Stored,
    pub scale: f32,
    /// The first output that it is for; the others follow.
    pub first: usize,
}

/// How a changed weight is kept.
#[derive(Clone, Copy, Debug)]
pub struct MergedAs<'a> {
    pub dtype: Dtype,
    /// For the chance by which numbers of 8 bits are rounded.
    pub seed: u64,
    pub bias: Option<&'a Stored>,
    pub group: &'a SlotGroup,
}

impl Linear {
    /// A layer with this one's weight, changed and kept on a GPU. None where it has to be changed in main memory: on other
    /// devices, for formats that only the processor writes, and where the GPU has no room.
    pub fn merged(
        &self,
        growths: &[Growth],
        how: MergedAs<'_>,
        device: &Device,
    ) -> Result<Option<Self>> {
        let Device::Gpu(handle) = device else {
            return Ok(None);
        };
        if !handle.device.merges_into(how.dtype) {
            return Ok(None);
        }
        let Some((slot, size)) = self.plain_weights() else {
            return Ok(None);
        };
        let bias = how.bias.map_or(0, Stored::byte_len) as u64;
        let elements = size.out * size.channels;
        let weight = how.dtype.bytes_for(elements).unwrap_or(0) as u64;
        let made = (|| {
            let here = slot.copied_at(device)?;
            let memory = device.allocate(weight + bias)?;
            let merged = Contents::merged(&here, size, growths, how, memory)?;
            Ok(merged.map(|contents| WeightSlot::with(contents, how.group)))
        })();
        let slot = match made {
            Ok(Some(slot)) => slot,
            Ok(None) | Err(TensorError::DeviceFull { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let weights = LayerWeights::kept_in(slot, size, how.dtype, how.bias.is_some());
        Ok(Some(Self::of(weights)))
    }
}
