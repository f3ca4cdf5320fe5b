//! Elements read at strides into a new list, by all threads where there are many.

#![expect(unsafe_code, reason = "threads write disjoint parts of one allocation")]

use std::mem::MaybeUninit;

use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::cancel::Cancel;
use crate::elements::{element_count, reserve};
use crate::error::Result;

/// Elements that one thread writes at a time.
const PART: usize = 1 << 18;

/// A walk over elements: sizes and strides, the innermost last, from a first element on.
pub(crate) struct Walk<'a> {
    pub(crate) sizes: &'a [usize],
    pub(crate) strides: &'a [isize],
    pub(crate) base: isize,
    /// Elements that follow each other, at one stride.
    pub(crate) inner: (usize, isize),
}

impl Walk<'_> {
    /// Writes lines from a number on.
    fn write(&self, data: &[f32], first: usize, out: &mut [MaybeUninit<f32>]) {
        let (len, step) = self.inner;
        let (mut index, mut from) = self.line(first);
        for out in out.chunks_exact_mut(len) {
            if step == 1 {
                let from = from as usize;
                for (to, value) in out.iter_mut().zip(&data[from..from + len]) {
                    to.write(*value);
                }
            } else {
                for (at, to) in (0..len as isize).zip(out) {
                    to.write(data[(from + at * step) as usize]);
                }
            }
            for ((at, &size), &stride) in index.iter_mut().zip(self.sizes).zip(self.strides).rev() {
                *at += 1;
                from += stride;
                if *at < size {
                    break;
                }
                from -= stride * size as isize;
                *at = 0;
            }
        }
    }

    /// The place of a line, and where it begins.
    fn line(&self, mut number: usize) -> (Vec<usize>, isize) {
        let mut index = vec![0; self.sizes.len()];
        let mut from = self.base;
        for ((at, &size), &stride) in index.iter_mut().zip(self.sizes).zip(self.strides).rev() {
            *at = number % size;
            from += *at as isize * stride;
            number /= size;
        }
        (index, from)
    }
}

/// All elements of a walk, which makes a tensor of a shape.
pub(crate) fn gathered(data: &[f32], walk: &Walk<'_>, shape: &[usize]) -> Result<Buffer<f32>> {
    let mut out = reserve(shape)?;
    let count = element_count(shape)?;
    let line = walk.inner.0.max(1);
    debug_assert_eq!(count, walk.sizes.iter().product::<usize>() * walk.inner.0);
    if count == 0 {
        return Ok(out);
    }
    let lines = (PART / line).max(1);
    let cancel = &Cancel::current();
    let space = &mut out.storage().spare_capacity_mut()[..count];
    if count <= lines * line {
        // Handing one part to another thread and waiting for it takes longer than the part.
        cancel.check()?;
        walk.write(data, 0, space);
        // SAFETY: as below, of one part.
        unsafe { out.storage().set_len(count) };
        return Ok(out);
    }
    let parts = space.par_chunks_mut(lines * line).enumerate();
    parts.try_for_each(|(part, out)| -> Result<()> {
        cancel.check()?;
        walk.write(data, part * lines, out);
        Ok(())
    })?;
    // SAFETY: there is room for so many, and each part was written as whole lines, of which they are made.
    unsafe { out.storage().set_len(count) };
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_parts() {
        // Rows backwards, every second element, twice.
        let (rows, columns) = (1000, 700);
        let data: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let walk = Walk {
            sizes: &[2, rows],
            strides: &[0, -(columns as isize)],
            base: ((rows - 1) * columns) as isize,
            inner: (columns / 2, 2),
        };
        let shape = [2, rows, columns / 2];
        let found = gathered(&data, &walk, &shape).unwrap();
        let wanted = (0..2).flat_map(|_| {
            (0..rows).flat_map(move |row| {
                (0..columns / 2).map(move |at| ((rows - 1 - row) * columns + 2 * at) as f32)
            })
        });
        assert!(found.iter().copied().eq(wanted));
        assert!(
            gathered(
                &data,
                &Walk {
                    sizes: &[0],
                    strides: &[1],
                    ..walk
                },
                &[0, 350]
            )
            .unwrap()
            .is_empty()
        );
    }
}
