//! Largest and smallest values in moving windows, for masks and pictures. Pixels outside do not count.

use crate::buffer::Buffer;
use crate::cancel::{CHUNK, Cancel};
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// Which value of a window is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extreme {
    Min,
    Max,
}

impl Extreme {
    fn neutral(self) -> f32 {
        match self {
            Self::Min => f32::INFINITY,
            Self::Max => f32::NEG_INFINITY,
        }
    }

    /// How far a window reaches back.
    fn before(self, size: usize) -> usize {
        match self {
            Self::Min => size / 2,
            Self::Max => (size - 1) / 2,
        }
    }

    fn of(self, a: f32, b: f32) -> f32 {
        match self {
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }

    fn into(self, target: &mut [f32], other: &[f32]) {
        for (a, &b) in target.iter_mut().zip(other) {
            *a = self.of(*a, b);
        }
    }
}

/// The extreme value of a `size` x `size` window around every pixel of the last two dimensions.
/// Where a window cannot be centred, the smallest reaches one pixel further up and left and the largest one further
/// down and right, so that opening and closing do not move the picture.
pub fn window(x: &Tensor, size: usize, extreme: Extreme) -> Result<Tensor> {
    let [.., h, w] = *x.shape() else {
        return Err(TensorError::rank("window", "2 or more", x.shape()));
    };
    if size == 0 {
        return Err(TensorError::invalid("window", "a window of size 0"));
    }
    if x.is_empty() {
        return Ok(x.clone());
    }
    let mut out = x.clone();
    // A window over the whole picture from any pixel is enough; the limit keeps the scratch space small.
    let (size_x, size_y) = (size.min(2 * w + 1), size.min(2 * h + 1));
    let cancel = Cancel::current();
    for plane in out.data_mut().chunks_exact_mut(h * w) {
        for row in plane.chunks_exact_mut(w) {
            slide(row, 1, size_x, extreme, &cancel)?;
        }
        slide(plane, w, size_y, extreme, &cancel)?;
    }
    Ok(out)
}

/// Windows along items of `width` values each. Works by doubling: extremes over 1, 2, 4, .. items, then two of them
/// overlap to make the size, so that the cost grows with the logarithm of the window.
fn slide(
    values: &mut [f32],
    width: usize,
    size: usize,
    extreme: Extreme,
    cancel: &Cancel,
) -> Result<()> {
    cancel.check()?;
    let items = values.len() / width;
    let before = extreme.before(size);
    let mut spread = Buffer::filled((items + size - 1) * width, extreme.neutral())?;
    spread[before * width..][..values.len()].copy_from_slice(values);
    let mut covered = 1;
    while covered * 2 <= size {
        let (step, end) = (covered * width, spread.len());
        for first in (0..end - step).step_by(CHUNK) {
            cancel.stop();
            for i in first..(first + CHUNK).min(end - step) {
                spread[i] = extreme.of(spread[i], spread[i + step]);
            }
        }
        covered *= 2;
    }
    values.copy_from_slice(&spread[..values.len()]);
    extreme.into(values, &spread[(size - covered) * width..]);
    Ok(())
}

/// The extreme value among a pixel and its four neighbours.
fn cross(x: &[f32], h: usize, w: usize, extreme: Extreme) -> Result<Buffer<f32>> {
    let mut out = Buffer::copied(x)?;
    for y in 0..h {
        let row = &x[y * w..][..w];
        let target = &mut out[y * w..][..w];
        extreme.into(&mut target[1..], row);
        extreme.into(target, &row[1..]);
        if y > 0 {
            extreme.into(target, &x[(y - 1) * w..][..w]);
        }
        if y + 1 < h {
            extreme.into(target, &x[(y + 1) * w..][..w]);
        }
    }
    Ok(out)
}

/// Grows (`steps` > 0) or shrinks masks (.., h, w) by 3x3 grey dilation or erosion, step by step.
/// `tapered` leaves the corners out of each step, so that corners come out round.
pub fn grow_mask(mask: &Tensor, steps: i64, tapered: bool) -> Result<Tensor> {
    let [.., h, w] = *mask.shape() else {
        return Err(TensorError::rank("grow_mask", "2 or more", mask.shape()));
    };
    if steps == 0 || mask.is_empty() {
        return Ok(mask.clone());
    }
    let extreme = if steps > 0 {
        Extreme::Max
    } else {
        Extreme::Min
    };
    let count = steps.unsigned_abs();
    if !tapered {
        // Squares add up: n steps are one window.
        let reach = count.min(h.max(w) as u64) as usize;
        return window(mask, 2 * reach + 1, extreme);
    }
    let mut out = mask.clone();
    let cancel = Cancel::current();
    for plane in out.data_mut().chunks_exact_mut(h * w) {
        // After h + w steps every pixel has reached every other.
        for _ in 0..count.min((h + w) as u64) {
            cancel.check()?;
            let next = cross(plane, h, w, extreme)?;
            if *next == *plane {
                break;
            }
            plane.copy_from_slice(&next);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Axes;

    #[test]
    fn windows_match_their_definition() {
        let x = crate::synthetic::value("m", &[2, 5, 7], 1.0).unwrap();
        for size in [1, 2, 3, 4, 5, 8, 9, 40, 999] {
            for extreme in [Extreme::Min, Extreme::Max] {
                let out = window(&x, size, extreme).unwrap();
                for n in 0..x.len() {
                    let (item, y, c) = (n / 35, n / 7 % 5, n % 7);
                    let reach = |i: usize, n: usize| {
                        let before = if extreme == Extreme::Min {
                            size / 2
                        } else {
                            (size - 1) / 2
                        };
                        i.saturating_sub(before)..(i + size - before).min(n)
                    };
                    let mut best = extreme.neutral();
                    for yy in reach(y, 5) {
                        for xx in reach(c, 7) {
                            best = extreme.of(best, x.at(&[item, yy, xx]).unwrap());
                        }
                    }
                    assert_eq!(out.data()[n], best, "size {size} at {y} {c}");
                }
            }
        }
        assert!(window(&x, 0, Extreme::Max).is_err());
        assert!(window(&Tensor::scalar(1.0), 3, Extreme::Max).is_err());
    }

    fn dot() -> Tensor {
        let mut t = Tensor::zeros([1, 5, 5]).unwrap();
        t.data_mut()[12] = 1.0;
        t
    }

    #[test]
    fn growing() {
        let square = grow_mask(&dot(), 1, false).unwrap();
        assert_eq!(square.sum(&[], Axes::Drop).unwrap().item(), Ok(9.0));
        let diamond = grow_mask(&dot(), 2, true).unwrap();
        assert_eq!(diamond.sum(&[], Axes::Drop).unwrap().item(), Ok(13.0));
        assert_eq!(
            grow_mask(&diamond, -1, true).unwrap(),
            grow_mask(&dot(), 1, true).unwrap()
        );
        assert_eq!(
            grow_mask(&dot(), i64::MAX, true).unwrap(),
            Tensor::ones([1, 5, 5]).unwrap()
        );
        assert_eq!(
            grow_mask(&dot(), i64::MIN, false).unwrap(),
            Tensor::zeros([1, 5, 5]).unwrap()
        );
        let line = Tensor::from_vec([1, 1], vec![0.5]).unwrap();
        assert_eq!(grow_mask(&line, 3, true).unwrap(), line);
        // The border does not shrink a full mask.
        let full = Tensor::ones([1, 3, 3]).unwrap();
        assert_eq!(grow_mask(&full, -2, false).unwrap(), full);
    }
}
