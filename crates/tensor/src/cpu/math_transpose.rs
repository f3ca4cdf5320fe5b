//! Turning rows into columns: (b, h, w, c) to (b, c, h, w) and back.

#![expect(
    unsafe_code,
    reason = "vector instructions need pointers and a check that the machine has them"
)]

use rayon::prelude::*;

use super::isa::Isa;
use super::math_lanes::{Kernel, Lanes, dispatch, transpose};
use super::output::Output;
use crate::buffer::Buffer;
use crate::cancel::Cancel;
use crate::error::Result;

/// Rows of one task.
const ROWS: usize = 64;

/// Turns each of the matrices of (batch, rows, columns) into (columns, rows), with the shape of all given.
pub(crate) fn transpose_all(
    isa: Isa,
    x: &[f32],
    [batch, rows, columns]: [usize; 3],
    shape: &[usize],
) -> Result<Buffer<f32>> {
    let mut out = Output::new(shape)?;
    assert_eq!(x.len(), batch * rows * columns);
    if !x.is_empty() {
        let tasks = rows.div_ceil(ROWS);
        let place = out.place();
        let cancel = &Cancel::current();
        (0..batch * tasks).into_par_iter().for_each(|i| {
            cancel.stop();
            let (item, first) = (i / tasks, i % tasks * ROWS);
            let count = ROWS.min(rows - first);
            let at = item * rows * columns;
            dispatch(
                isa,
                Turn {
                    from: &x[at + first * columns..][..count * columns],
                    columns,
                    // SAFETY: each task writes its own places of every row of the result.
                    to: unsafe { place.at(at + first) },
                    to_step: rows,
                },
            );
        });
    }
    // SAFETY: the tasks cover all rows of all matrices.
    Ok(unsafe { out.finish() })
}

struct Turn<'a> {
    /// Whole rows.
    from: &'a [f32],
    columns: usize,
    /// Rows of the result have `to_step` places each, of which this task writes as many as it has rows.
    to: *mut f32,
    to_step: usize,
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let size = (self.from.len() / self.columns, self.columns);
        // SAFETY: the caller promises the instruction set; `from` and `to` are as the fields say.
        unsafe {
            transpose::<V>(
                size,
                self.from.as_ptr(),
                self.columns,
                self.to,
                self.to_step,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::available;
    use super::*;

    #[test]
    fn every_element_goes_to_its_place() {
        for [b, rows, columns] in [
            [1, 1, 1],
            [2, 3, 5],
            [1, 64, 64],
            [2, 65, 33],
            [1, 130, 40],
            [3, 17, 3],
            [1, 4, 100],
            [2, 0, 4],
        ] {
            let x: Vec<f32> = (0..b * rows * columns).map(|i| i as f32).collect();
            for isa in available() {
                let y = transpose_all(isa, &x, [b, rows, columns], &[b, columns, rows]).unwrap();
                for item in 0..b {
                    for i in 0..rows {
                        for j in 0..columns {
                            let want = x[(item * rows + i) * columns + j];
                            assert_eq!(y[(item * columns + j) * rows + i], want, "{isa:?}");
                        }
                    }
                }
            }
        }
    }
}
