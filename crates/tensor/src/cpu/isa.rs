//! Which instruction set the kernels of this machine use, found out once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The instruction sets that have kernels of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX2 with FMA and F16C.
    Avx2,
    Neon,
    /// Plain Rust.
    Portable,
}

/// The best first.
const ALL: [Isa; 4] = [Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

/// Index into [`ALL`] plus one that tests and measurements force; 0 leaves the choice to the machine.
static FORCED: AtomicU8 = AtomicU8::new(0);

/// Set where tests and measurements do without matrix tiles.
static NO_TILES: AtomicBool = AtomicBool::new(false);

/// The instruction set that kernels use now.
pub fn isa() -> Isa {
    static BEST: OnceLock<Isa> = OnceLock::new();
    match FORCED.load(Ordering::Relaxed) {
        0 => *BEST.get_or_init(|| available()[0]),
        n => ALL[usize::from(n) - 1],
    }
}

/// The instruction sets this machine has, the best first.
pub fn available() -> Vec<Isa> {
    ALL.into_iter().filter(|isa| has(*isa)).collect()
}

/// Makes every kernel use one instruction set (`None`: the best again). For tests and measurements: the switch is for
/// the whole process. An instruction set that the machine lacks is not taken.
pub fn force(isa: Option<Isa>) {
    let code = match isa {
        Some(isa) if has(isa) => ALL
            .iter()
            .position(|i| *i == isa)
            .map_or(0, |i| i as u8 + 1),
        _ => 0,
    };
    FORCED.store(code, Ordering::Relaxed);
}

/// Whether products use matrix tiles (AMX) now: where the machine has them, unless another instruction set is forced.
pub fn tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        isa() == Isa::Avx512 && !NO_TILES.load(Ordering::Relaxed) && super::amx::available()
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Switches matrix tiles off or on again, for the whole process. For tests and measurements.
pub fn allow_tiles(allow: bool) {
    NO_TILES.store(!allow, Ordering::Relaxed);
}

#[cfg(target_arch = "x86_64")]
fn has(isa: Isa) -> bool {
    match isa {
        Isa::Avx512 => {
            has(Isa::Avx2)
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        }
        Isa::Avx2 => {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        }
        Isa::Neon => false,
        Isa::Portable => true,
    }
}

#[cfg(target_arch = "aarch64")]
fn has(isa: Isa) -> bool {
    // NEON is part of the base of every 64-bit ARM.
    matches!(isa, Isa::Neon | Isa::Portable)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has(isa: Isa) -> bool {
    isa == Isa::Portable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portable_kernels_are_everywhere() {
        assert_eq!(available().last(), Some(&Isa::Portable));
        assert_eq!(
            available().contains(&Isa::Neon),
            cfg!(target_arch = "aarch64")
        );
    }
}
