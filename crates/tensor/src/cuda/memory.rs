//! Memory of a GPU, counted to the byte and given back in the order of the stream.

use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::device::CudaDevice;
use super::driver::{Driver, Shared};
use super::ring::RingPart;
use super::steps::{self, ArenaBlock};
use super::{Args, Format, Kernel, SLACK};
use crate::error::{Result, TensorError};

/// Bytes between places that the driver gives out: what kernels may rely on.
const ALIGNED: usize = 256;

/// Memory of a device. It can be used by what is started after it was taken, and goes behind what was started before it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Block {
    device: Arc<CudaDevice>,
    address: u64,
    bytes: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The device's pool.
    Pool(Purpose),
    /// Memory of steps that are repeated.
    Arena(#[expect(dead_code, reason = "given back when it is dropped")] ArenaBlock),
    /// Memory that copies of weights go through.
    Ring(#[expect(dead_code, reason = "given back when it is dropped")] RingPart),
    /// A piece of memory that somebody else holds, and holds until this is dropped.
    Part(#[expect(dead_code, reason = "kept")] Arc<dyn Holder>),
}

/// What holds memory, whatever it is.
pub(crate) trait Holder: Debug + Send + Sync + UnwindSafe + RefUnwindSafe {}

impl<T: Debug + Send + Sync + UnwindSafe + RefUnwindSafe> Holder for T {}

/// What memory of the pool is for, which decides how it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Weights as they are in their files, and results.
    Plain,
    /// Other forms of weights, which kernels asked for.
    Form,
    /// For steps that are repeated; given up where room is needed.
    Arena,
}

/// Memory for one operation.
pub(crate) type Scratch = Block;

impl Block {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let purpose = match self.source {
            Source::Pool(purpose) => purpose,
            Source::Arena(_) | Source::Part(_) => return,
            Source::Ring(_) => {
                let _ = steps::interrupt(&self.device);
                return;
            }
        };
        // Kernels that a step has asked for and not started may still want it.
        let _ = steps::interrupt(&self.device);
        let counter = self.device.counter(purpose);
        counter.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.address == 0 {
            return;
        }
        self.device.pieces.fetch_sub(1, Ordering::Relaxed);
        if self.device.enter().is_ok() {
            let _ = self.device.driver.free(self.address, self.device.compute);
        }
    }
}

/// Main memory that does not move while this is there.
#[derive(Debug)]
pub(crate) struct PinnedBytes {
    address: usize,
}

/// Whether main memory of weights may be pinned.
static PINNING: AtomicBool = AtomicBool::new(true);

/// Whether weights that stream to GPUs may be kept where the system cannot move them, which GPUs read faster. They may unless
/// this says otherwise.
pub fn allow_pinned_memory(allowed: bool) {
    PINNING.store(allowed, Ordering::Relaxed);
}

impl PinnedBytes {
    /// None where the system refuses, or the user.
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        if !PINNING.load(Ordering::Relaxed) {
            return None;
        }
        // The driver refuses on a thread that has used no device, as one that prepares weights beside the work.
        super::opened().first()?.enter().ok()?;
        Driver::get().ok()?.register(bytes).ok()?;
        Some(Self {
            address: bytes.as_ptr() as usize,
        })
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        // A copy that was asked for may not be made yet.
        for device in super::opened() {
            let _ = device.finish_copies();
        }
        if let Ok(driver) = Driver::get() {
            driver.unregister(self.address);
        }
    }
}

/// The end of copies that are made beside the work.
#[derive(Debug)]
pub(crate) struct CopyEnd {
    device: Arc<CudaDevice>,
    event: Shared,
    waited: AtomicBool,
}

impl CopyEnd {
    /// Behind all copies that were asked for until now.
    pub(crate) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        device.enter()?;
        Ok(Self {
            device: Arc::clone(device),
            event: device.marked(device.copies)?,
            waited: AtomicBool::new(false),
        })
    }

    /// Lets the work that is asked for next wait for it.
    pub(crate) fn wait(&self) -> Result<()> {
        if self.waited.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let device = &self.device;
        device.enter()?;
        steps::copied();
        steps::interrupt(device)?;
        device.checked(device.driver.wait_for(device.compute, self.event))
    }
}

impl Drop for CopyEnd {
    fn drop(&mut self) {
        // The memory goes behind the work, so that the work has to come behind the copy.
        let _ = self.wait();
        self.device.driver.destroy_event(self.event);
    }
}

/// Elements on a device.
#[derive(Debug)]
pub(crate) struct CudaBuffer {
    block: Block,
    len: usize,
    format: Format,
    spread: OnceLock<Spread>,
}

/// Sums of the channels of a picture and of their squares, as the product that made it left them (`staged.cuh`): for every ten channels and every part of 128 pixels.
#[derive(Debug)]
pub(crate) struct Spread {
    pub(crate) numbers: Scratch,
    /// Channels of a pixel.
    pub(crate) channels: usize,
    /// In how many the 128 pixels are cut.
    pub(crate) shares: usize,
}

impl CudaBuffer {
    pub(crate) fn address(&self) -> u64 {
        self.block.address
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn device(&self) -> &Arc<CudaDevice> {
        &self.block.device
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * self.format.size()
    }

    /// What is known of the elements. They are not written any more then: see [`Self::is_shared`].
    pub(crate) fn spread(&self) -> Option<&Spread> {
        self.spread.get()
    }

    /// For whoever has just written the elements.
    pub(crate) fn set_spread(&self, spread: Spread) {
        // A buffer is written once by a product.
        let _ = self.spread.set(spread);
    }

    /// Some of the elements, in place; `whole` is what holds this buffer. None where kernels would find them at an odd address.
    pub(crate) fn part(&self, whole: Arc<dyn Holder>, first: usize, len: usize) -> Option<Self> {
        let size = self.format.size();
        let inside = first.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || !(first * size).is_multiple_of(ALIGNED) {
            return None;
        }
        Some(Self {
            block: Block {
                device: Arc::clone(self.device()),
                address: self.address() + (first * size) as u64,
                bytes: (len * size) as u64,
                source: Source::Part(whole),
            },
            len,
            format: self.format,
            spread: OnceLock::new(),
        })
    }

    /// Whether they are some of those of a larger buffer.
    pub(crate) fn is_part(&self) -> bool {
        matches!(self.block.source, Source::Part(_))
    }

    /// Whether they must not be written: those of a larger buffer, which others may read, and those of which something is known.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_part() || self.spread.get().is_some()
    }

    /// Elements that are in main memory, in the format that is wanted.
    pub(crate) fn from_host(
        device: &Arc<CudaDevice>,
        values: &[f32],
        format: Format,
    ) -> Result<Self> {
        let buffer = device.buffer(values.len(), format)?;
        if values.is_empty() {
            return Ok(buffer);
        }
        if let Some(pinned) = steps::staged(device, values)? {
            // Read by the device itself whenever the step is repeated.
            convert(device, (pinned, Format::F32), &buffer)?;
        } else if format == Format::F32 {
            device.upload(buffer.address(), bytes_of(values))?;
        } else {
            let plain = device.scratch(size_of_val(values))?;
            device.upload(plain.address(), bytes_of(values))?;
            convert(device, (plain.address(), Format::F32), &buffer)?;
        }
        Ok(buffer)
    }

    /// The elements, waited for.
    pub(crate) fn read(&self, out: &mut [f32]) -> Result<()> {
        debug_assert_eq!(out.len(), self.len);
        if out.is_empty() {
            return Ok(());
        }
        let device = self.device();
        if self.format == Format::F32 {
            return device.download(bytes_of_mut(out), self.address());
        }
        let plain = self.converted(Format::F32)?;
        device.download(bytes_of_mut(out), plain.address())
    }

    /// Elements that are at an address of the device in some format, in another one or the same.
    pub(crate) fn converted_from(
        device: &Arc<CudaDevice>,
        from: (u64, Format),
        len: usize,
        format: Format,
    ) -> Result<Self> {
        let out = device.buffer(len, format)?;
        if len > 0 {
            convert(device, from, &out)?;
        }
        Ok(out)
    }

    /// Writes as many elements that are at an address of the device into it.
    pub(crate) fn fill_from(&self, from: (u64, Format)) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        convert(self.device(), from, self)
    }

    /// The same elements in another format, or a copy in the same one.
    pub(crate) fn converted(&self, format: Format) -> Result<Self> {
        let device = self.device();
        let out = device.buffer(self.len, format)?;
        if self.len > 0 {
            convert(device, (self.address(), self.format), &out)?;
        }
        Ok(out)
    }

    /// The same elements on another device.
    pub(crate) fn copied_to(&self, device: &Arc<CudaDevice>, format: Format) -> Result<Self> {
        let there = device.buffer(self.len, self.format)?;
        self.device().synchronize()?;
        device.enter()?;
        let answer = device.driver.copy_peer(
            (there.address(), device.context),
            (self.address(), self.device().context),
            self.bytes(),
            device.compute,
        );
        device.checked(answer)?;
        device.synchronize()?;
        if format == self.format {
            return Ok(there);
        }
        there.converted(format)
    }
}

/// Starts the conversion of elements at an address into a buffer.
fn convert(device: &CudaDevice, (from, format): (u64, Format), to: &CudaBuffer) -> Result<()> {
    let kernel = Kernel {
        module: "elementwise",
        format: to.format(),
        name: match format {
            Format::F32 => "from_f32",
            Format::F16 => "from_f16",
            Format::Bf16 => "from_bf16",
        },
    };
    let blocks = to.len().div_ceil(1024).min(1 << 16) as u32;
    let args = Args::new()
        .pointer(from)
        .pointer(to.address())
        .long(to.len() as i64);
    device.launch(kernel, [blocks, 1, 1], 256, 0, &args)
}

fn bytes_of(values: &[f32]) -> &[u8] {
    super::launch::bytes_of(values)
}

fn bytes_of_mut(values: &mut [f32]) -> &mut [u8] {
    super::launch::bytes_of_mut(values)
}

impl CudaDevice {
    /// Memory of so many bytes, counted, from the pool, with some more behind it that is not.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Block> {
        self.take_for(Purpose::Plain, bytes, self.compute)
    }

    /// The same for what is copied there beside the work. Until the copy is waited for, only the copying knows of it.
    pub(crate) fn take_ahead(self: &Arc<Self>, bytes: u64) -> Result<Block> {
        self.take_for(Purpose::Plain, bytes, self.copies)
    }

    fn take_for(self: &Arc<Self>, purpose: Purpose, bytes: u64, stream: Shared) -> Result<Block> {
        self.enter()?;
        self.count(purpose, bytes)?;
        let mut block = Block {
            device: Arc::clone(self),
            address: 0,
            bytes,
            source: Source::Pool(purpose),
        };
        if bytes > 0 {
            let answer = self.driver.allocate((bytes + SLACK) as usize, stream);
            block.address = self.checked(answer).map_err(|error| match error {
                TensorError::DeviceFull { device, .. } => TensorError::DeviceFull {
                    device,
                    wanted: bytes,
                    free: self.free(),
                    capacity: self.capacity(),
                },
                other => other,
            })?;
            self.pieces.fetch_add(1, Ordering::Relaxed);
        }
        Ok(block)
    }

    fn counter(&self, purpose: Purpose) -> &AtomicU64 {
        match purpose {
            Purpose::Plain => &self.used,
            Purpose::Form => &self.forms,
            Purpose::Arena => &self.arenas,
        }
    }

    /// Counts memory before it is taken. Two threads may be let through together where there is room for one: the driver
    /// has the last word.
    fn count(&self, purpose: Purpose, bytes: u64) -> Result<()> {
        let capacity = self.capacity();
        let before = self.taken();
        if bytes > capacity.saturating_sub(before) {
            return Err(TensorError::DeviceFull {
                device: format!("cuda:{}", self.number),
                wanted: bytes,
                free: capacity.saturating_sub(before),
                capacity,
            });
        }
        let counter = self.counter(purpose);
        counter.fetch_add(bytes, Ordering::Relaxed);
        self.peak.fetch_max(self.taken(), Ordering::Relaxed);
        self.highest.fetch_max(self.used(), Ordering::Relaxed);
        Ok(())
    }

    /// The same, giving up copies made ahead and steps that could be repeated where there is no room.
    pub(crate) fn block(self: &Arc<Self>, bytes: u64) -> Result<Block> {
        self.block_for(Purpose::Plain, bytes)
    }

    pub(super) fn block_for(self: &Arc<Self>, purpose: Purpose, bytes: u64) -> Result<Block> {
        self.block_on(purpose, bytes, self.compute)
    }

    /// Memory for a step, if there is room.
    pub(super) fn take_arena(self: &Arc<Self>, bytes: u64) -> Result<Block> {
        self.take_for(Purpose::Arena, bytes, self.compute)
    }

    /// The same for a copy that is made beside the work.
    pub(crate) fn block_ahead(self: &Arc<Self>, bytes: u64) -> Result<Block> {
        self.block_on(Purpose::Plain, bytes, self.copies)
    }

    fn block_on(self: &Arc<Self>, purpose: Purpose, bytes: u64, stream: Shared) -> Result<Block> {
        self.take_for(purpose, bytes, stream).or_else(|full| {
            if !matches!(full, TensorError::DeviceFull { .. }) {
                return Err(full);
            }
            let spare = std::mem::take(&mut *crate::lock::lock(&self.spare));
            drop(spare);
            self.ring.give_up();
            self.trim();
            self.take_for(purpose, bytes, stream)
        })
    }

    /// Memory for a copy of weights that is made beside the work and used once. None where there is no room for it.
    pub(crate) fn block_in_ring(self: &Arc<Self>, bytes: u64) -> Result<Option<Block>> {
        let part = self.ring_part(bytes + SLACK)?;
        Ok(part.map(|(address, part)| Block {
            device: Arc::clone(self),
            address,
            bytes,
            source: Source::Ring(part),
        }))
    }

    /// Memory for results and between kernels: that of steps that are repeated, while such run.
    fn working(self: &Arc<Self>, bytes: u64) -> Result<Block> {
        match steps::arena_block(self, bytes)? {
            Some((address, block)) => Ok(Block {
                device: Arc::clone(self),
                address,
                bytes,
                source: Source::Arena(block),
            }),
            None => self.block(bytes),
        }
    }

    /// Room for elements; nothing is written there.
    pub(crate) fn buffer(self: &Arc<Self>, len: usize, format: Format) -> Result<CudaBuffer> {
        let block = self.working((len * format.size()) as u64)?;
        Ok(CudaBuffer {
            block,
            len,
            format,
            spread: OnceLock::new(),
        })
    }

    /// Memory for the time of an operation; what was started with it may still run when it is dropped.
    pub(crate) fn scratch(self: &Arc<Self>, bytes: usize) -> Result<Scratch> {
        self.working(bytes as u64)
    }

    /// Room for elements that outlive the step in which they are made.
    pub(crate) fn lasting(self: &Arc<Self>, len: usize, format: Format) -> Result<CudaBuffer> {
        let block = self.block_for(Purpose::Form, (len * format.size()) as u64)?;
        Ok(CudaBuffer {
            block,
            len,
            format,
            spread: OnceLock::new(),
        })
    }

    /// Copies bytes of main memory to an address.
    pub(crate) fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.enter()?;
        steps::interrupt(self)?;
        self.checked(self.driver.copy_in(to, bytes, self.compute))
    }

    /// Copies bytes of main memory that does not move to an address, beside the work.
    pub(crate) fn upload_ahead(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.enter()?;
        self.checked(self.driver.copy_in(to, bytes, self.copies))
    }

    /// Copies from another GPU, beside the work, what was complete there when this was asked for.
    pub(crate) fn fetch_ahead(
        &self,
        to: u64,
        (other, from): (&Self, u64),
        bytes: usize,
    ) -> Result<()> {
        other.enter()?;
        let there = other.marked(other.compute)?;
        self.enter()?;
        self.after(self.copies, there)?;
        let answer = self.driver.copy_peer(
            (to, self.context),
            (from, other.context),
            bytes,
            self.copies,
        );
        self.checked(answer)
    }

    /// Bytes per second from pinned main memory, measured with some copies.
    pub(crate) fn measured_link(self: &Arc<Self>) -> Result<f64> {
        const BYTES: usize = 256 << 20;
        const TIMES: usize = 4;
        self.enter()?;
        let from = super::steps::Pinned::new(self, BYTES)?;
        let to = self.block_for(Purpose::Arena, BYTES as u64)?;
        self.synchronize()?;
        let ends = [self.timed_event()?, self.timed_event()?];
        // The first copy pays for what the driver prepares.
        for at in 0..=TIMES {
            if at == 1 {
                self.checked(self.driver.record(ends[0], self.copies))?;
            }
            self.upload_ahead(to.address(), from.bytes())?;
        }
        self.checked(self.driver.record(ends[1], self.copies))?;
        self.finish_copies()?;
        let time = self.checked(self.driver.elapsed(ends[0], ends[1]))?;
        for event in ends {
            self.driver.destroy_event(event);
        }
        Ok((TIMES * BYTES) as f64 / (f64::from(time) / 1000.0))
    }

    fn timed_event(&self) -> Result<Shared> {
        self.checked(self.driver.event())
    }

    /// Waits until all copies beside the work are made.
    pub(super) fn finish_copies(&self) -> Result<()> {
        self.enter()?;
        self.checked(self.driver.synchronize(self.copies))
    }

    /// Copies bytes from an address, when everything before is computed.
    pub(crate) fn download(&self, out: &mut [u8], from: u64) -> Result<()> {
        self.enter()?;
        steps::flush(self)?;
        let copy = |to: &mut [u8]| {
            self.checked(self.driver.copy_out(to, from, self.compute))?;
            self.checked(self.driver.synchronize(self.compute))
        };
        // To other memory the driver copies in pieces of its own, one waiting for the other.
        match steps::landing(self, out.len())? {
            Some(address) => {
                let pinned = super::launch::pinned_bytes_mut(address, out.len());
                copy(pinned)?;
                out.copy_from_slice(pinned);
                Ok(())
            }
            None => copy(out),
        }
    }
}
