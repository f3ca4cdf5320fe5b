//! What the registry is told at the start, and what it asks the machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Reserves, VramState};

/// What the flags of the server say about memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub state: VramState,
    pub reserves: Reserves,
    /// How many units are fetched ahead of the one that computes.
    pub streams: usize,
    /// Off: what leaves a device leaves it whole, and everything does so after each prompt.
    pub smart: bool,
    /// Models without a wish of their own leave the devices after so long without a prompt.
    pub unload_after: Option<Duration>,
    /// Bytes of main memory that should stay available.
    pub host_headroom: Option<u64>,
    pub gpu_only: bool,
    pub cpu_vae: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            state: VramState::default(),
            reserves: Reserves::default(),
            streams: 2,
            smart: true,
            unload_after: None,
            host_headroom: None,
            gpu_only: false,
            cpu_vae: false,
        }
    }
}

/// The main memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    pub total: u64,
    /// Without swapping.
    pub available: u64,
}

impl HostMemory {
    /// Bytes that stay free whatever is loaded: a twentieth, or what the settings ask for.
    pub(crate) fn floor(&self, headroom: Option<u64>) -> u64 {
        (self.total / 20).max(headroom.unwrap_or(0))
    }
}

/// What the registry cannot know by itself. Tests put their own here, so that neither time nor the machine decides.
#[derive(Clone)]
pub struct Probes {
    pub now: Arc<dyn Fn() -> Instant + Send + Sync>,
    pub host: Arc<dyn Fn() -> Option<HostMemory> + Send + Sync>,
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            now: Arc::new(Instant::now),
            host: Arc::new(host_memory),
        }
    }
}

/// The kernel's figures; none where nobody knows.
pub fn host_memory() -> Option<HostMemory> {
    let (total, available) = fresco_tensor::total_and_available_memory()?;
    Some(HostMemory { total, available })
}

/// Bytes of main memory this process has in use.
pub fn resident_set() -> Option<u64> {
    fresco_tensor::resident_memory()
}
