//! The elements of a tensor in the memory of one device.

use std::ops::Deref;
use std::sync::Arc;

use crate::buffer::{Buffer, raise};
use crate::device::{Allocation, Device, GpuHandle, count_copy};
use crate::dtype::Dtype;
use crate::elements::{allocate, copy_values, element_count};
use crate::error::{Result, TensorError};
use crate::gpu::GpuBuffer;
use crate::recycle;

/// Elements and where they are.
#[derive(Debug)]
pub(crate) enum Storage {
    Host(HostBuffer),
    Sim(SimBuffer),
    Gpu(GpuBuffer),
}

/// Elements in main memory, which is used again for other tensors.
#[derive(Debug, Default)]
pub(crate) struct HostBuffer(Vec<f32>);

impl HostBuffer {
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }

    pub(crate) fn into_vec(mut self) -> Vec<f32> {
        std::mem::take(&mut self.0)
    }
}

impl Deref for HostBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        recycle::give(std::mem::take(&mut self.0));
    }
}

/// Elements in the memory of a simulated device. Only operations of that device may look at them.
#[derive(Debug)]
pub(crate) struct SimBuffer {
    values: HostBuffer,
    /// The device, and the memory that the elements take there.
    memory: Allocation,
}

impl SimBuffer {
    /// How the device keeps its numbers.
    pub(crate) const FORMAT: Dtype = Dtype::F32;
}

impl Storage {
    pub(crate) fn host(values: Vec<f32>) -> Self {
        Self::Host(HostBuffer(values))
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Sim(buffer) => buffer.values.len(),
            Self::Gpu(buffer) => buffer.len(),
        }
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Host(_) => Device::Cpu,
            Self::Sim(buffer) => buffer.memory.device().clone(),
            Self::Gpu(buffer) => Device::Gpu(GpuHandle {
                device: Arc::clone(buffer.device()),
                format: buffer.format(),
                forced: None,
            }),
        }
    }

    /// The elements for kernels of the processor, on which simulated devices compute, too. For the operations of this
    /// crate that run where their inputs are; everything else asks for elements in main memory.
    pub(crate) fn kernel_values(&self) -> &[f32] {
        match self {
            Self::Host(values) => values,
            Self::Sim(buffer) => &buffer.values,
            Self::Gpu(_) => self.not_here(),
        }
    }

    /// Ends the node: the elements are in no memory that the processor reads.
    fn not_here(&self) -> ! {
        raise(TensorError::NotInMainMemory {
            op: "read",
            device: self.device().name(),
        })
    }

    /// The elements on a GPU.
    pub(crate) fn gpu(&self) -> Option<&GpuBuffer> {
        match self {
            Self::Host(_) | Self::Sim(_) => None,
            Self::Gpu(buffer) => Some(buffer),
        }
    }

    /// The same for writing.
    pub(crate) fn kernel_values_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Host(values) => values.values_mut(),
            Self::Sim(buffer) => buffer.values.values_mut(),
            Self::Gpu(_) => self.not_here(),
        }
    }

    /// The elements, without a copy.
    pub(crate) fn into_values(self) -> Vec<f32> {
        match self {
            Self::Host(values) => values.into_vec(),
            Self::Sim(buffer) => buffer.values.into_vec(),
            Self::Gpu(_) => self.not_here(),
        }
    }

    /// A copy of the elements in the memory of a device, which is counted where that is another one.
    pub(crate) fn copied_to(&self, shape: &[usize], device: &Device) -> Result<Self> {
        let copy = match (self, device) {
            (Self::Gpu(buffer), Device::Gpu(to)) => {
                let copy = if buffer.device().id() == to.device.id() {
                    buffer.converted(to.format)
                } else {
                    buffer.copied_to(&*to.device, to.format)
                };
                Some(Self::Gpu(copy?))
            }
            (_, Device::Gpu(to)) => {
                let values = self.kernel_values();
                let copy = to.device.upload(values, to.format)?;
                Some(Self::Gpu(copy))
            }
            (Self::Gpu(buffer), Device::Cpu | Device::Sim(_)) => {
                let room = ResultRoom::on(device, shape)?;
                let mut values = allocate(shape, 0.0)?;
                buffer.read(&mut values)?;
                Some(room.keep(values))
            }
            (Self::Host(_) | Self::Sim(_), Device::Cpu | Device::Sim(_)) => None,
        };
        if let Some(copy) = copy {
            count_copy(&self.device(), device, 4 * self.len() as u64);
            return Ok(copy);
        }
        let room = ResultRoom::on(device, shape)?;
        let values = copy_values(shape, self.kernel_values())?;
        count_copy(&self.device(), device, room.bytes);
        Ok(room.keep(values))
    }
}

/// Memory for a result on the device of the operation, taken before the work is done.
#[derive(Debug)]
pub(crate) struct ResultRoom {
    bytes: u64,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Host,
    Sim(Allocation),
}

impl ResultRoom {
    /// Room for a tensor of a shape.
    pub(crate) fn on(device: &Device, shape: &[usize]) -> Result<Self> {
        let bytes = element_count(shape)? as u64 * SimBuffer::FORMAT.size() as u64;
        let memory = match device {
            // Buffers ask for main memory when they are made.
            Device::Cpu => Memory::Host,
            Device::Sim(_) => Memory::Sim(device.allocate(bytes)?),
            // Results on a GPU take their room themselves; nothing of the processor's can be kept there.
            Device::Gpu(_) => {
                return Err(TensorError::NotInMainMemory {
                    op: "compute on the processor",
                    device: device.name(),
                });
            }
        };
        Ok(Self { bytes, memory })
    }

    /// What a kernel has written, as storage of the device.
    pub(crate) fn keep(self, values: Buffer<f32>) -> Storage {
        let values = HostBuffer(values.into_vec());
        match self.memory {
            Memory::Host => Storage::Host(values),
            Memory::Sim(memory) => Storage::Sim(SimBuffer { values, memory }),
        }
    }
}
