//! Counting the elements of a shape, and making lists for them in main memory.

use crate::buffer::Buffer;
use crate::cancel::{self, CHUNK, Cancel};
use crate::error::{Result, TensorError};
use crate::recycle;

/// Most elements one tensor may have (32 GiB of f32): a hostile size in a workflow becomes an error, not an abort.
pub const MAX_ELEMENTS: usize = 1 << 33;

/// Number of elements of a shape, refusing overflow and anything above [`MAX_ELEMENTS`].
pub fn element_count(shape: &[usize]) -> Result<usize> {
    // A zero anywhere makes the tensor empty, but the other sizes must still be sane for the strides to be.
    let bound = shape
        .iter()
        .try_fold(1usize, |n, &s| n.checked_mul(s.max(1)))
        .filter(|&n| n <= MAX_ELEMENTS);
    match bound {
        Some(_) if shape.contains(&0) => Ok(0),
        Some(n) => Ok(n),
        None => Err(TensorError::TooLarge {
            shape: shape.to_vec(),
        }),
    }
}

/// Storage for a shape, filled with one value.
pub(crate) fn allocate(shape: &[usize], value: f32) -> Result<Buffer<f32>> {
    let mut data = reserve(shape)?;
    let count = element_count(shape)?;
    let cancel = Cancel::current();
    // The first touch of a page is what takes time.
    while data.len() < count {
        cancel.check()?;
        let next = count.min(data.len() + CHUNK);
        data.storage().resize(next, value);
    }
    Ok(data)
}

/// Empty storage with room for a shape.
pub(crate) fn reserve(shape: &[usize]) -> Result<Buffer<f32>> {
    // Nearly every operation comes by here.
    cancel::check()?;
    let count = element_count(shape)?;
    if let Some(data) = recycle::take(count) {
        return Ok(Buffer::recycled(data));
    }
    Buffer::with_room(count).map_err(|error| match error {
        TensorError::NoRoom(refused) => TensorError::NoMemory {
            shape: shape.to_vec(),
            missing: refused.missing,
        },
        other => other,
    })
}

/// A copy of elements of a shape.
pub(crate) fn copy_values(shape: &[usize], values: &[f32]) -> Result<Buffer<f32>> {
    let mut data = reserve(shape)?;
    let cancel = Cancel::current();
    for part in values.chunks(CHUNK) {
        cancel.check()?;
        data.extend_from_slice(part);
    }
    Ok(data)
}

/// Row-major strides of a shape, in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1) as isize;
    }
    strides
}
