//! How a layer keeps its weight: packed in memory, or not at all and made anew for every use.

use std::sync::Arc;

use super::slot::Slot;
use crate::cpu::packed::Weight;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::stored::Stored;
use crate::tensor::Tensor;

/// Makes the weight of a layer. It must give the same one every time.
pub type MakeWeight = Arc<dyn Fn() -> Result<Stored> + Send + Sync>;

/// One value per channel, as given and as f32.
#[derive(Debug, Clone)]
pub(super) struct Channels {
    pub(super) stored: Stored,
    pub(super) values: Tensor,
}

/// Clones share the weight.
#[derive(Clone)]
pub(super) enum Kept {
    Packed(Arc<Weight>),
    Made {
        out: usize,
        channels: usize,
        /// Values for one pair of an output and an input.
        taps: usize,
        dtype: Dtype,
        make: MakeWeight,
        /// Whether it is made from weights that the layer's slot holds, and not from elsewhere in main memory.
        there: bool,
    },
}

impl Kept {
    /// A weight that is made for every use stays as it is.
    pub(super) fn shorten(&mut self) {
        // A layer that has just been built shares its weight with nobody.
        if let Self::Packed(weight) = self
            && let Some(weight) = Arc::get_mut(weight)
        {
            weight.shorten();
        }
    }

    pub(super) fn out(&self) -> usize {
        match self {
            Self::Packed(weight) => weight.out(),
            Self::Made { out, .. } => *out,
        }
    }

    pub(super) fn channels(&self) -> usize {
        match self {
            Self::Packed(weight) => weight.channels(),
            Self::Made { channels, .. } => *channels,
        }
    }

    pub(super) fn dtype(&self) -> Dtype {
        match self {
            Self::Packed(weight) => weight.dtype(),
            Self::Made { dtype, .. } => *dtype,
        }
    }

    /// Memory that is held between uses, by the size in a file.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Packed(weight) => weight.nominal(),
            Self::Made { .. } => 0,
        }
    }

    pub(super) fn unpack(&self) -> Result<Stored> {
        match self {
            Self::Packed(weight) => weight.unpack(),
            Self::Made { make, .. } => make(),
        }
    }

    /// Calls with the packed weight on a device, which goes away afterwards if it was copied or made for this.
    /// Until then it takes memory there.
    pub(super) fn with<R>(
        &self,
        slot: &Arc<Slot>,
        device: &Device,
        body: impl FnOnce(&Weight) -> Result<R>,
    ) -> Result<R> {
        let _here = slot.at(device)?;
        match self {
            Self::Packed(weight) => body(weight),
            Self::Made {
                out,
                channels,
                taps,
                make,
                there,
                ..
            } => {
                let made = make()?;
                let wanted = out * channels * taps;
                if made.shape().first() != Some(out)
                    || made.shape().iter().product::<usize>() != wanted
                {
                    let shape = [*out, *channels, *taps];
                    return Err(TensorError::mismatch("weight", made.shape(), &shape));
                }
                let weight = Weight::new(&made, *out, *channels, *taps)?;
                let _memory = if *there {
                    device.allocate(weight.nominal())?
                } else {
                    device.upload(weight.nominal())?
                };
                body(&weight)
            }
        }
    }
}
