//! Where the layers of a store will compute, and so when their weights are read.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use fresco_tensor::{Device, Stored};

use super::{Source, WeightStore};

impl WeightStore {
    /// Says where the layers that are built next will compute, whichever view of the store builds them.
    pub fn build_for(&self, device: &Device) {
        if let Some(base) = self.base() {
            base.build_for(device);
        }
        *self.builds_for() = Some(device.clone());
    }

    /// Bytes of it that stay in their file until they are on a GPU, if it computes on one.
    pub fn late_bytes(&self) -> u64 {
        let Source::File { file, keys } = &self.weights.source else {
            return 0;
        };
        let late = keys
            .values()
            .filter_map(|(origin, _)| origin.later(&**file));
        late.map(|value| value.byte_len() as u64).sum()
    }

    fn builds_for(&self) -> MutexGuard<'_, Option<Device>> {
        let device = self.weights.builds_for.lock();
        device.unwrap_or_else(PoisonError::into_inner)
    }

    /// Where layers that are built now will compute.
    pub(super) fn computes_on(&self) -> Device {
        let device = self.builds_for().clone();
        device.unwrap_or_else(|| self.device.clone())
    }

    /// A value that is read when it is known where it goes: straight from the file to a GPU, or to where the processor's kernels read it.
    pub(super) fn later(&self, key: &str) -> Option<Stored> {
        let Source::File { file, keys } = &self.weights.source else {
            return None;
        };
        let device = self.computes_on();
        let straight = device.is_gpu() || device.is_cpu();
        if !straight || self.built_value(key).ok()?.is_some() {
            return None;
        }
        let (origin, _) = keys.get(key)?;
        let value = origin.later(&**file)?;
        let bytes = value.byte_len() as u64;
        self.weights.read.fetch_add(bytes, Ordering::Relaxed);
        Some(value)
    }
}
