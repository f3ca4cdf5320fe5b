//! What this machine multiplies at most, for measurements to compare with: independent products on registers alone.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "loops of single instructions")
)]

use std::time::Instant;

use rayon::prelude::*;

use super::isa::{self, Isa};

/// Billions of f32 operations a second on all threads, by vectors and by matrix tiles (five products for
/// one, as f16 weights take).
#[derive(Debug, Clone, Copy)]
pub struct Peak {
    pub vectors: f64,
    pub tiles: Option<f64>,
}

/// Measures for about a tenth of a second.
pub fn peak() -> Peak {
    Peak {
        vectors: rate(vectors),
        tiles: isa::tiles().then(|| rate(tiles) / 5.0),
    }
}

/// The best of some runs of a function that returns how many operations it made.
fn rate(f: fn() -> f64) -> f64 {
    let threads = rayon::current_num_threads();
    (0..10)
        .map(|_| {
            let begun = Instant::now();
            let operations: f64 = (0..threads).into_par_iter().map(|_| f()).sum();
            operations / begun.elapsed().as_secs_f64() / 1e9
        })
        .fold(0.0, f64::max)
}

const ROUNDS: usize = 1_000_000;

fn vectors() -> f64 {
    #[cfg(target_arch = "x86_64")]
    match isa::isa() {
        // SAFETY: the machine has it.
        Isa::Avx512 => return unsafe { x86::avx512() },
        // SAFETY: the machine has it.
        Isa::Avx2 => return unsafe { x86::avx2() },
        _ => {}
    }
    let _ = Isa::Portable;
    let mut sums = [[0.0f32; 8]; 8];
    for i in 0..ROUNDS {
        let x = std::hint::black_box(i as f32);
        for sum in sums.as_flattened_mut() {
            *sum = *sum * 0.5 + x;
        }
    }
    std::hint::black_box(sums);
    (ROUNDS * 8 * 8 * 2) as f64
}

fn tiles() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        let rounds = ROUNDS / 10;
        super::amx::spin(&super::amx::Tiles::new(), rounds);
        (rounds * 4 * 16 * 16 * 32 * 2) as f64
    }
    #[cfg(not(target_arch = "x86_64"))]
    0.0
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::ROUNDS;

    /// # Safety
    /// The machine has AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512() -> f64 {
        let mut sums = [_mm512_setzero_ps(); 16];
        let x = std::hint::black_box(_mm512_set1_ps(0.5));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, x);
            }
        }
        std::hint::black_box(sums);
        (ROUNDS * 16 * 16 * 2) as f64
    }

    /// # Safety
    /// The machine has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2() -> f64 {
        let mut sums = [_mm256_setzero_ps(); 12];
        let x = std::hint::black_box(_mm256_set1_ps(0.5));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, x);
            }
        }
        std::hint::black_box(sums);
        (ROUNDS * 12 * 8 * 2) as f64
    }
}
