//! What is known of a GPU.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::FormatChoices;
use crate::device::Spare;

/// What tells one GPU from another: the back end that runs it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId {
    pub backend: &'static str,
    pub number: u32,
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend, self.number)
    }
}

/// What is known of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuState {
    pub name: String,
    /// The generation of the card, as its back end counts them: 9.0.
    pub generation: (u32, u32),
    /// Parts of the card that compute beside each other.
    pub units: u32,
    /// Generation and units in the words of the back end.
    pub description: String,
    pub total: u64,
    /// Free by the driver's count, whichever program has the rest.
    pub free: u64,
    /// What this program uses, and what it keeps for later.
    pub used: u64,
    pub kept: u64,
    pub kernels: Vec<KernelModule>,
    /// Steps that were repeated.
    pub repeats: u64,
    pub failed: Option<String>,
}

/// Kernels that come to a device together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelModule {
    pub name: &'static str,
    pub code: KernelCode,
}

/// What a driver is given of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCode {
    Machine,
    /// Code that the driver compiles for the card first.
    Portable,
}

/// Time of all starts of one kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Module and name.
    pub kernel: String,
    pub starts: usize,
    pub milliseconds: f64,
    /// Multiplications and additions, and bytes that must be read and written, of those starts that told them.
    pub operations: f64,
    pub bytes: f64,
}

/// What the program keeps with a GPU, whatever its back end is. Each device has one.
pub(crate) struct GpuSettings {
    /// Formats that were asked for.
    pub(crate) choices: Mutex<FormatChoices>,
    /// Copies that are given up when anything else needs the room.
    pub(crate) spare: Mutex<Vec<Spare>>,
    /// Whether memory of other devices can be copied from and to directly.
    peer: AtomicBool,
}

impl Default for GpuSettings {
    fn default() -> Self {
        Self {
            choices: Mutex::default(),
            spare: Mutex::default(),
            peer: AtomicBool::new(true),
        }
    }
}

impl GpuSettings {
    pub(crate) fn peer(&self) -> bool {
        self.peer.load(Ordering::Relaxed)
    }

    pub(crate) fn set_peer(&self, on: bool) {
        self.peer.store(on, Ordering::Relaxed);
    }
}
