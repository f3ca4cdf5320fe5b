//! Memory of a GPU, places in it, and elements that are kept there.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::arena::StepMemory;
use super::{Format, GpuOps};
use crate::error::Result;

/// Bytes between places where elements may begin: what kernels rely on.
pub(crate) const ALIGNED: usize = 256;

/// A place in the memory of a GPU, valid as long as what lends it: the number that the back end knows the memory by (an
/// address, or the number of an object of its driver), and bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuSlice<'a> {
    buffer: u64,
    offset: u64,
    lender: PhantomData<&'a GpuMemory>,
}

impl GpuSlice<'_> {
    /// For who holds the memory, and lends the place no longer than that.
    pub(crate) fn new(buffer: u64, offset: u64) -> Self {
        Self {
            buffer,
            offset,
            lender: PhantomData,
        }
    }

    pub(crate) fn buffer(self) -> u64 {
        self.buffer
    }

    pub(crate) fn offset(self) -> u64 {
        self.offset
    }

    /// The place so many bytes further on.
    #[must_use]
    pub(crate) fn at(self, bytes: usize) -> Self {
        Self {
            offset: self.offset + bytes as u64,
            ..self
        }
    }
}

/// Memory of a GPU. It can be used by what is started after it was taken, and goes behind what was started before it is
/// dropped.
#[derive(Debug)]
pub(crate) struct GpuMemory {
    device: Arc<dyn GpuOps>,
    buffer: u64,
    offset: u64,
    bytes: u64,
    source: MemorySource,
}

/// Who gets memory back.
#[derive(Debug)]
pub(crate) enum MemorySource {
    /// The device, which counts it for a purpose.
    Device(MemoryPurpose),
    /// The memory of a step that is repeated.
    Step(#[expect(dead_code, reason = "given back when it is dropped")] StepMemory),
    /// A part of something larger that the back end lends, by the number that it gave it.
    Lender(Arc<dyn MemoryLender>, u64),
    /// Nobody: it is a piece of memory that another holds, and holds until this is dropped.
    Part(#[expect(dead_code, reason = "kept")] Arc<dyn Holder>),
}

/// What memory of a device is for, which decides how it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryPurpose {
    /// Weights as they are in their files, and results.
    Plain,
    /// For copies that are made beside the work, and what is started behind them: given back in their order.
    Copies,
    /// Other forms of weights, which kernels asked for.
    Form,
    /// For steps that are repeated; given up where room is needed.
    Arena,
}

/// What holds memory, whatever it is.
pub(crate) trait Holder: Debug + Send + Sync + UnwindSafe + RefUnwindSafe {}

impl<T: Debug + Send + Sync + UnwindSafe + RefUnwindSafe> Holder for T {}

/// Something large of which parts are lent.
pub(crate) trait MemoryLender: Holder {
    /// Takes the part of a number back when everything that was asked for until now has used it.
    fn take_back(&self, number: u64);
}

impl GpuMemory {
    /// Memory that a back end has found, from `offset` on in what it knows as `buffer`.
    pub(crate) fn new(
        device: Arc<dyn GpuOps>,
        (buffer, offset): (u64, u64),
        bytes: u64,
        source: MemorySource,
    ) -> Self {
        Self {
            device,
            buffer,
            offset,
            bytes,
            source,
        }
    }

    pub(crate) fn device(&self) -> &Arc<dyn GpuOps> {
        &self.device
    }

    pub(crate) fn slice(&self) -> GpuSlice<'_> {
        GpuSlice::new(self.buffer, self.offset)
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        match &self.source {
            MemorySource::Device(purpose) => {
                self.device.release(self.slice(), self.bytes, *purpose);
            }
            MemorySource::Lender(lender, number) => lender.take_back(*number),
            MemorySource::Step(_) | MemorySource::Part(_) => {}
        }
    }
}

/// The end of copies that are made beside the work of a device.
#[derive(Debug)]
pub(crate) struct CopyEnd {
    device: Arc<dyn GpuOps>,
    mark: u64,
    waited: AtomicBool,
}

impl CopyEnd {
    /// Behind all copies that were asked for until now.
    pub(crate) fn new(device: Arc<dyn GpuOps>) -> Result<Self> {
        Ok(Self {
            mark: device.mark_copies()?,
            device,
            waited: AtomicBool::new(false),
        })
    }

    /// Lets the work that is asked for next wait for it.
    pub(crate) fn wait(&self) -> Result<()> {
        if self.waited.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.device.wait_for_copies(self.mark)
    }
}

impl Drop for CopyEnd {
    fn drop(&mut self) {
        // The memory goes behind the work, so that the work has to come behind the copy.
        let _ = self.wait();
        self.device.drop_mark(self.mark);
    }
}

/// Elements on a GPU, one after another in row-major order.
#[derive(Debug)]
pub(crate) struct GpuBuffer {
    memory: GpuMemory,
    len: usize,
    format: Format,
    side_result: OnceLock<SideResult>,
}

/// Numbers about elements that the operation that made them left for the one that follows, such as sums for a norm. Only the back end that
/// left them knows what they are.
#[derive(Debug)]
pub(crate) struct SideResult {
    pub(crate) numbers: GpuMemory,
    /// Sizes by which the back end reads them.
    pub(crate) sizes: [usize; 2],
}

impl GpuBuffer {
    /// Elements in memory that is large enough.
    pub(crate) fn new(memory: GpuMemory, len: usize, format: Format) -> Self {
        Self {
            memory,
            len,
            format,
            side_result: OnceLock::new(),
        }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn device(&self) -> &Arc<dyn GpuOps> {
        self.memory.device()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * self.format.size()
    }

    /// Where the first element is.
    pub(crate) fn slice(&self) -> GpuSlice<'_> {
        self.memory.slice()
    }

    /// Where an element is.
    pub(crate) fn slice_at(&self, element: usize) -> GpuSlice<'_> {
        self.slice().at(element * self.format.size())
    }

    /// What is known of the elements. They are not written any more then: see [`Self::is_shared`].
    pub(crate) fn side_result(&self) -> Option<&SideResult> {
        self.side_result.get()
    }

    /// For the operation that has just written the elements.
    pub(crate) fn set_side_result(&self, result: SideResult) {
        // A buffer is written once by a product.
        let _ = self.side_result.set(result);
    }

    /// Some of the elements, in place; `whole` is what holds this buffer. None where kernels would find them at an odd place.
    pub(crate) fn part(&self, whole: Arc<dyn Holder>, first: usize, len: usize) -> Option<Self> {
        let size = self.format.size();
        let inside = first.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || !(first * size).is_multiple_of(ALIGNED) {
            return None;
        }
        let place = self.slice_at(first);
        let memory = GpuMemory::new(
            Arc::clone(self.device()),
            (place.buffer, place.offset),
            (len * size) as u64,
            MemorySource::Part(whole),
        );
        Some(Self::new(memory, len, self.format))
    }

    /// Whether they are some of those of a larger buffer.
    pub(crate) fn is_part(&self) -> bool {
        matches!(self.memory.source, MemorySource::Part(_))
    }

    /// Whether they must not be written: those of a larger buffer, which others may read, and those of which something is known.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_part() || self.side_result.get().is_some()
    }

    /// The same elements in another format, or a copy in the same one.
    pub(crate) fn converted(&self, format: Format) -> Result<Self> {
        let out = self.device().buffer(self.len, format)?;
        out.fill_from(self.slice(), self.format)?;
        Ok(out)
    }

    /// Writes as many elements that are at a place of the device, in some format, into it.
    pub(crate) fn fill_from(&self, from: GpuSlice<'_>, format: Format) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        self.device().convert((from, format), self)
    }

    /// The elements in main memory, waited for.
    pub(crate) fn read(&self, out: &mut [f32]) -> Result<()> {
        debug_assert_eq!(out.len(), self.len);
        if out.is_empty() {
            return Ok(());
        }
        self.device().read(self, out)
    }

    /// The same elements on another device.
    pub(crate) fn copied_to(&self, device: &dyn GpuOps, format: Format) -> Result<Self> {
        let there = if self.device().id().backend == device.id().backend {
            device.fetch(self)?
        } else {
            let mut values = crate::elements::allocate(&[self.len], 0.0)?;
            self.read(&mut values)?;
            return device.upload(&values, format);
        };
        if format == self.format {
            return Ok(there);
        }
        there.converted(format)
    }
}
