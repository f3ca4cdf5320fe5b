//! Values that networks look up or take as they are: tables of vectors, and single tensors.

use std::sync::Arc;

use super::contents::Content;
use super::slot::{SlotGroup, WeightSlot};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::elements::{allocate, copy_values};
use crate::error::{Result, TensorError};
use crate::gpu::Format;
use crate::storage::ResultRoom;
use crate::stored::Stored;
use crate::tensor::Tensor;

/// A table of vectors, kept in the format of its file; rows become f32 when they are looked up.
#[derive(Debug, Clone)]
pub struct Embedding {
    entries: usize,
    width: usize,
    dtype: Dtype,
    slot: Arc<WeightSlot>,
}

impl Embedding {
    /// `table` is (entries, c). In main memory.
    pub fn new(table: &Stored) -> Result<Self> {
        Self::in_group(table, &SlotGroup::new())
    }

    /// The same, used together with other layers.
    pub fn in_group(table: &Stored, group: &SlotGroup) -> Result<Self> {
        let &[entries, width] = table.shape() else {
            return Err(TensorError::rank("embedding", "2", table.shape()));
        };
        Ok(Self {
            entries,
            width,
            dtype: table.dtype(),
            slot: WeightSlot::new(vec![Content::plain(table)], group)?,
        })
    }

    /// Number of vectors.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Channels of one vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// All vectors as they were given.
    pub fn table(&self) -> Result<Stored> {
        self.slot.stored(0)
    }

    /// Where the table is.
    pub fn slot(&self) -> &Arc<WeightSlot> {
        &self.slot
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// The vectors of the given numbers, (n, c), in main memory.
    pub fn lookup(&self, ids: &[u32]) -> Result<Tensor> {
        self.lookup_on(ids, &Device::cpu())
    }

    /// The same on a device. From a table that is elsewhere only those rows are copied.
    pub fn lookup_on(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        let outside = ids.iter().find(|&&id| id as usize >= self.entries);
        if let Some(&id) = outside {
            return Err(TensorError::IndexOutOfRange {
                op: "embedding",
                index: id as usize,
                size: self.entries,
            });
        }
        let shape = [ids.len(), self.width];
        let row_bytes = self.slot.bytes() as usize / self.entries.max(1);
        let rows = ids.iter().map(|&id| id as usize);
        let (rows, _memory) = self.slot.rows(device, rows, row_bytes)?;
        match device {
            // A prompt has few rows: the processor decodes them, which it can from every format of a file.
            Device::Gpu(handle) => {
                let mut out = allocate(&shape, 0.0)?;
                self.dtype.to_f32_into(&rows, &mut out);
                let out = handle.device.upload(&out, handle.format)?;
                Ok(Tensor::from_gpu(shape, out))
            }
            Device::Cpu | Device::Sim(_) => {
                let room = ResultRoom::on(device, &shape)?;
                let mut out = allocate(&shape, 0.0)?;
                self.dtype.to_f32_into(&rows, &mut out);
                Ok(Tensor::kept(shape, room, out))
            }
        }
    }
}

/// A tensor that a network adds or multiplies with.
#[derive(Debug, Clone)]
pub struct Value {
    shape: Vec<usize>,
    slot: Arc<WeightSlot>,
}

impl Value {
    /// In main memory.
    pub fn new(stored: &Stored) -> Result<Self> {
        Self::in_group(stored, &SlotGroup::new())
    }

    /// The same, used together with other layers.
    pub fn in_group(stored: &Stored, group: &SlotGroup) -> Result<Self> {
        Ok(Self {
            shape: stored.shape().to_vec(),
            slot: WeightSlot::new(vec![Content::channels(stored)], group)?,
        })
    }

    /// The values as they were given.
    pub fn stored(&self) -> Result<Stored> {
        self.slot.stored(0)
    }

    /// Where the values are.
    pub fn slot(&self) -> &Arc<WeightSlot> {
        &self.slot
    }

    /// What is kept, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// The values as f32 on a device, for one use.
    pub fn at(&self, device: &Device) -> Result<Tensor> {
        let here = self.slot.at(device)?;
        match device {
            Device::Gpu(handle) => {
                let values = here.gpu(0)?;
                let found = handle.device.buffer(values.len(), handle.format)?;
                found.fill_from(values.floats()?, Format::F32)?;
                Ok(Tensor::from_gpu(&*self.shape, found))
            }
            Device::Cpu | Device::Sim(_) => {
                let room = ResultRoom::on(device, &self.shape)?;
                let values = copy_values(&self.shape, here.channels(0)?)?;
                Ok(Tensor::kept(&*self.shape, room, values))
            }
        }
    }
}
