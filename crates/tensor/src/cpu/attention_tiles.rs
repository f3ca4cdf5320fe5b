//! Attention on the matrix tiles of recent Intel processors.
//!
//! Both products are made of three bf16 products, as in [`super::amx`]; the softmax between them is that of the vector
//! kernel. Scores are (keys, queries) there already, which is how tiles take the second product: pairs of keys next to
//! each other need no turning, only a split into two parts.
//!
//! For scores, the three products are one: keys have the channels (high, low, high) and queries (high, high, low), so
//! that 40 channels fill four steps of 32 and not six.

#![expect(
    unsafe_code,
    reason = "matrix tiles work on memory that the caller names"
)]
#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::arch::x86_64::*;

use rayon::prelude::*;

use super::amx::{self, DEPTH, Tiles};
use super::attention::{Block, KEYS, Sizes, Task, TaskMask};
use super::finish::Lane;
use super::kernel::Rows;
use super::lines::{EMPTY, LINE, Line, SharedPointer};
use super::math::exp2_of_negative;
use super::math_lanes::{Lanes, transpose, x86::F32x16};
use crate::buffer::Buffer;
use crate::error::Result;

/// Queries of a block, and keys of a group: two tiles.
const W: usize = 32;
/// Bytes of one step of two tiles.
const STEP: usize = 2048;
/// Bytes of one step of split exponentials: two tiles of first parts, two of second.
const SPLIT_STEP: usize = 2 * STEP;

/// Keys and values of all heads, split and in tiles.
pub(super) struct Packed {
    keys: Vec<Line>,
    values: Vec<Line>,
    layout: Layout,
}

/// Sizes of one head in tiles.
#[derive(Clone, Copy)]
struct Layout {
    /// Groups of 32 keys, the last one filled with zeros.
    groups: usize,
    /// Steps of 32 channels for the scores.
    steps: usize,
    /// Channels of the values, up to whole tiles.
    rows: usize,
}

impl Layout {
    fn new(s: Sizes) -> Self {
        Self {
            groups: s.keys.div_ceil(W),
            steps: (3 * s.d).div_ceil(DEPTH),
            rows: s.d.next_multiple_of(16),
        }
    }

    fn key_bytes(self) -> usize {
        self.groups * self.steps * STEP
    }

    /// Of the first parts; the second ones follow and take as many.
    fn value_bytes(self) -> usize {
        self.groups * self.rows * 64
    }
}

impl Packed {
    /// `k` and `v` are (batch, keys, heads * d).
    pub(super) fn new(s: Sizes, k: &[f32], v: &[f32]) -> Result<Self> {
        assert!(amx::available(), "the machine has tiles");
        let layout = Layout::new(s);
        let heads = s.batch * s.heads;
        let mut keys = Buffer::filled(heads * layout.key_bytes() / LINE, EMPTY)?.into_vec();
        let mut values = Buffer::filled(heads * 2 * layout.value_bytes() / LINE, EMPTY)?.into_vec();
        let to_keys = SharedPointer::new(keys.as_mut_ptr().cast::<u8>());
        let to_values = SharedPointer::new(values.as_mut_ptr().cast::<u8>());
        let width = s.heads * s.d;
        (0..heads * layout.groups).into_par_iter().for_each(|i| {
            let (head, group) = (i / layout.groups, i % layout.groups);
            let first = (head / s.heads * s.keys + group * W) * width + head % s.heads * s.d;
            let count = W.min(s.keys - group * W);
            let len = (count - 1) * width + s.d;
            // SAFETY: the machine has tiles; each task writes the places of its own group of keys, in the key tiles
            // and in both parts of the value tiles.
            unsafe {
                let k_to = to_keys
                    .get()
                    .add(head * layout.key_bytes() + group * layout.steps * STEP);
                pack_keys(&k[first..first + len], width, s.d, count, k_to);
                let v_to = to_values
                    .get()
                    .add(head * 2 * layout.value_bytes() + group * layout.rows * 64);
                pack_values(
                    &v[first..first + len],
                    width,
                    s.d,
                    count,
                    v_to,
                    v_to.add(layout.value_bytes()),
                );
            }
        });
        Ok(Self {
            keys,
            values,
            layout,
        })
    }

    fn keys_of(&self, head: usize) -> *const u8 {
        self.keys[head * self.layout.key_bytes() / LINE..]
            .as_ptr()
            .cast()
    }

    fn values_of(&self, head: usize) -> *const u8 {
        self.values[head * 2 * self.layout.value_bytes() / LINE..]
            .as_ptr()
            .cast()
    }
}

/// Up to 32 keys: for every step of 32 channels (of first, second and again first parts) 32 rows of 64 bytes.
///
/// # Safety
/// The machine has tiles; `to` has room for all steps, zeros in them.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pack_keys(from: &[f32], from_step: usize, d: usize, count: usize, to: *mut u8) {
    let padded = d.next_multiple_of(DEPTH);
    let mut parts = vec![0u16; 2 * padded];
    let (high, low) = parts.split_at_mut(padded);
    for key in 0..count {
        // SAFETY: both parts have room for the channels rounded up.
        unsafe {
            amx::split(
                &from[key * from_step..][..d],
                high.as_mut_ptr(),
                low.as_mut_ptr(),
                None,
            );
        }
        for (i, part) in [&*high, &*low, &*high].into_iter().enumerate() {
            let mut c = 0;
            while c < d {
                let at = i * d + c;
                let (step, place) = (at / DEPTH, at % DEPTH);
                let run = (DEPTH - place).min(d - c);
                // SAFETY: the step is below their number, the row below 32, and the run ends with the row.
                unsafe {
                    let to = to.add(step * STEP + key * 64 + place * 2);
                    std::ptr::copy_nonoverlapping(part[c..].as_ptr().cast::<u8>(), to, run * 2);
                }
                c += run;
            }
        }
    }
}

/// Up to 32 keys: for every channel 32 keys of 64 bytes, first parts in one place and second ones in another.
///
/// # Safety
/// The machine has tiles; `high` and `low` have room for all channels.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn pack_values(
    from: &[f32],
    from_step: usize,
    d: usize,
    count: usize,
    high: *mut u8,
    low: *mut u8,
) {
    let mut turned = vec![0.0f32; d * W];
    // SAFETY: `from` has `count` rows of `d`, `turned` has `d` rows of 32; places are 64 bytes for each channel.
    unsafe {
        let to = turned.as_mut_ptr();
        transpose::<F32x16>((count, d), from.as_ptr(), from_step, to, W);
        for (c, row) in turned.chunks_exact(W).enumerate() {
            amx::split(row, high.add(c * 64).cast(), low.add(c * 64).cast(), None);
        }
    }
}

/// Runs a task (whose own keys and values are not looked at) with those of a head.
pub(super) fn run(task: &Task<'_>, packed: &Packed, head: usize) {
    let tiles = Tiles::new();
    // SAFETY: there are tiles.
    unsafe { run_blocks(task, packed, head, &tiles) };
}

/// # Safety
/// The machine has tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn run_blocks(task: &Task<'_>, packed: &Packed, head: usize, tiles: &Tiles) {
    let layout = packed.layout;
    let blocks = task.queries.div_ceil(W);
    let lane = size_of::<Lane>();
    let scores_bytes = KEYS * lane;
    let split_bytes = KEYS / W * SPLIT_STEP;
    let state_bytes = (task.d + layout.rows + 2) * lane;
    let block_bytes = state_bytes + layout.steps * STEP;
    // Parts of queries before they are paired; scores are not needed yet.
    let parts_bytes = layout.steps * DEPTH * lane;
    let bytes = (2 * scores_bytes).max(parts_bytes) + split_bytes + blocks * block_bytes;
    let mut scratch = Vec::<Line>::with_capacity(bytes / LINE);
    let place = scratch.as_mut_ptr();
    // SAFETY: the scratch memory has room for all its parts, each of whole lines; what is read has been written. Tiles
    // of keys and values are as `Packed` made them.
    unsafe {
        let split = place.cast::<u8>();
        let scores = place
            .add((split_bytes + blocks * block_bytes) / LINE)
            .cast::<f32>();
        let block = |i: usize| {
            let q = place
                .add((split_bytes + i * block_bytes) / LINE)
                .cast::<f32>();
            let o = q.add(task.d * W);
            let max = o.add(layout.rows * W);
            let sum = max.add(W);
            (Block { q, o, max, sum }, sum.add(W).cast::<u8>())
        };
        for i in 0..blocks {
            let (block, q_tiles) = block(i);
            task.start::<F32x16>(&block, i * W);
            for c in task.d * W..layout.rows * W {
                *block.o.add(c) = 0.0;
            }
            pack_queries(&block, task.d, layout.steps, scores, q_tiles);
        }
        let keys = match task.mask {
            TaskMask::Causal => task.keys.min(task.first + task.queries),
            _ => task.keys,
        };
        let k = packed.keys_of(head);
        let v = packed.values_of(head);
        // Where the steps of one block of keys begin in the values.
        let offsets: [usize; KEYS / W] = std::array::from_fn(|i| i * layout.rows * 64);
        // Rounds: all blocks of queries with some keys, then with the next ones. Scores of the next round are asked for
        // while the exponentials of this one are computed: tiles and vectors work at the same time.
        let rounds = keys.div_ceil(KEYS) * blocks;
        let groups_of = |round: usize| match round {
            _ if round >= rounds => 0,
            _ => KEYS.min(keys - round / blocks * KEYS).div_ceil(W),
        };
        let scores_of = |round: usize| scores.add(round % 2 * KEYS * W);
        let ask = |round: usize, group: usize| {
            let k = k.add((round / blocks * (KEYS / W) + group) * layout.steps * STEP);
            let q = block(round % blocks).1;
            product(
                tiles,
                layout.steps,
                k,
                q,
                scores_of(round).add(group * W * W),
            );
        };
        for group in 0..groups_of(0) {
            ask(0, group);
        }
        for round in 0..rounds {
            let (first_key, i) = (round / blocks * KEYS, round % blocks);
            let count = KEYS.min(keys - first_key);
            let groups = groups_of(round);
            let next_groups = groups_of(round + 1);
            let (block, scores) = (block(i).0, scores_of(round));
            for j in count * W..groups * W * W {
                *scores.add(j) = f32::NEG_INFINITY;
            }
            task.apply_mask::<F32x16>(i * W, first_key, count, scores);
            let (origin, shrink) = new_maximum(&block, groups, scores);
            let mut sums = [F32x16::zero(); 2];
            for group in 0..groups.max(next_groups) {
                if group < next_groups {
                    ask(round + 1, group);
                }
                if group < groups {
                    let to = split.add(group * SPLIT_STEP);
                    exponentials(origin, scores.add(group * W * W), to, &mut sums);
                }
            }
            add_up(&block, layout.rows, shrink, sums);
            let mut c = 0;
            while c < layout.rows {
                let m = W.min(layout.rows - c);
                let a = Rows {
                    first: v.add((first_key / W * layout.rows + c) * 64),
                    stride: 64,
                };
                let a = (a, layout.value_bytes(), false);
                let o = block.o.add(c * W).cast::<Lane>();
                amx::tile(tiles, m, &offsets[..groups], a, (split, true), o, true);
                c += m;
            }
        }
        for i in 0..blocks {
            task.finish::<F32x16>(&block(i).0, i * W);
        }
    }
}

/// Numbers whose upper halves are the nearest bf16; the lower ones are to be ignored.
#[target_feature(enable = "avx512f")]
#[inline]
fn rounded(x: __m512) -> __m512i {
    _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000))
}

/// The bf16 nearest to each number, as f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn high_part(x: __m512) -> __m512 {
    let mask = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    _mm512_castsi512_ps(_mm512_and_si512(rounded(x), mask))
}

/// Pairs of bf16: the upper halves of two numbers.
#[target_feature(enable = "avx512f")]
#[inline]
fn pairs(even: __m512i, odd: __m512i) -> __m512i {
    let mask = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    _mm512_or_si512(_mm512_and_si512(odd, mask), _mm512_srli_epi32::<16>(even))
}

/// Queries of a block as tiles: the channels of first, first and second parts, 32 to a step.
///
/// # Safety
/// The machine has AVX-512; `block.q` is (d, 32), `parts` has room for 32 rows of 32 for each step, `to` for the steps.
#[target_feature(enable = "avx512f")]
unsafe fn pack_queries(block: &Block, d: usize, steps: usize, parts: *mut f32, to: *mut u8) {
    // SAFETY: as promised.
    unsafe {
        for at in 3 * d..steps * DEPTH {
            for half in 0..2 {
                _mm512_storeu_ps(parts.add(at * W + half * 16), _mm512_setzero_ps());
            }
        }
        for c in 0..d {
            for half in (0..W).step_by(16) {
                let q = _mm512_loadu_ps(block.q.add(c * W + half));
                let high = high_part(q);
                _mm512_storeu_ps(parts.add(c * W + half), high);
                _mm512_storeu_ps(parts.add((d + c) * W + half), high);
                let low = high_part(_mm512_sub_ps(q, high));
                _mm512_storeu_ps(parts.add((2 * d + c) * W + half), low);
            }
        }
        for pair in 0..steps * DEPTH / 2 {
            for half in 0..2 {
                let even = parts.add(2 * pair * W + half * 16);
                let both = pairs(
                    _mm512_loadu_si512(even.cast()),
                    _mm512_loadu_si512(even.add(W).cast()),
                );
                let to = to.add(pair / 16 * STEP + half * 1024 + pair % 16 * 64);
                _mm512_storeu_si512(to.cast(), both);
            }
        }
    }
}

/// Scores of 32 keys and 32 queries.
///
/// # Safety
/// `_tiles` belong to this thread; `a` and `b` have `steps` (at least one) steps, `c` has room for 32 by 32 numbers.
#[inline(always)]
unsafe fn product(_tiles: &Tiles, steps: usize, a: *const u8, b: *const u8, c: *mut f32) {
    // SAFETY: as promised: each round reads 2048 bytes of both, and four tiles are written.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {s}]",
            "tileloadd tmm6, [{b} + {s}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {s} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a} + {s} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 2048",
            "add {b}, 2048",
            "dec {n}",
            "jne 2b",
            "add {s}, {s}",
            "tilestored [{c} + {s}], tmm0",
            "tilestored [{c} + {s} + 64], tmm1",
            "tilestored [{c} + {s} + 2048], tmm2",
            "tilestored [{c} + {s} + 2112], tmm3",
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            c = in(reg) c,
            n = inout(reg) steps => _,
            s = inout(reg) 64usize => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// The largest scores so far: where the exponentials of these scores have their origin, and by what earlier ones shrink.
///
/// # Safety
/// The machine has AVX-512; `scores` is (32 * groups, 32).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn new_maximum(
    block: &Block,
    groups: usize,
    scores: *const f32,
) -> ([F32x16; 2], [F32x16; 2]) {
    // SAFETY: as promised.
    unsafe {
        let old = [F32x16::load(block.max), F32x16::load(block.max.add(16))];
        // Four in turn: one would wait for itself.
        let mut tops = [old; 4];
        for j in (0..groups * W).step_by(4) {
            for (k, top) in tops.iter_mut().enumerate() {
                top[0] = top[0].max(F32x16::load(scores.add((j + k) * W)));
                top[1] = top[1].max(F32x16::load(scores.add((j + k) * W + 16)));
            }
        }
        let mut origin = [F32x16::zero(); 2];
        let mut shrink = origin;
        for i in 0..2 {
            let max = (tops[0][i].max(tops[1][i])).max(tops[2][i].max(tops[3][i]));
            max.store(block.max.add(i * 16));
            // While every score is minus infinity, distances are taken from zero.
            origin[i] = max.if_less(F32x16::splat(f32::MIN), F32x16::zero(), max);
            shrink[i] = exp2_of_negative(old[i].sub(origin[i]));
        }
        (origin, shrink)
    }
}

/// Exponentials of the scores of 32 keys, as split pairs of keys, and their sums.
///
/// # Safety
/// The machine has AVX-512; `scores` is (32, 32), `split` has room for a step.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline]
unsafe fn exponentials(
    origin: [F32x16; 2],
    scores: *const f32,
    split: *mut u8,
    sums: &mut [F32x16; 2],
) {
    for pair in 0..16 {
        for i in 0..2 {
            // SAFETY: as promised.
            unsafe {
                let s = scores.add(2 * pair * W + i * 16);
                let even = exp2_of_negative(F32x16::load(s).sub(origin[i]));
                let odd = exp2_of_negative(F32x16::load(s.add(W)).sub(origin[i]));
                sums[i] = sums[i].add(even.add(odd));
                let (even, odd) = (even.vector(), odd.vector());
                let (even_high, odd_high) = (high_part(even), high_part(odd));
                let to = split.add(i * 1024 + pair * 64);
                let high = pairs(
                    _mm512_castps_si512(even_high),
                    _mm512_castps_si512(odd_high),
                );
                _mm512_storeu_si512(to.cast(), high);
                let low = pairs(
                    rounded(_mm512_sub_ps(even, even_high)),
                    rounded(_mm512_sub_ps(odd, odd_high)),
                );
                _mm512_storeu_si512(to.add(STEP).cast(), low);
            }
        }
    }
}

/// Shrinks what is there and adds the new sums.
///
/// # Safety
/// The machine has AVX-512; `block.o` is (rows, 32).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn add_up(block: &Block, rows: usize, shrink: [F32x16; 2], sums: [F32x16; 2]) {
    // SAFETY: as promised.
    unsafe {
        let one = _mm512_set1_ps(1.0);
        for i in 0..2 {
            let sum = block.sum.add(i * 16);
            F32x16::load(sum).mul_add(shrink[i], sums[i]).store(sum);
            if _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(shrink[i].vector(), one) != u16::MAX {
                for c in 0..rows {
                    let o = block.o.add(c * W + i * 16);
                    F32x16::load(o).mul(shrink[i]).store(o);
                }
            }
        }
    }
}
