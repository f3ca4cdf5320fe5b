//! Values that networks look up or take as they are: tables of vectors, and single tensors.

use std::sync::Arc;

use super::slot::{Group, Slot};
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::stored::Stored;
use crate::tensor::{Tensor, allocate};

/// A table of vectors, kept in the format of its file; rows become f32 when they are looked up.
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Stored,
    slot: Arc<Slot>,
}

impl Embedding {
    /// `table` is (entries, c). With a slot of its own, in main memory.
    pub fn new(table: &Stored) -> Result<Self> {
        let slot = Slot::new(table.bytes().len() as u64, &Group::new());
        Self::in_slot(table, slot)
    }

    /// The same with a slot that is there.
    pub fn in_slot(table: &Stored, slot: Arc<Slot>) -> Result<Self> {
        debug_assert_eq!(slot.bytes(), table.bytes().len() as u64);
        if table.shape().len() != 2 {
            return Err(TensorError::rank("embedding", "2", table.shape()));
        }
        Ok(Self {
            table: table.clone(),
            slot,
        })
    }

    /// Number of vectors.
    pub fn entries(&self) -> usize {
        self.table.shape()[0]
    }

    /// Channels of one vector.
    pub fn width(&self) -> usize {
        self.table.shape()[1]
    }

    pub fn table(&self) -> &Stored {
        &self.table
    }

    /// Where the table is.
    pub fn slot(&self) -> &Arc<Slot> {
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
        let bytes = self.table.bytes().len() / self.entries().max(1);
        let _here = self.slot.part(device, (bytes * ids.len()) as u64)?;
        let width = self.width();
        let mut out = allocate(&[ids.len(), width], 0.0)?;
        for (i, &id) in ids.iter().enumerate() {
            let index = id as usize;
            if index >= self.entries() {
                return Err(TensorError::IndexOutOfRange {
                    op: "embedding",
                    index,
                    size: self.entries(),
                });
            }
            let row = &self.table.bytes()[index * bytes..][..bytes];
            let to = &mut out[i * width..][..width];
            self.table.dtype().to_f32_into(row, to);
        }
        Tensor::from_buffer([ids.len(), width], out)?.placed_on(device)
    }
}

/// A tensor that a network adds or multiplies with.
#[derive(Debug, Clone)]
pub struct Value {
    stored: Stored,
    slot: Arc<Slot>,
}

impl Value {
    /// With a slot of its own, in main memory.
    pub fn new(stored: &Stored) -> Self {
        let slot = Slot::new(stored.bytes().len() as u64, &Group::new());
        Self::in_slot(stored, slot)
    }

    /// The same with a slot that is there.
    pub fn in_slot(stored: &Stored, slot: Arc<Slot>) -> Self {
        debug_assert_eq!(slot.bytes(), stored.bytes().len() as u64);
        Self {
            stored: stored.clone(),
            slot,
        }
    }

    /// The values as they were given.
    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Where the values are.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// What is kept, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// The values as f32 on a device, for one use.
    pub fn at(&self, device: &Device) -> Result<Tensor> {
        let _here = self.slot.at(device)?;
        self.stored.to_f32()?.placed_on(device)
    }
}
