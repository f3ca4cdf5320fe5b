//! Products on the matrix tiles of recent Intel processors (AMX), with f32 accuracy from several bf16 products.
//!
//! An activation is split into three bf16 parts, which keep all of its 24 bits; a weight in f16 into two, without loss;
//! weights in bf16 or f8 have one. The products of parts down to 2^-16 of the first make five, or three, in place of one
//! in f32; what is left out is below f32's own rounding. (Attention makes do with two parts and three products.) Tiles
//! flush subnormal numbers, and an infinity comes out as NaN.

#![expect(
    unsafe_code,
    reason = "instructions that have no functions yet, on memory that the caller names"
)]
#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::finish::Lane;
use super::kernel::Rows;
use super::packed::WIDTH;

/// Channels that one step of tiles takes.
pub(crate) const DEPTH: usize = 32;
/// Rows of a full block: two tiles.
pub(crate) const ROWS: usize = 32;
const TILE_BYTES: usize = 1024;

/// Whether this machine has the tiles and the system lets us use them.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16")
            && tiles_in_processor()
            && request_permission()
    })
}

fn tiles_in_processor() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    if __cpuid(0).eax < 7 {
        return false;
    }
    __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
}

/// Whether the tiles multiply bytes, too.
pub(super) fn has_bytes() -> bool {
    const AMX_INT8: u32 = 1 << 25;
    available() && __cpuid_count(7, 0).edx & AMX_INT8 != 0
}

/// Tiles are 8 KiB of state per thread, so Linux gives them only to processes that ask.
#[cfg(all(target_os = "linux", not(miri)))]
fn request_permission() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: the call takes two numbers and touches no memory of ours; a kernel that does not know it says so.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn request_permission() -> bool {
    false
}

/// The tiles of this thread, set up until dropped.
pub(crate) struct Tiles(());

#[repr(C, align(64))]
struct Config([u8; 64]);

impl Tiles {
    /// # Panics
    /// If the machine has no tiles.
    pub(crate) fn new() -> Self {
        assert!(available(), "the machine has tiles");
        let mut config = Config([0; 64]);
        config.0[0] = 1;
        for tile in 0..8 {
            // 64 bytes by 16 rows each.
            config.0[16 + 2 * tile] = 64;
            config.0[48 + tile] = 16;
        }
        // SAFETY: the instruction exists here and reads 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) config.0.as_ptr(), options(nostack, readonly)) };
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the instruction exists, because the tiles have been set up.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// How many bytes of tiles one step of one panel takes.
pub(crate) fn step_bytes(split: bool) -> usize {
    TILE_BYTES * if split { 4 } else { 2 }
}

macro_rules! tiles {
    ($($line:literal),* ; $($operand:tt)*) => {
        asm!(
            $($line),*,
            $($operand)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// `c = a b`, or `c += a b`, for 16 or 32 rows (by `m`) of split activations and one panel of split weights.
///
/// `offsets` has the place of each step in a row of `a`, in bytes; with the rows comes the distance from the parts of
/// one kind to the next and whether there are third ones, and with the weights whether they have second parts.
///
/// # Safety
/// `_tiles` belong to this thread; 32 rows of `a` (16, where `m` is at most that) are readable at every offset for 64
/// bytes, of every part; `b` holds [`step_bytes`] for each offset; `c` has room for 32 (or 16) lanes.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn tile(
    _tiles: &Tiles,
    m: usize,
    offsets: &[usize],
    (a, low, third): (Rows, usize, bool),
    (b, split): (*const u8, bool),
    c: *mut Lane,
    add: bool,
) {
    if offsets.is_empty() {
        if !add {
            for row in 0..m {
                // SAFETY: `c` has room for the lanes.
                unsafe { c.add(row).write([0.0; WIDTH]) };
            }
        }
        return;
    }
    let end = offsets.as_ptr_range().end;
    // SAFETY: the loads and stores stay inside what the caller promises; all loops read 16 or 32 rows of 64 bytes
    // per offset, and write 16 or 32 lanes.
    unsafe {
        let (c0, c1) = (c.cast::<u8>(), c.cast::<u8>().add(64));
        let (c2, c3) = (c0.wrapping_add(16 * 128), c1.wrapping_add(16 * 128));
        let a1 = a.first.wrapping_add(16 * a.stride);
        if add {
            asm!(
                "tileloadd tmm0, [{c0} + {s}]", "tileloadd tmm1, [{c1} + {s}]",
                c0 = in(reg) c0, c1 = in(reg) c1, s = in(reg) 128usize,
                out("tmm0") _, out("tmm1") _, options(nostack, readonly)
            );
            if m > 16 {
                asm!(
                    "tileloadd tmm2, [{c2} + {s}]", "tileloadd tmm3, [{c3} + {s}]",
                    c2 = in(reg) c2, c3 = in(reg) c3, s = in(reg) 128usize,
                    out("tmm2") _, out("tmm3") _, options(nostack, readonly)
                );
            }
        } else {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, options(nostack, nomem));
        }
        match (m > 16, split, third) {
            (true, true, true) => tiles!(
                "2:",
                "mov {t0}, [{o}]",
                "lea {t1}, [{a1} + {t0}]",
                "add {t0}, {a0}",
                // First parts with first and second.
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{t1} + {s}]",
                "add {t0}, {low}",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "add {t1}, {low}",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{b} + {sb} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {sb} + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // Second parts with second and first.
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{t1} + {s}]",
                "add {t0}, {low}",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm6, [{b} + {sb}]",
                "add {t1}, {low}",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // Third parts with first.
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{t1} + {s}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {b}, 4096",
                "add {o}, 8",
                "cmp {o}, {end}",
                "jne 2b";
                o = inout(reg) offsets.as_ptr() => _, end = in(reg) end,
                a0 = in(reg) a.first, a1 = in(reg) a1, s = in(reg) a.stride, low = in(reg) low,
                b = inout(reg) b => _, sb = in(reg) 64usize, t0 = out(reg) _, t1 = out(reg) _,
            ),
            (true, false, true) => tiles!(
                "2:",
                "mov {t0}, [{o}]",
                "lea {t1}, [{a1} + {t0}]",
                "add {t0}, {a0}",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{t1} + {s}]",
                "add {t0}, {low}",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "add {t1}, {low}",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{t0} + {s}]",
                "add {t0}, {low}",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{t1} + {s}]",
                "add {t1}, {low}",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{t1} + {s}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {b}, 2048",
                "add {o}, 8",
                "cmp {o}, {end}",
                "jne 2b";
                o = inout(reg) offsets.as_ptr() => _, end = in(reg) end,
                a0 = in(reg) a.first, a1 = in(reg) a1, s = in(reg) a.stride, low = in(reg) low,
                b = inout(reg) b => _, sb = in(reg) 64usize, t0 = out(reg) _, t1 = out(reg) _,
            ),
            (false, true, true) => tiles!(
                "2:",
                "mov {t0}, [{o}]",
                "add {t0}, {a0}",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {t0}, {low}",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm2, [{b} + {sb} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm2",
                "tileloadd tmm3, [{b} + {sb} + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm3",
                "tileloadd tmm5, [{t0} + {s}]",
                "add {t0}, {low}",
                // In the order of the full block, so that a row's place changes no bit.
                "tdpbf16ps tmm0, tmm5, tmm2",
                "tdpbf16ps tmm1, tmm5, tmm3",
                "tdpbf16ps tmm0, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm7",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {b}, 4096",
                "add {o}, 8",
                "cmp {o}, {end}",
                "jne 2b";
                o = inout(reg) offsets.as_ptr() => _, end = in(reg) end,
                a0 = in(reg) a.first, s = in(reg) a.stride, low = in(reg) low,
                b = inout(reg) b => _, sb = in(reg) 64usize, t0 = out(reg) _,
            ),
            (false, false, true) => tiles!(
                "2:",
                "mov {t0}, [{o}]",
                "add {t0}, {a0}",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {t0}, {low}",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{t0} + {s}]",
                "add {t0}, {low}",
                "tdpbf16ps tmm0, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm7",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {b}, 2048",
                "add {o}, 8",
                "cmp {o}, {end}",
                "jne 2b";
                o = inout(reg) offsets.as_ptr() => _, end = in(reg) end,
                a0 = in(reg) a.first, s = in(reg) a.stride, low = in(reg) low,
                b = inout(reg) b => _, sb = in(reg) 64usize, t0 = out(reg) _,
            ),
            (true, true, false) => tiles!(
                "2:",
                "mov {t0}, [{o}]",
                "lea {t1}, [{a1} + {t0}]",
                "add {t0}, {a0}",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{t1} + {s}]",
                "add {t0}, {low}",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "add {t1}, {low}",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{b} + {sb} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {sb} + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{t1} + {s}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {b}, 4096",
                "add {o}, 8",
                "cmp {o}, {end}",
                "jne 2b";
                o = inout(reg) offsets.as_ptr() => _, end = in(reg) end,
                a0 = in(reg) a.first, a1 = in(reg) a1, s = in(reg) a.stride, low = in(reg) low,
                b = inout(reg) b => _, sb = in(reg) 64usize, t0 = out(reg) _, t1 = out(reg) _,
            ),
            (true, false, false) => tiles!(
                "2:",
                "mov {t0}, [{o}]",
                "lea {t1}, [{a1} + {t0}]",
                "add {t0}, {a0}",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{t1} + {s}]",
                "add {t0}, {low}",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "add {t1}, {low}",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{t1} + {s}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {b}, 2048",
                "add {o}, 8",
                "cmp {o}, {end}",
                "jne 2b";
                o = inout(reg) offsets.as_ptr() => _, end = in(reg) end,
                a0 = in(reg) a.first, a1 = in(reg) a1, s = in(reg) a.stride, low = in(reg) low,
                b = inout(reg) b => _, sb = in(reg) 64usize, t0 = out(reg) _, t1 = out(reg) _,
            ),
            (false, true, false) => tiles!(
                "2:",
                "mov {t0}, [{o}]",
                "add {t0}, {a0}",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {t0}, {low}",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm2, [{b} + {sb} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm2",
                "tileloadd tmm3, [{b} + {sb} + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm3",
                "tileloadd tmm5, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm7",
                "add {b}, 4096",
                "add {o}, 8",
                "cmp {o}, {end}",
                "jne 2b";
                o = inout(reg) offsets.as_ptr() => _, end = in(reg) end,
                a0 = in(reg) a.first, s = in(reg) a.stride, low = in(reg) low,
                b = inout(reg) b => _, sb = in(reg) 64usize, t0 = out(reg) _,
            ),
            (false, false, false) => tiles!(
                "2:",
                "mov {t0}, [{o}]",
                "add {t0}, {a0}",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {t0}, {low}",
                "tileloadd tmm7, [{b} + {sb} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{t0} + {s}]",
                "tdpbf16ps tmm0, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm7",
                "add {b}, 2048",
                "add {o}, 8",
                "cmp {o}, {end}",
                "jne 2b";
                o = inout(reg) offsets.as_ptr() => _, end = in(reg) end,
                a0 = in(reg) a.first, s = in(reg) a.stride, low = in(reg) low,
                b = inout(reg) b => _, sb = in(reg) 64usize, t0 = out(reg) _,
            ),
        }
        asm!(
            "tilestored [{c0} + {s}], tmm0", "tilestored [{c1} + {s}], tmm1",
            c0 = in(reg) c0, c1 = in(reg) c1, s = in(reg) 128usize, options(nostack)
        );
        if m > 16 {
            asm!(
                "tilestored [{c2} + {s}], tmm2", "tilestored [{c3} + {s}], tmm3",
                c2 = in(reg) c2, c3 = in(reg) c3, s = in(reg) 128usize, options(nostack)
            );
        }
    }
}

/// Sums of products of bytes, for 16 or 32 rows (by `m`) of `a`, `pitch` bytes apart, and one panel: four channels of each
/// output side by side, `steps` times 64 channels.
pub(super) fn tile_bytes(
    _tiles: &Tiles,
    m: usize,
    a: &[u8],
    pitch: usize,
    (b, steps): (&[u8], usize),
    sums: &mut [[i32; WIDTH]; ROWS],
) {
    let rows = if m > 16 { ROWS } else { 16 };
    assert!(m <= ROWS && steps > 0 && a.len() >= (rows - 1) * pitch + 64 * steps);
    assert!(b.len() >= 64 * WIDTH * steps && has_bytes());
    let c0 = sums.as_mut_ptr().cast::<u8>();
    let (c1, c2, c3) = (
        c0.wrapping_add(64),
        c0.wrapping_add(16 * 128),
        c0.wrapping_add(16 * 128 + 64),
    );
    let (a0, a1) = (a.as_ptr(), a.as_ptr().wrapping_add(16 * pitch));
    // SAFETY: each step reads 64 bytes of 16 or 32 rows of `a` and 16 lines of 128 bytes of `b`, whose lengths were checked;
    // the sums have 128 bytes for each of 32 rows.
    unsafe {
        if m > 16 {
            tiles!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:",
                "tileloadd tmm6, [{b} + {sb}]",
                "tileloadd tmm4, [{a0} + {s}]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a1} + {s}]",
                "tdpbssd tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {sb} + 64]",
                "add {a0}, 64",
                "tdpbssd tmm1, tmm4, tmm7",
                "add {a1}, 64",
                "tdpbssd tmm3, tmm5, tmm7",
                "add {b}, 2048",
                "dec {n}",
                "jne 2b",
                "tilestored [{c0} + {sb}], tmm0", "tilestored [{c1} + {sb}], tmm1",
                "tilestored [{c2} + {sb}], tmm2", "tilestored [{c3} + {sb}], tmm3";
                a0 = inout(reg) a0 => _, a1 = inout(reg) a1 => _, s = in(reg) pitch,
                b = inout(reg) b.as_ptr() => _, sb = in(reg) 128usize, n = inout(reg) steps => _,
                c0 = in(reg) c0, c1 = in(reg) c1, c2 = in(reg) c2, c3 = in(reg) c3,
            );
        } else {
            tiles!(
                "tilezero tmm0", "tilezero tmm1",
                "2:",
                "tileloadd tmm4, [{a0} + {s}]",
                "tileloadd tmm6, [{b} + {sb}]",
                "tdpbssd tmm0, tmm4, tmm6",
                "add {a0}, 64",
                "tileloadd tmm7, [{b} + {sb} + 64]",
                "tdpbssd tmm1, tmm4, tmm7",
                "add {b}, 2048",
                "dec {n}",
                "jne 2b",
                "tilestored [{c0} + {sb}], tmm0", "tilestored [{c1} + {sb}], tmm1";
                a0 = inout(reg) a0 => _, s = in(reg) pitch,
                b = inout(reg) b.as_ptr() => _, sb = in(reg) 128usize, n = inout(reg) steps => _,
                c0 = in(reg) c0, c1 = in(reg) c1,
            );
        }
    }
}

/// Splits values into two bf16 parts, or three; the parts of the missing values up to a multiple of [`DEPTH`] are zero.
///
/// # Safety
/// The machine has the tiles (and with them these vectors); all the parts have room for the values rounded up.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn split(values: &[f32], high: *mut u16, low: *mut u16, third: Option<*mut u16>) {
    for (i, part) in values.chunks(DEPTH).enumerate() {
        let at = i * DEPTH;
        // SAFETY: 32 values; a shorter part is read under a mask.
        unsafe {
            let (x0, x1) = if part.len() == DEPTH {
                (
                    _mm512_loadu_ps(part.as_ptr()),
                    _mm512_loadu_ps(part.as_ptr().add(16)),
                )
            } else {
                let mask = (1u32 << part.len()) - 1;
                (
                    _mm512_maskz_loadu_ps(mask as u16, part.as_ptr()),
                    _mm512_maskz_loadu_ps((mask >> 16) as u16, part.as_ptr().wrapping_add(16)),
                )
            };
            let h: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(x1, x0));
            let h0 = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(h)));
            let h1 =
                _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(h)));
            let l0 = _mm512_sub_ps(x0, _mm512_castsi512_ps(h0));
            let l1 = _mm512_sub_ps(x1, _mm512_castsi512_ps(h1));
            let l: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(l1, l0));
            _mm512_storeu_si512(high.add(at).cast(), h);
            _mm512_storeu_si512(low.add(at).cast(), l);
            if let Some(third) = third {
                let m0 = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(l)));
                let m1 = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(
                    _mm512_extracti64x4_epi64::<1>(l),
                ));
                let r0 = _mm512_sub_ps(l0, _mm512_castsi512_ps(m0));
                let r1 = _mm512_sub_ps(l1, _mm512_castsi512_ps(m1));
                let r: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(r1, r0));
                _mm512_storeu_si512(third.add(at).cast(), r);
            }
        }
    }
}

/// Weights of [`DEPTH`] channels of a panel in f16 as two tiles of first and two of second parts; missing channels are
/// zero.
///
/// # Safety
/// The machine has the tiles, and `to` has room for a step.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn split_f16(from: &[[u16; WIDTH]], to: *mut u8) {
    let mask = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    let zero = [0u16; WIDTH];
    for pair in 0..DEPTH / 2 {
        let even = from.get(2 * pair).unwrap_or(&zero);
        let odd = from.get(2 * pair + 1).unwrap_or(&zero);
        for half in 0..2 {
            // SAFETY: 16 values of each row, and 64 bytes of a row of each tile.
            unsafe {
                let x0 = _mm512_cvtph_ps(_mm256_loadu_si256(even.as_ptr().add(16 * half).cast()));
                let x1 = _mm512_cvtph_ps(_mm256_loadu_si256(odd.as_ptr().add(16 * half).cast()));
                // 11 bits are 8 and 3: cutting off is exact.
                let (high, low) = cut(x0, x1, mask);
                let to = to.add(half * TILE_BYTES + pair * 64);
                _mm512_store_si512(to.cast(), high);
                _mm512_store_si512(to.add(2 * TILE_BYTES).cast(), low);
            }
        }
    }
}

/// Two rows of values as pairs of first parts and of second parts, both cut off.
#[target_feature(enable = "avx512f")]
#[inline]
fn cut(x0: __m512, x1: __m512, mask: __m512i) -> (__m512i, __m512i) {
    let h0 = _mm512_and_si512(_mm512_castps_si512(x0), mask);
    let h1 = _mm512_and_si512(_mm512_castps_si512(x1), mask);
    let l0 = _mm512_castps_si512(_mm512_sub_ps(x0, _mm512_castsi512_ps(h0)));
    let l1 = _mm512_castps_si512(_mm512_sub_ps(x1, _mm512_castsi512_ps(h1)));
    let high = _mm512_or_si512(h1, _mm512_srli_epi32::<16>(h0));
    let low = _mm512_or_si512(_mm512_and_si512(l1, mask), _mm512_srli_epi32::<16>(l0));
    (high, low)
}

/// The same from f32: first parts are rounded, and so are second ones, where `second` asks for them.
///
/// # Safety
/// The machine has the tiles, and `to` has room for a step.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn split_f32(from: &[Lane], second: bool, to: *mut u8) {
    let zero = [0.0; WIDTH];
    for pair in 0..DEPTH / 2 {
        let even = from.get(2 * pair).unwrap_or(&zero);
        let odd = from.get(2 * pair + 1).unwrap_or(&zero);
        for half in 0..2 {
            // SAFETY: 16 values of each row, and 64 bytes of a row of each tile.
            unsafe {
                let x0 = _mm512_loadu_ps(even.as_ptr().add(16 * half));
                let x1 = _mm512_loadu_ps(odd.as_ptr().add(16 * half));
                let (h0, h1) = (round(x0), round(x1));
                let to = to.add(half * TILE_BYTES + pair * 64);
                _mm512_store_si512(to.cast(), _mm512_or_si512(h0, _mm512_slli_epi32::<16>(h1)));
                if second {
                    let left = |x, h| {
                        round(_mm512_sub_ps(
                            x,
                            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(h)),
                        ))
                    };
                    let (l0, l1) = (left(x0, h0), left(x1, h1));
                    let low = _mm512_or_si512(l0, _mm512_slli_epi32::<16>(l1));
                    _mm512_store_si512(to.add(2 * TILE_BYTES).cast(), low);
                }
            }
        }
    }
}

/// The nearest bf16 of each value, in the low half of its place.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn round(x: __m512) -> __m512i {
    // SAFETY: both are 32 bytes of numbers.
    _mm512_cvtepu16_epi32(unsafe {
        std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x))
    })
}

/// Products of tiles that depend on no memory, to measure the unit: four a round.
pub(super) fn spin(_tiles: &Tiles, rounds: usize) {
    if rounds == 0 {
        return;
    }
    // SAFETY: the tiles are set up, and no memory is touched.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {n}",
            "jne 2b",
            n = inout(reg) rounds => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, nomem),
        );
    }
}
