//! Memory in whole cache lines, for packed weights and for the working space of kernels.

#![expect(
    unsafe_code,
    reason = "memory in cache lines, shared by threads that write disjoint parts"
)]

use crate::pages::prefer_large;

/// 64 bytes that begin at a multiple of 64.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Line([u8; 64]);

pub(crate) const LINE: usize = size_of::<Line>();

/// Zeros.
pub(crate) const EMPTY: Line = Line([0; LINE]);

/// The lines as bytes.
pub(crate) fn bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: a line is 64 bytes without padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// The same to write to.
pub(crate) fn bytes_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as above, and the lines are borrowed for as long.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// Working space of one thread, kept between calls so that kernels do not wait for the allocator.
#[derive(Default)]
pub(crate) struct Space(Vec<Line>);

impl Space {
    /// At least so many bytes, with whatever was left there.
    pub(crate) fn take(&mut self, bytes: usize) -> *mut u8 {
        let count = bytes.div_ceil(LINE);
        if self.0.len() < count {
            self.0 = Vec::with_capacity(count);
            prefer_large(&mut self.0);
            self.0.resize(count, EMPTY);
        }
        self.0.as_mut_ptr().cast()
    }
}

/// A pointer that threads may share: each writes where no other reads or writes.
#[derive(Clone, Copy)]
pub(crate) struct SharedPointer<T>(*mut T);

// SAFETY: whoever dereferences the pointer says why the places are disjoint.
unsafe impl<T> Send for SharedPointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedPointer<T> {}

impl<T> SharedPointer<T> {
    pub(crate) fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}
