//! Writing block formats of GGUF files.
//!
//! How scales are chosen follows llama.cpp's plain quantisers (`ggml-quants.c`, MIT licence; see NOTICE), without the
//! importance of single weights, which needs prompts.

use rayon::prelude::*;

use crate::convert::{f16_to_f32, f32_to_f16};
use crate::dtype::Dtype;

/// Groups that are weaker than this are zeros.
const NOTHING: f32 = 1e-15;

/// The formats that are written.
pub(crate) fn is_writable(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::Q8_0
            | Dtype::Q4_0
            | Dtype::Q4_1
            | Dtype::Q5_0
            | Dtype::Q5_1
            | Dtype::Q4K
            | Dtype::Q5K
            | Dtype::Q6K
    )
}

/// Values in whole blocks of a format; none where they are not whole blocks or nothing here writes it.
pub(crate) fn encode(dtype: Dtype, values: &[f32]) -> Option<Vec<u8>> {
    match dtype {
        Dtype::Q8_0 => each(values, q8_0),
        Dtype::Q4_0 => each(values, q4_0),
        Dtype::Q4_1 => each(values, q4_1),
        Dtype::Q5_0 => each(values, q5_0),
        Dtype::Q5_1 => each(values, q5_1),
        Dtype::Q4K => each(values, q4_k),
        Dtype::Q5K => each(values, q5_k),
        Dtype::Q6K => each(values, q6_k),
        _ => None,
    }
}

fn each<const E: usize, const B: usize>(
    values: &[f32],
    block: impl Fn(&[f32; E], &mut [u8; B]) + Sync,
) -> Option<Vec<u8>> {
    let (values, rest) = values.as_chunks::<E>();
    if !rest.is_empty() {
        return None;
    }
    let mut out = vec![0; values.len() * B];
    let pairs = out.as_chunks_mut::<B>().0.par_iter_mut().zip(values);
    pairs
        .with_min_len(64)
        .for_each(|(out, values)| block(values, out));
    Some(out)
}

fn put_half(out: &mut [u8], at: usize, value: f32) {
    out[at..at + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The value farthest from zero, with its sign.
fn farthest(values: &[f32]) -> f32 {
    values
        .iter()
        .fold(0.0f32, |far, v| if v.abs() > far.abs() { *v } else { far })
}

fn range(values: &[f32]) -> (f32, f32) {
    let ends = (f32::INFINITY, f32::NEG_INFINITY);
    values
        .iter()
        .fold(ends, |(low, high), v| (low.min(*v), high.max(*v)))
}

fn q8_0(values: &[f32; 32], out: &mut [u8; 34]) {
    let d = farthest(values).abs() / 127.0;
    put_half(out, 0, d);
    let by = inverse(d);
    for (q, value) in out[2..].iter_mut().zip(values) {
        *q = (value * by).round() as i8 as u8;
    }
}

/// Four bits of 32 values: the first 16 in the lower halves.
fn put_fours(out: &mut [u8], code: impl Fn(usize) -> u8) {
    for (j, q) in out.iter_mut().enumerate() {
        *q = code(j) & 0xF | code(j + 16) << 4;
    }
}

fn q4_0(values: &[f32; 32], out: &mut [u8; 18]) {
    let d = farthest(values) / -8.0;
    put_half(out, 0, d);
    let by = inverse(d);
    put_fours(&mut out[2..], |i| {
        (values[i] * by + 8.5).clamp(0.0, 15.0) as u8
    });
}

fn q4_1(values: &[f32; 32], out: &mut [u8; 20]) {
    let (low, high) = range(values);
    let d = (high - low) / 15.0;
    put_half(out, 0, d);
    put_half(out, 2, low);
    let by = inverse(d);
    put_fours(&mut out[4..], |i| {
        ((values[i] - low) * by + 0.5).clamp(0.0, 15.0) as u8
    });
}

/// The fifth bits of 32 values.
fn fifth_bits(code: impl Fn(usize) -> u8) -> [u8; 4] {
    let bits = (0..32).fold(0u32, |bits, i| bits | u32::from(code(i) >> 4 & 1) << i);
    bits.to_le_bytes()
}

fn q5_0(values: &[f32; 32], out: &mut [u8; 22]) {
    let d = farthest(values) / -16.0;
    put_half(out, 0, d);
    let by = inverse(d);
    let code = |i: usize| (values[i] * by + 16.5).clamp(0.0, 31.0) as u8;
    out[2..6].copy_from_slice(&fifth_bits(code));
    put_fours(&mut out[6..], code);
}

fn q5_1(values: &[f32; 32], out: &mut [u8; 24]) {
    let (low, high) = range(values);
    let d = (high - low) / 31.0;
    put_half(out, 0, d);
    put_half(out, 2, low);
    let by = inverse(d);
    let code = |i: usize| ((values[i] - low) * by + 0.5).clamp(0.0, 31.0) as u8;
    out[4..8].copy_from_slice(&fifth_bits(code));
    put_fours(&mut out[8..], code);
}

/// What is tried for the scale of a group with a minimum: numbers of steps around the largest code.
struct Search {
    most: f32,
    from: f32,
    steps: u32,
}

/// The scale and the minimum (below zero, given as its size) with which whole numbers from zero up come nearest to a group.
fn scale_and_minimum(values: &[f32; 32], search: &Search) -> (f32, f32) {
    let square: f32 = values.iter().map(|v| v * v).sum();
    let typical = (square / 32.0).sqrt();
    let weights = values.map(|v| typical + v.abs());
    let (low, high) = range(values);
    let low = low.min(0.0);
    if high <= low {
        return (0.0, -low);
    }
    let total: f32 = weights.iter().sum();
    let sum: f32 = weights.iter().zip(values).map(|(w, v)| w * v).sum();
    let codes =
        |by: f32| values.map(|v| (by * (v - low)).round_ties_even().clamp(0.0, search.most));
    let off = |codes: &[f32; 32], scale: f32, min: f32| -> f32 {
        let parts = codes.iter().zip(values).zip(&weights);
        parts
            .map(|((c, v), w)| w * (scale * c + min - v).powi(2))
            .sum()
    };
    let by = search.most / (high - low);
    let mut best = (1.0 / by, low);
    let mut error = off(&codes(by), best.0, best.1);
    for step in 0..=search.steps {
        let by = (search.from + 0.1 * step as f32 + search.most) / (high - low);
        let codes = codes(by);
        let (mut one, mut two, mut with) = (0.0, 0.0, 0.0);
        for ((code, value), weight) in codes.iter().zip(values).zip(&weights) {
            one += weight * code;
            two += weight * code * code;
            with += weight * code * value;
        }
        let determinant = total * two - one * one;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (total * with - sum * one) / determinant;
        let mut min = (two * sum - one * with) / determinant;
        if min > 0.0 {
            (scale, min) = (with / two, 0.0);
        }
        let tried = off(&codes, scale, min);
        if tried < error {
            (best, error) = ((scale, min), tried);
        }
    }
    (best.0, -best.1)
}

/// Scales and minima of eight groups in six bits each, and the codes of all values.
fn groups(values: &[f32; 256], search: &Search, head: &mut [u8]) -> [u8; 256] {
    let (groups, _) = values.as_chunks::<32>();
    let found: Vec<(f32, f32)> = groups
        .iter()
        .map(|group| scale_and_minimum(group, search))
        .collect();
    let most = |of: fn(&(f32, f32)) -> f32| found.iter().map(of).fold(0.0, f32::max);
    let (scale, min) = (most(|f| f.0), most(|f| f.1));
    put_half(head, 0, scale / 63.0);
    put_half(head, 2, min / 63.0);
    let rounded = |at: usize| f16_to_f32(u16::from_le_bytes([head[at], head[at + 1]]));
    let (d, dmin) = (rounded(0), rounded(2));
    let mut codes = [0; 256];
    for (j, (group, found)) in groups.iter().zip(&found).enumerate() {
        let six = |value: f32, most: f32| {
            let wanted = if most > 0.0 { 63.0 / most * value } else { 0.0 };
            wanted.round_ties_even().clamp(0.0, 63.0) as u8
        };
        let (s, m) = (six(found.0, scale), six(found.1, min));
        let packed = &mut head[4..];
        if j < 4 {
            packed[j] = s;
            packed[j + 4] = m;
        } else {
            packed[j + 4] = s & 0xF | (m & 0xF) << 4;
            packed[j - 4] |= s >> 4 << 6;
            packed[j] |= m >> 4 << 6;
        }
        let (scale, min) = (d * f32::from(s), dmin * f32::from(m));
        if scale == 0.0 {
            continue;
        }
        for (code, value) in codes[32 * j..].iter_mut().zip(group) {
            let whole = ((value + min) / scale).round_ties_even();
            *code = whole.clamp(0.0, search.most) as u8;
        }
    }
    codes
}

/// Two groups in each 32 bytes.
fn put_pairs(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.chunks(64).zip(out.chunks_mut(32)) {
        for (l, q) in out.iter_mut().enumerate() {
            *q = codes[l] & 0xF | (codes[l + 32] & 0xF) << 4;
        }
    }
}

fn q4_k(values: &[f32; 256], out: &mut [u8; 144]) {
    let search = Search {
        most: 15.0,
        from: -1.0,
        steps: 20,
    };
    let (head, quants) = out.split_at_mut(16);
    let codes = groups(values, &search, head);
    put_pairs(&codes, quants);
}

fn q5_k(values: &[f32; 256], out: &mut [u8; 176]) {
    let search = Search {
        most: 31.0,
        from: -0.5,
        steps: 15,
    };
    let (head, rest) = out.split_at_mut(16);
    let (high, quants) = rest.split_at_mut(32);
    let codes = groups(values, &search, head);
    put_pairs(&codes, quants);
    for (i, code) in codes.iter().enumerate() {
        high[i % 32] |= (code >> 4) << (i / 32);
    }
}

/// The scale with which whole numbers from -32 to 31 come nearest to a group, large values the more.
fn scale_of(values: &[f32; 16]) -> f32 {
    let far = farthest(values);
    if far.abs() < NOTHING {
        return 0.0;
    }
    let fit = |by: f32| {
        let parts = values.iter().map(|v| {
            let code = (by * v).round_ties_even().clamp(-32.0, 31.0);
            let weight = v * v;
            (weight * v * code, weight * code * code)
        });
        parts.fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
    };
    let (with, two) = fit(-32.0 / far);
    let mut scale = if two > 0.0 { with / two } else { 0.0 };
    let mut best = scale * with;
    for step in -9i8..=9 {
        let (with, two) = fit(-(32.0 + 0.1 * f32::from(step)) / far);
        if two > 0.0 && with * with > best * two {
            scale = with / two;
            best = scale * with;
        }
    }
    scale
}

fn q6_k(values: &[f32; 256], out: &mut [u8; 210]) {
    let (groups, _) = values.as_chunks::<16>();
    let scales: Vec<f32> = groups.iter().map(scale_of).collect();
    let far = farthest(&scales);
    if far.abs() < NOTHING {
        return;
    }
    let by = -128.0 / far;
    put_half(out, 208, 1.0 / by);
    let d = f16_to_f32(u16::from_le_bytes([out[208], out[209]]));
    let mut codes = [0u8; 256];
    for (j, (group, scale)) in groups.iter().zip(&scales).enumerate() {
        let rounded = (by * scale).round_ties_even().clamp(-128.0, 127.0);
        out[192 + j] = rounded as i8 as u8;
        let scale = d * rounded;
        for (code, value) in codes[16 * j..].iter_mut().zip(group) {
            let whole = if scale == 0.0 {
                0.0
            } else {
                (value / scale).round_ties_even()
            };
            *code = (whole.clamp(-32.0, 31.0) + 32.0) as u8;
        }
    }
    for (part, codes) in codes.chunks(128).enumerate() {
        for l in 0..32 {
            let four = |i: usize| codes[l + 32 * i] & 0xF;
            out[64 * part + l] = four(0) | four(2) << 4;
            out[64 * part + l + 32] = four(1) | four(3) << 4;
            let two = |i: usize| codes[l + 32 * i] >> 4 << (2 * i);
            out[128 + 32 * part + l] = two(0) | two(1) | two(2) | two(3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    #[test]
    fn what_is_written_is_near() {
        let values = synthetic::value("blocks", &[8, 256], 0.7).unwrap();
        for (dtype, bound) in [
            (Dtype::Q8_0, 0.006),
            (Dtype::Q4_0, 0.09),
            (Dtype::Q4_1, 0.08),
            (Dtype::Q5_0, 0.05),
            (Dtype::Q5_1, 0.04),
            (Dtype::Q4K, 0.08),
            (Dtype::Q5K, 0.04),
            (Dtype::Q6K, 0.025),
        ] {
            let bytes = dtype.encode(values.data()).unwrap();
            assert_eq!(Some(bytes.len()), dtype.bytes_for(values.len()));
            let back = dtype.to_f32(&bytes);
            let pairs = back.iter().zip(values.data());
            let off: f32 = pairs.map(|(a, b)| (a - b).powi(2)).sum();
            let of: f32 = values.data().iter().map(|v| v * v).sum();
            let error = (off / of).sqrt();
            assert!(error < bound && error > bound / 8.0, "{dtype:?}: {error}");
            let zeros = dtype.encode(&[0.0; 256]).unwrap();
            assert!(dtype.to_f32(&zeros).iter().all(|v| *v == 0.0), "{dtype:?}");
            let same = dtype.encode(&[0.25; 256]).unwrap();
            for v in dtype.to_f32(&same) {
                assert!((v - 0.25).abs() < 0.01, "{dtype:?}: {v}");
            }
        }
    }
}
