//! Steps of networks as graphs of the driver: what [`crate::gpu::Recorder`] asks of this back end.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::LocalKey;

use super::device::CudaDevice;
use super::driver::Shared;
use super::launch::{Args, KernelStart, write_pinned};
use crate::error::Result;
pub(super) use crate::gpu::recorder::{
    apart, copied, flush, interrupt, landing, launch, repeated, staged, step_memory,
};
use crate::gpu::{
    CurrentStep, GpuMemory, MemoryPurpose, PinnedMemory, Recordable, Recorder, WhenFull, recorder,
};

thread_local! {
    /// The step that runs on this thread.
    static RUN: CurrentStep<CudaDevice> = const { RefCell::new(None) };
}

/// Runs what stays beyond the step of this thread: see [`recorder::aside`].
pub(crate) fn aside<R>(body: impl FnOnce() -> R) -> R {
    recorder::aside::<CudaDevice, R>(body)
}

/// Kernels that are started together.
pub(crate) struct Graph {
    device: Arc<CudaDevice>,
    made_of: Shared,
    exec: Shared,
    nodes: Vec<Shared>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            self.device.driver.destroy_exec(self.exec);
            self.device.driver.destroy_graph(self.made_of);
        }
    }
}

/// Main memory that a device reads.
pub(crate) struct Pinned {
    device: Arc<CudaDevice>,
    address: usize,
    bytes: usize,
}

impl Pinned {
    pub(super) fn new(device: &CudaDevice, bytes: usize) -> Result<Self> {
        let address = device.checked(device.driver.pinned(bytes))?;
        Ok(Self {
            device: device.shared(),
            address: address as usize,
            bytes,
        })
    }
}

impl PinnedMemory for Pinned {
    fn len(&self) -> usize {
        self.bytes
    }

    fn place(&self) -> u64 {
        self.address as u64
    }

    fn write(&mut self, values: &[f32]) {
        write_pinned(self.address as *mut u8, values);
    }
}

impl Pinned {
    pub(super) fn bytes(&self) -> &[u8] {
        super::launch::pinned_bytes(self.address, self.bytes)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        super::launch::pinned_bytes_mut(self.address, self.bytes)
    }
}

impl AsMut<[u8]> for Pinned {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() && self.device.finish_copies().is_ok() {
            self.device.driver.free_pinned(self.address as *mut u8);
        }
    }
}

impl CudaDevice {
    /// A graph of all kernels, one after the other. With `early` each is started while the one before it still runs, so that nobody waits for
    /// its start: kernels of Hopper wait themselves (`after_others` in kernels/common.cuh). Those whose blocks wait for each other are started
    /// when there is room for all of them.
    fn graph_of(&self, launches: &[(KernelStart, Args)], early: bool) -> Result<Graph> {
        let graph = self.checked(self.driver.graph())?;
        let mut made = Graph {
            device: self.shared(),
            made_of: graph,
            exec: Shared(std::ptr::null_mut()),
            nodes: Vec::with_capacity(launches.len()),
        };
        for (launch, args) in launches {
            let after = made.nodes.last().copied();
            let early = early && !launch.cooperative;
            let node = self.add_to_graph(graph, (after, early), *launch, args)?;
            made.nodes.push(node);
        }
        made.exec = self.checked(self.driver.instantiate(graph))?;
        Ok(made)
    }
}

impl Recordable for CudaDevice {
    type Launch = KernelStart;
    type Args = Args;
    type Graph = Graph;
    type Pinned = Pinned;

    fn recorder(&self) -> &Recorder<Self> {
        &self.steps
    }

    fn current_step() -> &'static LocalKey<CurrentStep<Self>> {
        &RUN
    }

    fn held(&self) -> Arc<Self> {
        self.shared()
    }

    fn enter(&self) -> Result<()> {
        self.enter()
    }

    fn start(&self, launch: KernelStart, args: &Args) -> Result<()> {
        self.start(launch, args)
    }

    fn graph(&self, launches: &[(KernelStart, Args)]) -> Result<Graph> {
        // A driver that knows no early starts may say so only now.
        let made = self.graph_of(launches, self.hopper());
        made.or_else(|_| self.graph_of(launches, false))
    }

    fn change(&self, graph: &Graph, at: usize, (launch, args): (KernelStart, &Args)) -> Result<()> {
        self.update_in_graph((graph.exec, graph.nodes[at]), launch, args)
    }

    fn start_graph(&self, graph: &Graph) -> Result<()> {
        self.checked(self.driver.start_graph(graph.exec, self.compute))
    }

    fn pinned(&self, bytes: usize) -> Result<Pinned> {
        Pinned::new(self, bytes)
    }

    fn arena_memory(&self, bytes: u64, full: WhenFull) -> Result<GpuMemory> {
        match full {
            WhenFull::MakeRoom => self.block_for(MemoryPurpose::Arena, bytes),
            WhenFull::Refuse => self.take_arena(bytes),
        }
    }

    fn room(&self) -> u64 {
        self.room()
    }

    fn highest_use(&self) -> u64 {
        self.highest.load(Ordering::Relaxed)
    }

    fn watch_use(&self) -> u64 {
        let before = self.used();
        self.highest.store(before, Ordering::Relaxed);
        before
    }
}
