//! Memory of a GPU, counted to the byte and given back in the order of the stream.

use std::sync::atomic::{AtomicU64, Ordering};

use super::device::CudaDevice;
use super::driver::{Driver, Handle, Shared};
use super::launch::{bytes_of, bytes_of_mut};
use super::launches::elementwise::{Convert, ConvertKernel};
use super::{Address, Format, GpuBuffer, GpuMemory, OnCard, Pointer, SLACK, Scratch, Shape, steps};
use crate::error::{Result, TensorError};
use crate::gpu::{MemoryPurpose as Purpose, MemorySource};

/// Lets GPUs read main memory themselves; false where the system refuses.
pub(super) fn pin(bytes: &[u8]) -> bool {
    // The driver refuses on a thread that has used no device, as one that prepares weights beside the work.
    let entered = super::device::opened()
        .first()
        .is_some_and(|device| device.enter().is_ok());
    entered && Driver::get().is_ok_and(|driver| driver.register(bytes).is_ok())
}

/// Ends that for the memory that begins at an address.
pub(super) fn unpin(address: usize) {
    // A copy that was asked for may not be made yet.
    for device in super::device::opened() {
        let _ = device.finish_copies();
    }
    if let Ok(driver) = Driver::get() {
        driver.unregister(address);
    }
}

/// Starts the conversion of elements at an address into a buffer that has as many, at least one.
pub(super) fn convert((from, format): (u64, Format), to: &GpuBuffer) -> Result<()> {
    let convert = Convert {
        kernel: match format {
            Format::F32 => ConvertKernel::FromF32,
            Format::F16 => ConvertKernel::FromF16,
            Format::Bf16 => ConvertKernel::FromBf16,
        },
        from: Pointer::at(from),
        to: to.into(),
        total: to.len() as i64,
    };
    let blocks = to.len().div_ceil(1024).min(1 << 16) as u32;
    to.card()
        .launch(to.format(), Shape::row(blocks, 256), convert)
}

impl CudaDevice {
    /// Memory of so many bytes, counted, from the pool, with some more behind it that is not.
    pub(crate) fn take(&self, bytes: u64) -> Result<GpuMemory> {
        self.take_for(Purpose::Plain, bytes, self.compute)
    }

    /// The same for what is copied there beside the work. Until the copy is waited for, only the copying knows of it.
    pub(crate) fn take_ahead(&self, bytes: u64) -> Result<GpuMemory> {
        self.take_for(Purpose::Plain, bytes, self.copies)
    }

    fn take_for(&self, purpose: Purpose, bytes: u64, stream: Shared) -> Result<GpuMemory> {
        self.enter()?;
        self.count(purpose, bytes)?;
        let address = if bytes > 0 {
            let answer = self.driver.allocate((bytes + SLACK) as usize, stream);
            let found = self.checked(answer).map_err(|error| match error {
                TensorError::DeviceFull { device, .. } => TensorError::DeviceFull {
                    device,
                    wanted: bytes,
                    free: self.free(),
                    capacity: self.capacity(),
                },
                other => other,
            });
            if found.is_err() {
                let _ = steps::interrupt(self);
                self.counter(purpose).fetch_sub(bytes, Ordering::Relaxed);
            }
            found?
        } else {
            0
        };
        if bytes > 0 {
            self.pieces.fetch_add(1, Ordering::Relaxed);
        }
        let source = MemorySource::Device(purpose);
        Ok(GpuMemory::new(self.shared(), (address, 0), bytes, source))
    }

    /// Takes memory of the pool back, in the order of the work.
    pub(super) fn give_back(&self, address: u64, bytes: u64, purpose: Purpose) {
        let stream = if purpose == Purpose::Copies {
            self.copies
        } else {
            // Kernels that a step has asked for and not started may still want it.
            let _ = steps::interrupt(self);
            self.compute
        };
        self.counter(purpose).fetch_sub(bytes, Ordering::Relaxed);
        if address == 0 {
            return;
        }
        self.pieces.fetch_sub(1, Ordering::Relaxed);
        if self.enter().is_ok() {
            let _ = self.driver.free(address, stream);
        }
    }

    fn counter(&self, purpose: Purpose) -> &AtomicU64 {
        match purpose {
            Purpose::Plain | Purpose::Copies => &self.used,
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
    pub(crate) fn block(&self, bytes: u64) -> Result<GpuMemory> {
        self.block_for(Purpose::Plain, bytes)
    }

    pub(super) fn block_for(&self, purpose: Purpose, bytes: u64) -> Result<GpuMemory> {
        self.block_on(purpose, bytes, self.compute)
    }

    /// Memory for a step, if there is room.
    pub(super) fn take_arena(&self, bytes: u64) -> Result<GpuMemory> {
        self.take_for(Purpose::Arena, bytes, self.compute)
    }

    /// The same for a copy that is made beside the work.
    pub(crate) fn block_ahead(&self, bytes: u64) -> Result<GpuMemory> {
        self.block_on(Purpose::Plain, bytes, self.copies)
    }

    /// Memory for what is copied beside the work and used there alone; it may be dropped when that was asked for.
    pub(crate) fn scratch_ahead(&self, bytes: u64) -> Result<Scratch> {
        self.block_on(Purpose::Copies, bytes, self.copies)
    }

    fn block_on(&self, purpose: Purpose, bytes: u64, stream: Shared) -> Result<GpuMemory> {
        self.take_for(purpose, bytes, stream).or_else(|full| {
            if !matches!(full, TensorError::DeviceFull { .. }) {
                return Err(full);
            }
            let spare = std::mem::take(&mut *crate::lock::lock(&self.settings.spare));
            drop(spare);
            self.ring.give_up();
            self.trim();
            self.take_for(purpose, bytes, stream)
        })
    }

    /// Memory for a copy of weights that is made beside the work and used once. None where there is no room for it.
    pub(crate) fn block_in_ring(&self, bytes: u64) -> Result<Option<GpuMemory>> {
        let part = self.ring_part(bytes + SLACK)?;
        Ok(part.map(|(place, ring, number)| {
            let source = MemorySource::Lender(ring, number);
            GpuMemory::new(self.shared(), place, bytes, source)
        }))
    }

    /// Memory for results and between kernels: that of steps that are repeated, while such run.
    fn working(&self, bytes: u64) -> Result<GpuMemory> {
        match steps::step_memory(self, bytes)? {
            Some(part) => {
                let place = part.place();
                let source = MemorySource::Step(part);
                Ok(GpuMemory::new(self.shared(), place, bytes, source))
            }
            None => self.block(bytes),
        }
    }

    /// Room for elements; nothing is written there.
    pub(crate) fn buffer(&self, len: usize, format: Format) -> Result<GpuBuffer> {
        let block = self.working((len * format.size()) as u64)?;
        Ok(GpuBuffer::new(block, len, format))
    }

    /// Memory for the time of an operation; what was started with it may still run when it is dropped.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Scratch> {
        self.working(bytes as u64)
    }

    /// Room for elements that outlive the step in which they are made.
    pub(crate) fn lasting(&self, len: usize, format: Format) -> Result<GpuBuffer> {
        let block = self.block_for(Purpose::Form, (len * format.size()) as u64)?;
        Ok(GpuBuffer::new(block, len, format))
    }

    /// Elements that are in main memory, in the format that is wanted.
    pub(crate) fn upload_values(&self, values: &[f32], format: Format) -> Result<GpuBuffer> {
        let buffer = self.buffer(values.len(), format)?;
        if values.is_empty() {
            return Ok(buffer);
        }
        if let Some(pinned) = steps::staged(self, values)? {
            // Read by the device itself whenever the step is repeated.
            convert((pinned, Format::F32), &buffer)?;
        } else if format == Format::F32 {
            self.upload(buffer.address(), bytes_of(values))?;
        } else {
            let plain = self.scratch(size_of_val(values))?;
            self.upload(plain.address(), bytes_of(values))?;
            convert((plain.address(), Format::F32), &buffer)?;
        }
        Ok(buffer)
    }

    /// The elements of a buffer, waited for.
    pub(super) fn read_values(&self, from: &GpuBuffer, out: &mut [f32]) -> Result<()> {
        if from.format() == Format::F32 {
            return self.download(bytes_of_mut(out), from.address());
        }
        let plain = from.converted(Format::F32)?;
        self.download(bytes_of_mut(out), plain.address())
    }

    /// Elements of another card, in their format, waited for.
    pub(super) fn fetch_values(&self, from: &GpuBuffer) -> Result<GpuBuffer> {
        let there = self.buffer(from.len(), from.format())?;
        from.card().synchronize()?;
        self.enter()?;
        let answer = self.driver.copy_peer(
            (there.address(), self.context),
            (from.address(), from.card().context),
            from.bytes(),
            self.compute,
        );
        self.checked(answer)?;
        self.synchronize()?;
        Ok(there)
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
    pub(crate) fn measured_link(&self) -> Result<f64> {
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

    /// A mark behind all copies beside the work until now.
    pub(super) fn mark_of_copies(&self) -> Result<u64> {
        self.enter()?;
        Ok(self.marked(self.copies)?.0 as u64)
    }

    /// Lets the work that is asked for next wait for what is before a mark.
    pub(super) fn after_copies(&self, mark: u64) -> Result<()> {
        self.enter()?;
        steps::copied();
        steps::interrupt(self)?;
        let event = Shared(mark as Handle);
        self.checked(self.driver.wait_for(self.compute, event))
    }

    pub(super) fn forget_copies(&self, mark: u64) {
        self.driver.destroy_event(Shared(mark as Handle));
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
                let pinned = super::launch::pinned_bytes_mut(address as usize, out.len());
                copy(pinned)?;
                out.copy_from_slice(pinned);
                Ok(())
            }
            None => copy(out),
        }
    }
}
