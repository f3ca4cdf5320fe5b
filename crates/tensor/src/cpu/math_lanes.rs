//! One vector type per instruction set behind one trait: a kernel is written once and compiled for each.
//!
//! A kernel is a [`Kernel`] whose `run` is inlined into a function compiled for the instruction set that [`dispatch`]
//! was told to use. Everything that `run` calls with a vector type must be `#[inline(always)]`; what is not inlined is
//! compiled for the oldest machine and passes vectors through memory.

#![expect(
    unsafe_code,
    reason = "vector instructions need pointers and a check that the machine has them"
)]

use super::isa::Isa;

/// Some f32 numbers that are computed with together.
///
/// Values are made by `splat` and the loads only. Those are unsafe: the caller promises that the machine has the
/// instruction set, and all other operations rely on it.
pub(crate) trait Lanes: Copy {
    /// Numbers in one vector.
    const N: usize;
    /// Vector registers of the machine.
    const REGISTERS: usize;

    /// # Safety
    /// The machine has the instruction set.
    unsafe fn splat(x: f32) -> Self;
    /// # Safety
    /// The machine has the instruction set; `N` numbers can be read.
    unsafe fn load(p: *const f32) -> Self;
    /// The first `n` numbers, zeros after them.
    ///
    /// # Safety
    /// The machine has the instruction set; `n <= N` numbers can be read.
    unsafe fn load_part(p: *const f32, n: usize) -> Self;
    /// # Safety
    /// `N` numbers can be written.
    unsafe fn store(self, p: *mut f32);
    /// # Safety
    /// `n <= N` numbers can be written.
    unsafe fn store_part(self, p: *mut f32, n: usize);

    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once where the machine can.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `c - self * b`, rounded once where the machine can.
    fn neg_mul_add(self, b: Self, c: Self) -> Self;
    /// The larger one; `b` where either is NaN.
    fn max(self, b: Self) -> Self;
    /// The smaller one; `b` where either is NaN.
    fn min(self, b: Self) -> Self;
    /// The nearest whole number, of numbers below 2^22 in size.
    fn round(self) -> Self;
    /// `self * 2^n` for whole `n` from -126 to 127.
    fn times_power_of_two(self, n: Self) -> Self;
    /// `yes` where `self < b`, else `no`.
    fn if_less(self, b: Self, yes: Self, no: Self) -> Self;

    /// Turns the square of `N` rows and columns at `from` into that at `to`; rows are `from_step` and `to_step` apart.
    ///
    /// # Safety
    /// The machine has the instruction set; both squares are there and do not overlap.
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize);

    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as promised.
        unsafe { Self::splat(0.0) }
    }

    /// The sum of all numbers: halves onto halves.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut a = [0.0f32; 16];
        // SAFETY: no vector has more than 16 numbers.
        unsafe { self.store(a.as_mut_ptr()) };
        let mut n = Self::N;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                a[i] += a[i + n];
            }
        }
        a[0]
    }
}

/// Turns `rows` by `columns` numbers at `from` into `columns` by `rows` at `to`.
///
/// # Safety
/// The machine has the instruction set; both are there and do not overlap.
#[inline(always)]
pub(crate) unsafe fn transpose<V: Lanes>(
    (rows, columns): (usize, usize),
    from: *const f32,
    from_step: usize,
    to: *mut f32,
    to_step: usize,
) {
    // SAFETY: as promised: whole squares first, then what is left to the right and below.
    unsafe {
        let (whole_rows, whole_columns) = (rows / V::N * V::N, columns / V::N * V::N);
        for i in (0..whole_rows).step_by(V::N) {
            for j in (0..whole_columns).step_by(V::N) {
                V::transpose(
                    from.add(i * from_step + j),
                    from_step,
                    to.add(j * to_step + i),
                    to_step,
                );
            }
        }
        // Strips that fill no square go through one in the nearest cache, if they are worth it.
        let right = columns - whole_columns;
        let mut first_column = whole_columns;
        if right * 4 >= V::N {
            let (mut square, mut turned) = ([0.0f32; 256], [0.0f32; 256]);
            for i in (0..whole_rows).step_by(V::N) {
                for r in 0..V::N {
                    V::load_part(from.add((i + r) * from_step + whole_columns), right)
                        .store(square.as_mut_ptr().add(r * V::N));
                }
                V::transpose(square.as_ptr(), V::N, turned.as_mut_ptr(), V::N);
                for c in 0..right {
                    V::load(turned.as_ptr().add(c * V::N))
                        .store(to.add((whole_columns + c) * to_step + i));
                }
            }
            first_column = columns;
        }
        let below = rows - whole_rows;
        let mut first_row = whole_rows;
        if below * 4 >= V::N {
            let (mut square, mut turned) = ([0.0f32; 256], [0.0f32; 256]);
            for j in (0..whole_columns).step_by(V::N) {
                for r in 0..below {
                    V::load(from.add((whole_rows + r) * from_step + j))
                        .store(square.as_mut_ptr().add(r * V::N));
                }
                V::transpose(square.as_ptr(), V::N, turned.as_mut_ptr(), V::N);
                for c in 0..V::N {
                    V::load(turned.as_ptr().add(c * V::N))
                        .store_part(to.add((j + c) * to_step + whole_rows), below);
                }
            }
            first_row = rows;
        }
        // What is left, and the corner.
        for i in 0..rows {
            let first = match (i < whole_rows, i < first_row) {
                (true, _) => first_column,
                (false, true) => whole_columns,
                (false, false) => 0,
            };
            for j in first..columns {
                *to.add(j * to_step + i) = *from.add(i * from_step + j);
            }
        }
    }
}

/// A computation that is compiled once for each instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the instruction set of `V`.
    unsafe fn run<V: Lanes>(self) -> Self::Output;
}

/// Runs a kernel with the given instruction set, which must come from [`super::isa`].
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: `Isa` values other than `Portable` are given out only where the machine has them.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => run_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => run_avx2(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => kernel.run::<neon::F32x4>(),
            _ => kernel.run::<Plain>(),
        }
    }
}

/// # Safety
/// The machine has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: as promised.
    unsafe { kernel.run::<x86::F32x16>() }
}

/// # Safety
/// The machine has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: as promised.
    unsafe { kernel.run::<x86::F32x8>() }
}

/// Plain Rust: four numbers, which compilers turn into the vectors that every machine has.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; 4]);

impl Plain {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }
}

impl Lanes for Plain {
    const N: usize = 4;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 4])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: four numbers can be read, and an array of f32 needs no more alignment than f32.
        Self(unsafe { p.cast::<[f32; 4]>().read() })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        let mut a = [0.0; 4];
        // SAFETY: `n <= 4` numbers can be read.
        unsafe { std::ptr::copy_nonoverlapping(p, a.as_mut_ptr(), n) };
        Self(a)
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: four numbers can be written.
        unsafe { p.cast::<[f32; 4]>().write(self.0) };
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: `n <= 4` numbers can be written.
        unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr(), p, n) };
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self.zip(b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }

    // Not `f32::mul_add`: without the instruction that is a slow library call.
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        self.mul(b).add(c)
    }

    #[inline(always)]
    fn neg_mul_add(self, b: Self, c: Self) -> Self {
        c.sub(self.mul(b))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self.zip(b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        self.zip(b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn round(self) -> Self {
        // Above 2^23 an f32 has no fraction: adding and taking away 1.5 * 2^23 leaves the whole number.
        const MAGIC: f32 = 12_582_912.0;
        Self(self.0.map(|a| (a + MAGIC) - MAGIC))
    }

    #[inline(always)]
    fn times_power_of_two(self, n: Self) -> Self {
        self.zip(n, |a, n| {
            a * f32::from_bits(((n as i32 + 127) as u32) << 23)
        })
    }

    #[inline(always)]
    fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| {
            if self.0[i] < b.0[i] {
                yes.0[i]
            } else {
                no.0[i]
            }
        }))
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        // SAFETY: the caller promises both squares.
        unsafe {
            let rows: [Self; 4] = std::array::from_fn(|i| Self::load(from.add(i * from_step)));
            for i in 0..4 {
                Self(rows.map(|row| row.0[i])).store(to.add(i * to_step));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::Lanes;

    /// AVX-512.
    #[derive(Clone, Copy)]
    pub(crate) struct F32x16(__m512);

    impl F32x16 {
        #[inline(always)]
        pub(crate) fn vector(self) -> __m512 {
            self.0
        }
    }

    /// AVX2 with FMA.
    #[derive(Clone, Copy)]
    pub(crate) struct F32x8(__m256);

    /// Two-operand operations that are one instruction each.
    macro_rules! instructions {
        ($($name:ident = $instruction:ident;)*) => {$(
            #[inline(always)]
            fn $name(self, b: Self) -> Self {
                // SAFETY: a value of this type exists, so the machine has the instruction set.
                Self(unsafe { $instruction(self.0, b.0) })
            }
        )*};
    }

    impl Lanes for F32x16 {
        const N: usize = 16;
        const REGISTERS: usize = 32;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller promises the instruction set.
            Self(unsafe { _mm512_set1_ps(x) })
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller promises the instruction set and 16 numbers.
            Self(unsafe { _mm512_loadu_ps(p) })
        }

        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self {
            // SAFETY: the mask keeps the load to the `n` numbers that the caller promises.
            Self(unsafe { _mm512_maskz_loadu_ps(mask(n), p) })
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller promises room for 16 numbers.
            unsafe { _mm512_storeu_ps(p, self.0) };
        }

        #[inline(always)]
        unsafe fn store_part(self, p: *mut f32, n: usize) {
            // SAFETY: the mask keeps the store to the `n` numbers that the caller promises.
            unsafe { _mm512_mask_storeu_ps(p, mask(n), self.0) };
        }

        instructions! {
            add = _mm512_add_ps;
            sub = _mm512_sub_ps;
            mul = _mm512_mul_ps;
            div = _mm512_div_ps;
            max = _mm512_max_ps;
            min = _mm512_min_ps;
            times_power_of_two = _mm512_scalef_ps;
        }

        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
        }

        #[inline(always)]
        fn neg_mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe { _mm512_fnmadd_ps(self.0, b.0, c.0) })
        }

        #[inline(always)]
        fn round(self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe {
                _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)
            })
        }

        #[inline(always)]
        fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe {
                _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, b.0), no.0, yes.0)
            })
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
            // SAFETY: the caller promises the instruction set and both squares.
            unsafe {
                let mut rows = [_mm512_setzero_ps(); 16];
                for (i, row) in rows.iter_mut().enumerate() {
                    *row = _mm512_loadu_ps(from.add(i * from_step));
                }
                // Squares of 4 by 4 inside the quarters of the vectors.
                let mut quads = [_mm512_setzero_ps(); 16];
                for i in (0..16).step_by(4) {
                    let a = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
                    let b = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
                    let c = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]);
                    let d = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
                    quads[i] = _mm512_shuffle_ps::<0x44>(a, c);
                    quads[i + 1] = _mm512_shuffle_ps::<0xEE>(a, c);
                    quads[i + 2] = _mm512_shuffle_ps::<0x44>(b, d);
                    quads[i + 3] = _mm512_shuffle_ps::<0xEE>(b, d);
                }
                // Then the quarters themselves.
                for i in 0..4 {
                    let (a, b, c, d) = (quads[i], quads[i + 4], quads[i + 8], quads[i + 12]);
                    let even_low = _mm512_shuffle_f32x4::<0x88>(a, b);
                    let odd_low = _mm512_shuffle_f32x4::<0xDD>(a, b);
                    let even_high = _mm512_shuffle_f32x4::<0x88>(c, d);
                    let odd_high = _mm512_shuffle_f32x4::<0xDD>(c, d);
                    let turned = [
                        _mm512_shuffle_f32x4::<0x88>(even_low, even_high),
                        _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high),
                        _mm512_shuffle_f32x4::<0xDD>(even_low, even_high),
                        _mm512_shuffle_f32x4::<0xDD>(odd_low, odd_high),
                    ];
                    for (j, row) in turned.into_iter().enumerate() {
                        _mm512_storeu_ps(to.add((4 * j + i) * to_step), row);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn mask(n: usize) -> __mmask16 {
        ((1u32 << n) - 1) as __mmask16
    }

    impl Lanes for F32x8 {
        const N: usize = 8;
        const REGISTERS: usize = 16;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller promises the instruction set.
            Self(unsafe { _mm256_set1_ps(x) })
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller promises the instruction set and 8 numbers.
            Self(unsafe { _mm256_loadu_ps(p) })
        }

        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self {
            // SAFETY: the mask keeps the load to the `n` numbers that the caller promises.
            Self(unsafe { _mm256_maskload_ps(p, mask8(n)) })
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller promises room for 8 numbers.
            unsafe { _mm256_storeu_ps(p, self.0) };
        }

        #[inline(always)]
        unsafe fn store_part(self, p: *mut f32, n: usize) {
            // SAFETY: the mask keeps the store to the `n` numbers that the caller promises.
            unsafe { _mm256_maskstore_ps(p, mask8(n), self.0) };
        }

        instructions! {
            add = _mm256_add_ps;
            sub = _mm256_sub_ps;
            mul = _mm256_mul_ps;
            div = _mm256_div_ps;
            max = _mm256_max_ps;
            min = _mm256_min_ps;
        }

        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
        }

        #[inline(always)]
        fn neg_mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe { _mm256_fnmadd_ps(self.0, b.0, c.0) })
        }

        #[inline(always)]
        fn round(self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe {
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)
            })
        }

        #[inline(always)]
        fn times_power_of_two(self, n: Self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.0), _mm256_set1_epi32(127));
                let power = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent));
                _mm256_mul_ps(self.0, power)
            })
        }

        #[inline(always)]
        fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
            // SAFETY: a value of this type exists.
            Self(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, b.0)) })
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
            // SAFETY: the caller promises the instruction set and both squares.
            unsafe {
                // Squares of 4 by 4 inside the halves of the vectors.
                let mut quads = [_mm256_setzero_ps(); 8];
                for i in (0..8).step_by(4) {
                    let [r0, r1, r2, r3] =
                        [0, 1, 2, 3].map(|j| _mm256_loadu_ps(from.add((i + j) * from_step)));
                    let a = _mm256_unpacklo_ps(r0, r1);
                    let b = _mm256_unpackhi_ps(r0, r1);
                    let c = _mm256_unpacklo_ps(r2, r3);
                    let d = _mm256_unpackhi_ps(r2, r3);
                    quads[i] = _mm256_shuffle_ps::<0x44>(a, c);
                    quads[i + 1] = _mm256_shuffle_ps::<0xEE>(a, c);
                    quads[i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
                    quads[i + 3] = _mm256_shuffle_ps::<0xEE>(b, d);
                }
                // Then the halves themselves.
                for i in 0..4 {
                    let low = _mm256_permute2f128_ps::<0x20>(quads[i], quads[i + 4]);
                    let high = _mm256_permute2f128_ps::<0x31>(quads[i], quads[i + 4]);
                    _mm256_storeu_ps(to.add(i * to_step), low);
                    _mm256_storeu_ps(to.add((i + 4) * to_step), high);
                }
            }
        }
    }

    /// Ones in the first `n` lanes.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[inline(always)]
    unsafe fn mask8(n: usize) -> __m256i {
        // SAFETY: as promised.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use super::Lanes;

    #[derive(Clone, Copy)]
    pub(crate) struct F32x4(float32x4_t);

    /// Operations that are one instruction each.
    macro_rules! instructions {
        ($($name:ident = $instruction:ident;)*) => {$(
            #[inline(always)]
            fn $name(self, b: Self) -> Self {
                // SAFETY: every 64-bit ARM has NEON.
                Self(unsafe { $instruction(self.0, b.0) })
            }
        )*};
    }

    impl Lanes for F32x4 {
        const N: usize = 4;
        const REGISTERS: usize = 32;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: every 64-bit ARM has NEON.
            Self(unsafe { vdupq_n_f32(x) })
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller promises 4 numbers.
            Self(unsafe { vld1q_f32(p) })
        }

        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self {
            let mut a = [0.0f32; 4];
            // SAFETY: `n <= 4` numbers can be read.
            unsafe {
                std::ptr::copy_nonoverlapping(p, a.as_mut_ptr(), n);
                Self(vld1q_f32(a.as_ptr()))
            }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller promises room for 4 numbers.
            unsafe { vst1q_f32(p, self.0) };
        }

        #[inline(always)]
        unsafe fn store_part(self, p: *mut f32, n: usize) {
            let mut a = [0.0f32; 4];
            // SAFETY: `n <= 4` numbers can be written.
            unsafe {
                vst1q_f32(a.as_mut_ptr(), self.0);
                std::ptr::copy_nonoverlapping(a.as_ptr(), p, n);
            }
        }

        instructions! {
            add = vaddq_f32;
            sub = vsubq_f32;
            mul = vmulq_f32;
            div = vdivq_f32;
        }

        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: every 64-bit ARM has NEON.
            Self(unsafe { vfmaq_f32(c.0, self.0, b.0) })
        }

        #[inline(always)]
        fn neg_mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: every 64-bit ARM has NEON.
            Self(unsafe { vfmsq_f32(c.0, self.0, b.0) })
        }

        // Not the instructions of these names: they give NaN where either number is NaN.
        #[inline(always)]
        fn max(self, b: Self) -> Self {
            b.if_less(self, self, b)
        }

        #[inline(always)]
        fn min(self, b: Self) -> Self {
            self.if_less(b, self, b)
        }

        #[inline(always)]
        fn round(self) -> Self {
            // SAFETY: every 64-bit ARM has NEON.
            Self(unsafe { vrndnq_f32(self.0) })
        }

        #[inline(always)]
        fn times_power_of_two(self, n: Self) -> Self {
            // SAFETY: every 64-bit ARM has NEON.
            Self(unsafe {
                let exponent = vaddq_s32(vcvtq_s32_f32(n.0), vdupq_n_s32(127));
                let power = vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent));
                vmulq_f32(self.0, power)
            })
        }

        #[inline(always)]
        fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
            // SAFETY: every 64-bit ARM has NEON.
            Self(unsafe { vbslq_f32(vcltq_f32(self.0, b.0), yes.0, no.0) })
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
            // SAFETY: the caller promises both squares.
            unsafe {
                let row = |i: usize| vld1q_f32(from.add(i * from_step));
                let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                let (ac_low, ac_high) = (vzip1q_f32(a, c), vzip2q_f32(a, c));
                let (bd_low, bd_high) = (vzip1q_f32(b, d), vzip2q_f32(b, d));
                vst1q_f32(to, vzip1q_f32(ac_low, bd_low));
                vst1q_f32(to.add(to_step), vzip2q_f32(ac_low, bd_low));
                vst1q_f32(to.add(2 * to_step), vzip1q_f32(ac_high, bd_high));
                vst1q_f32(to.add(3 * to_step), vzip2q_f32(ac_high, bd_high));
            }
        }
    }
}
