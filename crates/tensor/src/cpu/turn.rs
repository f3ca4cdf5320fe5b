//! Turning the rows of a weight into columns of a panel: bytes of any meaning, so every instruction set gives the same.

#![expect(
    unsafe_code,
    reason = "vector instructions need pointers and a check that the machine has them"
)]

#[cfg(target_arch = "x86_64")]
use super::isa::{Isa, isa};
use super::lines::LINE;
use super::packed::WIDTH;

/// A cache line of each row of a panel.
pub(super) type Rows = [[u8; LINE]; WIDTH];

/// Bytes of the same turned: for each value of a row, those of all rows side by side.
pub(super) const COLUMNS: usize = LINE * WIDTH;

/// Turns values of `S` bytes.
///
/// # Safety
/// [`COLUMNS`] bytes can be written.
pub(super) unsafe fn turn<const S: usize>(rows: &Rows, to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    if matches!(isa(), Isa::Avx512 | Isa::Avx2) {
        // SAFETY: both have AVX2; the rest is as promised.
        unsafe { avx2::turn::<S>(rows, to) };
        return;
    }
    // SAFETY: as promised.
    unsafe { plain::<S>(rows, to) };
}

/// # Safety
/// As [`turn`].
unsafe fn plain<const S: usize>(rows: &Rows, to: *mut u8) {
    let to = to.cast::<[[u8; S]; WIDTH]>();
    for i in 0..LINE / S {
        let mut column = [[0; S]; WIDTH];
        for (value, row) in column.iter_mut().zip(rows) {
            value.copy_from_slice(&row[i * S..][..S]);
        }
        // SAFETY: as promised, for each value of a row.
        unsafe { to.add(i).write(column) };
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm256_castsi128_si256, _mm256_inserti128_si256,
        _mm256_setzero_si256, _mm256_storeu_si256, _mm256_unpackhi_epi8, _mm256_unpackhi_epi16,
        _mm256_unpackhi_epi32, _mm256_unpacklo_epi8, _mm256_unpacklo_epi16, _mm256_unpacklo_epi32,
    };

    use super::{LINE, Rows, WIDTH};

    /// Values of both, one after the other, in each half of the registers: of the lower parts of the halves, and of the upper ones.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zip<const S: usize>(a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        match S {
            1 => (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)),
            2 => (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)),
            _ => (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)),
        }
    }

    /// One round: the first half of the list with the second half.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn round<const S: usize, const N: usize>(from: &[__m256i; N]) -> [__m256i; N] {
        let mut to = [_mm256_setzero_si256(); N];
        for i in 0..N / 2 {
            (to[2 * i], to[2 * i + 1]) = zip::<S>(from[i], from[i + N / 2]);
        }
        to
    }

    /// Squares of `N` values, which fill half a register: each half of the registers has a square of other rows. A round moves the bits of
    /// the address of a value around by one, so that after log2(`N`) of them row and column have changed places.
    ///
    /// # Safety
    /// As [`super::turn`].
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn squares<const S: usize, const N: usize>(rows: &Rows, to: *mut u8) {
        for group in (0..WIDTH).step_by(2 * N) {
            for column in (0..LINE / S).step_by(N) {
                let mut square = [_mm256_setzero_si256(); N];
                for (i, to) in square.iter_mut().enumerate() {
                    let upper = rows[group + i][column * S..][..16].as_ptr();
                    let lower = rows[group + N + i][column * S..][..16].as_ptr();
                    // SAFETY: both are 16 bytes.
                    let (upper, lower) =
                        unsafe { (_mm_loadu_si128(upper.cast()), _mm_loadu_si128(lower.cast())) };
                    *to = _mm256_inserti128_si256(_mm256_castsi128_si256(upper), lower, 1);
                }
                let mut rounds = N;
                while rounds > 1 {
                    square = round::<S, N>(&square);
                    rounds /= 2;
                }
                for (i, turned) in square.into_iter().enumerate() {
                    let place = ((column + i) * WIDTH + group) * S;
                    // SAFETY: as promised: 32 bytes of the column, which has WIDTH values.
                    unsafe { _mm256_storeu_si256(to.add(place).cast(), turned) };
                }
            }
        }
    }

    /// # Safety
    /// As [`super::turn`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn turn<const S: usize>(rows: &Rows, to: *mut u8) {
        // SAFETY: as promised.
        unsafe {
            match S {
                1 => squares::<S, 16>(rows, to),
                2 => squares::<S, 8>(rows, to),
                _ => squares::<S, 4>(rows, to),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const S: usize>() {
        let mut rows: Rows = [[0; LINE]; WIDTH];
        for (r, row) in rows.iter_mut().enumerate() {
            for (i, byte) in row.iter_mut().enumerate() {
                *byte = (r * LINE + i * 7).to_le_bytes()[0] ^ (r as u8);
            }
        }
        let mut columns = [0; COLUMNS];
        // SAFETY: the list is as long as that.
        unsafe { turn::<S>(&rows, columns.as_mut_ptr()) };
        for (i, column) in columns.chunks_exact(WIDTH * S).enumerate() {
            for (r, value) in column.chunks_exact(S).enumerate() {
                assert_eq!(
                    value,
                    &rows[r][i * S..][..S],
                    "value {i} of row {r}, {S} bytes"
                );
            }
        }
        let mut by_hand = [1; COLUMNS];
        // SAFETY: as above.
        unsafe { plain::<S>(&rows, by_hand.as_mut_ptr()) };
        assert!(by_hand == columns, "{S} bytes");
    }

    #[test]
    fn every_value_goes_to_its_place() {
        check::<1>();
        check::<2>();
        check::<4>();
    }
}
