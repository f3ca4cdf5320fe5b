//! The back ends of this program: the only file beside their own folders that names them.

use std::sync::Arc;

use super::GpuOps;
use crate::device::{Device, DeviceError};

/// A kind of GPU, before one is opened.
#[derive(Debug)]
pub(crate) struct Backend {
    /// As in names of devices: what stands before the colon.
    pub(crate) name: &'static str,
    /// A GPU by its number, opened at the first use, or why there is none.
    pub(crate) open: fn(u32) -> Result<Arc<dyn GpuOps>, String>,
    /// GPUs that were opened, by number.
    pub(crate) opened: fn() -> Vec<Arc<dyn GpuOps>>,
    /// Lets its GPUs read main memory themselves; false where that is not possible.
    pub(crate) pin: fn(&[u8]) -> bool,
    /// Ends that for the memory that begins at an address.
    pub(crate) unpin: fn(usize),
}

/// Best first.
static BACKENDS: [Backend; 1] = [crate::cuda::BACKEND];

/// The kinds of GPUs that there may be.
pub(crate) const NAMES: &[&str] = &[crate::cuda::BACKEND.name];

pub(super) fn all() -> &'static [Backend] {
    &BACKENDS
}

/// The back end and the number that the name of a GPU says.
pub(crate) fn number_of(name: &str) -> Option<(&'static Backend, u32)> {
    let (kind, number) = name.split_once(':')?;
    let backend = BACKENDS.iter().find(|backend| backend.name == kind)?;
    let plain = number.bytes().all(|b| b.is_ascii_digit());
    let number = plain.then(|| number.parse().ok()).flatten()?;
    Some((backend, number))
}

/// GPUs that were opened.
pub(crate) fn opened() -> impl Iterator<Item = Arc<dyn GpuOps>> {
    BACKENDS.iter().flat_map(|backend| (backend.opened)())
}

/// The first GPU of this machine, or why there is none.
pub fn open_first() -> Result<Device, DeviceError> {
    let mut found = BACKENDS
        .iter()
        .map(|backend| Device::open(&format!("{}:0", backend.name)));
    let first = found.next().unwrap_or_else(|| Device::open("gpu:0"));
    found.fold(first, Result::or)
}
