//! Filters of PNG rows: what is stored is the difference to a guess from the pixels to the left and above.

#![expect(
    clippy::inline_always,
    reason = "a guess that is called for each byte is made for one byte at a time"
)]

/// A row with one pixel of zeros in front, so that its first pixel has one to its left.
#[derive(Clone, Default)]
pub(crate) struct PaddedRow {
    bytes: Vec<u8>,
    pad: usize,
}

impl PaddedRow {
    /// A row of zeros: `stride` bytes, `pad` of them in a pixel.
    pub(crate) fn new(stride: usize, pad: usize) -> Self {
        Self {
            bytes: vec![0; stride + pad],
            pad,
        }
    }

    /// The row without what stands before it.
    pub(crate) fn pixels(&mut self) -> &mut [u8] {
        &mut self.bytes[self.pad..]
    }
}

/// A row and its neighbours, all of the same length.
#[derive(Clone, Copy)]
struct Neighbours<'a> {
    row: &'a [u8],
    left: &'a [u8],
    above: &'a [u8],
    above_left: &'a [u8],
}

impl<'a> Neighbours<'a> {
    fn new(row: &'a PaddedRow, above: &'a PaddedRow) -> Self {
        let stride = row.bytes.len() - row.pad;
        Self {
            row: &row.bytes[row.pad..],
            left: &row.bytes[..stride],
            above: &above.bytes[row.pad..],
            above_left: &above.bytes[..stride],
        }
    }
}

/// No filter.
pub(crate) fn plain(row: &PaddedRow, out: &mut [u8]) {
    out[0] = 0;
    out[1..].copy_from_slice(&row.bytes[row.pad..]);
}

/// The filter that only looks above, for previews.
pub(crate) fn up(row: &PaddedRow, above: &PaddedRow, out: &mut [u8]) {
    out[0] = 2;
    write(Neighbours::new(row, above), &mut out[1..], |_, b, _| b);
}

/// The one of the five filters whose bytes, read as signed, have the smallest sum; the first of those.
pub(crate) fn best(row: &PaddedRow, above: &PaddedRow, out: &mut [u8]) {
    let near = Neighbours::new(row, above);
    let (mut kind, mut least) = (0, cost(near, |_, _, _| 0));
    for number in 1..5 {
        // Nothing is smaller.
        if least == 0 {
            break;
        }
        let cost = match number {
            1 => cost(near, |a, _, _| a),
            2 => cost(near, |_, b, _| b),
            3 => cost(near, |a, b, _| a.midpoint(b)),
            _ => cost(near, paeth),
        };
        if cost < least {
            (kind, least) = (number, cost);
        }
    }
    out[0] = kind;
    let out = &mut out[1..];
    match kind {
        0 => out.copy_from_slice(near.row),
        1 => write(near, out, |a, _, _| a),
        2 => write(near, out, |_, b, _| b),
        3 => write(near, out, |a, b, _| a.midpoint(b)),
        _ => write(near, out, paeth),
    }
}

/// The neighbour nearest to `a + b - c`; of equally near ones the left, then the one above. In bytes alone, which processors do
/// sixteen and more of at once.
#[inline(always)]
fn paeth(a: u8, b: u8, c: u8) -> u8 {
    let (low, high) = (a.min(b), a.max(b));
    let (to_a, to_b) = (b.abs_diff(c), a.abs_diff(c));
    // Between the two the guess is as far from `c` as they are from each other's mirror.
    let nearest = if to_a.abs_diff(to_b) < to_a.min(to_b) {
        c
    } else if to_a <= to_b {
        a
    } else {
        b
    };
    // Outside it is beyond the one that is farther from `c`.
    let nearest = if c >= high { low } else { nearest };
    if c <= low { high } else { nearest }
}

/// Bytes that are summed at once.
const LANES: usize = 32;

/// How far the differences are from zero, all together.
#[inline(always)]
fn cost(near: Neighbours<'_>, guess: impl Fn(u8, u8, u8) -> u8) -> u64 {
    let size = |x: u8, a, b, c| {
        let difference = x.wrapping_sub(guess(a, b, c));
        difference.min(difference.wrapping_neg())
    };
    let (rows, row) = near.row.as_chunks::<LANES>();
    let (lefts, left) = near.left.as_chunks::<LANES>();
    let (aboves, above) = near.above.as_chunks::<LANES>();
    let (corners, corner) = near.above_left.as_chunks::<LANES>();
    let mut sum = 0;
    for (((x, a), b), c) in rows.iter().zip(lefts).zip(aboves).zip(corners) {
        let sizes: [u8; LANES] = std::array::from_fn(|i| size(x[i], a[i], b[i], c[i]));
        let part: u32 = sizes.iter().map(|size| u32::from(*size)).sum();
        sum += u64::from(part);
    }
    let rest = row.iter().zip(left).zip(above).zip(corner);
    let rest = rest.map(|(((x, a), b), c)| u64::from(size(*x, *a, *b, *c)));
    sum + rest.sum::<u64>()
}

#[inline(always)]
fn write(near: Neighbours<'_>, out: &mut [u8], guess: impl Fn(u8, u8, u8) -> u8) {
    let neighbours = near.left.iter().zip(near.above).zip(near.above_left);
    for ((out, x), ((a, b), c)) in out.iter_mut().zip(near.row).zip(neighbours) {
        *out = x.wrapping_sub(guess(*a, *b, *c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_neighbour_is_that_of_the_format() {
        for a in 0..=255_u8 {
            for b in 0..=255_u8 {
                for c in 0..=255_u8 {
                    let [x, y, z] = [a, b, c].map(i16::from);
                    let guess = x + y - z;
                    let [to_a, to_b, to_c] = [x, y, z].map(|near| (guess - near).abs());
                    let wanted = if to_a <= to_b && to_a <= to_c {
                        a
                    } else if to_b <= to_c {
                        b
                    } else {
                        c
                    };
                    assert_eq!(paeth(a, b, c), wanted, "{a} {b} {c}");
                }
            }
        }
    }

    /// What a filter guesses, as the format says it.
    fn guess(kind: u8, a: u8, b: u8, c: u8) -> u8 {
        match kind {
            0 => 0,
            1 => a,
            2 => b,
            3 => u8::midpoint(a, b),
            _ => paeth(a, b, c),
        }
    }

    #[test]
    fn the_filter_with_the_smallest_sum_wins_and_can_be_undone() {
        let mut state = 1_u32;
        let mut chance = |limit: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) % limit) as u8
        };
        let mut wins = [0; 5];
        for case in 0..250 {
            let (pad, width) = (3 + case % 2, 11 + case % 37);
            let stride = pad * width;
            let mut above = PaddedRow::new(stride, pad);
            let mut row = above.clone();
            let (steps, noise) = (2 + case as u32 % 40, 1 + case as u32 % 7);
            for i in pad..stride + pad {
                above.bytes[i] = above.bytes[i - pad].wrapping_add(chance(steps));
                let (a, b, c) = (row.bytes[i - pad], above.bytes[i], above.bytes[i - pad]);
                let near = guess((case % 5) as u8, a, b, c);
                row.bytes[i] = near
                    .wrapping_add(chance(noise))
                    .wrapping_sub(noise as u8 / 2);
            }
            let filtered = |kind: u8| -> Vec<u8> {
                let each = pad..stride + pad;
                let near = each.map(|i| {
                    let (a, b, c) = (row.bytes[i - pad], above.bytes[i], above.bytes[i - pad]);
                    row.bytes[i].wrapping_sub(guess(kind, a, b, c))
                });
                near.collect()
            };
            let sum = |kind: u8| -> u32 {
                let bytes = filtered(kind).into_iter();
                bytes.map(|b| u32::from((b as i8).unsigned_abs())).sum()
            };
            let wanted = (0..5).min_by_key(|kind| sum(*kind)).unwrap();
            let mut out = vec![9; stride + 1];
            best(&row, &above, &mut out);
            assert_eq!(out[0], wanted, "case {case}");
            assert!(out[1..] == filtered(wanted), "case {case}");
            wins[usize::from(wanted)] += 1;
            up(&row, &above, &mut out);
            assert!(out[0] == 2 && out[1..] == filtered(2), "case {case}");
            plain(&row, &mut out);
            assert!(out[0] == 0 && out[1..] == filtered(0), "case {case}");
        }
        assert!(wins.iter().all(|wins| *wins > 0), "{wins:?}");
    }
}
