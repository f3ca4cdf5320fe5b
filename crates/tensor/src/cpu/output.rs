//! Storage of a result that many threads write: not filled with zeros first, each place written once.

#![expect(unsafe_code, reason = "threads write disjoint parts of one allocation")]

use crate::buffer::Buffer;
use crate::elements::{element_count, reserve};
use crate::error::Result;

/// A result in the making.
pub(crate) struct Output {
    data: Buffer<f32>,
    len: usize,
}

impl Output {
    pub(crate) fn new(shape: &[usize]) -> Result<Self> {
        Ok(Self {
            data: reserve(shape)?,
            len: element_count(shape)?,
        })
    }

    /// Where the first element goes. What lies there is not initialised.
    pub(crate) fn place(&mut self) -> OutputPlace {
        OutputPlace(self.data.storage().as_mut_ptr())
    }

    /// # Safety
    /// Every element has been written.
    pub(crate) unsafe fn finish(mut self) -> Buffer<f32> {
        // SAFETY: `reserve` made room for this many, and the caller wrote them.
        unsafe { self.data.storage().set_len(self.len) };
        self.data
    }
}

/// A pointer that goes to other threads. Those who use it write to disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct OutputPlace(*mut f32);

// SAFETY: the pointer gives no access by itself; each use of it says why its part is its own.
unsafe impl Send for OutputPlace {}
// SAFETY: as above.
unsafe impl Sync for OutputPlace {}

impl OutputPlace {
    /// Numbers that are there already.
    pub(crate) fn new(data: &mut [f32]) -> Self {
        Self(data.as_mut_ptr())
    }

    /// For reading only.
    pub(crate) fn reading(data: *const f32) -> Self {
        Self(data.cast_mut())
    }

    /// # Safety
    /// `offset` is inside the allocation or at its end.
    #[inline(always)]
    pub(crate) unsafe fn at(self, offset: usize) -> *mut f32 {
        // SAFETY: as promised.
        unsafe { self.0.add(offset) }
    }
}
