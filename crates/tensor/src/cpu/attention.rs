//! Attention, block by block: scores of some keys and queries, their softmax so far, and its product with the values.
//!
//! Queries lie side by side in a vector, so everything is computed "transposed": scores are (keys, queries), the result
//! is (channels, queries). Keys and values are then read one number at a time, in their own order and without padding,
//! and the softmax never has to look across a vector. A larger maximum found later shrinks what was added before.

#![expect(
    unsafe_code,
    reason = "vector instructions need pointers and a check that the machine has them"
)]

use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::attention_tiles;
use super::isa::Isa;
use super::math::exp2_of_negative;
use super::math_lanes::{Kernel, Lanes, dispatch, transpose};
use super::output::Output;
use crate::buffer::Buffer;
use crate::cancel::Cancel;
use crate::elements::allocate;
use crate::error::Result;
use crate::tensor::Tensor;

/// Keys of one block: their scores stay in the nearest cache.
pub(super) const KEYS: usize = 128;
/// Queries of one task, which share the reading of keys and values.
const QUERIES: usize = 64;

/// Numbers of keys, and as many of values, that the cache of one core keeps.
const NEAR: usize = 1 << 17;

/// Which keys a query may look at.
#[derive(Clone, Copy)]
pub(crate) enum Masking<'a> {
    None,
    /// Those up to its own position.
    Causal,
    /// Added to the scores. Steps over items, heads and queries; keys are next to each other.
    Add {
        data: &'a [f32],
        steps: [usize; 3],
    },
}

/// Sizes of one call. Tensors are (batch, queries or keys, heads * d).
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) heads: usize,
    /// Channels of one head.
    pub(crate) d: usize,
}

/// Where the tasks find keys and values.
enum Source {
    /// Where they are: rows of one head are far apart.
    InPlace,
    /// Copied together, head by head.
    Packed([Buffer<f32>; 2]),
    #[cfg(target_arch = "x86_64")]
    Tiles(attention_tiles::Packed),
}

impl Source {
    fn new(s: Sizes, tiles: bool, k: &Tensor, v: &Tensor) -> Result<Self> {
        #[cfg(target_arch = "x86_64")]
        if tiles {
            let packed = attention_tiles::Packed::new(s, k.values(), v.values())?;
            return Ok(Self::Tiles(packed));
        }
        debug_assert!(!tiles);
        // Copied once, they are read quickly by all tasks.
        Ok(if s.heads > 1 && s.queries > QUERIES {
            Self::Packed([pack(s, k.values())?, pack(s, v.values())?])
        } else {
            Self::InPlace
        })
    }
}

/// Whether matrix tiles pay off, where the machine has them.
pub(crate) fn suits_tiles(s: Sizes) -> bool {
    s.queries >= 64 && s.keys >= 160
}

/// Softmax of `q k^T * scale` and the mask, times `v`. Tensors are as large as the sizes say; there is a key. `tiles`
/// (where the machine has them) goes with AVX-512.
pub(crate) fn attention(
    (isa, tiles): (Isa, bool),
    s: Sizes,
    [q, k, v]: [&Tensor; 3],
    scale: f32,
    masking: Masking<'_>,
) -> Result<Buffer<f32>> {
    let mut out = Output::new(q.shape())?;
    let width = s.heads * s.d;
    let source = Source::new(s, tiles, k, v)?;
    let per_task = if tiles { 2 * QUERIES } else { QUERIES };
    let groups = s.queries.div_ceil(per_task);
    // Heads of the same queries are neighbours in memory, but all keys of all heads must fit the cache for that order.
    let by_query = s.keys * width <= NEAR;
    let place = out.place();
    let cancel = &Cancel::current();
    (0..s.batch * s.heads * groups)
        .into_par_iter()
        .for_each(|task| {
            cancel.stop();
            let (item, task) = (task / (groups * s.heads), task % (groups * s.heads));
            let (head, group) = if by_query {
                (task % s.heads, task / s.heads)
            } else {
                (task / groups, task % groups)
            };
            let first = group * per_task;
            let (k, v, kv_step) = match &source {
                Source::InPlace => {
                    let at = item * s.keys * width + head * s.d;
                    let len = (s.keys - 1) * width + s.d;
                    (&k.values()[at..][..len], &v.values()[at..][..len], width)
                }
                Source::Packed([k, v]) => {
                    let at = (item * s.heads + head) * s.keys * s.d;
                    let [k, v] = [k, v].map(|t| &t[at..][..s.keys * s.d]);
                    (k, v, s.d)
                }
                #[cfg(target_arch = "x86_64")]
                Source::Tiles(_) => (&[][..], &[][..], 0),
            };
            let at = (item * s.queries + first) * width + head * s.d;
            let queries = per_task.min(s.queries - first);
            let task = Task {
                q: &q.values()[at..][..(queries - 1) * width + s.d],
                q_step: width,
                k,
                v,
                kv_step,
                first,
                queries,
                keys: s.keys,
                d: s.d,
                scale: scale * std::f32::consts::LOG2_E,
                mask: match masking {
                    Masking::None => TaskMask::None,
                    Masking::Causal => TaskMask::Causal,
                    Masking::Add { data, steps } => {
                        let at = item * steps[0] + head * steps[1] + first * steps[2];
                        TaskMask::Add(&data[at..], steps[2])
                    }
                },
                // SAFETY: no other task has these queries of this head.
                out: unsafe { place.at(at) },
            };
            match &source {
                #[cfg(target_arch = "x86_64")]
                Source::Tiles(packed) => {
                    attention_tiles::run(&task, packed, item * s.heads + head);
                }
                _ => dispatch(isa, task),
            }
        });
    // SAFETY: the tasks cover all queries of all heads of all items.
    Ok(unsafe { out.finish() })
}

/// (batch, keys, heads, d) as (batch, heads, keys, d).
fn pack(s: Sizes, x: &[f32]) -> Result<Buffer<f32>> {
    let mut out = allocate(&[x.len()], 0.0)?;
    out.par_chunks_mut(s.keys * s.d)
        .enumerate()
        .for_each(|(i, out)| {
            let (item, head) = (i / s.heads, i % s.heads);
            let width = s.heads * s.d;
            for (key, out) in out.chunks_exact_mut(s.d).enumerate() {
                out.copy_from_slice(&x[(item * s.keys + key) * width + head * s.d..][..s.d]);
            }
        });
    Ok(out)
}

pub(super) enum TaskMask<'a> {
    None,
    Causal,
    /// From the first query of the task on, and the step between queries.
    Add(&'a [f32], usize),
}

/// Some queries of one head and all its keys.
pub(super) struct Task<'a> {
    /// Rows of `d`, `q_step` apart.
    q: &'a [f32],
    q_step: usize,
    /// Rows of `d`, `kv_step` apart.
    k: &'a [f32],
    v: &'a [f32],
    kv_step: usize,
    /// Position of the first query.
    pub(super) first: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) d: usize,
    /// For scores to the base 2.
    scale: f32,
    pub(super) mask: TaskMask<'a>,
    /// Where the row of the first query goes; rows are `q_step` apart.
    out: *mut f32,
}

/// What one vector pair of queries has so far, in the scratch memory of a task.
pub(super) struct Block {
    /// Queries (scaled), (d, W).
    pub(super) q: *mut f32,
    /// Result, (d, W).
    pub(super) o: *mut f32,
    /// Largest score of each query, (W).
    pub(super) max: *mut f32,
    /// Sum of the exponentials of each query, (W).
    pub(super) sum: *mut f32,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let w = 2 * V::N;
        let blocks = self.queries.div_ceil(w);
        let block_len = (2 * self.d + 2) * w;
        let mut scratch = Vec::<f32>::with_capacity(KEYS * w + blocks * block_len);
        let scores = scratch.as_mut_ptr();
        // SAFETY: the caller promises the instruction set. Scratch memory has room for the scores and for all blocks;
        // reading it follows writing it. Rows of `q`, `k`, `v` and `out` are as the fields say.
        unsafe {
            let block = |i: usize| {
                let q = scores.add(KEYS * w + i * block_len);
                Block {
                    q,
                    o: q.add(self.d * w),
                    max: q.add(2 * self.d * w),
                    sum: q.add((2 * self.d + 1) * w),
                }
            };
            for i in 0..blocks {
                self.start::<V>(&block(i), i * w);
            }
            let keys = match self.mask {
                TaskMask::Causal => self.keys.min(self.first + self.queries),
                _ => self.keys,
            };
            let mut first_key = 0;
            while first_key < keys {
                let count = KEYS.min(keys - first_key);
                for i in 0..blocks {
                    let block = block(i);
                    self.scores::<V>(&block, first_key, count, scores);
                    self.apply_mask::<V>(i * w, first_key, count, scores);
                    let shrink = softmax::<V>(&block, count, scores);
                    self.add_values::<V>(&block, first_key, count, scores, shrink);
                }
                first_key += count;
            }
            for i in 0..blocks {
                self.finish::<V>(&block(i), i * w);
            }
        }
    }
}

/// Calls a tile function for the number of rows at hand.
macro_rules! tile {
    (@one $function:ident, $v:ident, $n:literal, ($($argument:expr),*)) => {
        $function::<$v, $n>($($argument),*)
    };
    (@all $rows:expr, $function:ident, $v:ident, $arguments:tt, $($n:literal)*) => {
        match $rows {
            $($n => tile!(@one $function, $v, $n, $arguments),)*
            _ => unreachable!("tiles have at most 12 rows"),
        }
    };
    ($rows:expr, $function:ident::<$v:ident>$arguments:tt) => {
        tile!(@all $rows, $function, $v, $arguments, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
}

/// Rows of a tile: two vectors each, and some registers are left for what is multiplied.
const fn tile_rows<V: Lanes>() -> usize {
    if V::REGISTERS >= 32 { 12 } else { 6 }
}

impl Task<'_> {
    /// # Safety
    /// As for `run`; `block` is inside the scratch memory.
    #[inline(always)]
    pub(super) unsafe fn start<V: Lanes>(&self, block: &Block, from: usize) {
        let w = 2 * V::N;
        // SAFETY: as promised; rows are read for queries that exist only.
        unsafe {
            let rows = w.min(self.queries - from);
            let q = self.q.as_ptr().add(from * self.q_step);
            transpose::<V>((rows, self.d), q, self.q_step, block.q, w);
            // Queries that do not exist are zeros, so that they are nothing unusual.
            for i in rows..w {
                for c in 0..self.d {
                    *block.q.add(c * w + i) = 0.0;
                }
            }
            let scale = V::splat(self.scale);
            for i in 0..self.d * 2 {
                let q = block.q.add(i * V::N);
                V::load(q).mul(scale).store(q);
            }
            for i in 0..self.d * 2 {
                V::zero().store(block.o.add(i * V::N));
            }
            for i in 0..2 {
                V::splat(f32::NEG_INFINITY).store(block.max.add(i * V::N));
                V::zero().store(block.sum.add(i * V::N));
            }
        }
    }

    /// # Safety
    /// As for `run`; the keys exist.
    #[inline(always)]
    unsafe fn scores<V: Lanes>(&self, block: &Block, key: usize, count: usize, scores: *mut f32) {
        let w = 2 * V::N;
        // SAFETY: as promised.
        unsafe {
            let mut j = 0;
            while j < count {
                let rows = tile_rows::<V>().min(count - j);
                let k = self.k.as_ptr().add((key + j) * self.kv_step);
                let s = scores.add(j * w);
                tile!(rows, score_tile::<V>(self.d, k, self.kv_step, block.q, s));
                j += rows;
            }
        }
    }

    /// # Safety
    /// As for `run`; the scores have been written.
    #[inline(always)]
    pub(super) unsafe fn apply_mask<V: Lanes>(
        &self,
        from: usize,
        key: usize,
        count: usize,
        s: *mut f32,
    ) {
        let w = 2 * V::N;
        let queries = w.min(self.queries - from);
        match self.mask {
            TaskMask::None => {}
            TaskMask::Causal => {
                for i in 0..queries {
                    let allowed = self.first + from + i + 1;
                    for j in allowed.saturating_sub(key)..count {
                        // SAFETY: `j` is below `count` and `i` below `w`.
                        unsafe { *s.add(j * w + i) = f32::NEG_INFINITY };
                    }
                }
            }
            TaskMask::Add(mask, step) => {
                for i in 0..queries {
                    let row = &mask[(from + i) * step + key..][..count];
                    for (j, &m) in row.iter().enumerate() {
                        // The smallest f32 is a common mask: to the base 2 it must not become infinite.
                        let added = if m >= f32::MIN {
                            (m * std::f32::consts::LOG2_E).max(f32::MIN)
                        } else {
                            m
                        };
                        // SAFETY: `j` is below `count` and `i` below `w`.
                        unsafe { *s.add(j * w + i) += added };
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for `run`; the scores are exponentials now.
    #[inline(always)]
    unsafe fn add_values<V: Lanes>(
        &self,
        block: &Block,
        key: usize,
        count: usize,
        scores: *const f32,
        shrink: [V; 2],
    ) {
        let w = 2 * V::N;
        // SAFETY: as promised.
        unsafe {
            let mut c = 0;
            while c < self.d {
                let rows = tile_rows::<V>().min(self.d - c);
                let v = self.v.as_ptr().add(key * self.kv_step + c);
                let o = block.o.add(c * w);
                tile!(
                    rows,
                    value_tile::<V>(count, v, self.kv_step, scores, o, shrink)
                );
                c += rows;
            }
        }
    }

    /// # Safety
    /// As for `run`; all keys have been added.
    #[inline(always)]
    pub(super) unsafe fn finish<V: Lanes>(&self, block: &Block, from: usize) {
        let w = 2 * V::N;
        // SAFETY: as promised; rows are written for queries that exist only.
        unsafe {
            for i in 0..2 {
                let max = V::load(block.max.add(i * V::N));
                let share = V::splat(1.0).div(V::load(block.sum.add(i * V::N)));
                // No key was allowed: nothing divided by nothing.
                let share = max.if_less(V::splat(f32::MIN), V::splat(f32::NAN), share);
                for c in 0..self.d {
                    let o = block.o.add(c * w + i * V::N);
                    V::load(o).mul(share).store(o);
                }
            }
            let rows = w.min(self.queries - from);
            let out = self.out.add(from * self.q_step);
            transpose::<V>((self.d, rows), block.o, w, out, self.q_step);
        }
    }
}

/// Scores of `M` keys and two vectors of queries.
///
/// # Safety
/// The machine has the instruction set; `k` has `M` rows of `d`, `q` is (d, W), `s` has room for (M, W).
#[inline(always)]
unsafe fn score_tile<V: Lanes, const M: usize>(
    d: usize,
    k: *const f32,
    step: usize,
    q: *const f32,
    s: *mut f32,
) {
    // SAFETY: as promised.
    unsafe {
        let mut sums = [[V::zero(); 2]; M];
        for c in 0..d {
            let q0 = V::load(q.add(c * 2 * V::N));
            let q1 = V::load(q.add((c * 2 + 1) * V::N));
            for (i, sum) in sums.iter_mut().enumerate() {
                let k = V::splat(*k.add(i * step + c));
                sum[0] = k.mul_add(q0, sum[0]);
                sum[1] = k.mul_add(q1, sum[1]);
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            sum[0].store(s.add(i * 2 * V::N));
            sum[1].store(s.add((i * 2 + 1) * V::N));
        }
    }
}

/// Adds `count` keys to `M` channels of the result, after shrinking what is there.
///
/// # Safety
/// The machine has the instruction set; `v` has `count` rows of `M`, `p` is (count, W), `o` is (M, W).
#[inline(always)]
unsafe fn value_tile<V: Lanes, const M: usize>(
    count: usize,
    v: *const f32,
    step: usize,
    p: *const f32,
    o: *mut f32,
    shrink: [V; 2],
) {
    // SAFETY: as promised.
    unsafe {
        let mut sums = [[V::zero(); 2]; M];
        for (i, sum) in sums.iter_mut().enumerate() {
            sum[0] = V::load(o.add(i * 2 * V::N)).mul(shrink[0]);
            sum[1] = V::load(o.add((i * 2 + 1) * V::N)).mul(shrink[1]);
        }
        for j in 0..count {
            let p0 = V::load(p.add(j * 2 * V::N));
            let p1 = V::load(p.add((j * 2 + 1) * V::N));
            for (i, sum) in sums.iter_mut().enumerate() {
                let v = V::splat(*v.add(j * step + i));
                sum[0] = v.mul_add(p0, sum[0]);
                sum[1] = v.mul_add(p1, sum[1]);
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            sum[0].store(o.add(i * 2 * V::N));
            sum[1].store(o.add((i * 2 + 1) * V::N));
        }
    }
}

/// Turns scores into exponentials of their distance to the largest one so far; gives the factors by which earlier sums
/// shrink.
///
/// # Safety
/// The machine has the instruction set; `scores` is (count, W).
#[inline(always)]
unsafe fn softmax<V: Lanes>(block: &Block, count: usize, scores: *mut f32) -> [V; 2] {
    // SAFETY: as promised.
    unsafe {
        let old = [V::load(block.max), V::load(block.max.add(V::N))];
        // Two pairs in turn: one would wait for itself.
        let mut tops = [old; 2];
        for j in 0..count {
            for i in 0..2 {
                let top = &mut tops[j % 2][i];
                *top = top.max(V::load(scores.add((j * 2 + i) * V::N)));
            }
        }
        let max = [tops[0][0].max(tops[1][0]), tops[0][1].max(tops[1][1])];
        let mut shrink = [V::zero(); 2];
        let mut origin = [V::zero(); 2];
        let mut sum = [V::zero(); 2];
        for i in 0..2 {
            max[i].store(block.max.add(i * V::N));
            // While every score is minus infinity, distances are taken from zero.
            origin[i] = max[i].if_less(V::splat(f32::MIN), V::zero(), max[i]);
            shrink[i] = exp2_of_negative(old[i].sub(origin[i]));
        }
        for j in 0..count {
            for i in 0..2 {
                let s = scores.add((j * 2 + i) * V::N);
                let e = exp2_of_negative(V::load(s).sub(origin[i]));
                e.store(s);
                sum[i] = sum[i].add(e);
            }
        }
        for i in 0..2 {
            let s = block.sum.add(i * V::N);
            V::load(s).mul_add(shrink[i], sum[i]).store(s);
        }
        shrink
    }
}

/// The sum of products of two slices of one length.
pub(crate) fn dot(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    dispatch(isa, Dot(a, b))
}

struct Dot<'a>(&'a [f32], &'a [f32]);

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> f32 {
        let n = self.0.len();
        let (a, b) = (self.0.as_ptr(), self.1.as_ptr());
        // SAFETY: the caller promises the instruction set; both slices have `n` numbers.
        unsafe {
            let mut sum = V::zero();
            let mut i = 0;
            while i < n {
                let part = V::N.min(n - i);
                sum = V::load_part(a.add(i), part).mul_add(V::load_part(b.add(i), part), sum);
                i += part;
            }
            sum.sum()
        }
    }
}
