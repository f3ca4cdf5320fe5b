//! The f32 kernels: a few rows of activations times one panel of weights, in each instruction set, and the decoding of
//! panels to f32.
//!
//! Every kernel adds the products of an output in the order of the channels, so that a result depends neither on how
//! the rows were divided nor on the thread.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "loads and stores that need no alignment, and rows of f32"
)]
#![expect(
    unsafe_code,
    reason = "vector instructions on memory that the caller names"
)]

use super::finish::{self, Finish, Lane};
use super::isa::Isa;
use super::packed::WIDTH;

/// A run of channels of one tap: where it begins in a row of activations, in bytes, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelStep {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: *const u8,
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
}

/// Most rows that one call of [`tile`] takes.
pub(crate) fn rows(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 12,
        Isa::Avx2 => 6,
        Isa::Neon => 8,
        Isa::Portable => 4,
    }
}

/// `c = a b`, or `c += a b`, for `m` rows of activations and one panel.
///
/// # Safety
/// The machine has `isa`; `m` is at most [`rows`]; each step of each row of `a` is readable; `b` holds WIDTH values for
/// each channel of the steps; `c` has room for `m` lanes.
pub(crate) unsafe fn tile(
    isa: Isa,
    m: usize,
    steps: &[KernelStep],
    a: Rows,
    b: *const f32,
    c: *mut Lane,
    add: bool,
) {
    // SAFETY: the caller promises what each kernel needs.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::tile_avx512(m, steps, a, b, c, add),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::tile_avx2(m, steps, a, b, c, add),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => arm::tile_neon(m, steps, a, b, c, add),
            _ => tile_portable(m, steps, a, b, c, add),
        }
    }
}

/// # Safety
/// As [`tile`].
unsafe fn tile_portable(
    m: usize,
    steps: &[KernelStep],
    a: Rows,
    mut b: *const f32,
    c: *mut Lane,
    add: bool,
) {
    if !add {
        for row in 0..m {
            // SAFETY: the caller has room for m lanes.
            unsafe { c.add(row).write([0.0; WIDTH]) };
        }
    }
    for step in steps {
        for row in 0..m {
            // SAFETY: as above, and the lanes have been written.
            let c = unsafe { &mut *c.add(row) };
            let mut sum = *c;
            for k in 0..step.len {
                // SAFETY: the steps lie inside the rows, and the panel has a lane for each channel.
                let (x, w) = unsafe {
                    let x = a.first.add(row * a.stride + step.offset).cast::<f32>();
                    (x.add(k).read(), &*b.add(k * WIDTH).cast::<Lane>())
                };
                for (sum, w) in sum.iter_mut().zip(w) {
                    *sum += x * w;
                }
            }
            *c = sum;
        }
        // SAFETY: the panel has a lane for each channel.
        b = unsafe { b.add(step.len * WIDTH) };
    }
}

/// Half precision to f32, WIDTH values at a time.
///
/// # Safety
/// The machine has `isa`.
pub(crate) unsafe fn widen_f16(isa: Isa, from: &[[u16; WIDTH]], to: *mut Lane) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has it.
        Isa::Avx512 => unsafe { x86::widen_f16_avx512(from, to) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has it.
        Isa::Avx2 => unsafe { x86::widen_f16_avx2(from, to) },
        _ => {
            for (i, from) in from.iter().enumerate() {
                // SAFETY: the caller has room for as many lanes as it gives.
                unsafe { to.add(i).write(from.map(f16)) };
            }
        }
    }
}

/// Half precision without branches: the exponent is moved by a multiplication, which also makes subnormals normal.
#[inline(always)]
fn f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7FFF) << 13;
    // 2^112 moves the exponent's bias from 15 to 127.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let value = if magnitude >= 0x7C00 << 13 {
        f32::from_bits(magnitude | 0x7F80_0000)
    } else {
        finite
    };
    f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// Where the rows of a finished tile go.
#[derive(Clone, Copy)]
pub(crate) struct TilePlace {
    pub(crate) out: *mut f32,
    /// Length of an output row.
    pub(crate) width: usize,
    pub(crate) column: usize,
    /// Columns of the panel that exist.
    pub(crate) columns: usize,
}

/// Fetches the parts of output rows that will be written, and of what is added to them, into the cache. Rows of
/// `usize::MAX` are none.
pub(crate) fn prefetch(rows: &[usize], add: Option<&[f32]>, place: TilePlace) {
    #[cfg(target_arch = "x86_64")]
    for &row in rows.iter().filter(|row| **row != usize::MAX) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        let at = row * place.width + place.column;
        let sources = [Some(place.out.cast_const()), add.map(<[f32]>::as_ptr)];
        for source in sources.into_iter().flatten() {
            for part in (0..place.columns).step_by(16) {
                // SAFETY: a prefetch of any address is harmless.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(at + part).cast()) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (rows, add, place);
}

/// Writes lanes to the output rows that `rows` names (`usize::MAX`: nowhere).
///
/// # Safety
/// The machine has `isa`, the named rows lie inside the output, and nobody else uses these columns of them.
pub(crate) unsafe fn write(
    isa: Isa,
    lanes: &[Lane],
    rows: &[usize],
    gate: Option<&[Lane]>,
    finish: &Finish<'_>,
    place: TilePlace,
) {
    // SAFETY: the caller promises what is needed.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::write_avx512(lanes, rows, gate, finish, place),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::write_avx2(lanes, rows, gate, finish, place),
            _ => write_any(lanes, rows, gate, finish, place),
        }
    }
}

/// # Safety
/// As [`write`].
#[inline(always)]
unsafe fn write_any(
    lanes: &[Lane],
    rows: &[usize],
    gate: Option<&[Lane]>,
    finish: &Finish<'_>,
    place: TilePlace,
) {
    for (i, (lane, &row)) in lanes.iter().zip(rows).enumerate() {
        if row == usize::MAX {
            continue;
        }
        // SAFETY: the row lies inside the output, and these columns are the caller's.
        let to = unsafe {
            let first = place.out.add(row * place.width + place.column);
            std::slice::from_raw_parts_mut(first, place.columns)
        };
        match gate {
            None => finish.row(lane, row, place.column, place.width, to),
            Some(gate) => {
                let bias = finish.bias.map(|bias| {
                    let (a, g) = bias.split_at(place.width);
                    let part = place.column..place.column + place.columns;
                    (&a[part.clone()], &g[part])
                });
                finish::gate(lane, &gate[i], bias, to);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Finish, KernelStep, Lane, Rows, TilePlace, WIDTH};

    /// # Safety
    /// As [`super::write`], with AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) unsafe fn write_avx512(
        lanes: &[Lane],
        rows: &[usize],
        gate: Option<&[Lane]>,
        finish: &Finish<'_>,
        place: TilePlace,
    ) {
        // SAFETY: as promised by the caller.
        unsafe { super::write_any(lanes, rows, gate, finish, place) }
    }

    /// # Safety
    /// As [`super::write`], with AVX2.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn write_avx2(
        lanes: &[Lane],
        rows: &[usize],
        gate: Option<&[Lane]>,
        finish: &Finish<'_>,
        place: TilePlace,
    ) {
        // SAFETY: as promised by the caller.
        unsafe { super::write_any(lanes, rows, gate, finish, place) }
    }

    /// # Safety
    /// The machine has AVX-512, and `to` has room for as many lanes.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn widen_f16_avx512(from: &[[u16; WIDTH]], to: *mut Lane) {
        for (i, from) in from.iter().enumerate() {
            // SAFETY: 16 values twice on both sides.
            unsafe {
                let from = from.as_ptr().cast::<__m256i>();
                let to = to.add(i).cast::<f32>();
                _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256(from)));
                _mm512_storeu_ps(to.add(16), _mm512_cvtph_ps(_mm256_loadu_si256(from.add(1))));
            }
        }
    }

    /// # Safety
    /// The machine has F16C, and `to` has room for as many lanes.
    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn widen_f16_avx2(from: &[[u16; WIDTH]], to: *mut Lane) {
        for (i, from) in from.iter().enumerate() {
            for part in 0..WIDTH / 8 {
                // SAFETY: 8 values four times on both sides.
                unsafe {
                    let from = from.as_ptr().cast::<__m128i>().add(part);
                    let to = to.add(i).cast::<f32>().add(8 * part);
                    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(from)));
                }
            }
        }
    }

    /// # Safety
    /// As [`super::tile`], with AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn tile_avx512(
        m: usize,
        steps: &[KernelStep],
        a: Rows,
        b: *const f32,
        c: *mut Lane,
        add: bool,
    ) {
        // SAFETY: as promised by the caller; each arm takes as many rows as there are.
        unsafe {
            match m {
                12 => rows_avx512::<12>(steps, a, b, c, add),
                11 => rows_avx512::<11>(steps, a, b, c, add),
                10 => rows_avx512::<10>(steps, a, b, c, add),
                9 => rows_avx512::<9>(steps, a, b, c, add),
                8 => rows_avx512::<8>(steps, a, b, c, add),
                7 => rows_avx512::<7>(steps, a, b, c, add),
                6 => rows_avx512::<6>(steps, a, b, c, add),
                5 => rows_avx512::<5>(steps, a, b, c, add),
                4 => rows_avx512::<4>(steps, a, b, c, add),
                3 => rows_avx512::<3>(steps, a, b, c, add),
                2 => rows_avx512::<2>(steps, a, b, c, add),
                _ => rows_avx512::<1>(steps, a, b, c, add),
            }
        }
    }

    /// # Safety
    /// As [`super::tile`] with `M` rows.
    #[target_feature(enable = "avx512f")]
    unsafe fn rows_avx512<const M: usize>(
        steps: &[KernelStep],
        a: Rows,
        mut b: *const f32,
        c: *mut Lane,
        add: bool,
    ) {
        let mut sum = [[_mm512_setzero_ps(); 2]; M];
        let c = c.cast::<f32>();
        // SAFETY: `c` has room for M lanes, the steps lie inside the rows and `b` has a lane for each channel.
        unsafe {
            if add {
                for (i, sum) in sum.iter_mut().enumerate() {
                    sum[0] = _mm512_loadu_ps(c.add(i * WIDTH));
                    sum[1] = _mm512_loadu_ps(c.add(i * WIDTH + 16));
                }
            }
            for step in steps {
                let x = a.first.add(step.offset);
                for k in 0..step.len {
                    let b0 = _mm512_loadu_ps(b);
                    let b1 = _mm512_loadu_ps(b.add(16));
                    _mm_prefetch::<_MM_HINT_T0>(b.add(8 * WIDTH).cast());
                    _mm_prefetch::<_MM_HINT_T0>(b.add(8 * WIDTH + 16).cast());
                    b = b.add(WIDTH);
                    for (i, sum) in sum.iter_mut().enumerate() {
                        let x = _mm512_set1_ps(x.add(i * a.stride).cast::<f32>().add(k).read());
                        sum[0] = _mm512_fmadd_ps(x, b0, sum[0]);
                        sum[1] = _mm512_fmadd_ps(x, b1, sum[1]);
                    }
                }
            }
            for (i, sum) in sum.iter().enumerate() {
                _mm512_storeu_ps(c.add(i * WIDTH), sum[0]);
                _mm512_storeu_ps(c.add(i * WIDTH + 16), sum[1]);
            }
        }
    }

    /// # Safety
    /// As [`super::tile`], with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn tile_avx2(
        m: usize,
        steps: &[KernelStep],
        a: Rows,
        b: *const f32,
        c: *mut Lane,
        add: bool,
    ) {
        // SAFETY: as promised by the caller; each arm takes as many rows as there are. The panel's two halves in turn:
        // sixteen registers hold six rows of one half.
        unsafe {
            for half in [0, 16] {
                let (b, c) = (b.add(half), c.cast::<f32>().add(half));
                match m {
                    6 => rows_avx2::<6>(steps, a, b, c, add),
                    5 => rows_avx2::<5>(steps, a, b, c, add),
                    4 => rows_avx2::<4>(steps, a, b, c, add),
                    3 => rows_avx2::<3>(steps, a, b, c, add),
                    2 => rows_avx2::<2>(steps, a, b, c, add),
                    _ => rows_avx2::<1>(steps, a, b, c, add),
                }
            }
        }
    }

    /// # Safety
    /// As [`super::tile`] with `M` rows; `b` and `c` point to one half of their lanes.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn rows_avx2<const M: usize>(
        steps: &[KernelStep],
        a: Rows,
        mut b: *const f32,
        c: *mut f32,
        add: bool,
    ) {
        let mut sum = [[_mm256_setzero_ps(); 2]; M];
        // SAFETY: `c` has room for M lanes, the steps lie inside the rows and `b` has a lane for each channel.
        unsafe {
            if add {
                for (i, sum) in sum.iter_mut().enumerate() {
                    sum[0] = _mm256_loadu_ps(c.add(i * WIDTH));
                    sum[1] = _mm256_loadu_ps(c.add(i * WIDTH + 8));
                }
            }
            for step in steps {
                let x = a.first.add(step.offset);
                for k in 0..step.len {
                    let b0 = _mm256_loadu_ps(b);
                    let b1 = _mm256_loadu_ps(b.add(8));
                    b = b.add(WIDTH);
                    for (i, sum) in sum.iter_mut().enumerate() {
                        let x = _mm256_broadcast_ss(&*x.add(i * a.stride).cast::<f32>().add(k));
                        sum[0] = _mm256_fmadd_ps(x, b0, sum[0]);
                        sum[1] = _mm256_fmadd_ps(x, b1, sum[1]);
                    }
                }
            }
            for (i, sum) in sum.iter().enumerate() {
                _mm256_storeu_ps(c.add(i * WIDTH), sum[0]);
                _mm256_storeu_ps(c.add(i * WIDTH + 8), sum[1]);
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::{KernelStep, Lane, Rows, WIDTH};

    /// # Safety
    /// As [`super::tile`].
    #[target_feature(enable = "neon")]
    pub(super) unsafe fn tile_neon(
        m: usize,
        steps: &[KernelStep],
        a: Rows,
        b: *const f32,
        c: *mut Lane,
        add: bool,
    ) {
        // SAFETY: as promised by the caller; each arm takes as many rows as there are. The panel's quarters in turn:
        // 32 registers hold eight rows of two vectors, the weights and the activations.
        unsafe {
            for part in (0..WIDTH).step_by(8) {
                let (b, c) = (b.add(part), c.cast::<f32>().add(part));
                match m {
                    8 => rows_neon::<8>(steps, a, b, c, add),
                    7 => rows_neon::<7>(steps, a, b, c, add),
                    6 => rows_neon::<6>(steps, a, b, c, add),
                    5 => rows_neon::<5>(steps, a, b, c, add),
                    4 => rows_neon::<4>(steps, a, b, c, add),
                    3 => rows_neon::<3>(steps, a, b, c, add),
                    2 => rows_neon::<2>(steps, a, b, c, add),
                    _ => rows_neon::<1>(steps, a, b, c, add),
                }
            }
        }
    }

    /// # Safety
    /// As [`super::tile`] with `M` rows; `b` and `c` point to a quarter of their lanes.
    #[target_feature(enable = "neon")]
    unsafe fn rows_neon<const M: usize>(
        steps: &[KernelStep],
        a: Rows,
        mut b: *const f32,
        c: *mut f32,
        add: bool,
    ) {
        // SAFETY: `c` has room for M lanes, the steps lie inside the rows and `b` has a lane for each channel.
        unsafe {
            let mut sum = [[vdupq_n_f32(0.0); 2]; M];
            if add {
                for (i, sum) in sum.iter_mut().enumerate() {
                    sum[0] = vld1q_f32(c.add(i * WIDTH));
                    sum[1] = vld1q_f32(c.add(i * WIDTH + 4));
                }
            }
            for step in steps {
                let x = a.first.add(step.offset);
                for k in 0..step.len {
                    let b0 = vld1q_f32(b);
                    let b1 = vld1q_f32(b.add(4));
                    b = b.add(WIDTH);
                    for (i, sum) in sum.iter_mut().enumerate() {
                        let x = vdupq_n_f32(x.add(i * a.stride).cast::<f32>().add(k).read());
                        sum[0] = vfmaq_f32(sum[0], x, b0);
                        sum[1] = vfmaq_f32(sum[1], x, b1);
                    }
                }
            }
            for (i, sum) in sum.iter().enumerate() {
                vst1q_f32(c.add(i * WIDTH), sum[0]);
                vst1q_f32(c.add(i * WIDTH + 4), sum[1]);
            }
        }
    }
}
