//! The tensor room's count of memory, for rooms that may not know tensors.

use std::any::Any;

use fresco_files::{MemoryGuard, MemorySource};

struct TensorRoom;

impl MemorySource for TensorRoom {
    fn claim(&self, bytes: u64) -> Result<Box<dyn Any + Send>, u64> {
        match fresco_tensor::claim_memory(bytes) {
            Ok(claim) => Ok(Box::new(claim)),
            Err(refused) => Err(refused.missing),
        }
    }

    fn give_back(&self) {
        fresco_tensor::trim_heap();
    }
}

/// The one guard: what it grants counts together with what tensors take.
pub(crate) fn memory_guard() -> MemoryGuard {
    MemoryGuard::new(TensorRoom)
}
