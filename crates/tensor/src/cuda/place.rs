//! Memory of the seam as this back end knows it: the number of a buffer is its address.

use std::any::Any;

use super::device::CudaDevice;
use crate::buffer::raise;
use crate::error::TensorError;
use crate::gpu::{GpuBuffer, GpuMemory, GpuOps, GpuSlice};

/// What has an address on a card.
pub(crate) trait Address {
    fn address(&self) -> u64;
}

impl Address for GpuSlice<'_> {
    fn address(&self) -> u64 {
        self.buffer() + self.offset()
    }
}

impl Address for GpuMemory {
    fn address(&self) -> u64 {
        self.slice().address()
    }
}

impl Address for GpuBuffer {
    fn address(&self) -> u64 {
        self.slice().address()
    }
}

/// What is on a card of this back end. Operations are asked of the device that has their inputs, which have been checked to be
/// on one device: another back end's memory does not come here.
pub(crate) trait OnCard {
    fn card(&self) -> &CudaDevice;
}

impl OnCard for GpuMemory {
    fn card(&self) -> &CudaDevice {
        card(&**self.device())
    }
}

impl OnCard for GpuBuffer {
    fn card(&self) -> &CudaDevice {
        card(&**self.device())
    }
}

fn card(device: &dyn GpuOps) -> &CudaDevice {
    let any: &dyn Any = device;
    any.downcast_ref().unwrap_or_else(|| {
        let reason = format!("{} is a GPU of another kind", device.id());
        raise(TensorError::invalid("cuda", reason))
    })
}
