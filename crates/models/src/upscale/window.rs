//! Attention inside the windows of a picture, with a bias for each pair of places (Liu et al. 2021). Pictures are
//! (b, h, w, c), windows (b * count, places, c).

use fresco_tensor::nn::{Mask, attention};
use fresco_tensor::{Axes, Device, Tensor};

use crate::error::Result;

/// Height and width of a window.
pub(super) type Size = (usize, usize);

/// A picture as windows, row by row.
pub(super) fn windows(x: &Tensor, (wh, ww): Size) -> Result<Tensor> {
    let [b, h, w, c] = x.dims4()?;
    let cells = x.reshape([b, h / wh, wh, w / ww, ww, c])?;
    let cells = cells.permute(&[0, 1, 3, 2, 4, 5])?;
    Ok(cells.reshape([b * (h / wh) * (w / ww), wh * ww, c])?)
}

/// Windows as a picture of that height and width.
pub(super) fn picture(x: &Tensor, (wh, ww): Size, (h, w): Size) -> Result<Tensor> {
    let [count, _, c] = x.dims3()?;
    let (rows, columns) = (h / wh, w / ww);
    let b = count / (rows * columns).max(1);
    let cells = x.reshape([b, rows, columns, wh, ww, c])?;
    let cells = cells.permute(&[0, 1, 3, 2, 4, 5])?;
    Ok(cells.reshape([b, h, w, c])?)
}

/// A picture moved up and to the left; what leaves comes back on the other side.
pub(super) fn rolled(x: &Tensor, (up, left): Size) -> Result<Tensor> {
    let [_, h, w, _] = x.dims4()?;
    let mut x = x.clone();
    for (dim, len, by) in [(1, h, up), (2, w, left)] {
        if by % len.max(1) != 0 {
            let places: Vec<usize> = (0..len).map(|i| (i + by) % len).collect();
            x = x.index_select(dim, &places)?;
        }
    }
    Ok(x)
}

/// The opposite of [`rolled`].
pub(super) fn rolled_back(x: &Tensor, (up, left): Size) -> Result<Tensor> {
    let [_, h, w, _] = x.dims4()?;
    rolled(x, (h - up % h.max(1), w - left % w.max(1)))
}

/// For each pair of places of a window, the row of the table that has their bias.
pub(super) fn pair_rows((wh, ww): Size) -> Vec<u32> {
    let places: Vec<(usize, usize)> = (0..wh * ww).map(|i| (i / ww, i % ww)).collect();
    let pair = |a: &(usize, usize), b: &(usize, usize)| {
        let (dy, dx) = (a.0 + wh - 1 - b.0, a.1 + ww - 1 - b.1);
        (dy * (2 * ww - 1) + dx) as u32
    };
    let rows = places
        .iter()
        .flat_map(|a| places.iter().map(|b| pair(a, b)).collect::<Vec<_>>());
    rows.collect()
}

/// Biases (queries * keys, heads) as a mask for [`attention`].
pub(super) fn bias_mask(rows: &Tensor, queries: usize, keys: usize) -> Result<Tensor> {
    let heads = rows.dim(1)?;
    Ok(rows.permute(&[1, 0])?.reshape([1, heads, queries, keys])?)
}

/// Windows of a picture that was moved: those at the end of it hold places that are no neighbours.
pub(super) struct Moved {
    window: Size,
    shift: Size,
    /// Windows in a row and in a column of the picture.
    count: Size,
}

/// What is added where a place must not see another.
const APART: f32 = -100.0;

impl Moved {
    pub(super) fn new(window: Size, shift: Size, (h, w): Size) -> Self {
        Self {
            window,
            shift,
            count: (h / window.0, w / window.1),
        }
    }

    /// Whether a window is in the last row, and in the last column.
    fn ends(&self, window: usize) -> (bool, bool) {
        let (rows, columns) = self.count;
        let at = window % (rows * columns).max(1);
        (at / columns + 1 == rows, at % columns + 1 == columns)
    }

    /// The mask of windows at such ends: (1, 1, places, places).
    fn mask(&self, (bottom, right): (bool, bool)) -> Result<Tensor> {
        let (wh, ww) = self.window;
        let region = |place: usize| {
            let low = bottom && place / ww >= wh - self.shift.0;
            let far = right && place % ww >= ww - self.shift.1;
            (low, far)
        };
        let places = wh * ww;
        let mask = Tensor::from_fn([1, 1, places, places], |i| {
            if region(i / places) == region(i % places) {
                0.0
            } else {
                APART
            }
        });
        Ok(mask?)
    }
}

/// Attention in windows, biased; those of a picture that was moved do not see across its ends.
pub(super) fn attend(
    [q, k, v]: [&Tensor; 3],
    heads: usize,
    bias: &Tensor,
    moved: Option<&Moved>,
) -> Result<Tensor> {
    let plain = |q: &Tensor, k: &Tensor, v: &Tensor, bias: &Tensor| {
        attention(q, k, v, heads, Mask::Add(bias), None)
    };
    let Some(moved) = moved else {
        return Ok(plain(q, k, v, bias)?);
    };
    let count = q.dim(0)?;
    let device = q.device();
    // There are four kinds of windows, each with one mask for all.
    let mut order = Vec::with_capacity(count);
    let mut parts = Vec::new();
    for ends in [(false, false), (false, true), (true, false), (true, true)] {
        let those: Vec<usize> = (0..count).filter(|i| moved.ends(*i) == ends).collect();
        if those.is_empty() {
            continue;
        }
        let take = |x: &Tensor| x.index_select(0, &those);
        let bias = match ends {
            (false, false) => bias.clone(),
            ends => bias.add(&moved.mask(ends)?.to(&device)?)?,
        };
        parts.push(plain(&take(q)?, &take(k)?, &take(v)?, &bias)?);
        order.extend(those);
    }
    let all = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?;
    let mut back = vec![0; count];
    for (place, window) in order.into_iter().enumerate() {
        back[window] = place;
    }
    Ok(all.index_select(0, &back)?)
}

/// Zeros around a picture: above, below, left, right.
pub(super) fn zeros_around(x: &Tensor, [top, bottom, left, right]: [usize; 4]) -> Result<Tensor> {
    let device = x.device();
    let mut x = x.clone();
    for (dim, before, after) in [(1, top, bottom), (2, left, right)] {
        if before + after > 0 {
            let zeros = |len: usize| {
                let mut shape = x.shape().to_vec();
                shape[dim] = len;
                Tensor::zeros_on(&device, shape)
            };
            let (first, last) = (zeros(before)?, zeros(after)?);
            let parts = [&first, &x, &last];
            let parts: Vec<&Tensor> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            x = Tensor::cat(&parts, dim)?;
        }
    }
    Ok(x)
}

/// Parts of the last dimension, equally wide.
pub(super) fn thirds(x: &Tensor) -> Result<[Tensor; 3]> {
    let dim = x.rank() - 1;
    let width = x.dim(dim)? / 3;
    let part = |i: usize| x.narrow(dim, i * width, width);
    Ok([part(0)?, part(1)?, part(2)?])
}

/// The mean of each channel, where the picture is: (b, 1, 1, c).
pub(super) fn channel_means(x: &Tensor) -> Result<Tensor> {
    Ok(x.mean(&[1, 2], Axes::Keep)?)
}

/// A tensor in main memory.
pub(super) fn home(x: &Tensor) -> Result<Tensor> {
    Ok(x.to(&Device::cpu())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_back() {
        let x = Tensor::from_fn([2, 4, 6, 3], |i| i as f32).unwrap();
        let cut = windows(&x, (2, 3)).unwrap();
        assert_eq!(cut.shape(), [8, 6, 3]);
        assert_eq!(picture(&cut, (2, 3), (4, 6)).unwrap(), x);
        let moved = rolled(&x, (1, 2)).unwrap();
        assert_eq!(
            moved.at(&[0, 0, 0, 0]).unwrap(),
            x.at(&[0, 1, 2, 0]).unwrap()
        );
        assert_eq!(rolled_back(&moved, (1, 2)).unwrap(), x);
        let framed = zeros_around(&x, [1, 0, 0, 2]).unwrap();
        assert_eq!(framed.shape(), [2, 5, 8, 3]);
        assert_eq!(
            framed.at(&[1, 1, 0, 0]).unwrap(),
            x.at(&[1, 0, 0, 0]).unwrap()
        );
    }

    #[test]
    fn pairs_are_by_their_distance() {
        let rows = pair_rows((2, 2));
        assert_eq!(rows[0], 4);
        assert_eq!(rows[1], 3);
        assert_eq!(rows[3 * 4], 8);
    }

    #[test]
    fn windows_at_the_end_see_only_their_side() {
        let moved = Moved::new((2, 2), (1, 1), (4, 4));
        assert_eq!(moved.ends(0), (false, false));
        assert_eq!(moved.ends(3), (true, true));
        let mask = moved.mask((false, true)).unwrap();
        assert_eq!(mask.data()[..4], [0.0, APART, 0.0, APART]);
    }
}
