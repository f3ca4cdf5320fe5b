//! Rotation of groups of columns by an orthonormal matrix of equal magnitudes.
//!
//! The matrix of four is `[1 1 1 -1; 1 1 -1 1; 1 -1 1 1; -1 1 1 1] / 2`; larger ones are Kronecker products of it. It is
//! symmetric and its own inverse. A product with it is a pass of differences for each factor of four.

use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::error::Result;

/// Values that one task rotates.
const TASK: usize = 1 << 15;

/// Whether there is a matrix of this size: a power of four.
pub(crate) fn is_possible(group: usize) -> bool {
    group >= 4 && group.is_power_of_two() && group.trailing_zeros().is_multiple_of(2)
}

/// Rotates every group of a row, or of several; back again by the same. A group is a power of four.
pub fn rotate(values: &mut [f32], group: usize) {
    for four in values.as_chunks_mut::<4>().0 {
        let half = 0.5 * ((four[0] + four[1]) + (four[2] + four[3]));
        *four = [
            half - four[3],
            half - four[2],
            half - four[1],
            half - four[0],
        ];
    }
    let mut step = 4;
    while step < group {
        for part in values.chunks_exact_mut(4 * step) {
            let (a, rest) = part.split_at_mut(step);
            let (b, rest) = rest.split_at_mut(step);
            let (c, d) = rest.split_at_mut(step);
            let quarters = a.iter_mut().zip(b).zip(c.iter_mut().zip(d));
            for ((a, b), (c, d)) in quarters {
                let half = 0.5 * ((*a + *b) + (*c + *d));
                (*a, *b, *c, *d) = (half - *d, half - *c, half - *b, half - *a);
            }
        }
        step *= 4;
    }
}

/// Rotated rows, in memory of their own. `columns` is a multiple of the group.
pub(crate) fn rotated(values: &[f32], columns: usize, group: usize) -> Result<Buffer<f32>> {
    let mut rotated = Buffer::copied(values)?;
    let rows = (TASK / columns).max(1);
    rotated
        .par_chunks_mut(rows * columns)
        .for_each(|rows| rotate(rows, group));
    Ok(rotated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_undo_themselves_and_keep_lengths() {
        for group in [4, 16, 64, 256] {
            let values: Vec<f32> = (0..512).map(|i| ((i * 37 % 101) as f32).sin()).collect();
            let mut turned = values.clone();
            rotate(&mut turned, group);
            assert_ne!(turned, values);
            let length = |v: &[f32]| v.iter().map(|x| f64::from(x * x)).sum::<f64>();
            assert!((length(&turned) / length(&values) - 1.0).abs() < 1e-6);
            rotate(&mut turned, group);
            for (a, b) in turned.iter().zip(&values) {
                assert!((a - b).abs() < 1e-6, "{a} {b}");
            }
        }
        assert!([4, 16, 64, 256, 1024].into_iter().all(is_possible));
        assert!(![0, 1, 2, 8, 12, 32, 128].into_iter().any(is_possible));
    }

    #[test]
    fn the_first_matrix_is_the_one_of_the_format() {
        let mut unit = [1.0, 0.0, 0.0, 0.0];
        rotate(&mut unit, 4);
        assert_eq!(unit, [0.5, 0.5, 0.5, -0.5]);
        let mut unit = [0.0, 0.0, 1.0, 0.0];
        rotate(&mut unit, 4);
        assert_eq!(unit, [0.5, -0.5, 0.5, 0.5]);
    }
}
