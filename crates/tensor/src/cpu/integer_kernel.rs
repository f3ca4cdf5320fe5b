//! Kernels of products of bytes: a few rows of inputs times one panel of weights.
//!
//! A panel has four channels of an output side by side, those of all its outputs in turn.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "loads and stores that need no alignment"
)]
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "vector instructions on memory whose length was checked"
    )
)]

#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::isa::{self, Isa};
use super::packed::{QUAD_STEP, WIDTH};

/// Most rows of any kernel.
pub(super) const MOST_ROWS: usize = 32;

/// The sums of a block of rows.
pub(super) type Sums = [[i32; WIDTH]; MOST_ROWS];

/// Fewer rows than this are not worth the padding of tiles.
#[cfg(target_arch = "x86_64")]
const TILE_ROWS: usize = 9;

/// What multiplies bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntegerEngine {
    #[cfg(target_arch = "x86_64")]
    Tiles,
    /// AVX-512 with products of four bytes at a time.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// Rows of bytes, the distance between them, and the sums of each.
type InputRows<'a> = (&'a [u8], usize, &'a [i32]);

impl IntegerEngine {
    #[cfg(target_arch = "x86_64")]
    pub(super) fn choose(rows: usize) -> Self {
        if rows >= TILE_ROWS && isa::tiles() && amx::has_bytes() {
            return Self::Tiles;
        }
        match isa::isa() {
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => Self::Vnni,
            Isa::Avx512 | Isa::Avx2 => Self::Avx2,
            Isa::Neon | Isa::Portable => Self::Portable,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn choose(_rows: usize) -> Self {
        Self::Portable
    }

    /// Rows of a block.
    pub(super) fn rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => 32,
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => 8,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 2,
            Self::Portable => 4,
        }
    }

    /// The sums of a block of rows; those behind `m` are of no meaning. The inputs reach to a whole block of rows.
    pub(super) fn tile(
        self,
        m: usize,
        a: InputRows<'_>,
        (b, steps): (&[u8], usize),
        sums: &mut Sums,
    ) {
        let rows = self.rows();
        let columns = steps * QUAD_STEP;
        assert!(m <= rows && b.len() >= columns * WIDTH && a.2.len() >= rows);
        assert!(a.0.len() >= (rows - 1) * a.1 + columns);
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the instructions, and the lengths were checked.
            Self::Vnni => unsafe {
                match m {
                    1 => x86::rows_vnni::<1>(a, b, columns, sums),
                    2 => x86::rows_vnni::<2>(a, b, columns, sums),
                    3 | 4 => x86::rows_vnni::<4>(a, b, columns, sums),
                    _ => x86::rows_vnni::<8>(a, b, columns, sums),
                }
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 => unsafe { x86::rows_avx2(a, b, columns, sums) },
            _ => portable(m, a, b, columns, sums),
        }
    }
}

fn portable(m: usize, a: InputRows<'_>, b: &[u8], columns: usize, sums: &mut Sums) {
    let (quads, _) = b.as_chunks::<{ 4 * WIDTH }>();
    for (row, sums) in sums[..m].iter_mut().enumerate() {
        let (inputs, _) = a.0[row * a.1..][..columns].as_chunks::<4>();
        *sums = [0; WIDTH];
        for (x, quad) in inputs.iter().zip(quads) {
            let x = x.map(|x| i32::from(x as i8));
            for (sum, w) in sums.iter_mut().zip(quad.as_chunks::<4>().0) {
                let products = x.iter().zip(w).map(|(x, w)| x * i32::from(*w as i8));
                *sum += products.sum::<i32>();
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{InputRows, Sums, WIDTH};

    /// # Safety
    /// The machine has AVX-512 with VNNI; `M` rows of `a` have `columns` bytes, `b` as many for each output.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) unsafe fn rows_vnni<const M: usize>(
        (a, pitch, row_sums): InputRows<'_>,
        b: &[u8],
        columns: usize,
        sums: &mut Sums,
    ) {
        // The instruction wants one side without signs: weights are moved up by 128, and what that adds is taken off.
        let move_up = _mm512_set1_epi8(-128);
        let mut sum = [[_mm512_setzero_si512(); 2]; M];
        for (i, sum) in sum.iter_mut().enumerate() {
            *sum = [_mm512_set1_epi32(-128 * row_sums[i]); 2];
        }
        let mut b = b.as_ptr();
        for quad in (0..columns).step_by(4) {
            // SAFETY: the caller promises the bytes of all channels.
            unsafe {
                let b0 = _mm512_xor_si512(_mm512_loadu_si512(b.cast()), move_up);
                let b1 = _mm512_xor_si512(_mm512_loadu_si512(b.add(64).cast()), move_up);
                b = b.add(4 * WIDTH);
                for (i, sum) in sum.iter_mut().enumerate() {
                    let x = a.as_ptr().add(i * pitch + quad).cast::<i32>();
                    let x = _mm512_set1_epi32(x.read_unaligned());
                    sum[0] = _mm512_dpbusd_epi32(sum[0], b0, x);
                    sum[1] = _mm512_dpbusd_epi32(sum[1], b1, x);
                }
            }
        }
        for (to, sum) in sums.iter_mut().zip(&sum) {
            // SAFETY: 32 sums of four bytes.
            unsafe {
                _mm512_storeu_si512(to.as_mut_ptr().cast(), sum[0]);
                _mm512_storeu_si512(to.as_mut_ptr().add(16).cast(), sum[1]);
            }
        }
    }

    /// # Safety
    /// The machine has AVX2; two rows of `a` have `columns` bytes, `b` as many for each output.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn rows_avx2(
        (a, pitch, _): InputRows<'_>,
        b: &[u8],
        columns: usize,
        sums: &mut Sums,
    ) {
        for quarter in 0..4 {
            // Pairs of sums, of four outputs each.
            let mut sum = [[_mm256_setzero_si256(); 2]; 2];
            for quad in (0..columns).step_by(4) {
                // SAFETY: the caller promises the bytes of all channels.
                unsafe {
                    let b = b.as_ptr().add(quad * WIDTH + quarter * 32);
                    let b0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.cast()));
                    let b1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.add(16).cast()));
                    for (i, sum) in sum.iter_mut().enumerate() {
                        let x = a.as_ptr().add(i * pitch + quad).cast::<i32>();
                        let x = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(x.read_unaligned()));
                        let x = _mm256_broadcastq_epi64(x);
                        sum[0] = _mm256_add_epi32(sum[0], _mm256_madd_epi16(b0, x));
                        sum[1] = _mm256_add_epi32(sum[1], _mm256_madd_epi16(b1, x));
                    }
                }
            }
            for (to, sum) in sums.iter_mut().zip(&sum) {
                // Neighbours are added inside halves; the quarters are then in the order 0, 2, 1, 3.
                let pairs = _mm256_hadd_epi32(sum[0], sum[1]);
                let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs);
                // SAFETY: eight sums of four bytes.
                unsafe {
                    _mm256_storeu_si256(to.as_mut_ptr().add(quarter * 8).cast(), ordered);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All kernels of this machine agree with sums written out.
    #[test]
    fn kernels_agree() {
        let columns = 192;
        let pitch = 256;
        let byte = |i: usize| (i * 131 + i / 7 * 29) as u8;
        let a: Vec<u8> = (0..MOST_ROWS * pitch).map(byte).collect();
        let b: Vec<u8> = (0..columns * WIDTH).map(|i| byte(i + 5)).collect();
        let row_sums: Vec<i32> = (0..MOST_ROWS)
            .map(|row| {
                a[row * pitch..][..columns]
                    .iter()
                    .map(|v| i32::from(*v as i8))
                    .sum()
            })
            .collect();
        let wanted = |row: usize, output: usize| -> i32 {
            (0..columns)
                .map(|k| {
                    let w = b[k / 4 * 4 * WIDTH + output * 4 + k % 4] as i8;
                    i32::from(a[row * pitch + k] as i8) * i32::from(w)
                })
                .sum()
        };
        let engines = [
            Some(IntegerEngine::Portable),
            #[cfg(target_arch = "x86_64")]
            is_x86_feature_detected!("avx2").then_some(IntegerEngine::Avx2),
            #[cfg(target_arch = "x86_64")]
            is_x86_feature_detected!("avx512vnni").then_some(IntegerEngine::Vnni),
        ];
        for engine in engines.into_iter().flatten() {
            for m in 1..=engine.rows() {
                let mut sums = [[0; WIDTH]; MOST_ROWS];
                let steps = columns / QUAD_STEP;
                engine.tile(m, (&a, pitch, &row_sums), (&b, steps), &mut sums);
                for row in 0..m {
                    for output in 0..WIDTH {
                        assert_eq!(sums[row][output], wanted(row, output), "{engine:?} {row}");
                    }
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        if isa::tiles() && amx::has_bytes() {
            let tiles = amx::Tiles::new();
            for m in [1, 16, 17, 32] {
                let mut sums = [[0; WIDTH]; MOST_ROWS];
                amx::tile_bytes(&tiles, m, &a, pitch, (&b, columns / QUAD_STEP), &mut sums);
                for row in 0..m {
                    for output in 0..WIDTH {
                        assert_eq!(sums[row][output], wanted(row, output), "tiles {row}");
                    }
                }
            }
        }
    }
}
